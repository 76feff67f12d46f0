"""Search, fuse, filter, and every metric of every phase on the test documents, which no other stage reads.

reads   prepare/{train,labels,test}, embed labels, encoder, augment, classifier, index
writes  metrics.json; fusion.json, labels.csv (per label), bins.csv (by label frequency)
"""

from pathlib import Path

import click
import numpy as np

from longtail import estimates
from xcutils.core import artifacts, console, runtime
from xcutils.core.folds import last_fold
from xcutils.core.params import load_params
from xcutils.model.encoders import encode
from xcutils.model.pretrained import build_pretrained
from xcutils.model.stored import load_encoder
from xcutils.rank import bm25
from xcutils.rank.assembly import choosing_predictor, final_predictor
from xcutils.rank.scoring import DEPTH, ScoreParams, Split, final_rankings, fuse, load_split, save_score, search_width
from xcutils.search.metrics import without
from xcutils.search.neighbours import exact
from xcutils.search.propensity import inverse_propensities

Params = ScoreParams


def single_rankings(split: Split, encoders: dict, width: int) -> dict[str, np.ndarray]:
    """The rankings of encoders searched exactly: row name -> (Q, width)."""
    return {
        name: exact(encode(encoder, split.tokens, chunk=1024), vectors, width)[0]
        for name, (encoder, vectors) in encoders.items()
    }


def load_rows(prepare: Path, embed: Path, encoder: Path, augment: Path) -> dict:
    """Row name -> (encoder, label vectors) of the rows that are one encoder's search."""
    special = artifacts.load_json(prepare / "tokenizer", "special.json")
    zero_shot = build_pretrained(artifacts.load_json(embed, "embed.json"), special)
    fit = last_fold(artifacts.load_json(prepare / "train", "meta.json")["refit"])
    trained = load_encoder(encoder / fit)
    return {
        "zero-shot": (zero_shot, artifacts.load_array(embed, "labels")),
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
@console.command
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
    inverse = inverse_propensities(prepare / "train", prepare / "labels")
    fusion = fuse(choosing_predictor(prepare, [augment, classifier], p.settings()), prepare / "train", inverse, p)
    test = load_split(prepare / "test", len(inverse))
    predictor = final_predictor(prepare, [augment, classifier], index, p.settings())
    encoders, width = load_rows(prepare, embed, encoder, augment), search_width(test.excluded)
    rankings = {"BM25": bm25.search(test.tokens, artifacts.load_ragged(prepare / "labels", "tokens"), width)[0]}
    rankings |= single_rankings(test, encoders, width)
    rankings = {name: without(ranking, test.excluded)[:, :DEPTH] for name, ranking in rankings.items()}
    rankings |= final_rankings(predictor, fusion, test)
    rankings.pop("similarity")  # the encoder's row is the same search, exact and by M1's encoder
    found = {"rankings": rankings, "split": test, "predictor": predictor, "fusion": fusion, "inverse": inverse}
    save_score(metrics, out, p, parts, prepare / "labels", **found)


if __name__ == "__main__":
    main()
