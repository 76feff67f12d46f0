"""Every long stage killed at random moments, by the command that shows it on larger data."""

import re

import pytest

from testing import tiny
from testing.programs import output_of
from tests.robustness.interruptions import LONG

pytestmark = pytest.mark.stage


@pytest.fixture(scope="module")
def larger_run(tiny_model, tmp_path_factory):
    """A run whose stages have several chunks, steps and blocks to be interrupted in."""
    modular = {
        "K": 200,
        "encoder.epochs": 2,
        "encoder.batch_size": 256,
        "classifier.epochs": 2,
        "classifier.batch_size": 256,
        "index.block": 1000,
    }
    unified = {
        "gandalf.labels": 0.2,
        "train.epochs": 3,
        "train.batch_size": 256,
        "train.refresh": 1,
        "train.average_after": 1,
        "train.extra": 100,
        "index.block": 1000,
    }
    changes = modular | {f"{tiny.UNIDEC}:{name}": value for name, value in unified.items()}
    changes |= tiny.small_checkpoint(tiny_model)
    folder = tiny.make_project(tmp_path_factory.mktemp("larger"), tiny.larger_rows(3500), **changes)
    tiny.run_stages(folder, [stage for stage in tiny.EVERY if tiny.home(stage).name != "score"])
    return folder


def test_every_long_stage_survives_kills_and_a_full_disk_to_the_byte(larger_run):
    options = ("--project", larger_run, "--snapshot", 0, "--threads", 1, "--kills", 5)
    printed = output_of("tests.robustness.interruptions", *options)
    rows = re.findall(r"^([\w/]+) +(\d+) +(\d+) +(\d+) +(\w+) +(\w+) +\S+ +\S+ +(\w+)$", printed, flags=re.MULTILINE)
    assert [row[0] for row in rows] == list(LONG)
    for _, kills, went_on, files, same, gone, disk in rows:
        assert int(kills) == 5 and int(went_on) >= 1 and int(files) >= 3
        assert (same, gone, disk) == ("yes", "yes", "unhurt")
