"""A real browser without a window: the distribution's Chromium, driven by playwright."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome")
OPTIONS = ["--no-sandbox", "--disable-dev-shm-usage", "--font-render-hinting=none"]


def installed() -> str | None:
    """The path of the browser; None where there is none."""
    return next(filter(None, map(shutil.which, NAMES)), None)


def left_out() -> bool:
    """Whether the tests of the page are skipped: there is no browser, and PAGE_TESTS=required does not ask for one."""
    return installed() is None and os.environ.get("PAGE_TESTS") != "required"


@contextmanager
def browser() -> Iterator[Browser]:
    if installed() is None:
        raise RuntimeError(f"none of {', '.join(NAMES)} is installed: install the package chromium.")
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=installed(), args=OPTIONS)
        yield opened
        opened.close()
