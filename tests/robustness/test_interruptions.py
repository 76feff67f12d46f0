"""Stages killed at random moments and artifacts damaged in every way, by the commands that show it on larger data."""

import re
import subprocess
import sys

import pytest

from testing import tiny

pytestmark = pytest.mark.stage


def command(*args) -> str:
    """What the command printed; each runs in a process of its own, which forks before it has computed anything."""
    done = subprocess.run([sys.executable, "-m", *map(str, args)], cwd=tiny.ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def larger_run(tiny_model, tmp_path_factory):
    """A run whose stages have several chunks, steps and blocks to be interrupted in."""
    trained = ("encoder", "classifier", f"{tiny.UNIDEC}:train")
    changes = {f"{stage}.{name}": v for stage in trained for name, v in (("epochs", 2), ("batch_size", 256))}
    unified = {"refresh": 1, "classifier_from": 1, "average_after": 1, "extra": 100, "epochs": 3}
    changes |= {f"{tiny.UNIDEC}:train.{name}": v for name, v in unified.items()}
    changes |= {f"{tiny.UNIDEC}:gandalf.labels": 0.2, f"{tiny.UNIDEC}:index.block": 1000, "index.block": 1000}
    changes |= tiny.small_checkpoint(tiny_model) | {"K": 200}
    folder = tiny.make_project(tmp_path_factory.mktemp("larger"), tiny.larger_rows(3500), **changes)
    tiny.run_stages(folder, [stage for stage in tiny.EVERY if tiny.home(stage).name != "score"])
    return folder


def test_every_long_stage_survives_kills_and_a_full_disk_to_the_byte(larger_run):
    printed = command(
        "tests.robustness.interruptions", "--project", larger_run, "--snapshot", 0, "--threads", 1, "--kills", 5
    )
    rows = re.findall(r"^([\w/]+) +(\d+) +(\d+) +(\d+) +(\w+) +(\w+) +\S+ +\S+ +(\w+)$", printed, flags=re.MULTILINE)
    modular = ["embed", "encoder", "augment", "classifier", "index"]
    assert [row[0] for row in rows] == [*modular, "unidec/train", "unidec/index"]
    for _, kills, went_on, files, same, gone, disk in rows:
        assert int(kills) == 5 and int(went_on) >= 1 and int(files) >= 4
        assert (same, gone, disk) == ("yes", "yes", "unhurt")


def test_damaged_artifacts_are_refused_with_one_sentence():
    assert "80 of 80 reads of damaged artifacts were refused with one sentence" in command(
        "tests.robustness.damage", "--sample", 80
    )
