"""Tests of the page are skipped only where nobody asked for them."""

import os
import subprocess

import pytest

from testing import browser
from testing.tiny import ROOT


@pytest.fixture
def no_browser(monkeypatch):
    monkeypatch.setattr(browser, "NAMES", ("no-such-browser",))


def test_without_a_browser_the_tests_are_skipped_unless_they_are_required(no_browser, monkeypatch):
    monkeypatch.delenv("PAGE_TESTS", raising=False)
    assert browser.left_out()
    monkeypatch.setenv("PAGE_TESTS", "required")
    assert not browser.left_out()
    with pytest.raises(RuntimeError, match="install the package chromium"), browser.browser():
        pass


@pytest.mark.parametrize(
    "there, user, code, said",
    [
        (["chromium"], 1000, 0, "tests: required"),
        ([], 1000, 0, "the tests of the page are skipped"),
        (["apt-get"], 0, 100, ""),
    ],
    ids=["a browser", "no root", "an installation that fails"],
)
def test_the_check_asks_for_the_page_where_it_can(tmp_path, there, user, code, said):
    """Every program of the script but the shell is a stand-in: `make` tells what it is given, `apt-get` fails."""
    programs = {"id": f"echo {user}", "make": 'echo "tests: ${PAGE_TESTS:-none}"', "apt-get": "exit 100"}
    for name in ["id", "make", *there]:
        (tmp_path / name).write_text(f"#!/bin/sh\n{programs.get(name, '')}\n")
        (tmp_path / name).chmod(0o755)
    os.symlink("/usr/bin/dirname", tmp_path / "dirname")
    env = {"PATH": str(tmp_path)}
    done = subprocess.run(["/bin/bash", ROOT / ".ci/run"], env=env, capture_output=True, text=True)
    assert done.returncode == code and said in done.stdout, done.stdout + done.stderr
