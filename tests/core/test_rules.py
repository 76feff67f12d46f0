import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xcutils.core.costs import Sizes
from xcutils.core.errors import UserError
from xcutils.core.params import AUTO, check
from xcutils.core.pipelines import Top
from xcutils.core.rules import RULES, decide, power_of_two, reason


@pytest.mark.parametrize(
    ("labels", "k"), [(10_402, 4096), (97_757, 32_768), (262_246, 65_536), (1_305_265, 524_288), (5, 2), (1, 1)]
)
def test_k_is_about_a_third_of_the_labels(labels, k):
    assert decide("K", AUTO, Sizes(docs=1, labels=labels)) == k


def test_a_number_stands_above_the_rule():
    assert decide("K", 65_536, Sizes(docs=1, labels=100)) == 65_536 and decide("K", 0, Sizes(docs=1, labels=100)) == 0


def test_a_decision_says_why():
    assert reason("K", Sizes(docs=9, labels=97_757)) == "K = 32,768 (a third of 97,757 labels, as a power of two)"


@settings(derandomize=True, deadline=None)
@given(st.floats(0, 1e12))
def test_the_nearest_power_of_two_is_within_a_factor_of_the_root_of_two(number):
    found = power_of_two(number)
    assert found & (found - 1) == 0
    if number >= 1:
        assert found / number <= 2**0.5 * 1.001 and number / found <= 2**0.5 * 1.001


def test_every_rule_gives_a_value_and_a_reason():
    for name in RULES:
        value, why = RULES[name](Sizes(docs=10, labels=10))
        assert value and why


def top(k) -> Top:
    return check(Top, {"K": k, "dataset": "x", "seed": 0}, "params.yaml")


def test_a_parameter_with_a_rule_may_be_auto_or_a_number():
    assert top("auto").K == AUTO and top(7).K == 7 and top("1e3").K == 1000


@pytest.mark.parametrize(
    ("given", "message"),
    [("automatic", "K is 'automatic'; it must be a whole number, or auto"), (-1, "K is -1; it must be at least 0")],
)
def test_other_words_and_numbers_are_refused(given, message):
    with pytest.raises(UserError, match=message):
        top(given)
