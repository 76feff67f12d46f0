"""What the score stages share: splits, the fitted fusion, the rankings of the test documents and their metrics."""

from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from scipy import sparse

from xcutils.core import artifacts
from xcutils.core.console import say
from xcutils.core.costs import FLOAT, INT, INTERPRETER, LONG, Estimate, Host, Part, Sizes, fullest
from xcutils.core.params import value
from xcutils.core.ragged import Ragged, to_strings
from xcutils.model.costs import TRANSFORMERS, Network
from xcutils.rank import bm25
from xcutils.rank.fusion import Fusion, Shortlist, calibrate, entries, fit_weights, rank
from xcutils.rank.predictor import Predictor
from xcutils.search.exact import SCORES, exact
from xcutils.search.metrics import Judged, Truth, frequency_bins, goal, most_per_row, pair_matrix, without
from xcutils.search.searcher import INDEXES, recall

DEPTH = 100  # labels ranked per document: R@100 needs them
RANKED = 1 << 14  # documents whose shortlists are held at once
ENCODED = 1024  # test documents that an encoder of its own row encodes at once
RECALLED = 1000  # documents on which the index is compared with exact search
BINS = ("head", "torso", "tail")


@dataclass(frozen=True, kw_only=True)
class ScoreParams:
    """The parameters of a score stage: how the searches' answers are combined."""

    shortlist: int = value(low=100)
    ef: int = value(low=1)
    neighbours: int = value(low=1)
    tau: float = value(above=0)
    tail: float = value(low=0, high=1)
    fusion_docs: int = value(low=1)

    def settings(self) -> dict:
        """The parameters that prediction needs."""
        return {name: v for name, v in asdict(self).items() if name in ("shortlist", "ef", "neighbours", "tau")}


@dataclass(frozen=True)
class Split:
    """Documents to rank labels for, and their positives.

    truth     (Q, L) binary  the positives
    excluded  (Q, L) binary  pairs that may not be predicted (self and reciprocal pairs)
    """

    tokens: Ragged
    truth: sparse.csr_matrix
    excluded: sparse.csr_matrix

    def part(self, start: int) -> "Split":
        """The split's RANKED documents from `start` on."""
        rows = np.arange(start, min(start + RANKED, len(self.tokens)))
        return Split(self.tokens.take(rows), self.truth[rows], self.excluded[rows])


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


def fit_fusion(predictor: Predictor, split: Split, inverse: np.ndarray, tail: float) -> Fusion:
    """The fusion that ranks the validation documents best, calibrated on them."""
    truth = Truth(split.truth, inverse)

    def judge(ranking: np.ndarray) -> float:
        return goal(Judged(ranking, truth).figures(), tail)

    shortlist = drop_excluded(predictor.pairs(predictor.embed(split.tokens))[0], split.excluded)
    is_right = entries(split.truth, shortlist.rows, shortlist.labels) > 0
    return calibrate(fit_weights(shortlist, judge), shortlist, is_right)


def fuse(predictor: Predictor, train: Path, inverse: np.ndarray, p: ScoreParams) -> Fusion:
    """The fusion of a predictor that has not seen the validation documents of `train`, fitted on them."""
    held_out = np.flatnonzero(artifacts.load_array(train, "is_validation"))[: p.fusion_docs]
    fusion = fit_fusion(predictor, load_split(train, len(inverse), held_out), inverse, p.tail)
    say("fusion: " + ", ".join(f"{name} {v:.3g}" for name, v in fusion.as_dict().items()))
    return fusion


def search_width(excluded: sparse.csr_matrix) -> int:
    """How many labels to search for, so that DEPTH are left without the excluded ones."""
    return DEPTH + most_per_row(excluded)


def final_rankings(
    predictor: Predictor, fusion: Fusion, split: Split, known: np.ndarray | None = None
) -> tuple[dict[str, np.ndarray], dict[str, float]]:
    """(row of metrics.json -> ranking (Q, DEPTH), searcher -> recall of its index); each document is encoded once.

    known  (Q, D) what predictor.embed would give, where it has been made already
    """
    parts: list[dict[str, np.ndarray]] = []
    recalls: dict[str, float] = {}
    for start in range(0, len(split.tokens), RANKED):
        part = split.part(start)
        queries = predictor.embed(part.tokens) if known is None else known[start : start + RANKED]
        parts.append(chunk_rankings(predictor, fusion, part, queries))
        recalls = recalls or index_recall(predictor, queries[:RECALLED])
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}, recalls


def chunk_rankings(predictor: Predictor, fusion: Fusion, split: Split, queries: np.ndarray) -> dict[str, np.ndarray]:
    """row -> ranking (Q, DEPTH) of every search and of the fusion, for documents whose shortlists fit into memory."""
    shortlist, found = predictor.pairs(queries)
    shortlist = drop_excluded(shortlist, split.excluded)
    fused, _ = rank(shortlist.rows, shortlist.labels, fusion.scores(shortlist), shortlist.count, DEPTH)
    rows = {name: without(ids, split.excluded)[:, :DEPTH] for name, (ids, _) in found.items()}
    return {**rows, "fused": fused}


def index_recall(predictor: Predictor, queries: np.ndarray) -> dict[str, float]:
    """searcher -> recall@100 against exact search, in percent."""
    recalls = {}
    for name, searcher in predictor.searchers.items():
        seen = predictor.seen_by(name, queries)
        k = min(100, len(searcher.vectors))
        recalls[name] = recall(searcher.search(seen, k)[0], exact(seen, searcher.vectors, k, device=searcher.device)[0])
    return recalls


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

    rankings  row of metrics.json -> (Q, DEPTH)
    recalls   searcher -> recall@100 of its index
    """

    rankings: dict[str, np.ndarray]
    recalls: dict[str, float]
    fusion: Fusion
    truth: Truth

    def save(self, metrics: Path, out: Path, p: ScoreParams, parts: list[Path], labels: Path) -> None:
        """Write the metrics, and into `out` the fusion and the metrics by bin and by label.

        parts   the artifacts that were read
        labels  the prepared labels
        """
        judged = {name: Judged(ranking, self.truth) for name, ranking in self.rankings.items()}
        report = {name: rounded(one.figures()) for name, one in judged.items()}
        report["index"] = {f"recall@100 {name}": v for name, v in rounded(self.recalls).items()}
        bins = frequency_bins(np.asarray(artifacts.load_array(labels, "frequency")), len(BINS))
        with artifacts.writing(out, name="score", params=asdict(p), inputs=parts) as folder:
            saved = {"weights": self.fusion.as_dict(), "settings": p.settings()}
            artifacts.save_json(folder, "fusion.json", saved)
            artifacts.save_rows(folder, "bins.csv", bin_rows(judged, bins))
            artifacts.save_rows(folder, "labels.csv", label_rows(judged["fused"], bins, labels))
        artifacts.replace_json(metrics, report)


def cost(
    s: Sizes, params: dict, host: Host, *, net: Network, pretrained: Network | None, lexical: bool, rows: int
) -> Estimate:
    """The cost of a score stage: searchers of the last fit, then rankings of all test documents, RANKED at a time.

    net         the trained encoder
    pretrained  the pretrained one, where it has a row of its own or is part of the vectors; else None
    lexical     whether BM25 has a row
    rows        how many rankings are kept
    """
    p, index = params["score"], params["index"]
    labels = FLOAT * s.labels * net.dim
    all_docs = FLOAT * s.docs * net.dim
    count = 2 * s.labels + s.docs
    found = p["neighbours"] * s.per_doc * 0.6  # different labels of a document's neighbours
    held = min(s.validation, p["fusion_docs"])
    kind = INDEXES[index["search"]]

    def shortlists(docs: float) -> list[Part]:
        pairs = docs * (2 * p["shortlist"] + min(p["shortlist"], found))
        return [
            Part("shortlists", 88 * pairs, f"lower score.shortlist ({p['shortlist']})"),
            Part("memory", 40 * docs * found, f"lower score.neighbours ({p['neighbours']})"),
        ]

    kept = [
        Part("interpreter", INTERPRETER + TRANSFORMERS),
        Part("positives", 2 * (INT + FLOAT) * s.positives + LONG * (s.docs + s.labels)),
    ]
    scores = Part("scores", FLOAT * min(max(held, s.test) * max(s.labels, s.docs), SCORES))
    final = [
        *kind.cost(count, net.dim, index["m"]),
        Part("vectors", 4 * labels + all_docs, mapped=True),
        Part("pretrained encoder", pretrained.weights if pretrained else 0.0, mapped=True),
        Part("encoders", 3 * net.weights),
        Part("rankings", LONG * rows * DEPTH * s.test, "take fewer test documents"),
    ]
    passes = pretrained.forward(s.test, s.test_tokens, host.threads, ENCODED) if pretrained else 0.0
    queries = Part("queries", FLOAT * s.test * net.dim + 12 * DEPTH * s.test, net.fewer)
    moments = [
        [
            Part("vectors", 2 * labels + all_docs, mapped=True),
            Part("documents of the first fit", all_docs, net.fewer),
            Part("encoder", 2 * net.weights),
            scores,
            *shortlists(held),
        ],
        [*final, Part("words that documents and labels share", bm25.bytes_of(s) if lexical else 0.0)],
        [*final, queries, scores, Part("activations", passes)],
        [*final, *shortlists(min(RANKED, s.test)), *([scores] if kind.exhaustive else [])],
        [*final, Part("rows of labels.csv", 700 * s.labels)],
    ]
    compared = 2 * net.dim + (pretrained.dim if pretrained else 0)
    searches = s.test * 2 * s.labels * compared + 2 * held * count * net.dim
    looked = kind.seconds(p["ef"], index["m"], max(s.labels, s.docs), net.dim) / host.threads
    flops = pretrained.work(s.test, s.test_tokens, train=False)[0] if pretrained else 0.0
    seconds = 8 + (searches + flops) / host.speed + s.test * (3 * looked + 1e-3) + 5e-5 * held * p["shortlist"]
    seconds += 20e-6 * s.labels + (bm25.seconds_of(s) if lexical else 0.0)
    return Estimate("score", fullest(kept, moments), seconds, 90 * s.labels, on_device=True)
