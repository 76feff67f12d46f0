"""What the score stages share: splits, the fitted fusion, the rankings of the test documents and what they come to."""

from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from scipy import sparse

from xcutils.core import artifacts, console
from xcutils.core.params import value
from xcutils.core.ragged import Ragged, to_strings
from xcutils.model.encoders import encode
from xcutils.rank.fusion import Fusion, Shortlist, calibrate, entries, fit_weights, rank
from xcutils.rank.predictor import Predictor
from xcutils.search.metrics import (
    evaluate,
    evaluate_bins,
    frequency_bins,
    goal,
    most_per_row,
    pair_matrix,
    per_label,
    without,
)
from xcutils.search.neighbours import exact, recall

DEPTH = 100  # labels ranked per document: R@100 needs them
CHUNK = 1 << 14  # documents whose shortlists are held at once
BINS = ("head", "torso", "tail")


@dataclass(frozen=True)
class ScoreParams:
    """How the searches' answers are put together."""

    shortlist: int = value(low=100)  # labels taken from each search
    ef: int = value(low=1)  # vectors an HNSW search looks at
    neighbours: int = value(low=1)  # training documents the retrieval memory looks at
    tau: float = value(above=0)  # temperature of the memory's weights
    tail: float = value(low=0, high=1)  # how much of the fusion's goal is PSN@5; the rest is N@5
    fusion_docs: int = value(low=1)  # validation documents the fusion is fitted on, at most

    def settings(self) -> dict:
        """What prediction needs to know."""
        return {name: v for name, v in asdict(self).items() if name in ("shortlist", "ef", "neighbours", "tau")}


@dataclass(frozen=True)
class Split:
    """Documents to rank labels for, and what is right.

    truth     (Q, L) binary
    excluded  (Q, L) binary  pairs that may not be predicted (self and reciprocal pairs)
    """

    tokens: Ragged
    truth: sparse.csr_matrix
    excluded: sparse.csr_matrix

    def part(self, start: int) -> "Split":
        """CHUNK of the documents."""
        rows = np.arange(start, min(start + CHUNK, len(self.tokens)))
        return Split(self.tokens.take(rows), self.truth[rows], self.excluded[rows])


def load_split(folder: Path, n_labels: int, rows: np.ndarray | None = None) -> Split:
    """A prepared split, or some of its documents."""
    tokens, positives = (
        artifacts.load_ragged(folder, "tokens"),
        artifacts.load_ragged(folder, "positives"),
    )
    excluded = pair_matrix(artifacts.load_array(folder, "filter"), (len(tokens), n_labels))
    rows = np.arange(len(tokens)) if rows is None else rows
    return Split(tokens.take(rows), positives.take(rows).csr(n_labels), excluded[rows])


def drop_excluded(shortlist: Shortlist, excluded: sparse.csr_matrix) -> Shortlist:
    """The shortlist without the excluded pairs."""
    kept = entries(excluded, shortlist.rows, shortlist.labels) == 0
    return Shortlist(shortlist.rows[kept], shortlist.labels[kept], shortlist.parts[kept], shortlist.count)


def fit_fusion(predictor: Predictor, split: Split, inverse: np.ndarray, tail: float) -> Fusion:
    """The fusion that ranks the validation documents best, calibrated on them."""

    def judge(ranking: np.ndarray) -> float:
        return goal(evaluate(ranking, split.truth, inverse), tail)

    shortlist = drop_excluded(predictor.pairs(split.tokens)[0], split.excluded)
    truth = entries(split.truth, shortlist.rows, shortlist.labels) > 0
    return calibrate(fit_weights(shortlist, judge), shortlist, truth)


def fuse(predictor: Predictor, train: Path, inverse: np.ndarray, p: ScoreParams) -> Fusion:
    """The fusion of a predictor that has not seen the validation documents of `train`, fitted on them."""
    held_out = np.flatnonzero(artifacts.load_array(train, "is_validation"))[: p.fusion_docs]
    fusion = fit_fusion(predictor, load_split(train, len(inverse), held_out), inverse, p.tail)
    console.say("fusion: " + ", ".join(f"{name} {v:.3g}" for name, v in fusion.as_dict().items()))
    return fusion


def search_width(excluded: sparse.csr_matrix) -> int:
    """Labels to search for, so that DEPTH are left when the excluded ones are gone."""
    return DEPTH + most_per_row(excluded)


def final_rankings(predictor: Predictor, fusion: Fusion, split: Split) -> dict[str, np.ndarray]:
    """The rankings of every search and of the fusion on the split: row name -> (Q, DEPTH)."""
    parts = [chunk_rankings(predictor, fusion, split.part(i)) for i in range(0, len(split.tokens), CHUNK)]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def chunk_rankings(predictor: Predictor, fusion: Fusion, split: Split) -> dict[str, np.ndarray]:
    """`final_rankings` of so few documents that their shortlists fit into memory, whatever the number of all."""
    shortlist, found = predictor.pairs(split.tokens)
    shortlist = drop_excluded(shortlist, split.excluded)
    fused, _ = rank(shortlist.rows, shortlist.labels, fusion.scores(shortlist), shortlist.count, DEPTH)
    rows = {name: without(ids, split.excluded)[:, :DEPTH] for name, (ids, _) in found.items()}
    return {**rows, "fused": fused}


def index_recall(predictor: Predictor, split: Split, most: int = 1000) -> dict[str, float]:
    """recall@100 of each search against exact search, in percent, on the first `most` documents."""
    queries = encode(predictor.encoder, split.tokens.take(np.arange(min(most, len(split.tokens)))))
    out = {}
    for name, searcher in predictor.searchers.items():
        seen, k = predictor.seen_by(name, queries), min(100, len(searcher.vectors))
        out[name] = recall(searcher.search(seen, k)[0], exact(seen, searcher.vectors, k)[0])
    return out


def rounded(figures: dict[str, float]) -> dict[str, float]:
    return {name: round(float(v), 4) for name, v in figures.items()}


def label_rows(ranking: np.ndarray, split: Split, bins: np.ndarray, labels: Path) -> list[dict]:
    """Each label's own result in the fused top 5; recall is empty where no test document has the label."""
    frequency = artifacts.load_array(labels, "frequency")
    ids, texts = (to_strings(artifacts.load_ragged(labels, name)) for name in ("ids", "texts"))
    counts = per_label(ranking[:, :5], split.truth, k=5)
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


def bin_rows(rankings: dict, split: Split, inverse: np.ndarray, bins: np.ndarray) -> list[dict]:
    """Every metric of every phase for the head, torso and tail labels alone."""
    return [
        {"place": f"{name}, {part}", "row": name, "bin": part, **rounded(figures)}
        for name, ranking in rankings.items()
        for part, figures in zip(BINS, evaluate_bins(ranking, split.truth, inverse, bins, len(BINS)))
    ]


def save_score(
    metrics: Path,
    out: Path,
    p: ScoreParams,
    parts: list[Path],
    labels: Path,
    *,
    rankings: dict[str, np.ndarray],
    split: Split,
    predictor: Predictor,
    fusion: Fusion,
    inverse: np.ndarray,
) -> None:
    """Write what the rankings of the test documents come to."""
    report = {name: rounded(evaluate(ranking, split.truth, inverse)) for name, ranking in rankings.items()}
    report["index"] = {f"recall@100 {name}": v for name, v in rounded(index_recall(predictor, split)).items()}
    with artifacts.writing(out, name="score", params=asdict(p), inputs=parts) as folder:
        artifacts.save_json(folder, "fusion.json", {"weights": fusion.as_dict(), "settings": p.settings()})
        bins = frequency_bins(np.asarray(artifacts.load_array(labels, "frequency")), len(BINS))
        artifacts.save_rows(folder, "bins.csv", bin_rows(rankings, split, inverse, bins))
        artifacts.save_rows(folder, "labels.csv", label_rows(rankings["fused"], split, bins, labels))
    artifacts.replace_json(metrics, report)
