"""What a run measured, as the page shows it: metrics, results by frequency, curves, calibration, results of labels."""

import csv
from collections.abc import Iterator
from pathlib import Path

from longtail.models import Model

Value = str | float | None
Rows = list[dict[str, Value]]

METRICS = ("P@1", "P@3", "P@5", "N@5", "PSP@1", "PSP@5", "R@10", "R@100")
CURVES = ("encoder", "classifier", "train")  # stages that train
NOT_A_PHASE = ("index", "probabilities", "docs")  # of metrics.json


def described(model: Model, name: str) -> dict:
    """All that the page shows of a model."""
    info = model.info
    measured = {row: facts for row, facts in info.get("metrics", {}).items() if isinstance(facts, dict)}
    cutoffs = model.cutoffs
    return {
        "name": name,
        "hash": info.get("hash", ""),
        "dataset": info.get("dataset", ""),
        "created": info.get("created", ""),
        "labels": len(model.labels),
        "data": info.get("data", {}),
        "parameters": info.get("parameters", {}),
        "columns": METRICS,
        "metrics": {row: facts for row, facts in measured.items() if row not in NOT_A_PHASE},
        "probabilities": measured.get("probabilities", {}),
        "cutoffs": {"thresholds": cutoffs.thresholds, "precision": cutoffs.precision, "recall": cutoffs.recall},
        "bins": table(model, "bins.csv"),
        "reliability": table(model, "reliability.csv"),
        "curves": {stage: rows for stage in CURVES if (rows := table(model, f"curve-{stage}.csv"))},
    }


def of_labels(model: Model) -> dict[str, dict[str, Value]]:
    """Label id -> what the test documents showed of it; empty where the model was handed on without that."""
    return {str(row.pop("id")): row for row in table(model, "labels.csv", texts=("id", "text", "bin"))}


def table(model: Model, name: str, texts: tuple[str, ...] = ("place", "row", "bin")) -> Rows:
    """The rows of a table that the run wrote, the columns `texts` as they are; none where it is not there."""
    file = model.place.tables().get(name)
    return _rows(file, texts) if file else []


def _rows(file: Path, texts: tuple[str, ...]) -> Rows:
    with open(file, newline="", encoding="utf-8") as lines:
        return [dict(_cells(row, texts)) for row in csv.DictReader(lines)]


def _cells(row: dict[str, str], texts: tuple[str, ...]) -> Iterator[tuple[str, Value]]:
    for name, cell in row.items():
        if name in texts:
            yield name, cell
        else:
            yield name, float(cell) if cell else None
