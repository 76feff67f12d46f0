import ast
import dataclasses
import gzip
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import click
import numpy as np
import pytest
from click.testing import CliRunner

import longtail
from longtail import files
from longtail.cli import COMMANDS, main
from longtail.commands.data import prepared
from longtail.commands.options import pipeline_option
from longtail.commands.table import COLUMNS
from longtail.serving import load_system
from stages.score import load_split
from testing.tiny import (
    DATASET,
    LABELS,
    ROOT,
    dataset_rows,
    encode,
    invoke,
    label_id,
    make_project,
    run_stages,
    small_checkpoint,
)
from xcutils.core import artifacts
from xcutils.core.errors import UserError
from xcutils.core.pipelines import MODULAR, PIPELINES, UNIDEC
from xcutils.data.datasets import load_dataset
from xcutils.rank.scoring import fused_ranking
from xcutils.rank.served import load
from xcutils.search.metrics import evaluate
from xcutils.search.propensity import inverse_propensities

pytestmark = pytest.mark.stage

IDS = {label_id(label): LABELS[label] for label in range(len(LABELS))}
HEAVY = {"numpy", "scipy", "torch", "tokenizers", "transformers", "pyarrow", "dvc", "ruamel"}


@pytest.fixture
def xc(tiny_run):
    """`xc` started in the folder of the finished run: what it printed."""

    def run(*args, text: str | None = None) -> str:
        result = invoke(tiny_run, main, args, text)
        assert (result.exit_code, result.stderr) == (0, "")
        return result.stdout

    return run


def predict_json(xc, *args, text: str | None = None) -> list[dict]:
    return [json.loads(line) for line in xc("predict", "--json", *args, text=text).splitlines()]


def assert_refused(result, *named: str) -> None:
    assert result.exit_code == 1 and result.stderr.startswith("error: ") and result.stderr.count("\n") == 1
    assert all(thing in result.stderr for thing in named)


def assert_answer(answer: dict, text: str, count: int) -> None:
    """`count` different labels with their texts, the most probable first."""
    assert answer["text"] == text and answer["known"] is True
    assert len({label["id"] for label in answer["labels"]}) == len(answer["labels"]) == count
    assert all(IDS[label["id"]] == label["text"] for label in answer["labels"])
    scores = [label["score"] for label in answer["labels"]]
    assert scores == sorted(scores, reverse=True) and 0 <= scores[-1] <= scores[0] <= 1


def test_a_text_gets_its_labels_best_first(xc):
    lines = xc("predict", "-k", "3", "small red box").splitlines()
    assert lines[0] == "small red box" and len(lines) == 4
    found = [re.fullmatch(r"  ([01]\.\d{3})  (\S+)  (.+)", line) for line in lines[1:]]
    assert [match[3] for match in found] == [IDS[match[2]] for match in found]
    scores = [float(match[1]) for match in found]
    assert scores == sorted(scores, reverse=True)


def test_ten_labels_are_given_unless_asked_otherwise(xc):
    (answer,) = predict_json(xc, "flat green jar")
    assert_answer(answer, "flat green jar", 10)


def test_several_texts_are_answered_in_order_and_each_as_if_alone(xc):
    texts = ["small red box", "large blue lid", "small red box"]
    answers = predict_json(xc, "-k", "4", *texts)
    for answer, text in zip(answers, texts, strict=True):
        assert_answer(answer, text, 4)
        (alone,) = predict_json(xc, "-k", "4", text)
        assert [label["id"] for label in alone["labels"]] == [label["id"] for label in answer["labels"]]
    assert answers[0] == answers[2]


def test_texts_come_from_a_file_or_standard_input(xc, tmp_path):
    lines = "large blue lid\r\n\nflat red cup"
    (tmp_path / "texts.txt").write_bytes(lines.encode())
    answers = predict_json(xc, "-k", "2", "small red box", "--file", tmp_path / "texts.txt")
    assert [answer["text"] for answer in answers] == ["small red box", "large blue lid", "", "flat red cup"]
    assert [answer["known"] for answer in answers] == [True, True, False, True]
    assert predict_json(xc, "-k", "2", "--file", "-", text=lines) == answers[1:]


def test_texts_come_from_a_packed_file_without_its_mark(xc, tmp_path):
    (tmp_path / "texts.txt.gz").write_bytes(gzip.compress("\ufefflarge blue lid\n\nflat red cup\n".encode()))
    answers = predict_json(xc, "--file", tmp_path / "texts.txt.gz")
    assert [answer["text"] for answer in answers] == ["large blue lid", "", "flat red cup"]


def test_bytes_that_are_not_text_do_no_harm(xc, tmp_path):
    (tmp_path / "texts.txt").write_bytes(b"small red box \xff\n")
    (answer,) = predict_json(xc, "--file", tmp_path / "texts.txt")
    assert_answer(answer, "small red box \ufffd", 10)
    assert predict_json(xc, "small red box \udcff") == [answer]  # how Python passes such a byte on


@pytest.mark.parametrize("text", ["", "   ", "\U0001f600", "xyzzy plugh"])
def test_a_text_without_a_known_word_gets_the_most_frequent_labels(xc, text):
    rows = dataset_rows()["trn"]
    counts = [sum(label in row["target_ind"] for row in rows) for label in range(len(LABELS))]
    order = sorted(range(len(LABELS)), key=lambda label: (-counts[label], label))[:5]
    (answer,) = predict_json(xc, "-k", "5", text)
    assert answer["text"] == text and answer["known"] is False
    assert [label["id"] for label in answer["labels"]] == [label_id(label) for label in order]
    shares = [counts[label] / len(rows) for label in order]
    assert [label["score"] for label in answer["labels"]] == pytest.approx(shares, abs=1e-6)
    assert "no known word" in xc("predict", text)


@pytest.mark.parametrize("text", ["small red box", ""])
def test_more_labels_than_there_are_gives_all_of_them(xc, text):
    (answer,) = predict_json(xc, "-k", "1000", text)
    assert {label["id"] for label in answer["labels"]} == set(IDS)
    assert len(answer["labels"]) == len(IDS)


@pytest.mark.parametrize("pipeline", PIPELINES.values(), ids=lambda pipeline: pipeline.folder or "modular")
def test_predictions_are_what_was_scored(tiny_run, unidec_run, pipeline):
    """A test document's text, unknown words included, is ranked as the score stage ranked its tokens."""
    run = tiny_run if pipeline is MODULAR else unidec_run
    data, made = run / "data", run / pipeline.folder / "data"
    test = load_split(data / "prepare" / "test", len(LABELS))
    ids, scores = load(made / "index").predict(test.tokens, 7)
    system = load_system(data, pipeline)
    answers = system.answers([row["title"] for row in dataset_rows()["tst"]], 7)
    assert [[label["id"] for label in answer.labels] for answer in answers] == [[*map(label_id, row)] for row in ids]
    found = [[label["score"] for label in answer.labels] for answer in answers]
    np.testing.assert_allclose(found, scores, atol=1e-5)
    ranking = fused_ranking(load(made / "index"), test)[0]
    figures = json.loads((run / pipeline.metrics).read_text())["fused"]
    inverse = inverse_propensities(data / "prepare" / "train", data / "prepare" / "labels")
    assert evaluate(ranking, test.truth, inverse) == pytest.approx(figures, abs=1e-3)


def test_the_unified_method_answers_when_it_is_asked(unidec_run, tmp_path):
    texts = ["small red box", "xyzzy"]
    result = invoke(unidec_run, main, ["predict", "--unidec", "--json", "-k", "3", *texts])
    assert (result.exit_code, result.stderr) == (0, "")
    first, blank = (json.loads(line) for line in result.stdout.splitlines())
    assert_answer(first, texts[0], 3)
    assert blank["known"] is False and len(blank["labels"]) == 3
    found = load_system(unidec_run / "data", UNIDEC).answers(texts[:1], 3)
    assert first["labels"] == found[0].labels
    elsewhere = invoke(
        tmp_path, main, ["predict", "--unidec", "--json", "-k", "3", "--data", unidec_run / "data", *texts]
    )
    assert elsewhere.stdout == result.stdout
    assert_refused(invoke(unidec_run, main, ["predict", "a"]), "data/index is not a finished", "run `dvc repro` to")
    named = "unidec/data/index is not a finished", "run `dvc repro unidec/dvc.yaml` to"
    assert_refused(invoke(tmp_path, main, ["predict", "--unidec", "a"]), *named)


@pytest.mark.parametrize("form", ["csv", "tsv", "jsonl", "parquet", "csv.gz", "jsonl.gz"])
def test_documents_come_from_a_table_and_their_ids_come_back(xc, tiny_run, tmp_path, form):
    rows = [{"uid": "P-1", "text": "large blue lid"}, {"uid": "P-2", "text": "flat red cup"}]
    (tmp_path / f"new.{form}").write_bytes(encode(form, rows))
    answers = predict_json(xc, "-k", "2", "small red box", "--file", tmp_path / f"new.{form}")
    assert [answer.get("id") for answer in answers] == [None, "P-1", "P-2"]
    assert [answer["text"] for answer in answers] == ["small red box", "large blue lid", "flat red cup"]
    assert answers[1]["labels"] == predict_json(xc, "-k", "2", "large blue lid")[0]["labels"]
    lines = xc("predict", "-k", "1", "--file", tmp_path / f"new.{form}").splitlines()
    assert lines[::2] == ["P-1  large blue lid", "P-2  flat red cup"]
    swapped = predict_json(xc, "--text", "uid", "--id", "text", "--file", tmp_path / f"new.{form}")
    assert [(answer["id"], answer["text"]) for answer in swapped] == [
        ("large blue lid", "P-1"),
        ("flat red cup", "P-2"),
    ]
    (tmp_path / f"new.{form}").write_bytes(encode(form, [*rows, {"uid": "P-3", "text": ""}]))
    result = invoke(tiny_run, main, ["predict", "--file", tmp_path / f"new.{form}"])
    assert result.exit_code == 0 and "skipped 1 of the rows" in result.stderr and "has no text" in result.stderr


FORMS = ["xc-text", "csv", "tsv", "jsonl", "parquet", "csv.gz", "tsv.gz", "jsonl.gz"]


def tiny_in(form: str, folder: Path) -> Path:
    """The tiny dataset in another form; raw texts have no ids."""
    rows = dataset_rows()
    folder.mkdir(parents=True)
    if form == "xc-text":
        (folder / "Y.txt").write_text("".join(f"{row['title']}\n" for row in rows["lbl"]))
        for part in ("trn", "tst"):
            (folder / f"{part}_X.txt").write_text("".join(f"{row['title']}\n" for row in rows[part]))
            lines = [" ".join(f"{label}:1" for label in row["target_ind"]) for row in rows[part]]
            (folder / f"{part}_X_Y.txt").write_text("\n".join([f"{len(lines)} {len(LABELS)}", *lines, ""]))
        return folder
    for name, part in (("train", "trn"), ("test", "tst")):
        docs = [
            {"uid": row["uid"], "text": row["title"], "labels": [label_id(label) for label in row["target_ind"]]}
            for row in rows[part]
        ]
        (folder / f"{name}.{form}").write_bytes(encode(form, docs))
    labels = [{"uid": row["uid"], "title": row["title"]} for row in rows["lbl"]]
    (folder / f"labels.{form}").write_bytes(encode(form, labels))
    return folder


@pytest.mark.parametrize("form", FORMS)
def test_the_stage_takes_every_form_and_keeps_its_ids(tiny_model, tmp_path, form):
    project = make_project(tmp_path / "project", **small_checkpoint(tiny_model), **{"dataset": DATASET})
    shutil.rmtree(project / DATASET)
    tiny_in(form, project / DATASET)
    run_stages(project, ["prepare"])
    made, rows = prepared(project / "data" / "prepare"), dataset_rows()
    assert made.train.texts == [row["title"] for row in rows["trn"]] and made.label_texts == LABELS
    own = [[made.label_texts[label] for label in made.train.positives[row]] for row in range(len(rows["trn"]))]
    assert own == [[LABELS[label] for label in sorted(set(row["target_ind"]))] for row in rows["trn"]]
    if form != "xc-text":
        assert made.train.ids == [row["uid"] for row in rows["trn"]] and made.test.ids[0] == rows["tst"][0]["uid"]
        assert made.label_ids == [label_id(label) for label in range(len(LABELS))]


@pytest.mark.parametrize("form", FORMS)
def test_a_dataset_is_checked_and_imported(tiny_run, tmp_path, form):
    folder = tiny_in(form, tmp_path / "mine")
    result = invoke(tiny_run, main, ["check", folder])
    assert (result.exit_code, result.stderr) == (0, "")
    lines = [line.split() for line in result.stdout.splitlines()]
    assert ["training", "docs", "N", "60"] in lines and ["labels", "L", "40"] in lines
    assert result.stdout.endswith("no problems, every row can be used\nIt can be trained on.\n")
    result = invoke(tiny_run, main, ["import", folder, tmp_path / "out"])
    assert (result.exit_code, result.stderr) == (0, "") and "60 training and 20 test documents" in result.stdout
    assert_same_dataset(tmp_path / "out", folder)
    assert (tmp_path / "out" / "skipped.csv").read_text().splitlines() == ["file,line,reason,remedy"]


def test_problems_are_listed_and_decide_the_exit_code(tiny_run, tmp_path):
    path = tmp_path / "a.csv"
    good = "".join(f"text {n},red;box\n" for n in range(60))
    path.write_text(f"title,tags\n{good},red\nonly one\nwithout,\n")
    result = invoke(tiny_run, main, ["check", path, "--separator", ";", "--out", tmp_path / "all.csv"])
    assert result.exit_code == 0 and "text = 'title', labels = 'tags', no ids\n" in result.stdout
    first = f"{path}, line 62: the row has no text: give the row a text or take it out."
    assert f"3 problems:\n  {first}\n" in result.stdout
    assert len((tmp_path / "all.csv").read_text().splitlines()) == 4
    assert "state --separator ';'" in invoke(tiny_run, main, ["check", path]).stdout
    assert_refused(invoke(tiny_run, main, ["import", path, tmp_path / "out", "--text", "body"]), "no column 'body'")
    path.write_text(f"title,tags\n{good},red\nonly one\nwithout,\n,\n")
    result = invoke(tiny_run, main, ["check", path])
    assert result.exit_code == 1 and "4 problems:" in result.stdout
    assert result.stderr.startswith(f"error: {path}: 4 of 64 rows cannot be used, more than prepare.bad_rows = 0.05")
    assert_refused(invoke(tiny_run, main, ["import", path, tmp_path / "out"]), "4 of 64 rows")
    assert not (tmp_path / "out").exists()
    path.write_text("title,tags\na,b\n")
    result = invoke(tiny_run, main, ["check", path])
    assert result.exit_code == 1 and "a has no" in result.stderr
    assert_refused(invoke(tiny_run, main, ["check", tmp_path / "nowhere"]), "There is no dataset")


def test_a_file_without_names_is_imported_by_its_column_numbers(tiny_run, tmp_path):
    (tmp_path / "a.csv").write_text("".join(f"D{n},x,text {n}\n" for n in range(30)))
    options = ["--no-header", "--id", "1", "--labels", "2", "--text", "3", "--name", "Mine"]
    result = invoke(tiny_run, main, ["import", tmp_path / "a.csv", tmp_path / "out", *options])
    assert result.exit_code == 0, result.stderr
    data = load_dataset(tmp_path / "out")
    assert data.name == "Mine" and data.label_ids == ["x"]
    assert {*data.train.ids, *data.test.ids} == {f"D{n}" for n in range(30)}


def test_predicting_needs_a_text_and_a_finished_run(tiny_run, tmp_path):
    assert_refused(invoke(tiny_run, main, ["predict"]), "there is no text", "--file")
    assert_refused(invoke(tmp_path, main, ["predict", "a"]), "data/index is not a finished artifact", "dvc repro")
    assert invoke(tiny_run, main, ["predict", "-k", "0", "a"]).exit_code == 2
    assert invoke(tiny_run, main, ["predict", "--file", "nowhere"]).exit_code == 2


def assert_same_dataset(folder: Path, other: Path) -> None:
    one, two = load_dataset(folder), load_dataset(other)
    assert (one.name, one.label_ids, one.label_texts) == (two.name, two.label_ids, two.label_texts)
    for split in ("train", "test"):
        a, b = getattr(one, split), getattr(two, split)
        assert (a.ids, a.texts) == (b.ids, b.texts)
        np.testing.assert_array_equal(a.positives.values, b.positives.values)
        np.testing.assert_array_equal(a.positives.offsets, b.positives.offsets)
        np.testing.assert_array_equal(getattr(one, f"{split}_filter"), getattr(two, f"{split}_filter"))


def test_an_export_reads_back_as_the_same_split(xc, tiny_run, tmp_path):
    said = xc("export", tmp_path / "out")
    assert str(tmp_path / "out") in said
    assert_same_dataset(tmp_path / "out", tiny_run / DATASET)
    assert len(load_dataset(tmp_path / "out").test_filter) > 0


def test_an_export_prepared_again_has_the_same_validation_documents(xc, tiny_run, tiny_model, tmp_path):
    project = make_project(tmp_path / "again", **small_checkpoint(tiny_model))
    for file in (project / DATASET).iterdir():
        file.unlink()
    xc("export", project / DATASET)
    run_stages(project, ["prepare"])
    for part in ("train", "test", "labels"):
        manifest = Path("data", "prepare", part, "manifest.json")
        assert (project / manifest).read_bytes() == (tiny_run / manifest).read_bytes()


def test_an_export_never_overwrites(tiny_run, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    assert_refused(invoke(tiny_run, main, ["export", tmp_path]), str(tmp_path), "not an empty folder")
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def assert_table(printed: str, report: dict, titles: dict[str, str]) -> None:
    """A line for each of the rows, and what the index finds."""
    header, *lines, empty, first, second, third, fourth = printed.splitlines()
    assert header.split() == list(COLUMNS) and empty == ""
    for line, (row, title) in zip(lines, titles.items(), strict=True):
        assert line.startswith(title)
        numbers = [float(number) for number in line[len(title) :].split()]
        assert numbers == pytest.approx([report[row][name] for name in COLUMNS], abs=0.005)
    assert first == f"in percent, on the {report['docs']['fused']:,} test documents"
    for name, figure in report["index"].items():
        line, digits = (second, 1) if "recall" in name else (third, 2)
        assert f"{name.removeprefix('recall').removeprefix('lost ')} {figure:.{digits}f}" in line
    said = report["probabilities"]
    assert f"off by {said['calibration error']:.1f}" in fourth and f"F1 {said['F1']:.1f}" in fourth


def test_labels_below_a_cut_off_are_left_out(xc, tiny_run):
    whole = json.loads(xc("predict", "--json", "-k", "40", "small red box"))["labels"]
    middle = (whole[2]["score"] + whole[3]["score"]) / 2
    cut = json.loads(xc("predict", "--json", "-k", "40", "--threshold", str(middle), "small red box"))["labels"]
    assert cut == [label for label in whole if label["score"] >= middle]
    cutoffs = load_system(tiny_run / "data", MODULAR).cutoffs
    best = cutoffs.thresholds[cutoffs.best()]
    for words, least in ((["--threshold", "f1"], best), (["--precision", "0.01"], cutoffs.at(0.01))):
        found = json.loads(xc("predict", "--json", "-k", "40", *words, "small red box"))["labels"]
        assert found == [label for label in whole if label["score"] >= round(least, 6)]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--threshold", "2"], "--threshold is '2'; it must be a probability from 0 to 1, or f1"),
        (["--threshold", "high"], "--threshold is 'high'"),
        (["--threshold", "0.5", "--precision", "0.5"], "give one of them"),
    ],
)
def test_a_cut_off_that_makes_no_sense_is_a_sentence(words, said, tiny_run):
    assert_refused(invoke(tiny_run, main, ["predict", *words, "small red box"]), said)


def test_the_table_shows_the_metrics_of_every_row(xc, tiny_run):
    report = json.loads((tiny_run / "metrics.json").read_text())
    assert_table(xc("table"), report, MODULAR.rows)


def test_the_table_of_the_unified_method_has_its_own_rows(unidec_run, tmp_path):
    result = invoke(unidec_run, main, ["table", "--unidec"])
    assert (result.exit_code, result.stderr) == (0, "")
    report = json.loads((unidec_run / "unidec" / "metrics.json").read_text())
    assert_table(result.stdout, report, UNIDEC.rows)
    alone = {row: figures for row, figures in report.items() if row not in UNIDEC.absent}
    (tmp_path / "alone.json").write_text(json.dumps(alone))
    result = invoke(tmp_path, main, ["table", "--unidec", "--metrics", "alone.json"])
    assert_table(result.stdout, alone, {row: title for row, title in UNIDEC.rows.items() if row in alone})
    for command in (["table", "--metrics", unidec_run / "unidec" / "metrics.json"], ["table"]):
        assert_refused(invoke(unidec_run, main, command), "metrics.json", "dvc repro")


def test_a_table_needs_metrics(tmp_path):
    assert_refused(invoke(tmp_path, main, ["table"]), "metrics.json cannot be read", "dvc repro")


def test_timings_are_measured_and_written(xc, tmp_path):
    printed = json.loads(xc("timings", "--predict-only", "--out", tmp_path / "deep" / "timings.json"))
    assert json.loads((tmp_path / "deep" / "timings.json").read_text()) == printed
    assert all(printed[name] > 0 for name in ("ms_batch", "ms_single", "model_mb"))


@pytest.mark.parametrize("report", ["{}", "[1]", "7", '{"zero-shot": 3}', '{"encoder": {"P@1": 3}, "classifier": {}}'])
def test_a_table_of_something_else_is_a_sentence(tiny_run, tmp_path, report):
    (tmp_path / "m.json").write_text(report)
    assert_refused(
        invoke(tiny_run, main, ["table", "--metrics", tmp_path / "m.json"]), "holds no metrics", "`dvc repro`"
    )
    unified = invoke(tiny_run, main, ["table", "--unidec", "--metrics", tmp_path / "m.json"])
    assert_refused(unified, "holds no metrics", "`dvc repro unidec/dvc.yaml`")


def test_a_path_that_cannot_be_written_is_a_sentence(tiny_run, tmp_path):
    (tmp_path / "a.csv").write_text("text,label\n" + "".join(f"text {i},l{i % 3}\n" for i in range(40)))
    result = invoke(tiny_run, main, ["check", tmp_path / "a.csv", "--out", tmp_path / "nowhere" / "x.csv"])
    assert result.exit_code == 1 and "nowhere/x.csv cannot be read or written" in result.stderr


def test_an_export_of_two_runs_is_refused(tiny_run, tmp_path):
    shutil.copytree(tiny_run / "data" / "prepare", tmp_path / "data" / "prepare")
    with artifacts.writing(tmp_path / "data" / "prepare" / "train", name="prepare/train") as folder:
        artifacts.save_json(folder, "meta.json", {})
    result = invoke(tmp_path, main, ["export", tmp_path / "out"])
    assert result.exit_code == 1 and "was made from another" in result.stderr and not (tmp_path / "out").exists()


def test_what_to_try_next_names_commands_that_exist(xc):
    named = re.findall(r"^  xc (\w+)", xc("next"), flags=re.MULTILINE)
    assert named and set(named) <= set(COMMANDS)


def loaded_by(*args: str) -> tuple[subprocess.CompletedProcess, set[str]]:
    """(the finished process of `xc` with these arguments, the packages it had imported by then)."""
    code = (
        "import atexit, sys; atexit.register(lambda: print('', *{name.split('.')[0] for name in sys.modules}))\n"
        "from longtail.cli import main; main(prog_name='xc')"
    )
    done = subprocess.run([sys.executable, "-c", code, *args], capture_output=True, text=True, cwd=ROOT)
    return done, set(done.stdout.splitlines()[-1].split())


@pytest.mark.parametrize("args, code", [(["--help"], 0), (["--version"], 0), ([], 2), (["predcit"], 2)])
def test_help_and_a_mistyped_command_import_nothing_slow(args, code):
    done, modules = loaded_by(*args)
    assert done.returncode == code, done.stderr
    assert "click" in modules and not modules & HEAVY


@pytest.mark.parametrize("args", [["predict", "--help"], ["predict"], ["estimate", "--help"], ["next"]])
def test_a_command_that_computes_nothing_imports_nothing_that_computes(args):
    _, modules = loaded_by(*args)
    assert not modules & (HEAVY - {"ruamel"})


def test_a_mistyped_command_is_answered_with_the_one_that_was_meant():
    done, _ = loaded_by("chekc", "my.csv")
    assert done.returncode == 2 and "No such command 'chekc'" in done.stderr and "'check'" in done.stderr
    done, _ = loaded_by("qqqq")
    assert done.returncode == 2 and "No such command 'qqqq'" in done.stderr and "Did you mean" not in done.stderr


def test_every_command_is_listed_with_the_first_line_of_its_help():
    done, _ = loaded_by("--help")
    with click.Context(main) as context:
        assert main.list_commands(context) == list(COMMANDS)
        for name, (_, line) in COMMANDS.items():
            command = main.get_command(context, name)
            assert command.name == name and command.help.splitlines()[0] == line
            assert re.search(rf"^  {name} +{re.escape(line)}$", done.stdout, flags=re.MULTILINE)  # one line each


def test_the_version_is_said():
    done, _ = loaded_by("--version")
    assert done.stdout.splitlines()[0] == f"longtail {longtail.__version__}"


def test_a_new_pipeline_has_an_option_without_new_code(monkeypatch):
    monkeypatch.setitem(PIPELINES, "third", dataclasses.replace(UNIDEC, folder="third"))

    @click.command()
    @pipeline_option
    def chosen(pipeline: str) -> None:
        click.echo(repr(PIPELINES[pipeline].folder))

    for args, folder in (([], ""), (["--unidec"], "unidec"), (["--third"], "third")):
        assert ast.literal_eval(CliRunner().invoke(chosen, args).output) == folder
    assert "dvc repro third/dvc.yaml" in CliRunner().invoke(chosen, ["--help"]).output


def test_a_file_of_the_current_folder_stands_before_the_one_that_comes_along(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("params.yaml", "unidec/params.yaml", "recipes", "data/raw/hpo"):
        assert files.find(name) == ROOT / name
    (tmp_path / "params.yaml").write_text("K: 1\n")
    assert files.find("params.yaml") == Path("params.yaml")
    assert files.find("nowhere.yaml") == Path("nowhere.yaml")


def test_a_dataset_is_checked_in_a_folder_without_parameters(tmp_path):
    (tmp_path / "a.csv").write_text("text,label\n" + "".join(f"text {i},l{i % 3}\n" for i in range(40)))
    result = invoke(tmp_path, main, ["check", "a.csv"])
    assert (result.exit_code, result.stderr) == (0, "") and result.stdout.endswith("It can be trained on.\n")
    result = invoke(tmp_path, main, ["import", "a.csv", "out"])
    assert (result.exit_code, result.stderr) == (0, "") and load_dataset(tmp_path / "out").label_ids == [
        "l0",
        "l1",
        "l2",
    ]


def test_artifacts_of_different_runs_are_not_mixed(tiny_run, tmp_path):
    copy = tmp_path / "data"
    shutil.copytree(tiny_run / "data", copy)
    facts = artifacts.load_manifest(copy / "classifier") | {"parameters": {"lr": 7}}
    facts["seal"] = artifacts.seal({name: value for name, value in facts.items() if name != "seal"})
    artifacts.save_json(copy / "classifier", "manifest.json", facts)
    with pytest.raises(UserError, match=r"(index|score) was made from another .*classifier than .*dvc repro"):
        load_system(copy)


def test_a_damaged_graph_is_refused_before_it_is_loaded(tiny_run, tmp_path):
    copy = tmp_path / "data"
    shutil.copytree(tiny_run / "data", copy)
    graph = copy / "index" / "labels.hnsw"
    content = bytearray(graph.read_bytes())
    content[len(content) // 2] ^= 255
    graph.write_bytes(content)
    with pytest.raises(UserError, match=r"labels.hnsw is damaged .*dvc repro"):
        load_system(copy)
