import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from xcutils.search import metrics
from xcutils.search.metrics import Judged, Truth, evaluate, frequency_bins, hits

KEYS = [f"{name}@{k}" for name in ("P", "N", "PSP", "PSN") for k in (1, 3, 5)]
KEYS += ["R@10", "R@100", "C@1", "C@3", "C@5"]


def case(seed, n_docs=40, n_labels=30, width=12, *, fewest=0, most=8, ragged=True):
    """Random ranking (N, width), positives CSR (N, L), weights (L,); labels 0 to 2 are never relevant."""
    rng = np.random.default_rng(seed)
    ranking = np.full((n_docs, width), -1)
    dense = np.zeros((n_docs, n_labels), dtype=np.float32)
    for doc in range(n_docs):
        length = rng.integers(0, width + 1) if ragged else width
        ranked = rng.permutation(n_labels)[:length]
        ranking[doc, : len(ranked)] = ranked
        dense[doc, 3 + rng.permutation(n_labels - 3)[: rng.integers(fewest, most + 1)]] = 1
    return ranking, sparse.csr_matrix(dense), rng.uniform(1, 13, n_labels)


def as_lists(ranking, positives):
    """Ranked labels of each doc without padding, and its set of positives."""
    ranked = [[label for label in row if label >= 0] for row in ranking.tolist()]
    return ranked, [sorted(np.flatnonzero(row).tolist()) for row in positives.toarray()]


def evaluate_by_hand(ranking, positives, weights, labels=None, ks=(1, 3, 5), recall_ks=(10, 100)):
    """The definitions as loops, one doc after the other. labels: those that may count (all)."""
    ranked, relevant = as_lists(ranking, positives)
    labels = set(range(positives.shape[1])) if labels is None else labels
    relevant = [[label for label in row if label in labels] for row in relevant]
    n_docs, out = len(ranked), {}

    def gain(order, row, k, weigh):
        total = sum(weigh(label) / math.log2(r + 2) for r, label in enumerate(order[:k]) if label in row)
        return total / sum(1 / math.log2(r + 2) for r in range(min(len(row), k))) if row else 0.0

    def best(row):
        return sorted(row, key=lambda label: -weights[label])

    for k in ks:
        out[f"P@{k}"] = sum(sum(label in y for label in r[:k]) / k for r, y in zip(ranked, relevant)) / n_docs
    for k in ks:
        out[f"N@{k}"] = sum(gain(r, y, k, lambda label: 1) for r, y in zip(ranked, relevant)) / n_docs
    for k in ks:
        reached = sum(sum(weights[label] for label in r[:k] if label in y) / k for r, y in zip(ranked, relevant))
        possible = sum(sum(weights[label] for label in best(y)[:k]) / k for y in relevant)
        out[f"PSP@{k}"] = reached / possible if possible else 0.0
    for k in ks:
        reached = sum(gain(r, y, k, weights.__getitem__) for r, y in zip(ranked, relevant))
        possible = sum(gain(best(y), y, k, weights.__getitem__) for y in relevant)
        out[f"PSN@{k}"] = reached / possible if possible else 0.0
    for k in recall_ks:
        recalls = [sum(label in y for label in r[:k]) / len(y) for r, y in zip(ranked, relevant) if y]
        out[f"R@{k}"] = sum(recalls) / len(recalls) if recalls else 0.0
    for k in ks:
        seen = {label for r, y in zip(ranked, relevant) for label in r[:k] if label in y}
        out[f"C@{k}"] = len(seen) / len(labels) if labels else 0.0
    return {name: 100 * value for name, value in out.items()}


def assert_same(report, expected):
    assert list(report) == list(expected)
    assert all(type(value) is float for value in report.values())
    assert report == pytest.approx(expected, rel=1e-10, abs=1e-10)


def test_two_docs_worked_out_on_paper():
    ranking = np.array([[2, 0, 1], [3, -1, -1]])  # doc 0: hit, miss, hit; doc 1: miss
    positives = sparse.csr_matrix(np.array([[0, 1, 1, 0], [1, 0, 0, 0]]))
    weights = np.array([4.0, 3.0, 2.0, 9.0])
    report = evaluate(ranking, positives, weights)
    assert list(report) == KEYS
    assert report["P@1"] == pytest.approx(100 * 1 / 2)
    assert report["P@3"] == pytest.approx(100 * (2 / 3) / 2)
    assert report["P@5"] == pytest.approx(100 * (2 / 5) / 2)
    assert report["N@3"] == pytest.approx(100 * (1 + 1 / 2) / (1 + 1 / math.log2(3)) / 2)
    assert report["PSP@1"] == pytest.approx(100 * 2 / (3 + 4))
    assert report["PSP@3"] == pytest.approx(100 * (2 + 3) / (3 + 2 + 4))
    most = 1 + 1 / math.log2(3)
    assert report["PSN@3"] == pytest.approx(100 * ((2 + 3 / 2) / most) / ((3 + 2 / math.log2(3)) / most + 4))
    assert report["R@10"] == pytest.approx(50) and report["C@1"] == 25 and report["C@3"] == 50


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("width", [1, 4, 12, 29])
def test_evaluate_is_the_definition(seed, width):
    ranking, positives, weights = case(seed, width=width, most=[2, 8, 25][seed % 3])
    assert_same(evaluate(ranking, positives, weights), evaluate_by_hand(ranking, positives, weights))


def test_any_k_may_be_asked_for():
    ranking, positives, weights = case(7)
    chosen = {"ks": (2, 10), "recall_ks": (1, 7, 50)}
    assert_same(
        evaluate(ranking, positives, weights, **chosen), evaluate_by_hand(ranking, positives, weights, **chosen)
    )


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("fewest", [0, 1])
def test_agrees_with_napkinxc(seed, fewest):
    napkin = pytest.importorskip("napkinxc.metrics")
    ranking, positives, weights = case(seed, n_docs=200, fewest=fewest)
    ranked, relevant = as_lists(ranking, positives)
    report = evaluate(ranking, positives, weights, recall_ks=(1, 3, 5))

    # napkinxc counts a doc without positives as recall 0; here such docs are left out.
    with_positives = sum(bool(row) for row in relevant) / len(relevant)
    # napkinxc's coverage is over the labels relevant in the test set; here it is over all labels [xCOLUMNs].
    relevant_labels = len({label for row in relevant for label in row}) / positives.shape[1]
    theirs = {
        "P": napkin.precision_at_k(relevant, ranked, k=5),
        "N": napkin.ndcg_at_k(relevant, ranked, k=5),
        "PSP": napkin.psprecision_at_k(relevant, ranked, weights, k=5),
        "PSN": napkin.psndcg_at_k(relevant, ranked, weights, k=5),
        "R": napkin.recall_at_k(relevant, ranked, k=5) / with_positives,
        "C": napkin.coverage_at_k(relevant, ranked, k=5) * relevant_labels,
    }
    assert (with_positives == 1) == (fewest == 1) and relevant_labels < 1
    assert_same(report, {f"{name}@{k}": 100 * values[k - 1] for name, values in theirs.items() for k in (1, 3, 5)})


sizes = st.tuples(st.integers(0, 10**6), st.integers(1, 12), st.integers(4, 15), st.integers(1, 9))


@settings(derandomize=True, deadline=None, max_examples=60)
@given(sizes)
def test_evaluate_is_the_definition_whatever_the_sizes(drawn):
    seed, n_docs, n_labels, width = drawn
    ranking, positives, weights = case(seed, n_docs, n_labels, width)
    report = evaluate(ranking, positives, weights)
    assert_same(report, evaluate_by_hand(ranking, positives, weights))
    assert all(0 <= value <= 100 + 1e-9 for value in report.values())


@settings(derandomize=True, deadline=None, max_examples=40)
@given(sizes)
def test_the_best_ranking_reaches_100(drawn):
    seed, n_docs, *_ = drawn
    _, positives, weights = case(seed, n_docs, n_labels=20, fewest=5)
    best = [sorted(row, key=lambda label: -weights[label])[:5] for row in as_lists(np.zeros((0, 1)), positives)[1]]
    report = evaluate(np.array(best), positives, weights)
    perfect = [name for name in KEYS if name.startswith(("P@", "N@", "PSP@", "PSN@"))]
    assert [report[name] for name in perfect] == pytest.approx([100] * 12)


@settings(derandomize=True, deadline=None, max_examples=40)
@given(sizes)
def test_neither_the_order_of_docs_nor_padding_matters(drawn):
    seed, n_docs, n_labels, width = drawn
    ranking, positives, weights = case(seed, n_docs, n_labels, width)
    report = evaluate(ranking, positives, weights)
    order = np.random.default_rng(seed).permutation(n_docs)
    assert evaluate(ranking[order], positives[order], weights) == pytest.approx(report)
    padded = np.hstack([ranking, np.full((n_docs, 7), -1)])
    assert evaluate(padded, positives, weights) == report


@settings(derandomize=True, deadline=None, max_examples=60)
@given(sizes, st.integers(1, 6))
def test_bins_are_the_definition_and_add_up(drawn, n_bins):
    seed, n_docs, n_labels, width = drawn
    ranking, positives, weights = case(seed, n_docs, n_labels, width)
    label_bin = np.random.default_rng(seed).integers(0, n_bins, n_labels)  # some bins stay empty
    reports = Judged(ranking, Truth(positives, weights)).figures_by_bin(label_bin, n_bins)
    assert len(reports) == n_bins
    for bin_, report in enumerate(reports):
        labels = set(np.flatnonzero(label_bin == bin_).tolist())
        assert_same(report, evaluate_by_hand(ranking, positives, weights, labels))
    whole = evaluate(ranking, positives, weights)
    for k in (1, 3, 5):
        assert sum(report[f"P@{k}"] for report in reports) == pytest.approx(whole[f"P@{k}"])


def test_an_empty_bin_gives_zeros():
    ranking, positives, weights = case(3, ragged=False)
    label_bin = np.where(np.arange(30) < 3, 1, 0)  # bin 1: labels never relevant; bin 2: no labels at all
    whole, no_positives, no_labels = Judged(ranking, Truth(positives, weights)).figures_by_bin(label_bin, 3)
    assert set(no_positives.values()) == set(no_labels.values()) == {0.0}
    assert list(no_labels) == KEYS and whole["P@5"] > 0


def test_without_docs_positives_or_predictions_everything_is_zero():
    ranking, positives, weights = case(0)
    nothing = dict.fromkeys(KEYS, 0.0)
    assert evaluate(ranking[:0], positives[:0], weights) == nothing
    assert evaluate(ranking, sparse.csr_matrix(positives.shape), weights) == nothing
    assert evaluate(np.full_like(ranking, -1), positives, weights) == nothing
    assert evaluate(ranking[:, :0], positives, weights) == nothing


def test_stored_values_order_and_repeats_do_not_matter_and_inputs_stay_as_they_are():
    ranking, positives, weights = case(5)
    label_bin = frequency_bins(np.arange(30), 3)
    coo = positives.tocoo()
    rng = np.random.default_rng(0)
    zeros = rng.integers(0, (40, 30), (50, 2))
    zeros = zeros[positives.toarray()[zeros[:, 0], zeros[:, 1]] == 0]
    rows, cols = (
        np.concatenate([coo.row, coo.row[:9], zeros[:, 0]]),
        np.concatenate([coo.col, coo.col[:9], zeros[:, 1]]),
    )
    data = np.concatenate([rng.choice([0.25, 2, -1], coo.nnz), np.full(9, 3.0), np.zeros(len(zeros))])
    order = np.lexsort((rng.random(len(rows)), rows))
    indptr = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=40))])
    untidy = sparse.csr_matrix((data[order], cols[order], indptr), shape=positives.shape)
    untouched = [array.copy() for array in (untidy.data, untidy.indices, untidy.indptr, ranking, weights, label_bin)]

    assert evaluate(ranking, untidy, weights) == pytest.approx(evaluate(ranking, positives, weights))
    assert evaluate(ranking, sparse.csr_array(positives), weights) == evaluate(ranking, positives, weights)
    assert np.array_equal(hits(ranking, untidy), hits(ranking, positives))
    Judged(ranking, Truth(untidy, weights)).figures_by_bin(label_bin, 3)
    clean, counts = (Judged(ranking, Truth(one)).per_label() for one in (positives, untidy))
    assert all(np.array_equal(counts[name], clean[name]) for name in clean)
    for before, after in zip(untouched, (untidy.data, untidy.indices, untidy.indptr, ranking, weights, label_bin)):
        np.testing.assert_array_equal(after, before)


@pytest.mark.parametrize("chunk", [1, 30, 100, 10**6])
def test_hits_do_not_depend_on_the_chunk(chunk, monkeypatch):
    monkeypatch.setattr(metrics, "LOOKED_UP", chunk)
    ranking, positives, _ = case(2)
    dense = positives.toarray()
    expected = [[label >= 0 and dense[doc, label] == 1 for label in row] for doc, row in enumerate(ranking)]
    np.testing.assert_array_equal(hits(ranking, positives), expected)
    assert np.sum(expected) > 20


def test_padding_is_not_the_last_label_of_any_doc():
    positives = sparse.csr_matrix(np.array([[0, 0, 1], [0, 0, 1]]))
    assert not hits(np.full((2, 4), -1), positives).any()


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_doc_times_label_outgrows_32_bits(dtype):
    n_docs, n_labels = 4000, 1_300_000
    labels = np.random.default_rng(0).integers(0, n_labels, n_docs).astype(dtype)
    positives = sparse.csr_matrix((np.ones(n_docs), labels, np.arange(n_docs + 1)), shape=(n_docs, n_labels))
    ranking = np.stack([(labels + 1) % n_labels, labels], axis=1).astype(dtype)
    assert hits(ranking, positives).sum(axis=0).tolist() == [0, n_docs]


@pytest.mark.parametrize("k", [1, 5, 40])
def test_per_label_counts(k):
    ranking, positives, _ = case(4)
    counts = Judged(ranking, Truth(positives)).per_label(k)
    ranked, relevant = as_lists(ranking, positives)
    assert list(counts) == ["true_positives", "predicted", "relevant"]
    for label in range(positives.shape[1]):
        predicted = [label in row[:k] for row in ranked]
        assert counts["predicted"][label] == sum(predicted)
        assert counts["relevant"][label] == sum(label in row for row in relevant)
        assert counts["true_positives"][label] == sum(p and label in row for p, row in zip(predicted, relevant))
    assert all(array.shape == (30,) and array.dtype == np.int64 for array in counts.values())
    assert 100 * (counts["true_positives"] > 0).mean() == pytest.approx(
        evaluate(ranking, positives, np.ones(30), ks=(k,))[f"C@{k}"]
    )


def frequency_bins_by_hand(frequency, n_bins):
    bins, before, total = [0] * len(frequency), 0, sum(frequency)
    for label in sorted(range(len(frequency)), key=lambda label: (-frequency[label], label)):
        bins[label] = max((b for b in range(n_bins) if before * n_bins >= b * total), default=0)
        before += frequency[label]
    return bins


@settings(derandomize=True, deadline=None)
@given(st.lists(st.integers(0, 30), min_size=1, max_size=40), st.integers(1, 6))
def test_frequency_bins_hold_equal_volumes(frequency, n_bins):
    bins = frequency_bins(np.array(frequency), n_bins)
    assert bins.tolist() == frequency_bins_by_hand(frequency, n_bins)
    order = sorted(range(len(frequency)), key=lambda label: (-frequency[label], label))
    assert (np.diff(bins[order]) >= 0).all() and 0 <= bins.min() and bins.max() < n_bins
    volumes = np.bincount(bins, weights=frequency, minlength=n_bins)
    assert (np.abs(volumes - sum(frequency) / n_bins) <= max(frequency)).all()
    assert sum(frequency) == 0 or bins[order[0]] == 0


def test_frequency_bins_on_examples():
    assert frequency_bins(np.array([1, 4, 1, 2, 0], dtype=np.uint8), 2).tolist() == [1, 0, 1, 1, 1]
    assert frequency_bins(np.array([5, 5, 5, 5]), 2).tolist() == [0, 0, 1, 1]
    assert frequency_bins(np.array([0, 0]), 3).tolist() == [2, 2]
    assert frequency_bins(np.array([90, 5, 5]), 3).tolist() == [0, 2, 2]


def test_misfits_are_refused():
    ranking, positives, weights = case(0)
    with pytest.raises(ValueError, match="does not fit"):
        hits(ranking[1:], positives)
    with pytest.raises(ValueError, match="outside -1..29"):
        hits(np.full((40, 1), 30), positives)
    with pytest.raises(ValueError, match="outside -1..29"):
        hits(np.full((40, 1), -2), positives)
    with pytest.raises(ValueError, match="each of 30 labels"):
        evaluate(ranking, positives, weights[1:])
    with pytest.raises(ValueError, match="bins outside 0..1"):
        Judged(ranking, Truth(positives, weights)).figures_by_bin(np.arange(30) % 3, 2)
    with pytest.raises(ValueError, match="n_bins"):
        frequency_bins(np.ones(3), 0)


def without_by_hand(ranking, excluded):
    rows = [[label for label in row if label >= 0 and not excluded[i, label]] for i, row in enumerate(ranking)]
    return [row + [-1] * (len(ranking[0]) - len(row)) for row in rows]


def test_excluded_pairs_are_taken_out_and_the_rest_moves_up():
    rng = np.random.default_rng(4)
    ranking = np.array([rng.permutation(12)[:6] for _ in range(20)])
    ranking[3, 4:] = -1
    pairs = np.unique(rng.integers(0, [20, 12], size=(60, 2)), axis=0)
    excluded = metrics.pair_matrix(pairs, (20, 12))
    assert metrics.without(ranking, excluded).tolist() == without_by_hand(ranking.tolist(), excluded.toarray())
    assert metrics.most_per_row(excluded) == np.bincount(pairs[:, 0]).max()
    assert metrics.without(ranking, metrics.pair_matrix(np.zeros((0, 2)), (20, 12))) is ranking
