"""The application: the command `xc`, and models from Python. It may import everything; no stage imports it.

import longtail

model = longtail.load("bundle")
model.predict("a text", k=5)
"""

import importlib
from typing import Any

__version__ = "0.2.0"

# What can be called from here -> its module, imported when it is asked for: numpy and torch take a while to load.
# The types stand in __init__.pyi.
PLACES = {
    "Label": "longtail.models",
    "LabelInfo": "longtail.views",
    "Model": "longtail.models",
    "fit": "longtail.fitting",
    "load": "longtail.models",
}


def __getattr__(name: str) -> Any:
    if name not in PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from xcutils.core import processor

    processor.same_everywhere()  # before numpy and torch are loaded, where nobody else has loaded them
    return getattr(importlib.import_module(PLACES[name]), name)


def __dir__() -> list[str]:
    return [*PLACES, "__version__"]
