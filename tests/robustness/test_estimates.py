"""The comparison of estimates with what stages take, on a tiny run and with made-up measurements.

All stages really run and measured are `python -m tests.robustness.estimates`.
"""

import shutil

import pytest
from click.testing import CliRunner

from longtail.estimates import with_dims
from stages import parameters
from testing.tiny import DATASET, EVERY
from tests.robustness import estimates
from tests.robustness.estimates import Comparison, Measured
from xcutils.core.costs import Estimate, Part
from xcutils.core.pipelines import MODULAR, UNIDEC
from xcutils.data.datasets import load_dataset


def of_ratio(stage: str, ratio: float) -> Comparison:
    return Comparison(stage, Estimate(stage, [Part("all", ratio * 1e9)], 1.0, 0.0), Measured(1e9, 1.0, 1.0))


@pytest.mark.parametrize(("ratio", "good"), [(1.0, True), (1.49, True), (1.51, False), (0.68, True), (0.66, False)])
def test_an_estimate_may_be_off_by_half(ratio, good, capsys):
    found = estimates.failures([of_ratio("embed", 1.1), of_ratio("encoder", ratio)])
    assert bool(found) != good
    assert f"{ratio:.2f} times what was measured (encoder)" in capsys.readouterr().out or ratio == 1.0


def test_what_a_process_takes_is_measured(tmp_path):
    code = "import time; held = bytearray(200_000_000); end = time.process_time() + 0.2"
    found = estimates.run("a", f"python -c '{code}\nwhile time.process_time() < end: pass'", tmp_path)
    assert 2e8 < found.peak < 4e8 and found.seconds > 0.2 and found.cpu > 0.2


def test_the_generated_dataset_can_be_read_and_has_the_sizes_asked_for(tmp_path, monkeypatch):
    monkeypatch.setattr(estimates, "TEST_DOCS", 20)
    estimates.generate(tmp_path / "titles", n_labels=50, n_docs=90)
    data = load_dataset(tmp_path / "titles")
    assert (len(data.train.ids), len(data.test.ids), len(data.label_ids)) == (90, 20, 50)
    assert data.train.positives.lengths.max() <= 9 and data.report.total == 0


@pytest.mark.parametrize("pipeline", [MODULAR, UNIDEC])
def test_the_parameters_of_the_generated_dataset_are_written_and_valid(tmp_path, pipeline):
    estimates.write_params(tmp_path, pipeline, estimates.GENERATED[pipeline.folder])
    assert parameters(tmp_path / pipeline.params).sections["index"].ef_construction == 50


@pytest.mark.stage
def test_every_stage_is_compared_and_kept_for_the_next_time(tiny_run, tmp_path, monkeypatch):
    shutil.copytree(tiny_run, tmp_path / "project")
    project, ran = tmp_path / "project", []

    def run(stage, command, folder):
        ran.append(stage)
        return Measured(2e9, 3.0, 4.0)

    monkeypatch.setattr(estimates, "run", run)
    found = list(estimates.compare(project, project / DATASET, "prepare"))
    assert [one.stage for one in found] == ran == list(EVERY)
    values = parameters(project / MODULAR.params).values
    sizes = with_dims(estimates.prepared_sizes(project), MODULAR, values, values)
    assert sizes.docs == 60 and all(0 < one.estimate.peak < 4e9 and one.ratio < 2 for one in found)
    ran.clear()
    again = list(estimates.compare(project, project / DATASET, "unidec/train"))
    assert ran == ["unidec/train", "unidec/index", "unidec/score"]
    assert [one.measured for one in again] == [one.measured for one in found]


def test_the_command_ends_with_1_when_an_estimate_is_off(monkeypatch, tmp_path):
    monkeypatch.setattr(estimates, "compare", lambda *_: iter([of_ratio("embed", 1.0), of_ratio("index", 2.0)]))
    options = ["--only", "default", "--folder", str(tmp_path)]
    done = CliRunner().invoke(estimates.main, options)
    assert done.exit_code == 1 and "2.00 times what was measured (index)" in done.stdout
    monkeypatch.setattr(estimates, "compare", lambda *_: iter([of_ratio("embed", 1.0)]))
    assert CliRunner().invoke(estimates.main, options).exit_code == 0
