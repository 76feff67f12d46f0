"""The application: the command `xc`, and models from Python. It may import everything; no stage imports it.

import longtail

model = longtail.load("bundle")
model.predict("a text", k=5)
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from longtail.fitting import fit
    from longtail.models import Label, LabelInfo, Model, load

__version__ = "0.2.0"
__all__ = ["Label", "LabelInfo", "Model", "fit", "load"]


def __getattr__(name: str) -> Any:
    """The name from the module that has it, imported when it is first asked for: numpy takes a while to load."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from xcutils.core import processor

    processor.same_everywhere()  # before numpy and torch are loaded, where nobody else has loaded them
    if name == "fit":
        from longtail.fitting import fit  # torch: only to train

        return fit
    from longtail import models

    return getattr(models, name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
