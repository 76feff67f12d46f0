"""Search, fuse, filter, and every metric of every phase on the test documents, which no other stage reads.

reads   prepare/{train,labels,test}, embed labels, encoder, augment, classifier, index
writes  metrics.json; fusion.json, labels.csv (per label), bins.csv (by label frequency)
"""

from dataclasses import asdict, dataclass
from pathlib import Path

import click
import numpy as np
from scipy import sparse

from xcutils import artifacts, bm25, estimates, runtime
from xcutils.checkpoints import fingerprint
from xcutils.encoders import build_transformer, encode, move
from xcutils.errors import UserError
from xcutils.folds import last_fold
from xcutils.fusion import Fusion, Shortlist, calibrate, entries, fit_weights, rank
from xcutils.metrics import evaluate, evaluate_bins, frequency_bins, most_per_row, pair_matrix, per_label, without
from xcutils.models import load_encoder
from xcutils.neighbours import exact, recall
from xcutils.params import load_params, value
from xcutils.predictor import Predictor
from xcutils.ragged import Ragged, to_strings
from xcutils.system import choosing_predictor, final_predictor, inverse_propensities

DEPTH = 100  # labels ranked per document: R@100 needs them
CHUNK = 1 << 14  # documents whose shortlists are held at once
BINS = ("head", "torso", "tail")


@dataclass(frozen=True)
class Params:
    shortlist: int = value(low=100)  # labels taken from each search
    ef: int = value(low=1)  # vectors an HNSW search looks at
    neighbours: int = value(low=1)  # training documents the retrieval memory looks at
    tau: float = value(above=0)  # temperature of the memory's weights
    tail: float = value(low=0, high=1)  # how much of the fusion's goal is PSN@5; the rest is N@5
    fusion_docs: int = value(low=1)  # validation documents the fusion is fitted on, at most


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
        figures = evaluate(ranking, split.truth, inverse)
        return (1 - tail) * figures["N@5"] + tail * figures["PSN@5"]

    shortlist = drop_excluded(predictor.pairs(split.tokens)[0], split.excluded)
    truth = entries(split.truth, shortlist.rows, shortlist.labels) > 0
    return calibrate(fit_weights(shortlist, judge), shortlist, truth)


def search_width(excluded: sparse.csr_matrix) -> int:
    """Labels to search for, so that DEPTH are left when the excluded ones are gone."""
    return DEPTH + most_per_row(excluded)


def single_rankings(split: Split, encoders: dict, width: int) -> dict[str, np.ndarray]:
    """The rankings of encoders searched exactly: row name -> (Q, width)."""
    return {
        name: exact(encode(encoder, split.tokens, chunk=1024), vectors, width)[0]
        for name, (encoder, vectors) in encoders.items()
    }


def final_rankings(predictor: Predictor, fusion: Fusion, split: Split) -> dict[str, np.ndarray]:
    """The rankings of classifier, memory and fusion on the split: row name -> (Q, DEPTH)."""
    parts = [chunk_rankings(predictor, fusion, split.part(i)) for i in range(0, len(split.tokens), CHUNK)]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def chunk_rankings(predictor: Predictor, fusion: Fusion, split: Split) -> dict[str, np.ndarray]:
    """`final_rankings` of so few documents that their shortlists fit into memory, whatever the number of all."""
    shortlist, found = predictor.pairs(split.tokens)
    shortlist = drop_excluded(shortlist, split.excluded)
    fused, _ = rank(shortlist.rows, shortlist.labels, fusion.scores(shortlist), shortlist.count, DEPTH)
    rows = {name: without(found[name][0], split.excluded)[:, :DEPTH] for name in ("classifier", "memory")}
    return {**rows, "fused": fused}


def index_recall(predictor: Predictor, split: Split, most: int = 1000) -> dict[str, float]:
    """recall@100 of each search against exact search, in percent, on the first `most` documents."""
    queries = encode(predictor.encoder, split.tokens.take(np.arange(min(most, len(split.tokens)))))
    out = {}
    for name in ("labels", "classifiers", "docs"):
        searcher = getattr(predictor, name)
        k = min(100, len(searcher.vectors))
        out[name] = recall(searcher.search(queries, k)[0], exact(queries, searcher.vectors, k)[0])
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


def load_rows(prepare: Path, embed: Path, encoder: Path, augment: Path) -> dict:
    """Row name -> (encoder, label vectors) of the rows that are one encoder's search."""
    special = artifacts.load_json(prepare / "tokenizer", "special.json")
    facts = artifacts.load_json(embed, "embed.json")
    if fingerprint(facts["checkpoint"]) != facts.pop("sha256"):
        raise UserError(f"{facts['checkpoint']} has changed since {embed} was made: run `dvc repro --force embed`.")
    zero_shot = build_transformer(**facts, special=special, dropout=0.0)
    fit = last_fold(artifacts.load_json(prepare / "train", "meta.json")["refit"])
    trained = load_encoder(encoder / fit)
    return {
        "zero-shot": (move(zero_shot, runtime.device()), artifacts.load_array(embed, "labels")),
        "encoder-no-aux": (trained, artifacts.load_array(augment / fit, "plain")),
        "encoder": (trained, artifacts.load_array(augment / fit, "labels")),
    }


@click.command()
@click.argument("prepare", type=click.Path(exists=True, path_type=Path))
@click.argument("embed", type=click.Path(exists=True, path_type=Path))
@click.argument("encoder", type=click.Path(exists=True, path_type=Path))
@click.argument("augment", type=click.Path(exists=True, path_type=Path))
@click.argument("classifier", type=click.Path(exists=True, path_type=Path))
@click.argument("index", type=click.Path(exists=True, path_type=Path))
@click.argument("metrics", type=click.Path(path_type=Path))
@click.argument("out", type=click.Path(path_type=Path))
@runtime.command
def main(prepare, embed, encoder, augment, classifier, index, metrics, out) -> None:
    p = load_params(Params, "score")
    runtime.start()
    parts = [
        *(prepare / part for part in ("train", "labels", "tokenizer", "test")),
        embed,
        encoder,
        augment,
        classifier,
    ]
    parts.append(index)
    artifacts.check_together(*parts)
    estimates.announce("score", estimates.prepared(prepare / "train", prepare / "labels", prepare / "test"))
    settings = {name: v for name, v in asdict(p).items() if name in ("shortlist", "ef", "neighbours", "tau")}
    inverse = inverse_propensities(prepare / "train", prepare / "labels")
    held_out = np.flatnonzero(artifacts.load_array(prepare / "train", "is_validation"))[: p.fusion_docs]
    validation = load_split(prepare / "train", len(inverse), held_out)
    fusion = fit_fusion(choosing_predictor(prepare, augment, classifier, settings), validation, inverse, p.tail)
    runtime.say("fusion: " + ", ".join(f"{name} {v:.3g}" for name, v in fusion.as_dict().items()))

    test = load_split(prepare / "test", len(inverse))
    predictor = final_predictor(prepare, augment, classifier, index, settings)
    encoders, width = load_rows(prepare, embed, encoder, augment), search_width(test.excluded)
    rankings = {"BM25": bm25.search(test.tokens, artifacts.load_ragged(prepare / "labels", "tokens"), width)[0]}
    rankings |= single_rankings(test, encoders, width)
    rankings = {name: without(ranking, test.excluded)[:, :DEPTH] for name, ranking in rankings.items()}
    rankings |= final_rankings(predictor, fusion, test)
    report = {name: rounded(evaluate(ranking, test.truth, inverse)) for name, ranking in rankings.items()}
    report["index"] = {f"recall@100 {name}": v for name, v in rounded(index_recall(predictor, test)).items()}
    with artifacts.writing(out, name="score", params=asdict(p), inputs=parts) as folder:
        artifacts.save_json(folder, "fusion.json", {"weights": fusion.as_dict(), "settings": settings})
        bins = frequency_bins(np.asarray(artifacts.load_array(prepare / "labels", "frequency")), len(BINS))
        artifacts.save_rows(folder, "bins.csv", bin_rows(rankings, test, inverse, bins))
        artifacts.save_rows(folder, "labels.csv", label_rows(rankings["fused"], test, bins, prepare / "labels"))
    artifacts.replace_json(metrics, report)


if __name__ == "__main__":
    main()
