"""The report: it needs nothing else, says what the run's files say, and its reasons hold for their pair of labels."""

import dataclasses
import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from longtail.cli import main
from longtail.commands.table import COLUMNS
from longtail.report import drawing, page
from longtail.report.compared import compare
from longtail.report.facts import load_run, parameters, taken
from longtail.report.mistakes import FEW, REASONS, Doc, find_mistakes, unknown, words
from longtail.serving import load_system
from stages import made, timing_of
from testing.tiny import LABELS, ROOT, dataset_rows, invoke, label_id, load_yaml
from xcutils.core.pipelines import MODULAR, PIPELINES

VOID = {"meta", "line", "rect", "circle", "polyline", "br"}
NASTY = '<script>alert("1")</script> & \'<b>'


class Tags(HTMLParser):
    """The page's elements, each seen to be closed, and its text."""

    def __init__(self, text: str):
        super().__init__()
        self.open: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.text = ""
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_endtag(self, tag):
        assert tag in VOID or self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


@pytest.fixture(params=PIPELINES.values(), ids=lambda pipeline: pipeline.folder or "modular")
def run(request, tiny_run, unidec_run):
    folder = tiny_run if request.param is MODULAR else unidec_run
    return load_run(folder / "data", request.param)


def assert_alone(text: str) -> Tags:
    """The page is well-formed and asks for nothing that it does not hold itself."""
    tags = Tags(text)
    assert not re.search(r"https?://|@import|url\(|<script|<link|<iframe|<img", text)
    links = [value for _, name, value in tags.attributes if name in ("href", "src", "srcset", "xlink:href")]
    ids = {value for _, name, value in tags.attributes if name == "id"}
    assert links and all(link.removeprefix("#") in ids for link in links)
    assert not any(name.startswith("on") for _, name, _ in tags.attributes)
    return tags


@pytest.mark.stage
def test_the_report_says_what_the_files_of_the_run_say(run, tmp_path):
    folder = run.data.parent
    flags = [f"--{run.pipeline.folder}"] if run.pipeline.folder else []
    result = invoke(folder, main, ["report", "--out", tmp_path / "made" / "report.html", *flags])
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == f"wrote {tmp_path / 'made' / 'report.html'}: open it in a browser\n"
    tags = assert_alone((tmp_path / "made" / "report.html").read_text(encoding="utf-8"))
    metrics = json.loads((folder / run.pipeline.metrics).read_text())
    for row, title in run.pipeline.rows.items():
        if row in metrics:
            assert title in tags.text
            assert all(f"{metrics[row][name]:.2f}" in tags.text for name in COLUMNS)
    assert f"{metrics['probabilities']['calibration error']:.2f} points" in tags.text
    assert all(stage in tags.text for stage in run.pipeline.stages)
    assert all(name in tags.text for name in run.params)
    assert "Not recorded for what is there now: prepare" in tags.text


def test_both_tables_have_the_same_columns():
    assert page.COLUMNS == COLUMNS


@pytest.mark.stage
def test_what_comes_from_data_is_text_and_never_html(run):
    found = find_mistakes(run)
    one = dataclasses.replace(
        found.shown[0],
        id=NASTY,
        text=NASTY,
        given={"id": NASTY, "text": NASTY, "probability": 0.5},
        right={"id": NASTY, "text": f"right {NASTY}", "probability": 0.1},
        reasons={"unknown": NASTY},
        decided=NASTY,
        words=[NASTY],
    )
    rows = [{**row, "id": NASTY, "text": NASTY, "test_docs": "9", "recall@5": "50.0"} for row in run.labels]
    nasty = dataclasses.replace(
        run,
        stats={**run.stats, "dataset": NASTY},
        labels=rows,
        params={NASTY: NASTY},
        curves={NASTY: next(iter(run.curves.values()))},
    )
    compared = page.Compared(NASTY, [(NASTY, NASTY, None)], {})
    text = page.write(nasty, dataclasses.replace(found, shown=[one]), compared)
    assert assert_alone(text).text.count(NASTY) > 10


@pytest.mark.stage
def test_every_mistake_is_one_and_its_reasons_hold(run):
    found = find_mistakes(run)
    rows = {row["uid"]: row for row in dataset_rows()["tst"]}
    train = dataset_rows()["trn"]
    known = set().union(*(words(row["title"]) for row in train))
    system = load_system(run.data, run.pipeline)
    assert 0 < len(found.shown) <= found.wrong <= found.ranked <= found.of <= len(rows)
    seen = set()
    for one in found.shown:
        row = rows[one.id]
        right = [label_id(label) for label in row["target_ind"]]
        assert one.text == row["title"] and one.given["id"] not in right and one.right["id"] in right
        (answer,) = system.answers([one.text], len(LABELS))
        scores = {label["id"]: label["score"] for label in answer.labels}
        assert one.given["probability"] == pytest.approx(scores[one.given["id"]], abs=1e-5)
        assert one.right["probability"] == pytest.approx(max(scores[id] for id in right), abs=1e-5)
        owners = {
            id: {i for i, doc in enumerate(train) if id in map(label_id, doc["target_ind"])}
            for id in (one.given["id"], one.right["id"])
        }
        given, nearest = owners[one.given["id"]], owners[one.right["id"]]
        assert ("unknown" in one.reasons) == bool(words(one.text) - known)
        assert ("few" in one.reasons) == (len(nearest) <= FEW)
        assert ("named" in one.reasons) == (words(one.given["text"]) <= words(one.text))
        assert ("together" in one.reasons) == (2 * len(given & nearest) >= len(nearest) > 0)
        assert ("close" in one.reasons) == (one.given["probability"] - one.right["probability"] <= 0.05)
        assert not {"late", "lost"} <= set(one.reasons)
        seen |= set(one.reasons)
    assert {"named", "late"} <= seen <= set(REASONS)


def test_words_that_no_training_document_has_are_named():
    doc = Doc("1", "Small ZZZ, x-ray", np.zeros(0), np.zeros(0))
    assert unknown(doc, {"small", "x"}) == "in no training document: ray, zzz"
    assert unknown(doc, {"small", "x", "ray", "zzz"}) == ""


@pytest.mark.stage
def test_the_place_of_the_right_label_is_the_models(tiny_run):
    run = load_run(tiny_run / "data", MODULAR)
    system = load_system(run.data)
    late = [one for one in find_mistakes(run).shown if "late" in one.reasons]
    for one in late:
        (answer,) = system.answers([one.text], len(LABELS))
        place = [label["id"] for label in answer.labels].index(one.right["id"]) + 1
        said = int(re.search(r"at place (\d+)", one.reasons["late"])[1])
        assert place - 2 <= said <= place  # labels that the document may not get are left out


# --- against another revision -----------------------------------------------------------------------------------------


def git(folder, *words) -> str:
    identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
    done = subprocess.run(["git", *identity, *words], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def elsewhere(tiny_run, tmp_path):
    """The tiny run as it would stand in a repository of its own, whose last commit has other values and figures."""
    run = load_run(tiny_run / "data", MODULAR)
    figures = json.loads((tiny_run / "metrics.json").read_text())
    figures["fused"]["P@1"] -= 1.5
    (tmp_path / "metrics.json").write_text(json.dumps(figures))
    text = (tiny_run / "params.yaml").read_text()
    (tmp_path / "params.yaml").write_text(text.replace("K: 12", "K: 7").replace("seed: 0", "sown: 3"))
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "before <b>")
    return dataclasses.replace(run, data=tmp_path / "data")


@pytest.mark.stage
def test_the_last_commit_is_compared_with(elsewhere):
    found = compare(elsewhere, None)
    assert set(found.params) == {("K", 7, 12), ("seed", None, 0), ("sown", 3, None)}
    text = assert_alone(page.write(elsewhere, page.Mistakes(1, 1, 0, []), found)).text
    assert "the last commit" in text and "before <b>" in text and "+1.50" in text


@pytest.mark.stage
def test_parameters_are_those_of_the_run_and_not_of_the_file(run, tmp_path):
    """dvc.lock says them, and without it the manifests do, but for what the file leaves to a rule."""
    assert run.since == [] and "has been changed since" not in page.parameters(run, None)
    folder, file = run.pipeline.folder, run.pipeline.params
    (tmp_path / folder).mkdir(exist_ok=True)
    (tmp_path / "data").symlink_to(run.data)
    if folder:
        (tmp_path / folder / "data").symlink_to(run.pipeline.data(run.data))
    trains, epochs = f"{run.pipeline.trains}.epochs", run.params[f"{run.pipeline.trains}.epochs"]
    tree = load_yaml(run.data.parent / file)
    tree[run.pipeline.trains]["epochs"], tree["index"]["m"] = 77, "auto"
    (tmp_path / file).write_text(json.dumps(tree))
    found, since = parameters(tmp_path / "data", run.pipeline)
    assert since == [(trains, epochs, 77)] and found == run.params | {"index.m": "auto"}
    shown = page.parameters(dataclasses.replace(run, since=since), None)
    assert f"{file} has been changed since the run" in shown and "<td>77" in shown
    lock = {"stages": {run.pipeline.trains: {"params": {file.as_posix(): {run.pipeline.trains: {"epochs": 5}}}}}}
    (tmp_path / folder / "dvc.lock").write_text(json.dumps(lock))
    found, since = parameters(tmp_path / "data", run.pipeline)
    assert found[trains] == 5 and since == [(trains, 5, 77)]


@pytest.mark.stage
def test_an_experiment_is_found_by_its_name(elsewhere):
    folder = elsewhere.data.parent
    first = git(folder, "rev-parse", "HEAD")
    git(folder, "update-ref", "refs/exps/ab/cdef/brave-lynx", first)
    git(folder, "commit", "-q", "--allow-empty", "-m", "another")
    found = compare(elsewhere, "brave-lynx")
    assert found.name == "brave-lynx" and ("K", 7, 12) in found.params
    assert compare(elsewhere, first[:9]).params == found.params
    result = invoke(folder, main, ["report", "--against", "brave-lion"])
    assert result.exit_code == 1


@pytest.mark.stage
def test_a_revision_that_is_not_there_is_refused(elsewhere):
    for name in ("brave-lion", "--all", "HEAD~7"):
        with pytest.raises(Exception, match=f"{name} is no commit, tag or experiment"):
            compare(elsewhere, name)


@pytest.mark.stage
def test_outside_a_repository_there_is_nothing_to_compare_with(elsewhere, tmp_path_factory):
    alone = dataclasses.replace(elsewhere, data=tmp_path_factory.mktemp("alone") / "data")
    assert compare(alone, None) is None
    assert "no commit to compare with" in page.differing(alone, None)


# --- time and memory --------------------------------------------------------------------------------------------------


def test_a_stage_records_what_it_took_beside_the_run(tmp_path):
    out = tmp_path / "data" / "score"
    out.mkdir(parents=True)
    (out / "manifest.json").write_text("{}")
    code = "import sys; sys.argv = ['stage', 'in', {!r}]; from stages import run; run(lambda: {})"

    def start(out: str, work: str = "None") -> None:
        subprocess.run([sys.executable, "-c", code.format(out, work)], cwd=tmp_path, env={"PYTHONPATH": str(ROOT)})

    start("--help")
    start("data/score", "sys.exit(1)")
    assert not (tmp_path / ".scratch").exists()
    start("data/score")
    one = taken(tmp_path / "data", "score", MODULAR)
    assert 0 < one.seconds < 60 and 1e7 < one.memory < 1e10
    assert [path.name for path in out.iterdir()] == ["manifest.json"]
    (out / "manifest.json").write_text("{ }")  # another run's
    other = taken(tmp_path / "data", "score", MODULAR)
    assert (other.seconds, other.memory) == (None, None)


def test_every_stage_names_its_output_last_and_none_shares_its_record():
    outs = [f"{folder}/data/{stage}".lstrip("/") for folder, p in PIPELINES.items() for stage in p.stages]
    assert len({timing_of(Path(out)) for out in outs}) == len(outs)
    for folder, pipeline in PIPELINES.items():
        stages = load_yaml(f"{folder}/dvc.yaml".lstrip("/"))["stages"]
        for stage in pipeline.stages:
            assert stages[stage]["cmd"].split()[-1] == f"{folder}/data/{stage}".lstrip("/")
    assert made(Path("nowhere")) == ""


# --- drawings ---------------------------------------------------------------------------------------------------------


@given(st.floats(-1e6, 1e6), st.floats(0, 1e6))
def test_ticks_cover_the_values_and_are_few(low, span):
    marks = drawing.ticks(low, low + span)
    assert 2 <= len(marks) <= 10 and np.all(np.diff(marks) > 0)
    slack = 1e-6 * max(1, abs(low), span)
    assert marks[0] <= low + slack and marks[-1] >= low + span - slack


@given(st.dictionaries(st.text(max_size=5), st.lists(st.tuples(*[st.floats(-1e4, 1e4)] * 2), max_size=4), max_size=3))
def test_every_point_is_drawn_inside_the_picture(series):
    drawn = drawing.lines(series, x="<x>", y="&y", even=True)
    assert bool(drawn) == any(series.values())
    if drawn:
        Tags(drawn)
        places = [
            tuple(map(float, p.split(","))) for path in re.findall(r'points="([^"]*)"', drawn) for p in path.split()
        ]
        assert len(places) == sum(map(len, series.values()))
        assert all(0 <= x <= drawing.WIDTH and 0 <= y <= drawing.HEIGHT for x, y in places)


def test_bars_are_as_long_as_their_values():
    drawn = drawing.bars({"a": {"x": 10.0, "y": 20.0}, "b": {"x": 40.0, "y": 0.0}}, x="percent")
    lengths = [float(width) for width in re.findall(r'width="([\d.]+)" height="11"', drawn)]
    assert lengths[1] == pytest.approx(2 * lengths[0], abs=0.2) and lengths[2] == pytest.approx(4 * lengths[0], abs=0.3)
    assert drawing.bars({}, x="percent") == ""
