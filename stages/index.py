"""HNSW graphs over the label embeddings, the classifiers, and the training documents (retrieval memory).

reads   the vectors of the last fit that the named stages wrote, of a name the last one's:
        labels, classifiers (L, D), docs (N, D), of the unified method also concatenated (L, 2D)
writes  <name>.hnsw of each and index.json {name: {dim, count}}; no graphs when exact search is asked for
"""

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import click

from longtail import estimates
from xcutils.core import artifacts, console, runtime
from xcutils.core.folds import last_fold
from xcutils.core.params import load_params, load_top, value
from xcutils.core.scratch import move_part
from xcutils.rank.assembly import vectors_of
from xcutils.search.neighbours import GraphDrafts, build_graph, save_graph


@dataclass(frozen=True)
class Params:
    search: Literal["hnsw", "exact"]
    m: int = value(low=2, high=1024)  # links per vector
    ef_construction: int = value(low=1)  # vectors looked at per insertion
    block: int = value(low=1000)  # vectors after which a growing graph is saved; a change gives another, as good graph
    threads: int = value(low=1)  # per graph; more than one is faster and not repeatable to the bit


@click.command()
@click.argument("train", type=click.Path(exists=True, path_type=Path))
@click.argument("stages", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.argument("out", type=click.Path(path_type=Path))
@console.params_file
@console.command
def main(train: Path, stages: tuple[Path, ...], out: Path, file: Path) -> None:
    p, seed = load_params(Params, "index", file), load_top(file).seed
    runtime.start(seed)
    inputs = [train, *stages]
    artifacts.check_together(*inputs)
    fit = last_fold(artifacts.load_json(train, "meta.json")["refit"])
    sources = vectors_of(stages, fit)
    estimates.announce("index", estimates.prepared(train, len(sources["labels"])), file)
    settings = {"m": p.m, "ef_construction": p.ef_construction, "block": p.block, "seed": seed, "threads": p.threads}
    facts = {name: {"dim": int(v.shape[1]), "count": len(v)} for name, v in sources.items()}
    with (
        runtime.resumable("index", p, inputs, seed=seed) as scratch,
        artifacts.writing(out, name="index", params=asdict(p) | {"seed": seed}, inputs=inputs) as folder,
    ):
        stop = threading.Event()

        def build(name: str) -> Path:
            """The part that holds the finished graph; one thread builds it, so that it can be repeated."""
            drafts = GraphDrafts(scratch.folder / f"{name}.snapshots", scratch.say)

            def make(part: Path) -> None:
                save_graph(build_graph(sources[name], **settings, drafts=drafts, stop=stop), part / f"{name}.hnsw")

            return scratch.part(name, make)

        if p.search == "hnsw":
            with ThreadPoolExecutor() as pool:
                try:
                    for part in console.progress(pool.map(build, sources), "index", total=len(sources)):
                        move_part(part, folder)
                except BaseException:  # Ctrl-C, or a graph that could not be built: the others are not waited for
                    stop.set()
                    raise
        artifacts.save_json(folder, "index.json", {"search": p.search, "vectors": facts})


if __name__ == "__main__":
    main()
