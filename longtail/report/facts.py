"""What a run left to report: metrics, curves, results by label, parameters, what each stage took."""

import csv
import json
from dataclasses import dataclass
from pathlib import Path

from longtail import files
from longtail.places import Run as PlacedRun
from longtail.recipes import flat
from stages import made, timing_of
from xcutils.core import artifacts
from xcutils.core.errors import UserError
from xcutils.core.params import AUTO, read
from xcutils.core.pipelines import MODULAR, Pipeline

Rows = list[dict[str, str]]


@dataclass(frozen=True)
class Taken:
    """What a stage took: seconds, bytes; None where it was not recorded for what is there."""

    stage: str
    seconds: float | None
    memory: float | None


@dataclass(frozen=True)
class Run:
    """A finished run of a pipeline.

    metrics  row -> {metric: percent};  facts  what else metrics.json holds
    curves   stage -> its rows by epoch
    params   name -> the value that the run had;  since  (name, that value, the one that stands in the file now)
    """

    pipeline: Pipeline
    data: Path
    stats: dict
    metrics: dict[str, dict[str, float]]
    facts: dict[str, dict[str, float]]
    curves: dict[str, Rows]
    bins: Rows
    labels: Rows
    reliability: Rows
    cutoffs: dict[str, list[float]]
    params: dict[str, object]
    since: list[tuple[str, object, object]]
    taken: list[Taken]


def load_run(data: Path, pipeline: Pipeline) -> Run:
    """The last run of the pipeline, as it left its files."""
    own = pipeline.data(data)
    score = artifacts.check(own / "score")
    metrics = data.parent / pipeline.metrics
    tree = artifacts.load_json(metrics.parent, metrics.name)
    rows = rows_of(tree)
    if not rows or not isinstance(tree.get("probabilities"), dict):
        raise UserError(f"{metrics} holds no metrics of this version: run `{pipeline.command}` to make it again.")
    params, since = parameters(data, pipeline)
    curves = {stage: load_rows(own / stage / "curve-choose.csv") for stage in pipeline.stages}
    return Run(
        pipeline=pipeline,
        data=data,
        stats=artifacts.load_json(data / "prepare", "stats.json"),
        metrics={name: rows[name] for name in pipeline.rows if name in rows},
        facts={name: tree[name] for name in ("index", "probabilities", "docs")},
        curves={stage: found for stage, found in curves.items() if found},
        bins=load_rows(score / "bins.csv"),
        labels=load_rows(score / "labels.csv"),
        reliability=load_rows(score / "reliability.csv"),
        cutoffs=artifacts.load_json(own / "index", "cutoffs.json"),
        params=params,
        since=since,
        taken=[taken(data, *stage) for stage in stages_of(pipeline)],
    )


def rows_of(tree: dict) -> dict[str, dict[str, float]]:
    """The rows of a metrics.json that hold the metrics of a ranking."""
    return {name: row for name, row in tree.items() if isinstance(row, dict) and "P@1" in row}


def load_rows(file: Path) -> Rows:
    """The rows of a CSV file; none where it is not there."""
    if not file.is_file():
        return []
    with open(file, newline="", encoding="utf-8") as lines:
        return list(csv.DictReader(lines))


def parameters(data: Path, pipeline: Pipeline) -> tuple[dict[str, object], list[tuple[str, object, object]]]:
    """(name -> the value that the run had, sections before a dot; (name, that value, the file's) where they differ).

    dvc.lock says what stood in the parameter file when a stage ran. Of a stage that ran without DVC the manifest says
    what it ran with, which is the same but for `auto`: there the manifest has the number that the rule chose.
    """
    own = data.parent / pipeline.params
    now = flat(read(own if own.is_file() else files.find(str(pipeline.params))))
    locked, written = locked_values(data, pipeline), PlacedRun(data, pipeline).parameters()
    ran: dict[str, object] = {}
    for stage in pipeline.stages:
        if stage in locked:
            ran |= locked[stage]
        else:
            names = {name if name in now else f"{stage}.{name}": v for name, v in flat(written.get(stage, {})).items()}
            ran |= {name: v for name, v in names.items() if now.get(name, AUTO) != AUTO}
    return now | ran, [(name, v, now.get(name)) for name, v in ran.items() if name not in now or now[name] != v]


def locked_values(data: Path, pipeline: Pipeline) -> dict[str, dict[str, object]]:
    """stage -> name -> the value in the parameter file when DVC ran the stage; empty where there is no dvc.lock."""
    file = data.parent / pipeline.folder / "dvc.lock"
    stages = read(file).get("stages", {}) if file.is_file() else {}
    return {
        stage: {name: v for tree in facts["params"].values() for name, v in flat(tree).items()}
        for stage, facts in stages.items()
        if "params" in facts
    }


def stages_of(pipeline: Pipeline) -> list[tuple[str, Pipeline]]:
    """(stage, the pipeline that runs it) in their order; the others read what the root pipeline prepared."""
    before = [] if "prepare" in pipeline.stages else [("prepare", MODULAR)]
    return [*before, *((stage, pipeline) for stage in pipeline.stages)]


def taken(data: Path, stage: str, pipeline: Pipeline) -> Taken:
    """What the stage took when it made what is there now."""
    out = Path(pipeline.folder, data.name, stage)
    try:
        facts = json.loads((data.parent / timing_of(out)).read_text(encoding="utf-8"))
        if facts["made"] == made(data.parent / out):
            return Taken(stage, float(facts["seconds"]), float(facts["memory"]))
    except (OSError, ValueError, KeyError, TypeError):
        pass
    return Taken(stage, None, None)
