"""The fusion, chosen on validation documents, and the model that answers: what `score` measures and `xc predict` loads.

reads   prepare/{train,labels,tokenizer}; the vectors and encoders that both fits of the named stages wrote: labels,
        classifiers (L, D), docs (N, D), and for the unified method concatenated (L, 2D)
writes  labels.<search> (L, D + c), one vector per label in which the parts are summed; docs.<search> (N, D); the
        encoder; fusion.json, settings.json; ids, texts and frequency of labels, positives, tokenizer.json: all that
        prediction needs
"""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import click
import numpy as np

from stages import parameters, run
from xcutils.core import artifacts, console, costs, runtime
from xcutils.core.costs import FLOAT, INTERPRETER, Estimate, Host, Part, Sizes
from xcutils.core.folds import last_fit, spread
from xcutils.core.params import value
from xcutils.core.ragged import Ragged
from xcutils.core.rules import follow
from xcutils.core.scratch import Scratch
from xcutils.model.encoders import load_encoder, network
from xcutils.model.unified import unified_network
from xcutils.rank import scoring
from xcutils.rank.assembly import choosing_predictor, views_of
from xcutils.rank.packing import combined, copy_texts, reach, save_small
from xcutils.rank.scoring import ScoreParams, fuse
from xcutils.rank.served import MORE, Settings, load_embed
from xcutils.rank.weights import Fusion
from xcutils.search.index import Building
from xcutils.search.indexes import INDEXES
from xcutils.search.propensity import inverse_propensities
from xcutils.search.searched import vectors_of

TRIED = 500  # documents that ef is chosen on
NEAREST = 10  # vectors of which a search must find the share index.recall
LABELS = scoring.DEPTH + MORE  # a search looks at least as far: then ten labels are the first of a hundred
DOCS = 64


@dataclass(frozen=True, kw_only=True)
class Params:
    search: str = value(among=INDEXES)
    m: int | Literal["auto"] = value(low=2, high=1024)
    ef_construction: int | Literal["auto"] = value(low=1)
    recall: float = value(above=0, high=1)
    block: int = value(low=1000)
    threads: int = value(low=1)

    def building(self, seed: int) -> Building:
        """The parameters must be settled."""
        return Building(int(self.m), int(self.ef_construction), self.block, self.threads, seed)


def cost(s: Sizes, params: dict, host: Host) -> Estimate:
    """The fusion's searches, then two graphs at a time, each with its own vectors."""
    p = params["index"]
    kind = INDEXES[p["search"]]
    count = s.labels + s.docs
    net = network(params["encoder"], "encoder") if "encoder" in params else unified_network(params["train"])
    kept = [Part("interpreter", INTERPRETER), Part("encoder", 2 * net.weights, net.smaller)]
    moments, seconds = scoring.fusion_cost(s, params, host, s.dim)
    graphs = [
        Part("combined vectors", 2 * s.labels * s.dim),
        *kind.cost(count, s.dim, p["m"]),
        *kind.building_cost([s.labels, s.docs], s.dim),
    ]
    tried = [
        *kind.cost(count, s.dim, p["m"]),
        Part("vectors compared with", FLOAT * max(s.labels, s.docs) * s.dim),
        Part("combined vectors", 2 * s.labels * s.dim),
    ]
    at_once = max(1, min(2 * p["threads"], host.threads))
    seconds += 5 + count / at_once * kind.seconds(p["ef_construction"], p["m"], max(s.labels, s.docs), s.dim)
    disk = kind.disk(count, s.dim, p["m"])
    return Estimate("index", costs.fullest(kept, [*moments, graphs, tried]), seconds, disk, on_device=True)


def build_all(
    sources: dict[str, np.ndarray], p: Params, seed: int, scratch: Scratch, adopt: Callable[[Path], None]
) -> None:
    """Build an index over each set of vectors, side by side, each on one thread, so that it is always the same."""
    stop = threading.Event()

    def build(name: str) -> Path:
        def make(part: Path) -> None:
            drafts = scratch.folder / f"{name}.snapshots"
            INDEXES[p.search].build(
                sources[name],
                part / f"{name}.{p.search}",
                p.building(seed),
                drafts=drafts,
                say=scratch.say,
                stop=stop,
            )

        return scratch.part(name, make)

    with ThreadPoolExecutor() as workers:
        try:
            for part in console.progress(workers.map(build, sources), "index", total=len(sources)):
                adopt(part)
        except BaseException:  # Ctrl-C, or an index that could not be built: do not wait for the other
            stop.set()
            raise


def widths(folder: Path, sources: dict[str, np.ndarray], asked: dict[str, np.ndarray], p: Params, near: int) -> dict:
    """{labels, docs}: how far each search looks, so that it finds the share p.recall of the NEAREST."""

    def chosen(name: str, first: int) -> int:
        vectors = sources[name]
        file = folder / f"{name}.{p.search}"
        index = INDEXES[p.search].open(file, count=len(vectors), dim=vectors.shape[1], ef=first)
        return reach(index, asked[name], np.asarray(vectors), NEAREST, p.recall, first)

    return {"labels": chosen("labels", LABELS), "docs": chosen("docs", max(DOCS, near))}


@click.command()
@click.argument("train", type=click.Path(exists=True, path_type=Path))
@click.argument("labels", type=click.Path(exists=True, path_type=Path))
@click.argument("tokenizer", type=click.Path(exists=True, path_type=Path))
@click.argument("stages", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.argument("out", type=click.Path(path_type=Path))
@console.params_file
@console.command
def main(train: Path, labels: Path, tokenizer: Path, stages: tuple[Path, ...], out: Path, file: Path) -> None:
    settings = parameters(file)
    score, seed = settings.section("score", ScoreParams), settings.top.seed
    device = runtime.start(seed)
    inputs = [train, labels, tokenizer, *stages]
    artifacts.check_together(*inputs)
    fit = last_fit(artifacts.load_json(train, "meta.json")["refit"])
    vectors = vectors_of(stages, fit)
    sizes = costs.sizes_of(train, labels, dim=vectors["docs"].shape[1])
    settings = follow(settings, sizes, "index")
    costs.announce(cost, sizes, settings.values)
    p = settings.section("index", Params)
    inverse = inverse_propensities(train, labels)
    params = asdict(p) | {"seed": seed, "score": score.settings()}

    def choose(folder: Path) -> None:
        predictor = choosing_predictor(train, list(stages), score, inverse, device)
        fuse(predictor, train, inverse, score).save(folder)

    with (
        runtime.resumable(Path(__file__), p, inputs, seed=seed, score=score.settings()) as scratch,
        artifacts.writing(out, name="index", params=params, inputs=inputs) as folder,
    ):
        artifacts.adopt(scratch.part("fusion", choose), folder)
        fusion = Fusion(**artifacts.load_json(folder, "fusion.json"))
        views = views_of(vectors)
        sources = {"labels": combined(vectors, views, fusion, np.log(inverse)), "docs": vectors["docs"]}
        build_all(sources, p, seed, scratch, lambda part: artifacts.adopt(part, folder))
        save_small(folder, load_encoder(stages[-1] / fit, device))
        copy_texts(folder, train, labels, tokenizer)
        max_tokens = artifacts.load_json(tokenizer, "special.json")["max_tokens"]
        pack_settings(folder, sources, views, max_tokens, held_out(train), p, score)


def held_out(train: Path) -> Ragged:
    """Some validation documents."""
    rows = spread(np.flatnonzero(artifacts.load_array(train, "is_validation")), TRIED)
    return artifacts.load_ragged(train, "tokens").take(rows)


def pack_settings(
    folder: Path,
    sources: dict[str, np.ndarray],
    views: dict[str, slice],
    max_tokens: int,
    texts: Ragged,
    p: Params,
    score: ScoreParams,
) -> None:
    """Choose how far searches look, with these texts as queries, and write settings.json."""
    facts = {name: {"count": len(v), "dim": int(v.shape[1])} for name, v in sources.items()}
    settings = Settings(
        search=p.search,
        labels=facts["labels"],
        docs=facts["docs"],
        ef={},
        views=sorted([view.start, view.stop] for view in views.values()),
        neighbours=score.neighbours,
        tau=score.tau,
        max_tokens=max_tokens,
    )
    queries = load_embed(folder)(texts)
    asked = {"labels": settings.as_asked(queries), "docs": queries}
    ef = widths(folder, sources, asked, p, max(1, score.neighbours))
    artifacts.save_json(folder, "settings.json", asdict(settings) | {"ef": ef})
    console.say(f"index: a search looks at {ef['labels']} labels and {ef['docs']} documents")


if __name__ == "__main__":
    run(main)
