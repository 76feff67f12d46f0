"""The comparison with peers: filtering, evaluation, table, and a run of two methods that need no peers' environment."""

import gzip
import json
import os
import sys

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy import sparse

from benchmarks import peers, peers_run
from xcutils.core.errors import UserError
from xcutils.search import propensity

N_LABELS = 6


def filter_by_hand(ranking, pairs):
    """Row by row: slow and obviously right."""
    banned = {tuple(pair) for pair in np.asarray(pairs).tolist()}
    rows = []
    for doc, row in enumerate(ranking.tolist()):
        kept = [label for label in row if label >= 0 and (doc, label) not in banned]
        rows.append(kept + [-1] * (len(row) - len(kept)))
    return np.array(rows, dtype=ranking.dtype).reshape(ranking.shape)


@settings(derandomize=True, deadline=None)
@given(st.data())
def test_filtering_closes_up_and_fills_with_none(data):
    n_docs, k = data.draw(st.integers(1, 5)), data.draw(st.integers(1, N_LABELS))
    ids = st.permutations([-1, -1, *range(N_LABELS)])
    ranking = np.array([data.draw(ids)[:k] for _ in range(n_docs)], dtype=np.int32)
    pair = st.tuples(st.integers(0, n_docs - 1), st.integers(0, N_LABELS + 3))
    pairs = np.array(data.draw(st.lists(pair, max_size=12)), dtype=np.int64).reshape(-1, 2)
    before = ranking.copy()
    np.testing.assert_array_equal(peers.filter_ranking(ranking, pairs), filter_by_hand(ranking, pairs))
    np.testing.assert_array_equal(ranking, before)


def test_filtering_one_doc_leaves_the_others_alone():
    ranking = np.array([[4, 2, 0], [4, 2, 0], [5, -1, -1]], dtype=np.int32)
    filtered = peers.filter_ranking(ranking, np.array([[1, 4], [2, 5], [0, 5]]))
    assert filtered.tolist() == [[4, 2, 0], [2, 0, -1], [-1, -1, -1]]


def test_filter_pairs_outside_the_ranking_are_a_mistake():
    with pytest.raises(ValueError, match="outside"):
        peers.filter_ranking(np.zeros((2, 3), dtype=np.int32), np.array([[2, 0]]))


def test_filter_file_is_optional_and_checked(tmp_path):
    path = tmp_path / "filter_labels_test.txt"
    assert peers.read_pairs(path, (3, 3)).shape == (0, 2)
    path.write_text("")
    assert peers.read_pairs(path, (3, 3)).shape == (0, 2)
    path.write_text("0 2\n")
    assert peers.read_pairs(path, (3, 3)).tolist() == [[0, 2]]
    for wrong in ("0 3\n", "3 0\n", "-1 0\n", "0 1 2\n", "a b\n"):
        path.write_text(wrong)
        with pytest.raises(UserError, match="export the dataset again"):
            peers.read_pairs(path, (3, 3))


def test_accuracy_counts_after_filtering():
    positives = sparse.csr_matrix(np.array([[1, 0, 0, 1], [0, 1, 0, 0]], dtype=np.float32))
    weights = np.array([1.0, 2.0, 1.0, 4.0])
    ranking = np.array([[2, 0, 3, -1], [1, 3, 0, 2]], dtype=np.int32)
    none = np.empty((0, 2), dtype=np.int64)
    plain = peers.accuracy(ranking, positives, weights, none)
    assert list(plain) == list(peers.ACCURACY)
    assert plain["P@1"] == pytest.approx(50)  # doc 0 starts with a miss
    assert plain["PSP@1"] == pytest.approx(100 * 2 / (4 + 2))
    filtered = peers.accuracy(ranking, positives, weights, np.array([[0, 2]]))
    assert filtered["P@1"] == pytest.approx(100)
    assert filtered["PSP@1"] == pytest.approx(100 * (1 + 2) / (4 + 2))
    assert filtered["P@3"] == pytest.approx(100 * (2 / 3 + 1 / 3) / 2)
    assert filtered["R@10"] == pytest.approx(100)
    without_a_hit = peers.accuracy(ranking, positives, weights, np.array([[1, 1]]))
    assert without_a_hit["R@100"] == pytest.approx(50)  # a filtered positive stays a positive


def rows_of(**p_at_1):
    return [{"method": name, **dict.fromkeys(peers.ACCURACY, value)} for name, value in p_at_1.items()]


def test_table_has_a_cell_for_every_column():
    rows = rows_of(bm25=30.931, fused=57.8)
    rows[0] |= {
        "train_seconds": 0.1234,
        "ms_batch": 12.34,
        "ms_single": 123.4,
        "ms_p99": 200.4,
        "rss_mb": 1e5,
        "model_mb": 0,
    }
    lines = peers.format_table(rows).split("\n")
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert cells[0] == ["method", *peers.ACCURACY, *peers.COSTS.values()]
    assert {len(row) for row in cells} == {1 + len(peers.ACCURACY) + len(peers.COSTS)}
    assert cells[2][:2] == ["BM25 on label text (bm25s)", "30.93"]
    assert cells[2][-6:] == ["0.12", "12.3", "123", "200", "100000", "0.00"]
    assert cells[3][0] == "Longtail" and cells[3][-6:] == ["-"] * 6


def test_best_names_the_winner_of_each_column():
    rows = rows_of(bm25=30.0, parabel=53.0, classifier=54.0, fused=57.5)
    rows[1]["C@5"] = 60.0
    lines = peers.format_best(rows)
    assert len(lines) == len(peers.ACCURACY)
    assert lines[0] == "best P@1: Longtail, 57.50 (Longtail +4.50 against the best peer)"
    assert lines[-1] == "best C@5: omikuji Parabel, 60.00 (Longtail -2.50 against the best peer)"


def test_best_names_all_of_a_tie_and_skips_what_nobody_has():
    rows = rows_of(parabel=53.0, bonsai=53.0)
    for row in rows:
        row["C@5"] = None
    lines = peers.format_best(rows)
    assert len(lines) == len(peers.ACCURACY) - 1
    assert lines[0] == "best P@1: omikuji Parabel and omikuji Bonsai, 53.00"


def test_longtail_comes_last_with_the_costs_it_has():
    scores = {"fused": {"P@1": 57.0, "P@3": 47.0}, "classifier": {"P@1": 55.0}, "elapsed": 3}
    rows = peers.longtail_rows(scores, {"train_seconds": 50.0, "ms_single": 1.5})
    assert [row["method"] for row in rows] == ["classifier", "fused"]
    assert rows[0]["train_seconds"] is None and rows[0]["P@3"] is None
    assert rows[1]["P@3"] == 47.0 and rows[1]["train_seconds"] == 50.0 and rows[1]["rss_mb"] is None
    rows = peers.longtail_rows(scores, {"classifier": {"rss_mb": 7.0}, "fused": {"rss_mb": 9.0}})
    assert [row["rss_mb"] for row in rows] == [7.0, 9.0]
    assert peers.longtail_rows({}, {}) == []


def test_a_result_is_fresh_only_if_newer_than_all_inputs(tmp_path):
    old, new, result = (tmp_path / name for name in ("old", "new", "result"))
    assert not peers.is_fresh(result, [])
    for path, time in ((old, 100), (result, 200), (new, 300)):
        path.write_text("")
        os.utime(path, (time, time))
    assert peers.is_fresh(result, [old])
    assert not peers.is_fresh(result, [old, new])
    assert not peers.is_fresh(result, [result])


@settings(derandomize=True, deadline=None)
@given(hnp.arrays(np.float32, (4, 7), elements=st.sampled_from([0, 0.25, 0.5, 1])), st.integers(1, 7))
def test_sparse_scores_are_ranked_and_cut_as_a_sort_would(scores, k):
    ranking = peers_run.rank_scores(sparse.csr_matrix(scores), peers_run.TOP)
    np.testing.assert_array_equal(peers_run.rank_scores(sparse.csr_matrix(scores), k), ranking[:, :k])
    kept = peers_run._keep_largest(sparse.csr_matrix(scores), k).toarray()
    assert ranking.shape == (4, peers_run.TOP)
    for row, ranked, cut in zip(scores, ranking, kept):
        best = sorted((label for label in range(7) if row[label] > 0), key=lambda label: (-row[label], label))
        assert ranked.tolist() == best + [-1] * (peers_run.TOP - len(best))
        assert np.flatnonzero(cut).tolist() == sorted(best[:k])


def test_text_is_title_and_content_where_there_is_any():
    assert peers_run.text_of({"uid": "a", "title": "one", "content": "two"}) == "one two"
    assert peers_run.text_of({"uid": "a", "title": "one", "content": ""}) == "one"
    assert peers_run.text_of({"uid": "a", "title": None}) == ""


def knn_by_hand(texts, train_texts, positives, k):
    """Cosines of all pairs, dense, and the labels of the k nearest docs summed one by one."""
    features = peers_run.Features(train_texts)
    cosines = features.of(texts).toarray() @ features.of(train_texts).toarray().T
    scores = np.zeros((len(texts), positives.shape[1]), dtype=np.float32)
    for doc, row in enumerate(cosines):
        for near in np.argsort(-row, kind="stable")[:k]:
            scores[doc] += row[near] * positives[near].toarray().ravel()
    return scores


def test_nearest_neighbours_sum_the_cosines_of_their_docs(tmp_path):
    rng = np.random.default_rng(1)
    words = np.array([f"word{i}" for i in range(12)])
    texts = [" ".join(rng.choice(words, 4)) for _ in range(60)]
    positives = sparse.random(40, 9, density=0.3, format="csr", random_state=2, dtype=np.float32)
    positives.data[:] = 1
    task = peers_run.Task(texts[:40], positives, ["label"] * 9, 1, tmp_path)
    ranking = peers_run.tfidf_knn(task).predict(texts[40:], peers_run.TOP)
    expected = knn_by_hand(texts[40:], texts[:40], positives, peers_run.NEIGHBOURS)
    for row, scores in zip(ranking, expected):
        found = row[row >= 0]
        assert sorted(found) == np.flatnonzero(scores).tolist()
        assert (np.diff(scores[found]) <= 1e-5).all()


def write_export(folder):
    """A tiny export: each label is a word, a doc's text holds the words of its labels; doc 3 has neither."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    docs = [sorted(rng.choice(N_LABELS, 2, replace=False).tolist()) for _ in range(40)]
    docs[3] = []
    items = [{"uid": f"d{i}", "title": " ".join(f"word{t}" for t in d), "target_ind": d} for i, d in enumerate(docs)]
    labels = [{"uid": f"l{label}", "title": f"word{label}"} for label in range(N_LABELS)]
    for name, part in (("trn", items[:30]), ("tst", items[30:]), ("lbl", labels)):
        with gzip.open(folder / f"{name}.json.gz", "wt", encoding="utf-8") as file:
            file.writelines(json.dumps(item) + "\n" for item in part)
    (folder / "filter_labels_test.txt").write_text("")
    return docs


def invoke(tmp_path, *more):
    options = ["--export", str(tmp_path / "export"), "--out", str(tmp_path / "out"), "--peers-python", sys.executable]
    return CliRunner().invoke(peers.main, [*options, "--dataset", "Amazon", "--threads", "1", *more])


def test_whole_command_with_methods_that_need_no_peer(tmp_path):
    docs = write_export(tmp_path / "export")
    (tmp_path / "metrics.json").write_text(json.dumps({"fused": {"P@1": 12.5}}))
    done = invoke(tmp_path, "--methods", "frequent,tfidf-knn", "--metrics", str(tmp_path / "metrics.json"))
    assert done.exit_code == 0, done.output
    result = json.loads((tmp_path / "out" / "peers.json").read_text())
    assert [row["method"] for row in result["rows"]] == ["frequent", "tfidf-knn", "fused"]
    assert result["propensity"] == dict(zip("ab", propensity.CONSTANTS["amazon"]))
    counts = np.bincount([label for doc in docs[:30] for label in doc], minlength=N_LABELS)
    most = int(np.argmax(counts))
    assert result["rows"][0]["P@1"] == pytest.approx(10 * sum(most in doc for doc in docs[30:]))
    assert result["rows"][1]["P@1"] > result["rows"][0]["P@1"]
    assert all(result["rows"][1][key] > 0 for key in peers.COSTS)
    assert (tmp_path / "out" / "peers.md").read_text().strip() in done.output
    assert "| Longtail | 12.50 | - |" in done.output

    again = invoke(tmp_path, "--methods", "frequent,tfidf-knn")
    assert again.output.count("up to date") == 2


def test_a_method_over_the_limit_is_stopped_and_what_is_left_out_is_named(tmp_path):
    write_export(tmp_path / "export")
    (tmp_path / "slow").write_text('#!/bin/sh\nmkdir "$4/left.work"\nexec sleep 600\n')
    (tmp_path / "slow").chmod(0o755)
    done = invoke(tmp_path, "--methods", "bm25", "--limit", "1", "--peers-python", str(tmp_path / "slow"))
    assert done.exit_code == 0, done.output
    text = (tmp_path / "out" / "peers.md").read_text()
    assert "BM25 on label text (bm25s) was stopped after 1 s" in text
    assert "napkinXC PLT was left out (--methods)" in text
    missing = json.loads((tmp_path / "out" / "peers.json").read_text())["missing"]
    assert set(missing) == set(peers_run.METHODS)
    assert not (tmp_path / "out" / "left.work").exists()


def test_texts_one_by_one_are_asked_for_ten_labels_by_one_thread():
    asked = []
    trained = peers_run.Trained(
        lambda texts, k: asked.append((texts, k)), lambda folder: None, lambda: asked.append("one thread")
    )
    assert len(peers_run.times_alone(trained, ["a", "b"])) == 2
    assert asked == ["one thread", (["a"], 10), (["b"], 10)]


def test_a_failing_method_is_named_and_the_others_stay(tmp_path):
    write_export(tmp_path / "export")
    (tmp_path / "failing").write_text("#!/bin/sh\necho broken\nexit 3\n")
    (tmp_path / "failing").chmod(0o755)
    assert invoke(tmp_path, "--methods", "frequent").exit_code == 0
    done = invoke(tmp_path, "--methods", "frequent,bm25", "--peers-python", str(tmp_path / "failing"))
    assert done.exit_code == 1
    assert "| most frequent labels |" in done.output and "BM25 on label text (bm25s) failed" in done.output
    assert (tmp_path / "out" / "bm25.log").read_text() == "broken\n"


@pytest.mark.parametrize(
    ("options", "message"),
    [(["--methods", "bm26"], "no method 'bm26'"), (["--peers-python", "missing/python"], "make peers")],
)
def test_mistakes_are_told_in_a_sentence(tmp_path, options, message):
    write_export(tmp_path / "export")
    done = invoke(tmp_path, *options)
    assert done.exit_code == 1 and message in done.output and "Traceback" not in done.output


def test_a_result_of_another_export_is_refused(tmp_path):
    np.save(tmp_path / "frequent.npy", np.zeros((3, 100), dtype=np.int32))
    (tmp_path / "frequent.json").write_text("{}")
    assert peers.read_result("frequent", tmp_path, 3)[0].shape == (3, 100)
    with pytest.raises(UserError, match="--again"):
        peers.read_result("frequent", tmp_path, 4)
    (tmp_path / "frequent.json").write_text("{")
    with pytest.raises(UserError, match="--again"):
        peers.read_result("frequent", tmp_path, 3)
