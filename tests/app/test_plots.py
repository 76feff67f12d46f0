"""DVC's own page of plots: it needs no other host, says what is missing, and is quiet where nothing is."""

import configparser
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from testing.tiny import DVC_FILES, ROOT, UNIFIED

PAGE = ROOT / ".dvc" / "plots-page.html"
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.stage


def dvc(folder: Path, *words: str) -> str:
    command = [sys.executable, "-m", "dvc", *words]
    done = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 0, done.stdout
    return done.stdout


def start(folder: Path) -> Path:
    """The folder, now a repository of git and DVC with the project's own settings."""
    subprocess.run(["git", "init", "-q"], cwd=folder, check=True)
    dvc(folder, "init", "-q")
    for name in ("config", PAGE.name):
        shutil.copyfile(ROOT / ".dvc" / name, folder / ".dvc" / name)
    return folder


@pytest.fixture(scope="module")
def shown(tmp_path_factory) -> Path:
    """The page of a project with a plot that is there and one whose file is missing."""
    folder = start(tmp_path_factory.mktemp("plots"))
    (folder / "curve.csv").write_text("epoch,N@5\n1,30\n2,40\n3,45\n")
    plots = [{name: {"x": "epoch", "y": {f"{name}.csv": "N@5"}}} for name in ("curve", "other one")]
    with open(folder / "dvc.yaml", "w") as file:
        YAML().dump({"plots": plots}, file)
    dvc(folder, "plots", "show")
    return folder / "dvc_plots" / "index.html"


class Loaded(HTMLParser):
    """What a page asks for beside itself."""

    def __init__(self, text: str):
        super().__init__()
        self.found: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.found += [value for name, value in attrs if name in ("src", "href", "srcset", "data", "action")]


def test_the_page_asks_for_nothing_that_it_does_not_hold(shown):
    text = shown.read_text(encoding="utf-8")
    assert Loaded(text).found == [] and "cdn." not in text and "@import" not in text
    assert '"N@5": "45"' in text and text.count("vegaEmbed('#") == 2


def test_the_page_is_the_one_that_the_settings_name():
    settings = configparser.ConfigParser()
    settings.read_string("\n".join(line.strip() for line in (ROOT / ".dvc" / "config").read_text().splitlines()))
    assert settings["plots"]["html_template"] == PAGE.name
    text = PAGE.read_text(encoding="utf-8")
    assert text.count("{plot_divs}") == 1 and "{scripts}" not in text
    for named in ("vega 5.33.1", "vega-lite 5.23.0", "vega-embed 6.29.0"):
        assert named in text and named.replace(" ", " | ") in (ROOT / "docs" / "licences.md").read_text()
    assert text.count("Redistributions of source code must retain the above copyright notice") == 1


@pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed")
def test_a_browser_without_a_network_draws_the_plots(shown, tmp_path):
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}"]
    command += ["--host-resolver-rules=MAP * ~NOTFOUND", "--virtual-time-budget=20000", "--dump-dom", shown.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    body = done.stdout.rpartition("<body>")[2]  # the scripts hold the word too
    assert body.count("<canvas") + body.count("<svg class") == 1
    assert "other one: nothing to draw" in body and "vega.github.io/editor" not in body


def test_a_clone_that_has_not_run_the_second_pipeline_gets_no_complaint(tiny_run, unidec_run, tmp_path):
    folder = start(tmp_path)
    (folder / "unidec").mkdir()
    for name in ("dvc.yaml", "params.yaml", "unidec/dvc.yaml", "unidec/params.yaml"):
        shutil.copyfile(ROOT / name, folder / name)
    shutil.copytree(unidec_run / "unidec" / "plots", folder / "unidec" / "plots")  # git has them
    for plot in DVC_FILES[""]["plots"]:
        for facts in plot.values():
            for file in facts["y"]:
                (folder / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(tiny_run / file, folder / file)
    said = dvc(folder, "plots", "show")
    assert "failed" not in said and (folder / "dvc_plots" / "index.html").as_uri() in said
    assert "UniDEC: P@5 by label frequency" in (folder / "dvc_plots" / "index.html").read_text(encoding="utf-8")


def test_git_keeps_what_the_second_pipelines_plots_draw():
    kept = [path for stage in UNIFIED.values() for out in stage["outs"] if isinstance(out, dict) for path in out]
    drawn = [file for plot in DVC_FILES["unidec/"]["plots"] for facts in plot.values() for file in facts["y"]]
    assert kept == ["unidec/plots"] and all(f"unidec/{file}".startswith("unidec/plots/") for file in drawn)
