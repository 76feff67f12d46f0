"""Concatenated, encoder-only and classifier-only inference and their fusion on the test documents [UniDEC].

reads   prepare/{train,labels,tokenizer,test}, train, index
writes  unidec/metrics.json; fusion.json, labels.csv (per label), bins.csv (by label frequency)
"""

from pathlib import Path

import click

from xcutils import artifacts, estimates, runtime
from xcutils.params import load_params
from xcutils.propensity import inverse_propensities
from xcutils.scoring import ScoreParams, final_rankings, fuse, load_split, save_score
from xcutils.system import choosing_predictor, final_predictor

Params = ScoreParams
ROWS = {"concatenated": "concatenated", "similarity": "encoder", "classifier": "classifier"}  # search -> row


@click.command()
@click.argument("prepare", type=click.Path(exists=True, path_type=Path))
@click.argument("train", type=click.Path(exists=True, path_type=Path))
@click.argument("index", type=click.Path(exists=True, path_type=Path))
@click.argument("metrics", type=click.Path(path_type=Path))
@click.argument("out", type=click.Path(path_type=Path))
@runtime.params_file
@runtime.command
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
