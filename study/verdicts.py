"""Whether a claim holds: its difference for each seed, the sign of that, and how it compares with the papers' sign."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass

from study.directions import DIRECTIONS, Claim
from study.records import Rows

SEEDS = (0, 1, 2)
NO_DIFFERENCE = 0.5  # points: where the papers have nearly no difference, up to this much agrees


def name_of(setting: str, seed: int) -> str:
    """The experiment's name."""
    return f"study-{setting}-s{seed}"


def claims(directions: tuple[str, ...] = tuple(DIRECTIONS)) -> list[Claim]:
    """The claims of these directions."""
    return [claim for name, direction in DIRECTIONS.items() if name in directions for claim in direction.claims]


def per_seed(claim: Claim, rows: dict[str, Rows]) -> dict[int, list[float]]:
    """{seed: the weighted value of each term} of the seeds that have all terms.

    rows  {experiment: its rows}
    """
    out = {}
    for seed in SEEDS:
        found = [(weight, rows.get(name_of(setting, seed), {}).get(row)) for weight, setting, row in claim.terms]
        terms = [weight * row[claim.metric] for weight, row in found if row is not None]
        if len(terms) == len(found):
            out[seed] = terms
    return out


def sign_of(values: list[float], noise: float) -> int:
    """The sign of the mean, 0 where it is not clear: seeds disagree, or the mean is within their standard deviation.

    noise  the standard deviation that is assumed of a single value
    """
    mean = statistics.fmean(values)
    spread = statistics.stdev(values) if len(values) > 1 else noise
    if min(values) <= 0 <= max(values) or abs(mean) <= spread:
        return 0
    return 1 if mean > 0 else -1


def verdict(values: list[float], expected: str, noise: float = 0.0) -> str:
    """Whether the differences have the expected sign."""
    sign = sign_of(values, noise)
    nearly_none = abs(statistics.fmean(values)) <= NO_DIFFERENCE
    if expected == "?":
        return {1: "rises", 0: "no difference", -1: "falls"}[sign]
    if expected == "=" and (sign or nearly_none):
        return "agrees" if nearly_none else "does not agree"
    if sign == 0:
        return "agrees" if expected == ">=" else "no difference"
    return "agrees" if (sign > 0) == (expected in (">", ">=")) else "does not agree"


def noises(rows: dict[str, Rows]) -> dict[str, float]:
    """{metric: the usual standard deviation over seeds of a difference of two settings}"""
    spreads: dict[str, list[float]] = {}
    for claim in claims():
        values = [sum(terms) for terms in per_seed(claim, rows).values()]
        if len(values) > 1 and len(claim.terms) == 2:
            spreads.setdefault(claim.metric, []).append(statistics.stdev(values))
    return {metric: statistics.median(some) for metric, some in spreads.items()}


@dataclass(frozen=True)
class Found:
    """What became of a claim.

    ours     the difference in words, empty where nothing was run; sides: the mean of each term
    seeds    how many
    verdict  of the table: "agrees", "does not agree", "no difference", "rises", "falls" or "not run yet"
    """

    ours: str
    sides: str
    seeds: int
    verdict: str


def look_up(claim: Claim, rows: dict[str, Rows], noise: dict[str, float]) -> Found:
    """What became of the claim.

    noise  {metric: standard deviation}, see `noises`
    """
    found = per_seed(claim, rows)
    if not found:
        return Found("", "", 0, "not run yet")
    values = [sum(terms) for terms in found.values()]
    ours = f"{statistics.fmean(values):+.2f}"
    if len(values) > 1:
        ours += f" ± {statistics.stdev(values):.2f} ({min(values):+.2f} to {max(values):+.2f})"
    means = [statistics.fmean(term) for term in zip(*found.values())]
    signs = ["+" if weight > 0 else "-" for weight, _, _ in claim.terms]
    sides = " ".join(f"{sign} {abs(mean):.2f}" for sign, mean in zip(signs, means)).removeprefix("+ ")
    of_one_seed = noise.get(claim.metric, 0.0) * math.sqrt(len(claim.terms) / 2)
    return Found(ours, sides, len(values), verdict(values, claim.expected, of_one_seed))
