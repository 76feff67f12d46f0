"""Concatenated, encoder-only and classifier-only inference and their fusion on the test documents [UniDEC].

reads   prepare/{train,labels,tokenizer,test}, train, index
writes  unidec/metrics.json; fusion.json, labels.csv (per label), bins.csv (by label frequency)
"""

from pathlib import Path

import click

from stages import parameters
from xcutils.core import artifacts, console, costs, runtime
from xcutils.core.costs import Estimate, Host, Sizes
from xcutils.core.pipelines import UNIDEC
from xcutils.model.unified import pretrained_network, unified_network
from xcutils.rank import scoring
from xcutils.rank.assembly import choosing_predictor, final_predictor
from xcutils.rank.scoring import Result, ScoreParams, final_rankings, fuse, load_split
from xcutils.search.metrics import Truth
from xcutils.search.propensity import inverse_propensities

Params = ScoreParams
ROWS = {"concatenated": "concatenated", "similarity": "encoder", "classifier": "classifier"}  # search -> row


def cost(s: Sizes, params: dict, host: Host) -> Estimate:
    """scoring.cost, with the pretrained encoder where its vectors are beside the trained one's."""
    net = unified_network(params["train"])
    pretrained = pretrained_network(params["train"])
    return scoring.cost(s, params, host, net=net, pretrained=pretrained, lexical=False, rows=len(UNIDEC.rows))


@click.command()
@click.argument("prepare", type=click.Path(exists=True, path_type=Path))
@click.argument("train", type=click.Path(exists=True, path_type=Path))
@click.argument("index", type=click.Path(exists=True, path_type=Path))
@click.argument("metrics", type=click.Path(path_type=Path))
@click.argument("out", type=click.Path(path_type=Path))
@console.params_file
@console.command
def main(prepare: Path, train: Path, index: Path, metrics: Path, out: Path, file: Path) -> None:
    settings = parameters(file)
    p = settings.section("score", Params)
    device = runtime.start()
    docs, labels, tokenizer, test_dir = (prepare / part for part in ("train", "labels", "tokenizer", "test"))
    parts = [docs, labels, tokenizer, test_dir, train, index]
    artifacts.check_together(*parts)
    costs.announce(cost, costs.sizes_of(docs, labels, test_dir), settings.values)
    inverse = inverse_propensities(docs, labels)
    fusion = fuse(choosing_predictor(prepare, [train], p.settings(), inverse, device), docs, inverse, p)
    test = load_split(test_dir, len(inverse))
    predictor = final_predictor(prepare, [train], index, p.settings(), inverse, device)
    searches, recalls = final_rankings(predictor, fusion, test)
    rankings = {ROWS.get(name, name): ranking for name, ranking in searches.items()}
    Result(rankings, recalls, fusion, Truth(test.truth, inverse)).save(metrics, out, p, parts, labels)


if __name__ == "__main__":
    main()
