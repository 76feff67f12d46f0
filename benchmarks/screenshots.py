"""The pictures of the page in docs/, from the finished run: `python -m benchmarks.screenshots`."""

import tempfile
from pathlib import Path

import click
from PIL import Image
from playwright.sync_api import Browser

from benchmarks.apart import ROOT
from testing.browser import browser, installed
from testing.service import running
from xcutils.core import console
from xcutils.core.errors import UserError

TEXT = "Marfan syndrome with retinal detachment"
COLOURS = 128  # of a picture: a page has few, and the file is small
PICTURES = {
    "page.png": {"viewport": {"width": 1180, "height": 860}, "color_scheme": "light"},
    "page-phone.png": {"viewport": {"width": 390, "height": 844}, "color_scheme": "dark", "device_scale_factor": 1.5},
}


def take(opened: Browser, address: str, file: Path, settings: dict) -> None:
    """A picture of a text's labels, with the reasons for the first."""
    page = opened.new_page(**settings)
    page.goto(address)
    page.fill("#text", TEXT)
    page.wait_for_selector(".ask-why")
    page.wait_for_timeout(400)  # the last answer, and the bars at rest
    page.click(".ask-why >> nth=0")
    page.wait_for_selector(".why mark")
    page.mouse.move(0, 0)
    page.evaluate("document.activeElement.blur(); scrollTo(0, 0)")
    page.screenshot(path=file)
    page.close()
    Image.open(file).convert("RGB").quantize(COLOURS).save(file, optimize=True)


@click.command()
@click.option("--data", type=click.Path(exists=True, path_type=Path), default=ROOT / "data", help="A run or a bundle.")
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), default=ROOT / "docs", help="Where they go.")
@console.command
def main(data: Path, out: Path) -> None:
    """Take the pictures of the page that docs/ shows."""
    if not installed():
        raise UserError("there is no browser here: install the package chromium.")
    with tempfile.TemporaryDirectory() as folder, running(Path(folder, "log"), "--bundle", data) as service:
        with browser() as opened:
            for name, settings in PICTURES.items():
                take(opened, service.address, out / name, settings)
                console.say(f"wrote {out / name}")


if __name__ == "__main__":
    main()
