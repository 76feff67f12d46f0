"""Concatenated, encoder-only and classifier-only inference and their fusion on the test documents [UniDEC].

reads   prepare/{train,labels,tokenizer,test}, train, index
writes  unidec/metrics.json; fusion.json, labels.csv (per label), bins.csv (by label frequency)
"""

from pathlib import Path

import click

from longtail import estimates
from xcutils.core import artifacts, console, runtime
from xcutils.core.params import load_params
from xcutils.rank.assembly import choosing_predictor, final_predictor
from xcutils.rank.scoring import ScoreParams, final_rankings, fuse, load_split, save_score
from xcutils.search.propensity import inverse_propensities

Params = ScoreParams
ROWS = {"concatenated": "concatenated", "similarity": "encoder", "classifier": "classifier"}  # search -> row


@click.command()
@click.argument("prepare", type=click.Path(exists=True, path_type=Path))
@click.argument("train", type=click.Path(exists=True, path_type=Path))
@click.argument("index", type=click.Path(exists=True, path_type=Path))
@click.argument("metrics", type=click.Path(path_type=Path))
@click.argument("out", type=click.Path(path_type=Path))
@console.params_file
@console.command
def main(prepare: Path, train: Path, index: Path, metrics: Path, out: Path, file: Path) -> None:
    p = load_params(Params, "score", file)
    runtime.start()
    parts = [*(prepare / part for part in ("train", "labels", "tokenizer", "test")), train, index]
    artifacts.check_together(*parts)
    sizes = estimates.prepared(prepare / "train", prepare / "labels", prepare / "test")
    estimates.announce("score", sizes, file)
    inverse = inverse_propensities(prepare / "train", prepare / "labels")
    fusion = fuse(choosing_predictor(prepare, [train], p.settings()), prepare / "train", inverse, p)
    test = load_split(prepare / "test", len(inverse))
    predictor = final_predictor(prepare, [train], index, p.settings())
    rankings = {ROWS.get(name, name): row for name, row in final_rankings(predictor, fusion, test).items()}
    found = {"rankings": rankings, "split": test, "predictor": predictor, "fusion": fusion, "inverse": inverse}
    save_score(metrics, out, p, parts, prepare / "labels", **found)


if __name__ == "__main__":
    main()
