"""Growth: the generated datasets, the exponent, the tables, and runs in clones with a made-up pipeline."""

import gzip
import json
import math
import subprocess

import numpy as np
import pytest
from click.testing import CliRunner

from benchmarks import generated, growth, runs
from benchmarks.apart import Measured
from benchmarks.growth import Grown
from longtail.cli import main as xc
from xcutils.core.errors import UserError

WORDS = [f"word{i}" for i in range(200)]


@pytest.fixture
def words(monkeypatch):
    """Few words, so that no tokenizer is loaded."""
    monkeypatch.setattr(generated, "known_words", lambda: WORDS)


def rows_of(path):
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def test_generated_documents_have_labels_whose_words_they_share(words, tmp_path):
    generated.write(tmp_path, n_labels=300, n_docs=400, n_test=40)
    labels, train, test = (rows_of(tmp_path / f"{name}.json.gz") for name in ("lbl", "trn", "tst"))
    assert (len(labels), len(train), len(test)) == (300, 400, 40)
    assert {len(row["target_ind"]) for row in train} == {2, 3, 4}
    for row in [*train, *test]:
        assert row["target_ind"] == sorted(set(row["target_ind"]))
        own = set(row["title"].split())
        assert all(own & set(labels[label]["title"].split()) for label in row["target_ind"])
    assert all(len({labels[i]["title"].split()[0] for i in range(start, start + 16)}) == 1 for start in (0, 16, 32))


def test_generated_labels_are_long_tailed_and_all_have_a_document(words, tmp_path):
    generated.write(tmp_path, n_labels=2000, n_docs=2000, n_test=400)
    train, test = (
        np.bincount([label for row in rows_of(tmp_path / f"{name}.json.gz") for label in row["target_ind"]])
        for name in ("trn", "tst")
    )
    assert len(train) == 2000 and train.min() >= 1
    assert train.max() > 10 * np.median(train)
    assert test[np.argsort(-train)[:20]].sum() > 3 * test.sum() * 20 / 2000  # frequent there means frequent here


def test_the_same_seed_gives_the_same_bytes(words, tmp_path):
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        generated.write(tmp_path / name, 50, 60, 6, seed)
    for file in ("trn.json.gz", "tst.json.gz", "lbl.json.gz"):
        first, same, other = ((tmp_path / name / file).read_bytes() for name in "abc")
        assert first == same != other


@pytest.mark.parametrize("n_labels", [1, 3, 40])
def test_a_generated_dataset_of_any_size_can_be_trained_on(words, tmp_path, n_labels):
    generated.write(tmp_path / "titles", n_labels, 60, 6)
    done = CliRunner().invoke(xc, ["check", str(tmp_path / "titles")])
    assert done.exit_code == 0, done.output
    assert "no problems" in done.output and "It can be trained on." in done.output


@pytest.mark.parametrize(("power", "size"), [(1.0, 10), (0.5, 10), (2.0, 4), (0.0, 100)])
def test_the_exponent_is_that_of_the_power(power, size):
    assert growth.exponent(3.0, 3.0 * size**power, size) == pytest.approx(power)


def test_nothing_has_no_exponent():
    assert growth.exponent(0.0, 1.0, 10) is None


def took(seconds, gigabytes):
    return Measured(gigabytes * 1e9, seconds, seconds)


FUSED = {"P@1": 12.34, "P@5": 5.0, "R@100": 50.0}


def grown():
    """Two sizes: `embed` is linear, `index` is there at the larger one only."""
    estimated = {"embed": took(4.0, 1.0), "index": took(1.0, 2.0)}
    return [
        Grown(1000, 1000, {"embed": took(2.0, 1.0), runs.DVC: took(1.0, 0)}, estimated, FUSED),
        Grown(
            10000, 10000, {"embed": took(20.0, 2.0), "index": took(5.0, 4.0), runs.DVC: took(1.0, 0)}, estimated, FUSED
        ),
    ]


def cells(table):
    return {row[0]: row[1:] for row in ([c.strip() for c in line.strip("|").split("|")] for line in table.split("\n"))}


def test_the_table_has_times_memory_and_exponents():
    table = cells(growth.growth_table(grown()))
    assert table["stage"][-1] == "exponent 1,000 to 10,000"
    assert table["embed"] == ["2.0", "1.00", "20.0", "2.00", "1.00"]
    assert table["index"] == ["-", "-", "5.0", "4.00", "-"]
    assert table["DVC"] == ["1.0", "-", "1.0", "-", "0.00"]
    assert table["all"] == ["3.0", "1.00", "26.0", "4.00", f"{math.log10(26 / 3):.2f}"]


def test_estimates_are_divided_by_what_was_measured():
    table = cells(growth.estimate_table(grown()))
    assert table["embed"] == ["1.00", "2.00", "0.50", "0.20"]
    assert table["index"] == ["-", "-", "0.50", "0.20"]


def test_the_report_names_the_parameters_and_the_plot_is_drawn(tmp_path):
    text = growth.report(grown(), ["K=7"])
    assert all(f"`{change}`" in text for change in (*growth.SETTINGS, "K=7")) and "10,000 labels" in text
    assert "10,000: P@1 12.3, P@5 5.0, R@100 50.0." in text
    growth.draw(grown(), tmp_path / "growth.png")
    assert (tmp_path / "growth.png").read_bytes()[:4] == b"\x89PNG"


def test_what_is_given_stands_above_what_follows_the_size():
    assert growth.changes_for(1000, [])[0] == "K=250"
    assert growth.changes_for(1000, ["K=8"])[-1] == "K=8"


def test_sizes_are_read_and_sorted():
    assert growth.numbers("1_000, 10,10") == [10, 1000]
    for wrong in ("", "ten", "0", "-5"):
        with pytest.raises(UserError, match="--sizes 10000,100000"):
            growth.numbers(wrong)


# --- runs in clones ---------------------------------------------------------------------------------------------------

PIPELINE = """
stages:
  first:
    cmd: python work.py one ${K}
    deps: [work.py]
    outs: [one]
  second:
    cmd: python work.py two ${K}
    deps: [one]
    outs: [two]
"""
WORK = "import sys\nheld = bytearray(100_000_000)\nopen(sys.argv[1], 'w').write(sys.argv[2])\n"


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A repository with a pipeline of two small stages in place of this one."""
    folder = tmp_path / "repository"
    folder.mkdir()
    files = {"dvc.yaml": PIPELINE, "params.yaml": "K: 3\n", "work.py": WORK, "constraints.txt": ""}
    for name, text in {**files, ".dvc/config": "", "stages/a": "", "xcutils/a": "", "longtail/a": ""}.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    author = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    for words in (["init", "-q"], ["add", "-A"], [*author, "commit", "-qm", "a"]):
        subprocess.run(["git", *words], cwd=folder, check=True)
    monkeypatch.setattr(runs, "ROOT", folder)
    return folder


@pytest.mark.pipeline
def test_a_clone_runs_once_and_every_stage_is_measured(repository, tmp_path):
    work = tmp_path / "work"
    clone = runs.Clone(work, changes=["K=5"])
    found = clone.finished()
    assert list(found) == ["first", "second", runs.DVC]
    assert all(1e8 < found[name].peak < 3e8 and found[name].seconds > 0 for name in ("first", "second"))
    assert (clone.checkout / "two").read_text() == "5" and not (repository / "two").exists()

    (clone.checkout / "two").write_text("kept")
    again = runs.Clone(work, changes=["K=5"])
    assert again.is_finished and again.finished() == found and (clone.checkout / "two").read_text() == "kept"
    other = runs.Clone(work, changes=["K=6"])
    assert not other.is_finished and other.finished() and (other.checkout / "two").read_text() == "6"


@pytest.mark.pipeline
def test_a_run_that_fails_is_told_and_goes_on_from_there(repository, tmp_path):
    clone = runs.Clone(tmp_path / "work")
    work = clone.checkout / "work.py"
    work.write_text("import sys\nif sys.argv[1] == 'two': sys.exit('no disk')\n" + WORK)
    with pytest.raises(UserError, match="no disk"):
        clone.finished()
    assert list(clone.records()) == ["first", runs.DVC] and not clone.is_finished
    before = clone.records()
    work.write_text(WORK.replace("100_000_000", "1"))
    assert runs.Clone(tmp_path / "work").finished()["second"].peak < before["first"].peak
