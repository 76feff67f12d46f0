"""Tiny data that several tests share; nothing in any test needs the network."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"  # before the libraries that read them are imported
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("XC_THREADS", "1")  # pytest -n has a process per core; and no test changes it for the next
os.environ.setdefault("OMP_NUM_THREADS", "1")

from xcutils.core import processor

processor.same_everywhere()  # as the stages do, with whose results some tests compare their own

from pathlib import Path

import numpy as np
import pytest

from xcutils.core.ragged import Ragged, from_rows


@pytest.fixture
def texts() -> Ragged:
    """Token ids of texts of different lengths, an empty one and two equal ones among them; ids of tiny.WORDS."""
    return from_rows([[4, 7, 11], [], [5], [6, 8, 9, 10, 12, 15], [4, 7, 11], [13, 13, 14, 4], [15, 6]], np.int32)


@pytest.fixture
def positives() -> Ragged:
    """Label ids (below 9) of seven docs, sorted in each row; the fourth doc has none, label 8 belongs to nobody."""
    return from_rows([[0, 3], [1], [0, 1, 2, 5], [], [4, 6, 7], [5], [2, 3, 4, 5, 6]], np.int32)


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory) -> Path:
    """A folder like a checkpoint's: a random BERT of six small layers, and a tokenizer that knows tiny.WORDS."""
    from testing import tiny

    return tiny.make_checkpoint(tmp_path_factory.mktemp("checkpoint"))


@pytest.fixture(scope="session")
def tiny_run(tiny_model, tmp_path_factory) -> Path:
    """A folder in which all stages have run on the tiny dataset, to be read and not written."""
    from testing import tiny

    folder = tiny.make_project(tmp_path_factory.mktemp("run"), **tiny.small_checkpoint(tiny_model))
    tiny.run_stages(folder)
    return folder


@pytest.fixture(scope="session")
def unidec_run(tiny_run, tiny_model, tmp_path_factory) -> Path:
    """A folder in which the unified pipeline has run on what that run prepared, to be read and not written."""
    from testing import tiny

    folder, stages = tiny.branch(
        tiny_run, tmp_path_factory.mktemp("unidec"), "unidec/embed", **tiny.small_checkpoint(tiny_model)
    )
    tiny.run_stages(folder, stages)
    return folder


@pytest.fixture(scope="session")
def tiny_bundle(tiny_run, tmp_path_factory) -> Path:
    """A bundle of that run, to be read and not written."""
    from longtail.bundling import write_bundle
    from longtail.places import find_place

    return write_bundle(find_place(tiny_run), tmp_path_factory.mktemp("bundles") / "tiny")


@pytest.fixture
def bundle(tiny_bundle, tmp_path) -> Path:
    """A copy of it that a test may write to."""
    import shutil

    return Path(shutil.copytree(tiny_bundle, tmp_path / "bundle"))
