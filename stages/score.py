"""Every metric of every phase on the test documents, which no other stage reads.

reads   prepare/{train,labels,test}, embed labels, encoder, augment, classifier, index
writes  metrics.json; labels.csv (per label), bins.csv (by label frequency), reliability.csv (by probability)
"""

from pathlib import Path

import click
import numpy as np
import torch

from stages import parameters, run
from xcutils.core import artifacts, console, costs, runtime
from xcutils.core.costs import Estimate, Host, Sizes
from xcutils.core.folds import last_fit
from xcutils.core.pipelines import MODULAR
from xcutils.core.rules import follow
from xcutils.model.encoders import encode, load_encoder, network
from xcutils.model.transformer import transformer_network
from xcutils.model.untrained import UNTRAINED, build_zero_shot
from xcutils.rank import bm25, scoring
from xcutils.rank.assembly import final_predictor
from xcutils.rank.scoring import (
    DEPTH,
    ENCODED,
    Result,
    ScoreParams,
    Split,
    approximation,
    fused_ranking,
    load_cutoffs,
    load_split,
    part_rankings,
    sampled,
    search_width,
)
from xcutils.rank.served import load
from xcutils.search.exact import exact
from xcutils.search.metrics import without
from xcutils.search.propensity import inverse_propensities

Params = ScoreParams


def cost(s: Sizes, params: dict, host: Host) -> Estimate:
    """scoring.cost with BM25 and the pretrained encoder, which have rows of their own in this pipeline."""
    net = network(params["encoder"], "encoder")
    model = params["embed"]["model"]
    pretrained = net if model == UNTRAINED else transformer_network(model, 0, "embed.model")
    return scoring.cost(s, params, host, net=net, pretrained=pretrained, lexical=True, rows=len(MODULAR.rows))


def encoder_rankings(
    split: Split, prepare: Path, embed: Path, encoder: Path, augment: Path, device: torch.device
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """(row -> (Q, width): rankings by exact search with an encoder alone; what M1's encoder makes of the documents)."""
    width = search_width(split.excluded)
    special = artifacts.load_json(prepare / "tokenizer", "special.json")
    fit = last_fit(artifacts.load_json(prepare / "train", "meta.json")["refit"])
    facts = artifacts.load_json(embed, "embed.json")
    untrained = build_zero_shot(facts, prepare / "train", prepare / "labels", special)
    zero_shot = encode(untrained, split.tokens, chunk=ENCODED)
    trained = encode(load_encoder(encoder / fit, device), split.tokens, chunk=ENCODED)
    rows = {
        "zero-shot": (zero_shot, artifacts.load_array(embed, "labels")),
        "encoder-no-aux": (trained, artifacts.load_array(augment / fit, "plain")),
        "encoder": (trained, artifacts.load_array(augment / fit, "labels")),
    }
    rankings = {name: exact(queries, vectors, width, device=device)[0] for name, (queries, vectors) in rows.items()}
    return rankings, trained


def same_encoder(encoder: Path, classifier: Path, fit: str) -> bool:
    """Did M4 leave M1's encoder as it was?"""
    file = f"{fit}/encoder.safetensors"
    one, other = (artifacts.load_manifest(folder)["files"][file]["sha256"] for folder in (encoder, classifier))
    return one == other


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
    settings = parameters()
    p = settings.section("score", Params)
    device = runtime.start()
    train, labels, tokenizer, test_dir = (prepare / part for part in ("train", "labels", "tokenizer", "test"))
    read = [train, labels, tokenizer, test_dir, embed, encoder, augment, classifier, index]
    artifacts.check_together(*read)
    sizes = costs.sizes_of(train, labels, test_dir)
    settings = follow(settings, sizes, "score")
    costs.announce(cost, sizes, settings.values)
    inverse = inverse_propensities(train, labels)
    test = load_split(test_dir, len(inverse))
    sample = test.sample(sampled(p.sample, len(test.tokens), len(inverse)))
    label_tokens = artifacts.load_ragged(labels, "tokens")
    rankings = {"BM25": bm25.search(sample.tokens, label_tokens, search_width(sample.excluded))[0]}
    by_encoder, trained = encoder_rankings(sample, prepare, embed, encoder, augment, device)
    rankings |= by_encoder
    rankings = {name: without(ranking, sample.excluded)[:, :DEPTH] for name, ranking in rankings.items()}
    predictor = final_predictor(train, [augment, classifier], p, inverse, device)
    fit = last_fit(artifacts.load_json(train, "meta.json")["refit"])
    queries = trained if same_encoder(encoder, classifier, fit) else predictor.embed(sample.tokens)
    del predictor.searchers["labels"]  # the row `encoder` is the same search, but with the encoder of M1
    parts = part_rankings(predictor, sample, queries)
    del predictor
    model = load(index)
    fused = fused_ranking(model, test)
    lost = approximation(model, test, fused[0], inverse, p.sample)
    result = Result(rankings | parts, fused, lost, load_cutoffs(index), sample, test, inverse)
    result.save(metrics, out, p, read, labels)


if __name__ == "__main__":
    run(main)
