"""The page in a real browser: what it shows is what the service answers, by keyboard, on a phone, light and dark."""

import re
from collections.abc import Iterator

import httpx
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect

import longtail
from testing.browser import browser, left_out
from testing.service import TOKEN, running
from testing.tiny import LABELS, label_id
from tests.service.conftest import LOCKED

pytestmark = [
    pytest.mark.stage,
    pytest.mark.skipif(left_out(), reason="no browser is installed (the package chromium): the page is untested"),
]

TEXT = "small red box"
DESKTOP = {"viewport": {"width": 1180, "height": 860}}
PHONE = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}
SECTIONS = ["#ask", "#labels", f"#labels/{label_id(2)}", "#results"]


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browser() as opened:
        yield opened


@pytest.fixture
def visit(chromium, service) -> Iterator:
    """Opens a path of the service; at the end the page must have asked no other host and said no error."""
    opened, said, asked = [], [], []

    def open_page(path: str = "", **settings) -> Page:
        page = chromium.new_page(**{**DESKTOP, **settings})
        page.set_default_timeout(60_000)
        page.on("console", lambda message: said.append(message.text) if message.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(f"{service.address}/{path}")
        opened.append(page)
        return page

    yield open_page
    for page in opened:
        page.close()
    assert asked and all(url.startswith((service.address, "data:")) for url in asked)
    assert not said


def ready(page: Page) -> Page:
    page.wait_for_selector("html[data-ready]")
    return page


def best(address: str, text: str, **more) -> list[dict]:
    return httpx.post(f"{address}/predict", json={"texts": [text], **more}).json()["predictions"][0]["labels"]


# --- asking -----------------------------------------------------------------------------------------------------------


def test_labels_appear_as_one_types(visit, service):
    page = ready(visit())
    page.locator("#text").press_sequentially(TEXT, delay=5)
    expected = best(service.address, TEXT)
    first = page.locator("#answers > div").first
    expect(first.locator(".ask-why")).to_have_count(len(expected))
    expect(first.locator(".said").first).to_contain_text(expected[0]["text"])
    expect(first.locator(".chance").first).to_have_text(f"{100 * expected[0]['probability']:.0f}%")
    page.fill("#text", "")
    expect(first.locator(".ask-why")).to_have_count(0)


def test_a_stale_answer_is_dropped(visit, service):
    """The first answer is held back until the second has been shown."""
    page = visit()
    held = []

    def hold(route):
        if '"slow"' in (route.request.post_data or ""):
            held.append(route)
        else:
            route.continue_()

    page.route("**/predict", hold)
    ready(page).fill("#text", "slow")
    while not held:
        page.wait_for_timeout(20)
    page.fill("#text", TEXT)
    first = page.locator("#answers > div").first.locator(".said").first
    expected = best(service.address, TEXT)[0]["text"]
    expect(first).to_contain_text(expected)
    for route in held:
        route.abort()
    page.wait_for_timeout(300)
    expect(first).to_contain_text(expected)


def test_why_names_words_and_documents(visit, service):
    page = ready(visit())
    page.fill("#text", TEXT)
    label = best(service.address, TEXT, k=1)[0]
    reason = httpx.post(f"{service.address}/explain", json={"text": TEXT, "labels": [label["id"]]}).json()["labels"][0]
    button = page.locator(".ask-why").first
    expect(button).to_contain_text(label["text"])
    button.click()
    why = page.locator(".why").first
    expect(why.locator(".words")).to_have_text(TEXT)
    expect(why.locator("mark").first).to_be_visible()
    assert set(why.locator("mark").all_inner_texts()) <= {word["text"] for word in reason["words"]}
    for document in reason["documents"]:
        expect(why.locator(".near")).to_contain_text(document["text"])
    expect(button).to_have_attribute("aria-expanded", "true")
    button.click()
    expect(why).to_be_hidden()


def test_the_cut_off_says_its_precision_and_recall_and_hides_labels(visit, service, tiny_run):
    cutoffs = longtail.load(tiny_run).cutoffs
    page = ready(visit())
    page.fill("#text", TEXT)
    expect(page.locator(".ask-why").first).to_be_visible()
    expected = best(service.address, TEXT)
    least = round(100 * expected[0]["probability"]) - 1
    page.locator("#cutoff").fill(str(least))
    above = [one for one in expected if one["probability"] >= least / 100]
    first = page.locator("#answers > div").first
    expect(first.locator(".ask-why:visible")).to_have_count(len(above))
    place = max((i for i, one in enumerate(cutoffs.thresholds) if one >= least / 100), default=None)
    words = page.locator("#cutoff-means")
    if place is None:
        expect(words).to_contain_text("No label")
    else:
        expect(words).to_contain_text(f"{100 * cutoffs.precision[place]:.0f}%")
        expect(words).to_contain_text(f"{100 * cutoffs.recall[place]:.0f}%")


def test_unknown_words_are_said(visit):
    page = ready(visit())
    page.fill("#text", "\u4e16\u754c")
    expect(page.locator(".line").first).to_contain_text("most frequent")


def test_a_text_is_shown_as_text(visit):
    """What is typed is never taken for HTML."""
    page = ready(visit())
    page.fill("#text", "red <img src=x onerror=alert(1)> box")
    page.locator(".ask-why").first.click()
    expect(page.locator(".words").first).to_contain_text("<img src=x")
    assert page.locator("main img").count() == 0


def test_all_works_by_keyboard(visit):
    page = ready(visit())
    page.keyboard.press("Tab")
    expect(page.locator(".skip")).to_be_focused()
    for _ in range(20):
        if page.evaluate("document.activeElement.id") == "text":
            break
        page.keyboard.press("Tab")
    page.keyboard.type(TEXT)
    expect(page.locator(".ask-why").first).to_be_visible()
    page.keyboard.press("Tab")
    expect(page.locator("#cutoff")).to_be_focused()
    page.keyboard.press("ArrowRight")
    expect(page.locator("#cutoff-value")).to_have_text("1%")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.locator(".why mark").first).to_be_visible()


# --- labels and results -----------------------------------------------------------------------------------------------


def test_labels_are_searched_and_lead_to_their_neighbours(visit, service):
    page = ready(visit("#labels"))
    expect(page.locator("#found li").first).to_be_visible()
    page.fill("#query", "red box")
    found = httpx.get(f"{service.address}/labels", params={"q": "red box"}).json()["labels"]
    expect(page.locator("#found li")).to_have_count(len(found))
    page.locator("#found button").first.click()
    card = page.locator("#label")
    expect(card.locator("h2")).to_have_text(found[0]["text"])
    facts = httpx.get(f"{service.address}/labels/{found[0]['id']}").json()
    expect(card.locator("dd").first).to_have_text(str(facts["docs"]))
    expect(card.locator(".row")).to_have_count(len(facts["neighbours"]))
    card.locator(".row").first.click()
    expect(card.locator("h2")).to_have_text(facts["neighbours"][0]["text"])
    page.go_back()
    expect(card.locator("h2")).to_have_text(found[0]["text"])


def test_results_are_those_of_both_runs_side_by_side(visit, service):
    page = ready(visit("#results"))
    one, other = httpx.get(f"{service.address}/models").json()["models"]
    rows = page.locator("tbody tr")
    expect(rows).to_have_count(len(one["metrics"]))
    last = list(one["metrics"].values())[-1]
    expect(rows.last.locator("td").first).to_contain_text(f"{last['P@1']:.2f}")
    assert other["name"] == "compare"
    expect(page.locator(".key li")).to_have_count(2)
    charts = page.locator("svg.chart")
    assert charts.count() >= len({row["row"] for row in one["bins"]}) + 2
    expect(page.get_by_label("Metric")).to_have_value("R@10")
    page.get_by_label("Metric").select_option("P@1")
    expect(charts.first).to_have_attribute("aria-label", re.compile("P@1 of fused"))


def test_two_runs_answer_in_two_columns(visit):
    page = ready(visit())
    page.fill("#text", TEXT)
    columns = page.locator("#answers > div")
    expect(columns).to_have_count(2)
    expect(columns.nth(1).locator(".ask-why").first).to_be_visible()
    assert columns.nth(0).locator(".said").all_inner_texts() == columns.nth(1).locator(".said").all_inner_texts()


# --- looks and safety -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("colours", ["light", "dark"])
@pytest.mark.parametrize("settings", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_nothing_stands_in_anyones_way(visit, settings, colours):
    """axe's rules (WCAG A and AA, best practice) on every section; and no section is wider than the screen."""
    page = ready(visit(color_scheme=colours, **settings))
    for section in SECTIONS:
        page.evaluate(f"location.hash = {section!r}")
        if section == "#ask":
            page.fill("#text", TEXT)
            page.locator(".ask-why").first.click()
            expect(page.locator(".why mark").first).to_be_visible()
        elif "/" in section:
            expect(page.locator("#label h2")).to_have_text(LABELS[2])
        page.wait_for_timeout(300)  # what moves has come to rest
        found = Axe().run(page)
        assert found.violations_count == 0, found.generate_report()
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), section


def test_the_theme_is_the_systems_until_it_is_switched_and_then_stays(visit):
    page = ready(visit(color_scheme="dark"))
    colour = "getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(colour)
    page.locator("#theme").click()
    light = page.evaluate(colour)
    assert light != dark
    page.reload()
    assert page.evaluate(colour) == light


def test_the_interface_is_shown_and_can_be_tried(visit):
    page = visit("docs")
    paths = page.locator(".path")
    expect(paths.first.locator("h2")).to_have_text("POST/predict")
    details = paths.first.locator("details").last
    details.locator("summary").click()
    details.locator("textarea").fill('{"texts": ["small red box"], "k": 1}')
    details.get_by_role("button", name="Send").click()
    expect(details.locator("pre")).to_contain_text('"predictions"')
    found = Axe().run(page)
    assert found.violations_count == 0, found.generate_report()


def test_an_address_that_is_none_shows_the_labels(visit):
    page = ready(visit("#labels/%"))
    expect(page.locator("#found .row").first).to_be_visible()
    expect(page.locator("#label")).to_be_hidden()


def test_an_undo_is_tried_without_a_body(chromium, own_bundle, tmp_path):
    longtail.load(own_bundle).add_labels([("new", "round marble")])
    with running(tmp_path / "log", "--bundle", own_bundle) as service:
        page = chromium.new_page()
        page.goto(f"{service.address}/docs")
        details = page.locator(".path", has_text="/labels/undo").locator("details", has_text="Try it")
        details.locator("summary").click()
        details.get_by_label("Token").fill(TOKEN)
        details.get_by_role("button", name="Send").click()
        expect(details.locator("pre")).to_contain_text("added new")
        page.close()


@pytest.mark.parametrize("path", ["/", "/docs", "/static/app.js", "/predict", "/nothing"])
def test_every_answer_forbids_what_the_page_does_not_need(client, path):
    headers = client.get(path).headers
    policy = dict(rule.split(" ", 1) for rule in headers["content-security-policy"].split("; "))
    assert policy["default-src"] == "'none'" and policy["script-src"] == policy["style-src"] == "'self'"
    assert policy["connect-src"] == "'self'" and policy["frame-ancestors"] == "'none'"
    assert headers["x-content-type-options"] == "nosniff"


def test_a_file_that_a_browser_has_is_not_sent_again(client):
    first = client.get("/static/app.js")
    again = client.get("/static/app.js", headers={"if-none-match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


# --- the whole way ----------------------------------------------------------------------------------------------------


def test_from_training_to_the_page(tiny_run, chromium, tmp_path):
    """Trained on tiny data: bundle, serve, ask, add a label, ask again, see the page."""
    from longtail.cli import main
    from testing.tiny import invoke

    bundle = tmp_path / "bundle"
    assert invoke(tiny_run, main, ["bundle", bundle]).exit_code == 0
    new = {"id": "marble", "text": "round red marble", "examples": ["round marble", "red marble"]}
    text = "round red marble"
    with running(tmp_path / "log", "--bundle", bundle) as service:
        assert "marble" not in [label["id"] for label in best(service.address, text, k=40)]
        added = httpx.post(f"{service.address}/labels", json={"labels": [new]}, headers=LOCKED, timeout=60)
        assert added.json() == {"changed": 1, "total": len(LABELS) + 1}
        labels = best(service.address, text, k=41)
        assert "marble" in [label["id"] for label in labels]
        page = chromium.new_page(**DESKTOP)
        page.goto(service.address)
        ready(page).fill("#text", text)
        expect(page.locator(".said").first).to_contain_text(labels[0]["text"], timeout=60_000)
        expect(page.locator("#about")).to_contain_text(f"{len(LABELS) + 1} labels")
        page.close()
    assert [label.id for label in longtail.load(bundle).predict(text, k=41)] == [label["id"] for label in labels]
