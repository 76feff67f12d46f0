"""The files that come with Longtail beside its code: parameters, pipelines, recipes, the default dataset."""

import sysconfig
from collections.abc import Iterator
from pathlib import Path

SHARED = Path("share", "longtail")  # where a wheel puts them, in the folder it is installed below


def find(name: str) -> Path:
    """The file or folder of this name: the current folder's own, else the one that came with Longtail.

    name  as in the repository: params.yaml, unidec/params.yaml, recipes/ance.yaml, data/raw/hpo
    Where there is none at all it is the current folder's, which its reader will miss.
    """
    return next((place / name for place in _places() if (place / name).exists()), Path(name))


def packaged(name: str) -> Path:
    """The file of this name that came with Longtail, whatever the current folder has."""
    return next(place / name for place in _own_places() if (place / name).exists())


def _places() -> Iterator[Path]:
    """The current folder, then where Longtail's own files are."""
    yield Path()
    yield from _own_places()


def _own_places() -> Iterator[Path]:
    """The checkout that this module is part of, and where pip puts shared files."""
    home = Path(__file__).resolve().parents[1]
    if (home / "pyproject.toml").is_file():
        yield home
    for folder in (home, *home.parents, Path(sysconfig.get_path("data"))):
        yield folder / SHARED
