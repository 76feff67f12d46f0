"""Concatenated, encoder-only and classifier-only inference and their fusion on the test documents [UniDEC].

reads   prepare/{train,labels,tokenizer,test}, train, index
writes  unidec/metrics.json; labels.csv (per label), bins.csv (by label frequency), reliability.csv (by probability);
        unidec/plots/{curve,bins}.csv, which git keeps as it keeps the metrics: dvc draws them in every clone
"""

import shutil
from pathlib import Path

import click

from stages import parameters, run
from xcutils.core import artifacts, console, costs, runtime
from xcutils.core.costs import Estimate, Host, Sizes
from xcutils.core.pipelines import UNIDEC
from xcutils.core.rules import follow
from xcutils.model.unified import pretrained_network, unified_network
from xcutils.rank import scoring
from xcutils.rank.assembly import final_predictor
from xcutils.rank.scoring import (
    Result,
    ScoreParams,
    approximation,
    fused_ranking,
    load_cutoffs,
    load_split,
    part_rankings,
    sampled,
)
from xcutils.rank.served import load
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
@click.argument("plots", type=click.Path(path_type=Path))
@click.argument("out", type=click.Path(path_type=Path))
@console.params_file
@console.command
def main(prepare: Path, train: Path, index: Path, metrics: Path, plots: Path, out: Path, file: Path) -> None:
    settings = parameters(file)
    p = settings.section("score", Params)
    device = runtime.start()
    docs, labels, tokenizer, test_dir = (prepare / part for part in ("train", "labels", "tokenizer", "test"))
    read = [docs, labels, tokenizer, test_dir, train, index]
    artifacts.check_together(*read)
    sizes = costs.sizes_of(docs, labels, test_dir)
    settings = follow(settings, sizes, "score")
    costs.announce(cost, sizes, settings.values)
    inverse = inverse_propensities(docs, labels)
    test = load_split(test_dir, len(inverse))
    sample = test.sample(sampled(p.sample, len(test.tokens), len(inverse)))
    predictor = final_predictor(docs, [train], p, inverse, device)
    parts = part_rankings(predictor, sample, predictor.embed(sample.tokens))
    rankings = {ROWS.get(name, name): ranking for name, ranking in parts.items()}
    del predictor
    model = load(index)
    fused = fused_ranking(model, test)
    lost = approximation(model, test, fused[0], inverse, p.sample)
    result = Result(rankings, fused, lost, load_cutoffs(index), sample, test, inverse)
    result.save(metrics, out, p, read, labels)
    plots.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(train / "curve-choose.csv", plots / "curve.csv")
    shutil.copyfile(out / "bins.csv", plots / "bins.csv")


if __name__ == "__main__":
    run(main)
