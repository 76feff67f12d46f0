"""A service over the tiny run, shared by the tests that change nothing, and a bundle for those that do."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

import longtail
from longtail.bundling import write_bundle
from testing.service import TOKEN, Service, running

LOCKED = {"authorization": f"Bearer {TOKEN}"}


@pytest.fixture(scope="session")
def tiny_bundle(tiny_run, tmp_path_factory) -> Path:
    """A bundle of the tiny run, to be read and not written."""
    return write_bundle(longtail.load(tiny_run).place, tmp_path_factory.mktemp("bundle") / "tiny")


@pytest.fixture
def own_bundle(tiny_bundle, tmp_path) -> Path:
    """A bundle that a test may change."""
    return Path(shutil.copytree(tiny_bundle, tmp_path / "own"))


@pytest.fixture(scope="package")
def service(tiny_run, unidec_run, tiny_bundle, tmp_path_factory) -> Iterator[Service]:
    """A service of two workers over the tiny run, with its bundle beside it."""
    log = tmp_path_factory.mktemp("service") / "log"
    with running(log, "--bundle", tiny_run, "--compare", tiny_bundle, "--workers", 2, "--max-body", 200_000) as found:
        yield found


@pytest.fixture
def client(service) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=service.address, timeout=60) as found:
        yield found
