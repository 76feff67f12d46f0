"""Trained encoders in artifact folders: encoder.json says what it is, encoder.safetensors holds its weights."""

import csv
from pathlib import Path

from torch import nn

from xcutils import artifacts
from xcutils.encoders import rebuild


def save_encoder(folder: Path, encoder: nn.Module) -> None:
    state = {name: tensor.detach().cpu().numpy() for name, tensor in encoder.state().items()}
    artifacts.save_json(folder, "encoder.json", encoder.config())
    artifacts.save_tensors(folder, "encoder.safetensors", state)


def load_encoder(folder: Path) -> nn.Module:
    return rebuild(artifacts.load_json(folder, "encoder.json"), artifacts.load_tensors(folder, "encoder.safetensors"))


def save_curve(folder: Path, rows: list[dict]) -> None:
    """curve.csv: one row per fit and epoch, for `dvc plots show`."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    with open(Path(folder) / "curve.csv", "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, names, restval="")
        writer.writeheader()
        writer.writerows(rows)
