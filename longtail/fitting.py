"""A model trained from texts in memory: the stages' own code, in this process, without DVC and git."""

import io
import json
import os
import shlex
import tempfile
import threading
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import click
import numpy as np
from ruamel.yaml import YAML

from longtail.estimates import stage_module
from longtail.files import packaged
from longtail.models import Model
from longtail.places import Run
from stages import check_parameters
from xcutils.core.errors import UserError
from xcutils.core.params import read
from xcutils.core.pipelines import MODULAR

MEASURES = "score"  # the stage that needs test documents
WHERE = "params"  # how errors call the parameters
_training = threading.Lock()  # the stages work in the current folder, which is the whole process's


def fit(
    texts: Sequence[str],
    labels: Sequence[Iterable[str]],
    label_texts: Mapping[str, str] | None = None,
    *,
    test: tuple[Sequence[str], Sequence[Iterable[str]]] | None = None,
    params: Mapping[str, Any] | None = None,
    folder: str | Path | None = None,
    seed: int = 0,
    progress: bool = True,
) -> Model:
    """A model trained on these texts and their labels.

    labels       the ids of each text's labels
    label_texts  the text of each label by its id; None: the ids are texts themselves
    test         (texts, labels) that the model is measured on: `model.info["metrics"]`; None: it is not measured
    params       values that differ from the defaults, {"encoder.epochs": 5}
    folder       where the data and all that the training writes are kept, and where an interrupted training goes on;
                 None: a folder that goes with the model, which `model.save` keeps as a bundle
    progress     say what is done, on stderr
    """
    corpora = {"train": _rows(texts, labels, "texts"), "test": _rows(*test, "test") if test else None}
    settings = _settings(params or {}, seed)
    with ExitStack() as stack:
        if folder is None:
            place = tempfile.TemporaryDirectory(prefix="longtail-")
            stack.callback(place.cleanup)
            home = Path(place.name)
        else:
            home = Path(folder).resolve()
        write_dataset(home / settings["dataset"], corpora, label_texts)
        with open(home / "params.yaml", "w", encoding="utf-8") as file:
            YAML().dump(settings, file)
        with _training, _as_it_was(), _inside(home), _quiet(not progress):
            for stage in MODULAR.stages:
                if stage != MEASURES or test:
                    run_stage(stage, settings["dataset"])
        model = Model(Run(home / "data", MODULAR))
        if folder is None:
            stack.pop_all()
            weakref.finalize(model, place.cleanup)
        return model


def run_stage(name: str, dataset: str) -> None:
    """Run a stage in the current folder as dvc.yaml would; a UserError goes through."""
    words = shlex.split(read(packaged("dvc.yaml"))["stages"][name]["cmd"].replace("${dataset}", dataset))
    command: click.Command = stage_module(MODULAR, name).main
    function: Any = command.callback
    with command.make_context(name, words[3:]) as context:
        context.invoke(function.__wrapped__, **context.params)


def _rows(texts: Sequence[str], labels: Sequence[Iterable[str]], what: str) -> list[dict]:
    """The documents as lines of a dataset, after a look at whether they are texts and lists of ids."""
    if isinstance(texts, str) or isinstance(labels, str):
        raise UserError(f"{what} must be a list of strings, and their labels a list of lists of ids.")
    if len(texts) != len(labels):
        raise UserError(f"there are {len(texts):,} {what} and labels for {len(labels):,}: give each text its labels.")
    rows = []
    for number, (text, ids) in enumerate(zip(texts, labels)):
        found = [ids] if isinstance(ids, str) else list(ids)
        wrong = next((value for value in (text, *found) if not isinstance(value, str)), None)
        if wrong is not None:
            raise UserError(
                f"{what}, number {number}, has {wrong!r} where a string must be: texts and ids are strings."
            )
        rows.append({"text": text, "labels": found})
    if not rows:
        raise UserError(f"{what} is empty: give at least one text.")
    return rows


def write_dataset(
    folder: Path, corpora: Mapping[str, list[dict] | None], label_texts: Mapping[str, str] | None
) -> None:
    """Write the documents as a dataset that the stage `prepare` reads.

    Where there are no test documents the first one stands in for them, since a dataset without any is given some of
    the training's; nothing is measured on it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    _write_lines(folder / "train.jsonl", corpora["train"] or [])
    _write_lines(folder / "test.jsonl", corpora["test"] or (corpora["train"] or [])[:1])
    if label_texts is not None:
        _write_lines(folder / "labels.jsonl", [{"id": id, "text": text} for id, text in label_texts.items()])


def _write_lines(file: Path, rows: list[dict]) -> None:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def _settings(changes: Mapping[str, Any], seed: int) -> dict:
    """The tree of a parameter file: the defaults with these changes, checked."""
    tree = read(packaged(MODULAR.params.as_posix())) | {"dataset": "data/raw/own", "seed": seed}
    for name, value in changes.items():
        *section, key = name.split(".")
        part = tree.setdefault(section[0], {}) if len(section) == 1 else tree
        if len(section) > 1 or not isinstance(part, dict) or name in ("dataset", "seed"):
            raise UserError(f"{name!r} is no parameter to set here: name one like 'encoder.epochs' or 'K'.")
        part[key] = value
    check_parameters(tree, WHERE, MODULAR)
    return tree


@contextmanager
def _inside(folder: Path) -> Iterator[None]:
    """The current folder is this one within the block."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


@contextmanager
def _quiet(wanted: bool) -> Iterator[None]:
    """Nothing is shown within the block, if so wanted."""
    if not wanted:
        yield
        return
    with redirect_stderr(io.StringIO()), redirect_stdout(io.StringIO()):
        yield


@contextmanager
def _as_it_was() -> Iterator[None]:
    """What a stage sets for its whole process is put back after the block: random numbers, threads, warnings."""
    import torch

    state, numbers = torch.get_rng_state(), np.random.get_state()
    mode, threads = torch.get_deterministic_debug_mode(), torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_rng_state(state)
        np.random.set_state(numbers)
        torch.set_deterministic_debug_mode(mode)
        torch.set_num_threads(threads)
