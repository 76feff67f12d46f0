"""What `auto` in a parameter file stands for: a value that follows the numbers of the prepared data.

A rule is no search: it is stated in docs/parameters.md, and a number in the parameter file stands above it. The data
and this file are dependencies of every stage that asks, so that DVC runs a stage again when its rule may decide
otherwise.
"""

from collections.abc import Callable
from math import log2
from typing import Any

from xcutils.core.costs import Sizes
from xcutils.core.params import AUTO


def shared_vectors(s: Sizes) -> tuple[int, str]:
    """About three labels share an auxiliary vector."""
    return power_of_two(s.labels / 3), f"a third of {s.labels:,} labels, as a power of two"


# Parameter -> its rule: sizes in, the value and why out.
RULES: dict[str, Callable[[Sizes], tuple[Any, str]]] = {"K": shared_vectors}


def decide(name: str, given: Any, sizes: Sizes) -> Any:
    """The value of the parameter: what is given, or what its rule says."""
    return RULES[name](sizes)[0] if given == AUTO else given


def reason(name: str, sizes: Sizes) -> str:
    """What the rule says and why, in a line."""
    value, why = RULES[name](sizes)
    return f"{name} = {value:,} ({why})"


def power_of_two(number: float) -> int:
    """The power of two that is nearest in proportion, 1 at least."""
    return 1 << max(0, round(log2(max(1.0, number))))
