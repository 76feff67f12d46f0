from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xcutils.core.costs import Sizes
from xcutils.core.errors import UserError
from xcutils.core.params import AUTO, Parameters, check
from xcutils.core.pipelines import Top
from xcutils.core.rules import (
    RULES,
    decide,
    follow,
    power_of_two,
    reason,
    reasons,
    settled,
    split_sizes,
    validation_share,
)


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


@dataclass(frozen=True)
class Graphs:
    m: int | str
    ef_construction: int | str
    recall: float


def settings_of(k: int | str, graphs: Graphs) -> Parameters:
    return Parameters(top(k), {"index": graphs})


@pytest.mark.parametrize(
    ("docs", "labels", "m", "ef"), [(9_101, 10_402, 12, 128), (50_000, 50_000, 12, 128), (3, 50_001, 16, 200)]
)
def test_graphs_of_many_vectors_have_more_links(docs, labels, m, ef):
    sizes = Sizes(docs=docs, labels=labels)
    assert (decide("index.m", AUTO, sizes), decide("index.ef_construction", AUTO, sizes)) == (m, ef)


@pytest.mark.parametrize(
    ("docs", "share", "refit"),
    [
        (9_101, 0.1, True),
        (50_000, 0.1, True),
        (99_000, 0.0505, True),
        (165_405, 0.0302, False),
        (244_560, 0.0204, False),
    ],
)
def test_validation_documents_are_enough_and_few_ones_are_not_fitted_again(docs, share, refit):
    sizes = split_sizes(docs, 10, AUTO)
    assert validation_share(AUTO, docs) == share and sizes.validation == round(docs * share)
    assert decide("prepare.refit", AUTO, sizes) is refit


def test_a_share_that_is_given_decides_on_the_second_fit():
    assert decide("prepare.refit", AUTO, split_sizes(1_000_000, 10, 0.2)) is True
    assert decide("prepare.refit", AUTO, split_sizes(1_000, 10, 0.02)) is False
    assert decide("prepare.refit", "continue", split_sizes(1_000_000, 10, AUTO)) == "continue"
    assert reason("prepare.refit", split_sizes(165_405, 10, AUTO)) == (
        "prepare.refit = false (validation documents are 3.0% of the training documents)"
    )


@settings(derandomize=True, deadline=None)
@given(st.integers(1, 10**9))
def test_validation_documents_are_a_tenth_or_about_as_many_as_are_enough(docs):
    share = validation_share(AUTO, docs)
    assert 0 < share <= 0.1
    assert share == 0.1 or abs(docs * share - 5_000) <= 30


def test_everything_is_settled_where_it_says_auto_and_a_stage_tells_its_own_decisions(capsys):
    sizes = Sizes(docs=165_405, labels=97_757)
    found = follow(settings_of(AUTO, Graphs(AUTO, 300, 0.9)), sizes, "index")
    assert found == settings_of(32_768, Graphs(16, 300, 0.9))
    assert capsys.readouterr().err == "index.m = 16 (a graph of 165,405 vectors, above 50,000)\n"
    given = settings_of(7, Graphs(8, 64, 0.9))
    assert follow(given, sizes, "K", "index") == given and not capsys.readouterr().err


def test_words_without_a_rule_stay_as_they_are_and_nothing_is_changed_in_place():
    params = {"K": 5, "index": {"m": AUTO, "search": AUTO}}
    assert settled(params, Sizes(docs=1, labels=1)) == {"K": 5, "index": {"m": 12, "search": AUTO}}
    assert params["index"]["m"] == AUTO


def test_all_that_is_decided_for_a_file_is_told_in_the_order_of_the_rules():
    params = {"seed": 0, "index": {"ef_construction": AUTO, "m": 12}, "K": AUTO, "other": {"m": AUTO}}
    assert [line.split(" ")[0] for line in reasons(params, Sizes(docs=1, labels=1))] == ["K", "index.ef_construction"]


def test_every_rule_gives_a_value_and_a_reason():
    for name in RULES:
        value, why = RULES[name](Sizes(docs=10, labels=10))
        assert value is not None and why


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
