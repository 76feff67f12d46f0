"""One peer on one export: trained, timed and measured in a process of its own, inside the peers' environment.

    python benchmarks/peers_run.py METHOD EXPORT_DIR OUT_DIR [--threads T]

reads   {trn,tst,lbl}.json.gz as `xc export` writes them (uid, title, content, target_ind)
writes  METHOD.npy (N, 100) int32, label ids best first, -1 for none, unfiltered
        METHOD.json {train_seconds, ms_batch, ms_single, ms_p99, rss_mb, model_mb}

Imports neither Longtail nor torch: the peers want an older numpy. A method is a function that gets a Task, trains, and
returns a Trained; each imports its own library, so that the memory measured is that of this method alone.
"""

import argparse
import gzip
import json
import os
import re
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy import sparse

TOP = 100  # labels predicted for each text of a batch
ALONE = 1000  # texts predicted one by one, by one thread
ALONE_TOP = 10  # labels predicted for each of them
NEIGHBOURS = 10
TREES = 3
SEED = 0
CHUNK = 1024  # texts whose similarities to all training docs are held at once
WORD = r"(?u)\b\w+\b"


class Task(NamedTuple):
    """What a method may look at: N training texts, their positives (N, L) CSR float32, L label texts."""

    texts: list[str]
    positives: sparse.csr_matrix
    labels: list[str]
    threads: int
    scratch: Path  # an empty folder for the method's own files


class Trained(NamedTuple):
    """A trained method.

    predict  texts, k -> ranking (n, k) int32
    save     writes all that prediction needs into a folder
    alone    makes it predict with one thread, where `predict` does not see to that by itself
    """

    predict: Callable[[Sequence[str], int], np.ndarray]
    save: Callable[[Path], None]
    alone: Callable[[], object] = lambda: None


def read_items(path: Path) -> list[dict]:
    """The lines of a .json.gz file as {uid, title, content, target_ind, ...}."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def text_of(item: dict) -> str:
    """Title and content, whichever the item has."""
    return " ".join(part for part in (item.get("title"), item.get("content")) if part)


def positives_of(items: list[dict], n_labels: int) -> sparse.csr_matrix:
    """(N, L) CSR float32: 1 for each of an item's target_ind."""
    indices = [np.unique(np.asarray(item["target_ind"], dtype=np.int64)) for item in items]
    indptr = np.concatenate(([0], np.cumsum([len(row) for row in indices]))).astype(np.int64)
    columns = np.concatenate([*indices, np.empty(0, dtype=np.int64)])
    return sparse.csr_matrix((np.ones(len(columns), dtype=np.float32), columns, indptr), shape=(len(items), n_labels))


def as_ranking(rows: Sequence[Sequence[int]], k: int) -> np.ndarray:
    """(n, k) int32 of label ids, best first, filled up with -1."""
    ranking = np.full((len(rows), k), -1, dtype=np.int32)
    for row, labels in zip(ranking, rows):
        row[: len(labels)] = labels[:k]
    return ranking


def rank_scores(scores: sparse.csr_matrix, k: int) -> np.ndarray:
    """(n, k) int32: the labels of each row with a score, highest first, equal scores by label id."""
    scores.sort_indices()
    rows = []
    for start, end in zip(scores.indptr[:-1], scores.indptr[1:]):
        best = np.argsort(-scores.data[start:end], kind="stable")[:k]
        rows.append(scores.indices[start:end][best])
    return as_ranking(rows, k)


class Features:
    """TF-IDF of words and pairs of words, sublinear, rows of length 1: the same for all linear methods."""

    def __init__(self, texts: Sequence[str]):
        from sklearn.feature_extraction.text import TfidfVectorizer

        self.vectorizer = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, token_pattern=WORD, dtype=np.float32)
        self.vectorizer.fit(texts)

    def of(self, texts: Sequence[str]) -> sparse.csr_matrix:
        """(n, F) CSR float32, columns ascending."""
        features = sparse.csr_matrix(self.vectorizer.transform(texts), dtype=np.float32)
        features.sort_indices()
        return features

    def save(self, folder: Path) -> None:
        words = {word: int(column) for word, column in self.vectorizer.vocabulary_.items()}
        (folder / "vocabulary.json").write_text(json.dumps(words, ensure_ascii=False), encoding="utf-8")
        np.save(folder / "idf.npy", self.vectorizer.idf_.astype(np.float32))


def frequent(task: Task) -> Trained:
    """The same labels for every text: the most frequent ones of the training docs."""
    frequency = np.asarray(task.positives.sum(axis=0)).ravel()
    order = np.argsort(-frequency, kind="stable")[:TOP]
    best = as_ranking([order[frequency[order] > 0]], TOP)

    def predict(texts: Sequence[str], k: int) -> np.ndarray:
        return np.repeat(best[:, :k], len(texts), axis=0)

    return Trained(predict, lambda folder: np.save(folder / "best.npy", best))


def bm25(task: Task) -> Trained:
    """Label texts searched with the text as query; no training docs, no learning."""
    import bm25s

    words = re.compile(WORD)

    def tokens(texts: Sequence[str]) -> list[list[str]]:
        return [words.findall(text.lower()) for text in texts]

    index = bm25s.BM25()
    index.index(tokens(task.labels), show_progress=False)
    known = index.vocab_dict

    def predict(texts: Sequence[str], k: int) -> np.ndarray:
        top = min(k, len(task.labels))
        queries = [[word for word in query if word in known] for query in tokens(texts)]
        asked = [row for row, query in enumerate(queries) if query]  # a query without a known word finds nothing
        ranking = as_ranking([()] * len(texts), k)
        if asked:
            found, scores = index.retrieve([queries[row] for row in asked], k=top, show_progress=False)
            ranking[asked, :top] = np.where(scores > 0, found, -1)
        return ranking

    return Trained(predict, lambda folder: index.save(str(folder)))


def tfidf_knn(task: Task) -> Trained:
    """Labels of the nearest training docs, each counted with the cosine of its doc."""
    features = Features(task.texts)
    docs = features.of(task.texts)
    columns = docs.T.tocsr()

    def predict(texts: Sequence[str], k: int) -> np.ndarray:
        rankings = []
        for start in range(0, len(texts), CHUNK):
            cosines = features.of(texts[start : start + CHUNK]) @ columns
            rankings.append(rank_scores(_keep_largest(cosines, NEIGHBOURS) @ task.positives, k))
        return np.concatenate(rankings)

    def save(folder: Path) -> None:
        features.save(folder)
        sparse.save_npz(folder / "docs.npz", docs)
        sparse.save_npz(folder / "positives.npz", task.positives)

    return Trained(predict, save)


def _keep_largest(scores: sparse.csr_matrix, k: int) -> sparse.csr_matrix:
    """The same matrix with only the k largest values of each row stored, equal values by column."""
    scores.sort_indices()
    kept = []
    for start, end in zip(scores.indptr[:-1], scores.indptr[1:]):
        kept.append(start + np.argsort(-scores.data[start:end], kind="stable")[:k])
    indptr = np.concatenate(([0], np.cumsum([len(row) for row in kept])))
    kept = np.concatenate(kept)
    return sparse.csr_matrix((scores.data[kept], scores.indices[kept], indptr), shape=scores.shape)


def xr_linear(task: Task) -> Trained:
    """PECOS XR-Linear: a tree of labels clustered by the mean of their docs (PIFA), default settings."""
    return _xr_linear(task, task.texts, task.positives)


def xr_linear_labels(task: Task) -> Trained:
    """XR-Linear with one more training doc per label: its text, with the label itself as the only positive."""
    own = sparse.identity(len(task.labels), dtype=np.float32, format="csr")
    return _xr_linear(task, task.texts + task.labels, sparse.vstack([task.positives, own], format="csr"))


def _xr_linear(task: Task, texts: list[str], positives: sparse.csr_matrix) -> Trained:
    from pecos.xmc import Indexer, LabelEmbeddingFactory
    from pecos.xmc.xlinear.model import XLinearModel

    features = Features(texts)
    docs = features.of(texts)
    embeddings = LabelEmbeddingFactory.create(positives, docs, method="pifa")
    tree = Indexer.gen(embeddings, threads=task.threads, seed=SEED)
    folder = str(task.scratch / "model")
    XLinearModel.train(docs, positives, C=tree, threads=task.threads).save(folder)
    model = XLinearModel.load(folder, is_predict_only=True)  # many times faster than the object that was trained

    def predict(texts: Sequence[str], k: int) -> np.ndarray:
        threads = task.threads if len(texts) > 1 else 1  # to wake a second thread costs more than one text
        return rank_scores(model.predict(features.of(texts), only_topk=k, threads=threads), k)

    def save(folder: Path) -> None:
        features.save(folder)
        (task.scratch / "model").rename(folder / "model")

    return Trained(predict, save)


def parabel(task: Task) -> Trained:
    """omikuji's default: balanced 2-means trees."""
    return _omikuji(task)


def bonsai(task: Task) -> Trained:
    """omikuji with wide and shallow trees: plain k-means into 100 clusters, at most 3 levels."""
    return _omikuji(task, cluster_balanced=False, cluster_k=100, max_depth=3)


def _omikuji(task: Task, **settings) -> Trained:
    import omikuji
    from sklearn.datasets import dump_svmlight_file

    features = Features(task.texts)
    docs = features.of(task.texts)
    full = np.diff(docs.indptr) > 0  # omikuji refuses the whole file for one doc without words
    data = task.scratch / "train.txt"  # it trains on files only
    with open(data, "wb") as file:
        file.write(f"{full.sum()} {docs.shape[1]} {len(task.labels)}\n".encode())
        dump_svmlight_file(docs[full], task.positives[full], file, multilabel=True)
    hyper = omikuji.Model.default_hyper_param()
    hyper.n_trees = TREES
    for name, value in settings.items():
        setattr(hyper, name, value)
    model = omikuji.Model.train_on_data(str(data), hyper, n_threads=task.threads)
    model.init_prediction_thread_pool(task.threads)

    def predict(texts: Sequence[str], k: int) -> np.ndarray:
        x = features.of(texts)
        rows = []
        for start, end in zip(x.indptr[:-1], x.indptr[1:]):
            pairs = list(zip(x.indices[start:end].tolist(), x.data[start:end].tolist()))
            rows.append([label for label, _ in model.predict(pairs, top_k=k)])
        return as_ranking(rows, k)

    def save(folder: Path) -> None:
        features.save(folder)
        model.save(str(folder / "model"))

    return Trained(predict, save, lambda: model.init_prediction_thread_pool(1))


def plt(task: Task) -> Trained:
    """napkinXC's probabilistic label tree, default settings."""
    from napkinxc.models import PLT

    features = Features(task.texts)
    model = PLT(str(task.scratch / "model"), seed=SEED, threads=task.threads)
    model.fit(features.of(task.texts), task.positives)
    model.load()

    def predict(texts: Sequence[str], k: int) -> np.ndarray:
        return as_ranking(model.predict(features.of(texts), top_k=k), k)

    def save(folder: Path) -> None:
        features.save(folder)
        (task.scratch / "model").rename(folder / "model")  # fit has written it already

    return Trained(predict, save, lambda: model.set_params(threads=1))


METHODS: dict[str, Callable[[Task], Trained]] = {
    "frequent": frequent,
    "bm25": bm25,
    "tfidf-knn": tfidf_knn,
    "xr-linear": xr_linear,
    "xr-linear-labels": xr_linear_labels,
    "parabel": parabel,
    "bonsai": bonsai,
    "plt": plt,
}


def peak_rss_mb() -> float:
    """The most memory this process has held, in MB.

    Linux hands getrusage's maximum on to a started process, so a large parent would be counted: VmHWM is not.
    """
    try:
        status = Path("/proc/self/status").read_text()
        return int(re.search(r"VmHWM:\s*(\d+)", status)[1]) / 1024
    except (OSError, TypeError):  # no /proc, or no such line
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak / (1 << 20 if sys.platform == "darwin" else 1 << 10)


def times_alone(trained: Trained, texts: Sequence[str]) -> list[float]:
    """The seconds of each text, predicted by itself with one thread."""
    trained.alone()
    seconds = []
    for text in texts:
        begin = time.perf_counter()
        trained.predict([text], ALONE_TOP)
        seconds.append(time.perf_counter() - begin)
    return seconds


def run(method: str, export: Path, threads: int, scratch: Path) -> tuple[np.ndarray, dict]:
    """The ranking of all test texts and what it cost. Reading the export is not counted, making features is."""
    train, test, labels = (read_items(export / f"{name}.json.gz") for name in ("trn", "tst", "lbl"))
    train = [item for item in train if item["target_ind"]]  # a doc without labels teaches these methods nothing
    if not train or not test:
        sys.exit(f"error: {export} needs training docs with labels and test docs: export the dataset again.")
    positives = positives_of(train, len(labels))
    work, saved = scratch / "work", scratch / "saved"
    work.mkdir()
    saved.mkdir()
    task = Task([text_of(item) for item in train], positives, [text_of(item) for item in labels], threads, work)
    texts = [text_of(item) for item in test]
    del train, test, labels

    start = time.perf_counter()
    trained = METHODS[method](task)
    trained_at = time.perf_counter()
    ranking = trained.predict(texts, TOP)
    predicted_at = time.perf_counter()
    alone = times_alone(trained, texts[:ALONE])
    costs = {
        "train_seconds": trained_at - start,
        "ms_batch": 1000 * (predicted_at - trained_at) / len(texts),
        "ms_single": 1000 * float(np.median(alone)),
        "ms_p99": 1000 * float(np.quantile(alone, 0.99)),
        "rss_mb": peak_rss_mb(),
    }
    trained.save(saved)
    costs["model_mb"] = sum(path.stat().st_size for path in saved.rglob("*") if path.is_file()) / 1e6
    return ranking, costs


def main() -> None:
    parser = argparse.ArgumentParser(description="Run one peer on one export.")
    parser.add_argument("method", choices=METHODS)
    parser.add_argument("export", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=args.out, suffix=".work") as scratch:
        ranking, costs = run(args.method, args.export, args.threads, Path(scratch))
    # The .json goes last and whole: where it stands, the ranking beside it is complete.
    np.save(args.out / f"{args.method}.npy", ranking)
    draft = args.out / f"{args.method}.json.draft"
    draft.write_text(json.dumps(costs, indent=2) + "\n", encoding="utf-8")
    draft.replace(args.out / f"{args.method}.json")


if __name__ == "__main__":
    main()
