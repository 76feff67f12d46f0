"""What is searched in the end: the sets of vectors that stages wrote."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from xcutils.core import artifacts

SETS = ("concatenated", "labels", "classifiers", "docs")


def vectors_of(stages: Iterable[Path], fit: str) -> dict[str, np.ndarray]:
    """name -> vectors: every set that this fit of the stages wrote. A later stage's set replaces an earlier one's."""
    folders = [stage / fit for stage in stages]
    places = {name: folder for folder in folders for name in SETS if (folder / f"{name}.npy").is_file()}
    return {name: artifacts.load_array(places[name], name) for name in SETS if name in places}
