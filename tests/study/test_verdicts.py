"""Differences of settings, their signs and the verdicts on them."""

import pytest

from study import verdicts
from study.directions import Claim
from study.verdicts import Found, look_up, per_seed, sign_of, verdict
from tests.study.made_up import encoder_rows


def test_differences_are_of_the_same_seed_and_of_seeds_that_all_have():
    claim = Claim("encoder P@1", "a - b", ">", "+1.0")
    rows = encoder_rows(a=[5.0, 6.0, 7.0], b=[1.0, 4.0])
    assert per_seed(claim, rows) == {0: [5.0, -1.0], 1: [6.0, -4.0]}
    four = Claim("encoder P@1", "a - b - b + a", ">", "+1.0")
    assert [sum(parts) for parts in per_seed(four, rows).values()] == [8.0, 4.0]
    assert per_seed(Claim("fused P@1", "a - b", ">", "+1.0"), rows) == {}
    assert per_seed(claim, {}) == {}


@pytest.mark.parametrize(
    "values, sign",
    [
        ([1.0, 2.0, 1.5], 1),
        ([-1.0, -2.0, -1.5], -1),
        ([0.1, 3.0, 0.1], 0),  # the mean is within the standard deviation
        ([2.0, 2.2, -0.1], 0),  # seeds disagree
        ([0.0, 1.0, 1.0], 0),
        ([1.0], 1),
        ([0.3], 0),  # within the noise of 0.4
        ([-0.5], -1),
    ],
)
def test_sign_is_zero_within_the_spread(values, sign):
    assert sign_of(values, noise=0.4) == sign


@pytest.mark.parametrize(
    "expected, up, nothing, down",
    [
        (">", "agrees", "no difference", "does not agree"),
        (">=", "agrees", "agrees", "does not agree"),
        ("<", "does not agree", "no difference", "agrees"),
        ("=", "does not agree", "agrees", "does not agree"),
        ("?", "rises", "no difference", "falls"),
    ],
)
def test_verdicts(expected, up, nothing, down):
    assert verdict([1.0, 1.1, 0.9], expected) == up
    assert verdict([1.0, -1.1, 0.9], expected) == nothing
    assert verdict([-1.0, -1.1, -0.9], expected) == down
    assert verdict([0.4, 0.41, 0.42], "=") == "agrees"  # a clear difference, and too small to matter
    assert verdict([5.0, -6.0, 4.0], "=") == "no difference"  # not a clear one, and not nearly none


def test_a_single_seed_is_judged_by_the_spread_of_the_others(monkeypatch):
    many, one = Claim("encoder P@1", "a - b", ">", "+1.0"), Claim("encoder P@1", "c - d", ">", "+1.0")
    both = Claim("encoder P@1", "c - d - d + c", ">", "+1.0")
    monkeypatch.setattr(verdicts, "claims", lambda: [many, one])
    rows = encoder_rows(a=[1.0, 2.0, 3.0], b=[0.0, 0.0, 0.0], c=[1.2], d=[0.0])
    assert verdicts.noises(rows) == {"P@1": 1.0}
    assert look_up(one, rows, {"P@1": 1.0}) == Found("+1.20", "1.20 - 0.00", 1, "agrees")
    assert look_up(one, rows, {"P@1": 1.3}).verdict == "no difference"
    assert look_up(both, rows, {"P@1": 1.6}).verdict == "agrees"  # 2.4, of four runs: beyond 1.6 * sqrt(2)
    assert look_up(both, rows, {"P@1": 1.8}).verdict == "no difference"
    assert look_up(many, rows, {}) == Found("+2.00 ± 1.00 (+1.00 to +3.00)", "2.00 - 0.00", 3, "agrees")
