"""What the stages `index` and `score` share: splits, the fitted fusion, rankings of test documents, their metrics."""

from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
from scipy import sparse

from xcutils.core import artifacts
from xcutils.core.console import say
from xcutils.core.costs import FLOAT, INT, INTERPRETER, LONG, Estimate, Host, Part, Sizes, fullest
from xcutils.core.folds import spread
from xcutils.core.params import value
from xcutils.core.ragged import Ragged, to_strings
from xcutils.model.costs import Network
from xcutils.rank import bm25
from xcutils.rank.calibration import Cutoffs, fit_curve, reliability
from xcutils.rank.fusion import Shortlist, Weighing, alone, entries, fit_weights, shown, tail_curve
from xcutils.rank.predictor import Found, Predictor
from xcutils.rank.served import Model, Searchable
from xcutils.rank.weights import Fusion
from xcutils.search.exact import SCORES, exact
from xcutils.search.indexes import INDEXES
from xcutils.search.metrics import Judged, Truth, frequency_bins, most_per_row, pair_matrix, without
from xcutils.search.plain import Exact
from xcutils.search.searcher import recall

DEPTH = 100  # labels ranked per document: R@100 needs them
PRODUCTS = 250_000_000  # test documents times labels that the rows of single phases are measured on, at most
COMPARED = 500_000_000  # likewise for what approximate search loses: a small difference needs more documents
LEAST = 1000  # test documents that either is measured on nevertheless
ENCODED = 1024  # test documents that an encoder of its own row encodes at once
CHOSEN_BY = ("P@1", "P@5", "N@5", "PSP@5", "PSN@5")  # metrics that are shown of the validation documents
RECALLED = 1000  # documents whose nearest are searched once more, to count how many of them an approximate search finds
SHOWN = 10  # labels of each document whose probabilities are compared with what is right
LOST = ("P@1", "P@5", "PSP@5", "N@5", "R@100")  # metrics by which they are compared
BINS = ("head", "torso", "tail")


@dataclass(frozen=True, kw_only=True)
class ScoreParams:
    """How the parts of the score are combined, and on how many documents each part is measured by itself."""

    shortlist: int = value(low=100)
    neighbours: int = value(low=0)
    tau: float = value(above=0)
    tail: float = value(low=0, high=1)
    fusion_docs: int = value(low=1)
    sample: int = value(low=1)

    def settings(self) -> dict:
        """The parameters that the model depends on, and no test document."""
        return {name: v for name, v in asdict(self).items() if name != "sample"}


def sampled(most: int, test: int, labels: int, products: int = PRODUCTS) -> int:
    """How many of the test documents are compared with every label, for the rows of single phases."""
    return min(test, most, max(LEAST, products // max(1, labels)))


@dataclass(frozen=True)
class Split:
    """Documents to rank labels for, and their positives.

    truth     (Q, L) binary  the positives
    excluded  (Q, L) binary  pairs that may not be predicted (self and reciprocal pairs)
    """

    tokens: Ragged
    truth: sparse.csr_matrix
    excluded: sparse.csr_matrix

    def draw(self, count: int) -> np.ndarray:
        """(count,) int64: documents drawn at random but always the same; all of them where there are no more."""
        return np.sort(np.random.default_rng(0).permutation(len(self.tokens))[:count])

    def take(self, rows: np.ndarray) -> "Split":
        """These documents alone."""
        return Split(self.tokens.take(rows), self.truth[rows], self.excluded[rows])

    def sample(self, count: int) -> "Split":
        """So many of the documents."""
        return self.take(self.draw(count))


def load_split(folder: Path, n_labels: int, rows: np.ndarray | None = None) -> Split:
    """A prepared split, or some of its documents."""
    tokens = artifacts.load_ragged(folder, "tokens")
    positives = artifacts.load_ragged(folder, "positives")
    excluded = pair_matrix(artifacts.load_array(folder, "filter"), (len(tokens), n_labels))
    rows = np.arange(len(tokens)) if rows is None else rows
    return Split(tokens.take(rows), positives.take(rows).csr(n_labels), excluded[rows])


def drop_excluded(shortlist: Shortlist, excluded: sparse.csr_matrix) -> Shortlist:
    """The shortlist without the excluded pairs."""
    kept = entries(excluded, shortlist.rows, shortlist.labels) == 0
    return Shortlist(shortlist.rows[kept], shortlist.labels[kept], shortlist.parts[kept], shortlist.count)


@dataclass(frozen=True)
class Fitted:
    """A fusion, and what it was chosen by.

    curve    a row per value of score.tail: what it gives on the validation documents
    cutoffs  precision and recall by threshold
    figures  of the fusion and of each part alone, on the validation documents
    """

    fusion: Fusion
    curve: list[dict[str, float]]
    cutoffs: Cutoffs
    figures: dict[str, dict[str, float]]

    def save(self, folder: Path) -> None:
        artifacts.save_json(folder, "fusion.json", self.fusion.as_dict())
        artifacts.save_json(folder, "cutoffs.json", asdict(self.cutoffs))
        artifacts.save_json(folder, "validation.json", {name: rounded(row) for name, row in self.figures.items()})
        artifacts.save_rows(folder, "tail.csv", [rounded(row) for row in self.curve])


def fit_fusion(predictor: Predictor, split: Split, inverse: np.ndarray, p: ScoreParams) -> Fitted:
    """The fusion that ranks the validation documents best, with probabilities and cut-offs as they are there."""
    truth = Truth(split.truth, inverse)
    shortlist = drop_excluded(predictor.shortlist(predictor.embed(split.tokens), p.shortlist), split.excluded)
    weighing = Weighing(shortlist, truth)
    fusion = fit_weights(weighing, p.tail)
    is_right = entries(split.truth, shortlist.rows, shortlist.labels) > 0
    scores = fusion.scores(shortlist.parts)
    fusion = replace(fusion, curve=fit_curve(scores, is_right))
    cutoffs = Cutoffs.of(fusion.probabilities(scores), is_right, int(truth.positives.nnz))
    rows = alone() | {"fused": tuple(fusion.weights().values())}
    figures = {name: shown(weighing, weights, truth) for name, weights in rows.items()}
    return Fitted(fusion, tail_curve(weighing, fusion, truth), cutoffs, figures)


def fuse(predictor: Predictor, train: Path, inverse: np.ndarray, p: ScoreParams) -> Fitted:
    """The fusion of a predictor that has not seen the validation documents of `train`, fitted on them."""
    held_out = spread(np.flatnonzero(artifacts.load_array(train, "is_validation")), p.fusion_docs)
    fitted = fit_fusion(predictor, load_split(train, len(inverse), held_out), inverse, p)
    say("fusion: " + ", ".join(f"{name} {v:.3g}" for name, v in fitted.fusion.weights().items()))
    for name, figures in fitted.figures.items():
        say(f"  {name}: " + ", ".join(f"{metric} {figures[metric]:.2f}" for metric in CHOSEN_BY))
    return fitted


def search_width(excluded: sparse.csr_matrix) -> int:
    """How many labels to search for, so that DEPTH are left without the excluded ones."""
    return DEPTH + most_per_row(excluded)


def part_rankings(predictor: Predictor, split: Split, queries: np.ndarray) -> dict[str, np.ndarray]:
    """part -> ranking (Q, DEPTH) of the split's documents by this part alone, exactly.

    queries  (Q, D) their embeddings
    """
    found, _ = predictor.search(queries, search_width(split.excluded))
    return {name: without(ids, split.excluded)[:, :DEPTH] for name, (ids, _) in found.items()}


def fused_ranking(model: Model, split: Split) -> Found:
    """(labels (Q, DEPTH), probabilities (Q, DEPTH)) that the model gives the split's documents."""
    ids, scores = model.rank(model.embed(split.tokens), DEPTH, rows_of(split.excluded))
    return ids, model.fusion.probabilities(scores)


def rows_of(matrix: sparse.csr_matrix) -> Ragged:
    """The columns of each row's entries."""
    return Ragged(matrix.indices, matrix.indptr.astype(np.int64))


class Exhaustive(Exact):
    """The vectors of an index, all compared with every query, in large products: what its searches are measured by."""

    def __init__(self, index: Searchable, count: int):
        self.index = index
        self.vectors = index.take(np.arange(count))

    def __len__(self) -> int:
        return len(self.index)

    def search(self, queries: np.ndarray, k: int, threads: int = 1) -> Found:
        return exact(self.index.seen(queries), self.vectors, k)


def approximation(model: Model, test: Split, ranked: np.ndarray, inverse: np.ndarray, most: int) -> dict[str, float]:
    """Recall of the model's searches, and how much higher the metrics would be if they were exact, in points.

    ranked  (Q, DEPTH) the labels that the model gives the test documents
    most    documents that are searched exactly, at most
    """
    rows = test.draw(sampled(most, len(ranked), len(inverse), COMPARED))
    split = test.take(rows)
    queries = model.embed(split.tokens)
    asked, truth, excluded = model.settings.as_asked(queries), Truth(split.truth, inverse), rows_of(split.excluded)
    exact_labels = Exhaustive(model.labels, model.n_labels)
    exact_docs = Exhaustive(model.docs, len(model.positives))
    near = max(1, model.settings.neighbours)
    some = spread(np.arange(len(queries)), RECALLED)

    def share(one, other, queries: np.ndarray, k: int) -> float:
        k = min(k, len(one))
        return recall(one.search(queries[some], k)[0], other.search(queries[some], k)[0]) if k else 100.0

    figures = {
        f"recall@{DEPTH} labels": share(model.labels, exact_labels, asked, DEPTH),
        f"recall@{near} docs": share(model.docs, exact_docs, queries, near),
    }
    best = Model(model.embed, exact_labels, exact_docs, model.positives, model.fusion, model.settings)
    got, could = (Judged(ids, truth).figures() for ids in (ranked[rows], best.rank(queries, DEPTH, excluded)[0]))
    return figures | {f"lost {name}": could[name] - got[name] for name in LOST}


def load_cutoffs(index: Path) -> Cutoffs:
    """The cut-offs of a model."""
    return Cutoffs(**artifacts.load_json(index, "cutoffs.json"))


def rounded(figures: dict[str, float]) -> dict[str, float]:
    return {name: round(float(v), 4) for name, v in figures.items()}


def label_rows(fused: Judged, bins: np.ndarray, labels: Path) -> list[dict]:
    """Rows of labels.csv: each label in the fused top 5; recall is empty where no test document has the label."""
    frequency = artifacts.load_array(labels, "frequency")
    ids, texts = (to_strings(artifacts.load_ragged(labels, name)) for name in ("ids", "texts"))
    counts = fused.per_label(5)
    relevant, right = counts["relevant"], counts["true_positives"]
    share = 100 * right / np.maximum(relevant, 1)
    return [
        {
            "id": ids[i],
            "text": texts[i],
            "bin": BINS[bins[i]],
            "training_docs": int(frequency[i]),
            "test_docs": int(relevant[i]),
            "predicted@5": int(counts["predicted"][i]),
            "right@5": int(right[i]),
            "recall@5": round(float(share[i]), 1) if relevant[i] else "",
        }
        for i in range(len(ids))
    ]


def bin_rows(judged: dict[str, Judged], bins: np.ndarray) -> list[dict]:
    """Rows of bins.csv: every metric of every ranking for the head, torso and tail labels alone."""
    return [
        {"place": f"{name}, {part}", "row": name, "bin": part, **rounded(figures)}
        for name, one in judged.items()
        for part, figures in zip(BINS, one.figures_by_bin(bins, len(BINS)))
    ]


@dataclass(frozen=True)
class Result:
    """The results of a score stage on the test documents.

    parts   row of metrics.json -> (q, DEPTH), of the sample
    fused   (labels, probabilities), both (Q, DEPTH), of all test documents
    search  figures of the model's searches
    cutoffs those of the model
    """

    parts: dict[str, np.ndarray]
    fused: Found
    search: dict[str, float]
    cutoffs: Cutoffs
    sample: Split
    test: Split
    inverse: np.ndarray

    def save(self, metrics: Path, out: Path, p: ScoreParams, read: list[Path], labels: Path) -> None:
        """Write the metrics, and into `out` the metrics by bin and by label.

        read    the artifacts that were read
        labels  the prepared labels
        """
        truth = Truth(self.sample.truth, self.inverse)
        judged = {name: Judged(ranking, truth) for name, ranking in self.parts.items()}
        judged["fused"] = Judged(self.fused[0], Truth(self.test.truth, self.inverse))
        report: dict = {name: rounded(one.figures()) for name, one in judged.items()}
        report["index"] = rounded(self.search)
        bins_of, report["probabilities"] = self.probabilities(judged["fused"].is_hit)
        report["docs"] = {"fused": len(self.fused[0]), "other rows": len(self.sample.tokens)}
        bins = frequency_bins(np.asarray(artifacts.load_array(labels, "frequency")), len(BINS))
        with artifacts.writing(out, name="score", params=asdict(p), inputs=read) as folder:
            artifacts.save_rows(folder, "bins.csv", bin_rows(judged, bins))
            artifacts.save_rows(folder, "labels.csv", label_rows(judged["fused"], bins, labels))
            artifacts.save_rows(folder, "reliability.csv", bins_of)
        artifacts.replace_json(metrics, report)

    def probabilities(self, is_hit: np.ndarray) -> tuple[list[dict], dict[str, float]]:
        """(rows of reliability.csv, figures): are the probabilities right, and what does the cut-off for F1 give?

        is_hit  (Q, DEPTH) which of the ranked labels are right
        """
        first = self.fused[0][:, :SHOWN] >= 0
        rows, error = reliability(self.fused[1][:, :SHOWN][first], is_hit[:, :SHOWN][first])
        figures = {"calibration error": error}
        if self.cutoffs.thresholds:
            threshold = self.cutoffs.thresholds[self.cutoffs.best()]
            given = (self.fused[1] >= threshold) & (self.fused[0] >= 0)
            right = int((given & is_hit).sum())
            precision, recalled = right / max(1, int(given.sum())), right / max(1, int(self.test.truth.nnz))
            figures |= {"threshold": 100 * threshold, "precision": 100 * precision, "recall": 100 * recalled}
            figures["F1"] = 200 * precision * recalled / max(1e-12, precision + recalled)
        return rows, rounded(figures)


def fusion_cost(s: Sizes, params: dict, host: Host, dim: int) -> tuple[list[list[Part]], float]:
    """(the fullest moments, seconds) of fitting the fusion: exact searches with the validation documents."""
    p = params["score"]
    held = min(s.validation, p["fusion_docs"])
    remembered = p["neighbours"] * s.per_doc * 0.6  # different labels of a document's neighbours
    pairs = held * (2 * p["shortlist"] + min(p["shortlist"], remembered))
    vectors = FLOAT * (2 * s.labels + s.docs) * dim
    fitted = [
        Part("vectors", vectors, mapped=True),
        Part("documents of the first fit", FLOAT * s.docs * dim, "lower prepare.validation"),
        Part("scores", FLOAT * min(held * max(s.labels, s.docs), SCORES)),
        Part("positives", 2 * (INT + FLOAT) * s.positives + LONG * (s.docs + s.labels)),
        Part("shortlists", 88 * pairs, f"lower score.fusion_docs ({p['fusion_docs']})"),
        Part("memory", 40 * held * remembered, f"lower score.neighbours ({p['neighbours']})"),
    ]
    products = 2 * held * (2 * s.labels + s.docs) * dim / host.speed
    chosen = 2 * FLOAT * held * (2 * s.labels + s.docs) / 2e9  # the best of each row of scores
    return [fitted], products + chosen + 6e-5 * held * p["shortlist"]


def cost(
    s: Sizes, params: dict, host: Host, *, net: Network, pretrained: Network | None, lexical: bool, rows: int
) -> Estimate:
    """The cost of a score stage: every part on a sample of the test documents, the model on all of them.

    net         the trained encoder
    pretrained  the pretrained one, where it has a row of its own or is part of the vectors; else None
    lexical     whether BM25 has a row
    rows        how many rankings are kept
    """
    p, index = params["score"], params["index"]
    labels = FLOAT * s.labels * net.dim
    all_docs = FLOAT * s.docs * net.dim
    sample, compared = (sampled(p["sample"], s.test, s.labels, most) for most in (PRODUCTS, COMPARED))
    kind = INDEXES[index["search"]]
    kept = [
        Part("interpreter", INTERPRETER + (pretrained.imports if pretrained else 0.0)),
        Part("positives", 2 * (INT + FLOAT) * s.positives + LONG * (s.docs + s.labels)),
        Part("pretrained encoder", pretrained.weights if pretrained else 0.0, mapped=True),
        Part("encoders", 2 * net.weights),
        Part("rankings", LONG * DEPTH * (rows * sample + s.test), "take fewer test documents"),
        Part("model", kind.disk(s.labels + s.docs, net.dim, index["m"]), mapped=True),
    ]
    scores = Part("scores", FLOAT * min(compared * max(s.labels, s.docs), SCORES))
    tokens = s.test_tokens * sample / max(1, s.test)
    passes = pretrained.forward(sample, tokens, host.threads, ENCODED) if pretrained else 0.0
    queries = Part("queries", FLOAT * (compared + s.test) * net.dim + 12 * DEPTH * compared, net.fewer)
    moments = [
        [Part("words that documents and labels share", bm25.bytes_of(s, sample) if lexical else 0.0)],
        [Part("vectors", 4 * labels + all_docs, mapped=True), queries, scores, Part("activations", passes)],
        [queries, Part("vectors compared with", labels + all_docs, net.fewer), scores],
        [queries, Part("rows of labels.csv", 700 * s.labels)],
    ]
    dims = 3 * net.dim + (pretrained.dim if pretrained else 0)
    products = 2 * sample * (s.labels * dims + s.docs * net.dim) + 2 * compared * (s.labels + s.docs) * net.dim
    chosen = FLOAT * (sample * (4 * s.labels + s.docs) + compared * (s.labels + s.docs)) / 1e9  # the best of each row
    looked = kind.seconds(400, index["m"], max(s.labels, s.docs), net.dim) / host.threads
    flops = pretrained.work(sample, tokens, train=False)[0] if pretrained else 0.0
    seconds = 8 + (products + flops) / host.speed + chosen + s.test * (2 * looked + 1e-4)
    seconds += 20e-6 * s.labels + (bm25.seconds_of(s, sample) if lexical else 0.0)
    return Estimate("score", fullest(kept, moments), seconds, 90 * s.labels, on_device=True)
