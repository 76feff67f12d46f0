"""What `auto` in a parameter file stands for: a value that follows the numbers of the prepared data.

A rule is no search: it is stated in docs/parameters.md, and a number in the parameter file stands above it. The data
and this file are dependencies of every stage that asks, so that DVC runs a stage again when its rule may decide
otherwise.
"""

from collections.abc import Callable
from dataclasses import asdict, replace
from math import log2
from typing import Any

from xcutils.core.console import say
from xcutils.core.costs import Sizes
from xcutils.core.params import AUTO, Parameters

MANY = 50_000  # vectors of a graph
HELD_OUT, ENOUGH = 0.1, 5_000  # share of the training documents that are for validation; so many tell choices apart
WORTH = 0.05  # of the training documents: fewer validation documents are not worth fitting everything once more


def shared_vectors(s: Sizes) -> tuple[int, str]:
    """About three labels share an auxiliary vector."""
    return power_of_two(s.labels / 3), f"a third of {s.labels:,} labels, as a power of two"


def held_out(s: Sizes) -> tuple[float, str]:
    """Figures of 5,000 documents are steady enough for every choice: more are better trained on."""
    if s.docs * HELD_OUT <= ENOUGH:
        return HELD_OUT, f"of {s.docs:,} training documents"
    return float(f"{ENOUGH / s.docs:.3g}"), f"about {ENOUGH:,} of {s.docs:,} training documents"


def fitted_again(s: Sizes) -> tuple[bool, str]:
    """A second fit, on the validation documents too, takes as long as the first one."""
    share = s.validation / max(1, s.docs)
    return share >= WORTH, f"validation documents are {100 * share:.1f}% of the training documents"


def validation_share(given: float | str, docs: int) -> float:
    """The share of so many training documents that is for validation; given  a share, or `auto`"""
    return decide("prepare.validation", given, Sizes(docs=docs, labels=0))


def split_sizes(docs: int, labels: int, validation: float | str) -> Sizes:
    """The sizes of data that have not been split yet."""
    return Sizes(docs=docs, labels=labels, validation=round(docs * validation_share(validation, docs)))


def links(s: Sizes) -> tuple[int, str]:
    """Graphs over many vectors need more links to find as much by looking at as few of them."""
    return _by_vectors(s, few=12, many=16)


def looked_at(s: Sizes) -> tuple[int, str]:
    """And links that are chosen with more care."""
    return _by_vectors(s, few=128, many=200)


def _by_vectors(s: Sizes, *, few: int, many: int) -> tuple[int, str]:
    """One value or the other, by the larger of the graphs of documents and labels."""
    count = max(s.docs, s.labels)
    if count > MANY:
        return many, f"a graph of {count:,} vectors, above {MANY:,}"
    return few, f"no graph has more than {MANY:,} vectors"


# Parameter -> its rule: sizes in, the value and why out.
RULES: dict[str, Callable[[Sizes], tuple[Any, str]]] = {
    "K": shared_vectors,
    "prepare.validation": held_out,
    "prepare.refit": fitted_again,
    "index.m": links,
    "index.ef_construction": looked_at,
}


def decide(name: str, given: Any, sizes: Sizes) -> Any:
    """The value of the parameter: what is given, or what its rule says."""
    return RULES[name](sizes)[0] if given == AUTO else given


def settled(params: dict[str, Any], sizes: Sizes) -> dict[str, Any]:
    """The values of a parameter file, sections as dicts inside, with what the rules say in place of `auto`."""
    found = {name: dict(v) if isinstance(v, dict) else v for name, v in params.items()}
    for name in RULES:
        section, _, key = name.rpartition(".")
        part = found.get(section, {}) if section else found
        if key in part:
            part[key] = decide(name, part[key], sizes)
    return found


def follow(settings: Parameters, sizes: Sizes, *said: str) -> Parameters:
    """The parameters with what the rules say in place of `auto`.

    said  the sections, or names above them, whose rules say what they decide
    """
    for line in reasons({name: v for name, v in settings.values.items() if name in said}, sizes):
        say(line)
    values = settled(settings.values, sizes)
    sections = {name: replace(section, **values[name]) for name, section in settings.sections.items()}
    return Parameters(replace(settings.top, **{f: values[f] for f in asdict(settings.top)}), sections)


def reasons(params: dict[str, Any], sizes: Sizes) -> list[str]:
    """A line for each rule that decides for these parameters, which may be of one section: {section: its values}."""
    found = {
        **{name: v for name, v in params.items() if not isinstance(v, dict)},
        **{f"{name}.{key}": v for name, part in params.items() if isinstance(part, dict) for key, v in part.items()},
    }
    return [reason(name, sizes) for name in RULES if found.get(name) == AUTO]


def reason(name: str, sizes: Sizes) -> str:
    """What the rule says and why, in a line."""
    value, why = RULES[name](sizes)
    shown = str(value).lower() if isinstance(value, bool) else f"{value:,}"
    return f"{name} = {shown} ({why})"


def power_of_two(number: float) -> int:
    """The power of two that is nearest in proportion, 1 at least."""
    return 1 << max(0, round(log2(max(1.0, number))))
