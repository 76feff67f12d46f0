"""Trained encoders in artifact folders: encoder.json says what it is, encoder.safetensors holds its weights."""

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
