"""The wheel: what is in it, and that `xc` works from it in a folder that has nothing of the repository."""

import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest

import longtail
from longtail.cli import main
from testing.tiny import ROOT, invoke, load_yaml

PACKAGES = ("longtail", "stages", "unidec", "xcutils")
SHARED = (
    "constraints.txt",
    "dvc.yaml",
    "params.yaml",
    "unidec/dvc.yaml",
    "unidec/params.yaml",
    "data/raw/hpo/dataset.yaml",
)
LICENCES = {"BSD-3-Clause": "BSD License", "Apache-2.0": "Apache Software License"}  # SPDX -> a classifier


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """The wheel, built without the network from a copy of the repository."""
    source, out = tmp_path_factory.mktemp("source") / "longtail", tmp_path_factory.mktemp("dist")
    left_out = shutil.ignore_patterns(".*", "__pycache__", "build", "dist", "*.egg-info")

    def ignore(folder: str, names: list[str]) -> set[str]:
        runs = {"data"} if Path(folder) in (ROOT, ROOT / "unidec") else set()
        return left_out(folder, names) | runs

    shutil.copytree(ROOT, source, ignore=ignore)
    shutil.copytree(ROOT / "data/raw/hpo", source / "data/raw/hpo")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", out, source]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (made,) = out.iterdir()
    return made


@pytest.fixture(scope="module")
def xc(wheel, tmp_path_factory):
    """`xc` of a new environment that has the wheel, and beside it only what the tests' environment has installed."""
    home = tmp_path_factory.mktemp("environment")
    venv.create(home)
    own = sysconfig.get_path("purelib", vars={"base": str(home), "platbase": str(home)})
    Path(own, "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")  # its .pth files are not read
    pip = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        home / "bin" / "python",
        "install",
        "--no-deps",
        "--no-index",
        wheel,
    ]
    done = subprocess.run(pip, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}

    def run(folder: Path, *args) -> str:
        command = [home / "bin" / "xc", *map(str, args)]
        done = subprocess.run(command, capture_output=True, text=True, cwd=folder, env=env)
        assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
        return done.stdout

    return run


def test_the_wheel_holds_the_code_and_the_files_it_reads_and_nothing_else(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    code = {path.relative_to(ROOT).as_posix() for package in PACKAGES for path in (ROOT / package).rglob("*.py")}
    code |= {path.relative_to(ROOT).as_posix() for path in (ROOT / "longtail/service/static").iterdir()}
    recipes = {path.relative_to(ROOT).as_posix() for path in (ROOT / "recipes").glob("*.yaml")}
    about = f"longtail-{longtail.__version__}"
    shared = {f"{about}.data/data/share/longtail/{name}" for name in {*SHARED, *recipes}}
    types = {"longtail/__init__.pyi", "longtail/py.typed"}
    assert {name for name in names if not name.startswith(f"{about}.dist-info/")} == code | shared | types


def test_the_wheel_says_what_it_is(wheel):
    folder = f"longtail-{longtail.__version__}.dist-info"
    with zipfile.ZipFile(wheel) as archive:
        facts = message_from_bytes(archive.read(f"{folder}/METADATA"))
        assert archive.read(f"{folder}/licenses/LICENSE") == (ROOT / "LICENSE").read_bytes()
        assert "xc = longtail.cli:main" in archive.read(f"{folder}/entry_points.txt").decode()
    assert (facts["Name"], facts["Version"]) == ("longtail", longtail.__version__)
    assert facts["License-Expression"] == "Apache-2.0" and facts["Requires-Python"] == ">=3.10"


def test_an_installed_xc_works_in_an_empty_folder(xc, tmp_path):
    assert xc(tmp_path, "--version") == f"longtail {longtail.__version__}\n"
    assert "predict" in xc(tmp_path, "--help")
    (tmp_path / "a.csv").write_text("text,label\n" + "".join(f"text {i},l{i % 3}\n" for i in range(40)))
    assert xc(tmp_path, "check", "a.csv").endswith("It can be trained on.\n")
    assert "wrote out" in xc(tmp_path, "import", "a.csv", "out")
    assert "LF-AmazonTitles-131K: N = 294,805" in xc(tmp_path, "estimate", "--like", "LF-AmazonTitles-131K")
    assert {path.name for path in tmp_path.iterdir()} == {"a.csv", "out"}


def test_an_installed_xc_brings_the_recipes_along(xc, tmp_path):
    listed = {line[2:].split()[0] for line in xc(tmp_path, "recipe").splitlines()}
    assert {path.stem for path in (ROOT / "recipes").glob("*.yaml")} <= listed
    xc(tmp_path, "recipe", "ngame")
    assert (tmp_path / "params.yaml").is_file()
    assert xc(tmp_path, "recipe", "ngame", "--show") == "params.yaml has the values of recipe ngame.\n"


@pytest.mark.stage
def test_an_installed_xc_predicts_from_a_run_elsewhere(xc, tiny_run, tmp_path):
    args = ["predict", "--data", tiny_run / "data", "--json", "-k", "3", "small red box"]
    assert json.loads(xc(tmp_path, *args)) == json.loads(invoke(tiny_run, main, args).stdout)


def test_there_is_one_version():
    assert load_yaml("CITATION.cff")["version"] == longtail.__version__
    newest = re.search(r"^## (\S+), (\S+)$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert newest[1] == longtail.__version__ and newest[2] == str(load_yaml("CITATION.cff")["date-released"])


def direct_dependencies() -> list[str]:
    """What the installed package asks for, without its extras."""
    asked = importlib.metadata.requires("longtail") or []
    return [re.match(r"[\w.-]+", one)[0] for one in asked if "extra ==" not in one]


@pytest.mark.parametrize("library", direct_dependencies())
def test_the_page_of_licences_says_what_the_library_says(library):
    rows = re.findall(r"^\| (\S+) \| (.+) \|$", (ROOT / "docs/licences.md").read_text(encoding="utf-8"), re.MULTILINE)
    stated = dict(rows)[library]
    found = importlib.metadata.distribution(library)
    named = f"{found.metadata['License-Expression']} {found.metadata['License']} {found.metadata.get_all('Classifier')}"
    words = [stated, LICENCES.get(stated, stated), stated.replace("-", " ")]
    if not any(word in named for word in words):  # it says nothing but brings the text
        texts = [file.read_text() for file in found.files or [] if file.name == "LICENSE"]
        assert stated == "Apache-2.0" and any("Apache License" in text for text in texts)


def test_every_direct_dependency_is_pinned():
    def plain(name: str) -> str:
        return re.match(r"[\w.-]+", name)[0].lower().replace("_", "-")

    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = {plain(line) for line in lines if "==" in line}
    assert {plain(name) for name in direct_dependencies()} <= pins
