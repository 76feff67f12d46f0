import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xcutils.search.propensity import CONSTANTS, family_of, inverse_propensity


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("LF-AmazonTitles-131K", "amazon"),
        ("lf_amazon_131k", "amazon"),
        ("Amazon-670K", "amazon"),
        ("LF-AmazonTitles-1.3M", "amazon"),
        ("LF-Wikipedia-500K", "wikipedia"),
        ("WIKIPEDIA-500k", "wikipedia"),
        ("WikipediaLarge-500K", "wikipedia"),
        ("Wiki-500K", "wikipedia"),
        ("LF-WikiTitles-500K", "wikipedia"),
        ("wikititles500k", "wikipedia"),
        ("LF-WikiSeeAlso-320K", "other"),
        ("LF-WikiSeeAlsoTitles-320K", "other"),
        ("wiki_see_also_320k", "other"),
        ("Wikipedia-SeeAlso-320K", "other"),
        ("Wiki10-31K", "other"),
        ("EURLex-4K", "other"),
        ("HPO", "other"),
        ("", "other"),
    ],
)
def test_family_goes_by_name(name, family):
    assert family_of(name) == family


def test_a_family_is_its_own_family_and_has_the_published_constants():
    assert all(family_of(family) == family for family in CONSTANTS)
    assert CONSTANTS == {"amazon": (0.6, 2.6), "wikipedia": (0.5, 0.4), "other": (0.55, 1.5)}


def test_published_values_of_amazontitles_131k():
    weights = inverse_propensity(np.array([1, 5, 10, 50, 1000]), 294_805, *CONSTANTS["amazon"])
    assert weights.dtype == np.float64
    np.testing.assert_allclose(weights, [12.594, 8.405, 6.468, 3.320, 1.396], atol=5e-4)
    assert (weights[0] - 1) * (1 + 2.6) ** 0.6 == pytest.approx(25.004, abs=5e-4)  # C


@pytest.mark.parametrize("family", CONSTANTS)
def test_agrees_with_the_formula_label_by_label(family):
    a, b = CONSTANTS[family]
    frequency = np.arange(60, dtype=np.uint16)
    expected = [1 + (math.log(5000) - 1) * (b + 1) ** a * (n + b) ** -a for n in range(60)]
    np.testing.assert_allclose(inverse_propensity(frequency, 5000, a, b), expected, rtol=1e-12)


@pytest.mark.parametrize("n_docs", [0, 1, 2])
def test_with_hardly_any_docs_every_label_weighs_one(n_docs):
    np.testing.assert_array_equal(inverse_propensity(np.array([0, 1, 2]), n_docs, 0.55, 1.5), np.ones(3))


@settings(derandomize=True, deadline=None)
@given(st.lists(st.integers(0, 10**7), max_size=20), st.integers(0, 10**7), st.sampled_from(sorted(CONSTANTS.values())))
def test_never_below_one_and_rarer_labels_never_weigh_less(frequency, n_docs, constants):
    weights = inverse_propensity(np.sort(np.array(frequency, dtype=np.int64)), n_docs, *constants)
    assert weights.shape == (len(frequency),) and np.isfinite(weights).all()
    assert (weights >= 1).all() and (np.diff(weights) <= 0).all()


def test_refuses_what_the_formula_cannot_take():
    with pytest.raises(ValueError, match="frequency"):
        inverse_propensity(np.array([3, -1]), 100, 0.55, 1.5)
    with pytest.raises(ValueError, match="b must be"):
        inverse_propensity(np.array([3, 0]), 100, 0.55, 0.0)
