"""The Dockerfile and the systemd unit, as far as they can be checked without either."""

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from longtail.cli import main
from testing.tiny import ROOT

LINES = (ROOT / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ").splitlines()


def instructions(name: str) -> list[str]:
    """What stands behind each of these instructions."""
    return [line.split(None, 1)[1] for line in LINES if line.split(None, 1)[:1] == [name]]


def copied() -> list[tuple[list[str], str]]:
    """(sources, target) of each COPY from the repository."""
    words = [shlex.split(line) for line in instructions("COPY") if "--from" not in line]
    return [(sources, target) for *sources, target in words]


def allowed(name: str) -> bool:
    """Whether .dockerignore lets this name into the build: all is left out but what is named with a `!`."""
    lines = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    named = [line[1:] for line in lines if line.startswith("!")]
    return "*" in lines and any(name == one or name.startswith(f"{one}/") for one in named)


def check_command(words: list[str]) -> None:
    """`xc` takes these words, without doing what they ask for."""
    assert Path(words[0]).name == "xc"
    context = main.make_context("xc", list(words[1:]), resilient_parsing=True)
    name, command, rest = main.resolve_command(context, words[1:])
    assert command is not None
    command.make_context(name, rest)  # refuses an unknown option, and a value that is none


def test_what_is_copied_is_there_and_gets_into_the_build():
    sources = [source for group, _ in copied() for source in group]
    assert {"pyproject.toml", "constraints.txt", "longtail", "xcutils"} <= set(sources)
    for source in sources:
        assert (ROOT / source).exists() and allowed(source), source


def test_what_is_copied_is_enough_to_build_the_wheel(tmp_path):
    for sources, target in copied():
        for source in sources:
            place = tmp_path / (f"{target}/{Path(source).name}" if target.endswith("/") else target)
            place.parent.mkdir(parents=True, exist_ok=True)
            copy = shutil.copytree if (ROOT / source).is_dir() else shutil.copyfile
            options = {"ignore": shutil.ignore_patterns("__pycache__", "data")} if copy is shutil.copytree else {}
            copy(ROOT / source, place, **options)
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", tmp_path / "dist", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(list((tmp_path / "dist").iterdir())) == 1


def test_the_image_is_of_a_python_that_the_package_takes():
    images = {line.split()[0] for line in instructions("FROM")}
    assert len(images) == 1
    (version,) = re.findall(r"^python:3\.(\d+)-slim$", images.pop())
    asked = re.search(r'requires-python = ">=3\.(\d+)"', (ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    pinned = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()[0]
    first, last = map(int, re.search(r"Python 3\.(\d+) to 3\.(\d+)", pinned).groups())
    assert int(asked[1]) <= int(version) and first <= int(version) <= last


def test_the_commands_of_the_image_are_understood():
    (entry,), (more,), (health,) = instructions("ENTRYPOINT"), instructions("CMD"), instructions("HEALTHCHECK")
    check_command(json.loads(entry) + json.loads(more))
    check = json.loads(health.partition("CMD ")[2])
    assert check[:2] == ["python", "-c"]
    compile(check[2], "HEALTHCHECK", "exec")
    assert "--port 8000" in " ".join(json.loads(entry)) and ":8000/ready" in check[2]
    assert instructions("EXPOSE") == ["8000"] and instructions("USER") == ["longtail"]


def test_the_shell_commands_of_the_image_are_understood():
    for line in instructions("RUN"):
        done = subprocess.run(["sh", "-n", "-c", line], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


def test_the_compiler_is_in_the_first_stage_alone():
    """hnswlib comes as source, and the slim image has no compiler."""
    text = "\n".join(LINES)
    first, last = text.index("AS build"), text.rindex("FROM ")
    assert re.search(r"apt-get install .*\bg\+\+", text[first : text.index("bin/pip install")])
    assert "apt-get" not in text[last:] and "bin/pip" not in text[last:]


def test_nothing_is_fetched_but_from_the_package_index():
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    assert not re.findall(r"curl|wget|git clone|https://|--index-url|\bADD\b", text)


@pytest.fixture
def unit() -> str:
    page = (ROOT / "docs/service.md").read_text(encoding="utf-8")
    return re.search(r"```ini\n(.*?)```", page, flags=re.DOTALL)[1]


def test_the_unit_starts_and_reloads_the_service(unit):
    facts = dict(line.split("=", 1) for line in unit.splitlines() if "=" in line)
    check_command(shlex.split(facts["ExecStart"]))
    assert "-HUP" in facts["ExecReload"] and int(facts["TimeoutStopSec"]) > 30


def test_the_unit_is_what_systemd_takes(unit, tmp_path):
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd is not here")
    file = tmp_path / "longtail.service"
    file.write_text(unit.replace("/opt/longtail/bin/xc", shutil.which("true")))
    done = subprocess.run(["systemd-analyze", "verify", file], capture_output=True, text=True)
    assert "Unknown" not in done.stderr
