"""An index over the label embeddings, the classifiers, and the training documents (retrieval memory).

reads   the vectors that the last fit of the named stages wrote: labels, classifiers (L, D), docs (N, D), and for the
        unified method concatenated (L, 2D); where two stages wrote the same name, those of the later one
writes  <name>.hnsw of each, and index.json {search, vectors: {name: {dim, count}}}; no graphs for exact search
"""

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

import click

from stages import parameters
from xcutils.core import artifacts, console, costs, runtime
from xcutils.core.costs import INTERPRETER, Estimate, Host, Part, Sizes
from xcutils.core.folds import last_fit
from xcutils.core.params import value
from xcutils.search.index import Building
from xcutils.search.searched import vectors_of
from xcutils.search.searcher import INDEXES, file_of


@dataclass(frozen=True, kw_only=True)
class Params:
    search: str = value(among=INDEXES)
    m: int = value(low=2, high=1024)
    ef_construction: int = value(low=1)
    block: int = value(low=1000)
    threads: int = value(low=1)

    def building(self, seed: int) -> Building:
        return Building(self.m, self.ef_construction, self.block, self.threads, seed)


def cost(s: Sizes, params: dict, host: Host) -> Estimate:
    """Three graphs at a time, each with its own copy of the vectors."""
    p = params["index"]
    parts = [Part("interpreter", INTERPRETER)]
    kind = INDEXES[p["search"]]
    count = 2 * s.labels + s.docs
    parts += [
        *kind.cost(count, s.dim, p["m"]),
        *kind.building_cost([s.labels, s.labels, s.docs], s.dim),
    ]
    at_once = max(1, min(3 * p["threads"], host.threads))
    seconds = 3 + count / at_once * kind.seconds(p["ef_construction"], p["m"], max(s.labels, s.docs), s.dim)
    return Estimate("index", parts, seconds, kind.disk(count, s.dim, p["m"]))


@click.command()
@click.argument("train", type=click.Path(exists=True, path_type=Path))
@click.argument("stages", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.argument("out", type=click.Path(path_type=Path))
@console.params_file
@console.command
def main(train: Path, stages: tuple[Path, ...], out: Path, file: Path) -> None:
    settings = parameters(file)
    p, seed = settings.section("index", Params), settings.top.seed
    runtime.start(seed)
    inputs = [train, *stages]
    artifacts.check_together(*inputs)
    sources = vectors_of(stages, last_fit(artifacts.load_json(train, "meta.json")["refit"]))
    sizes = costs.sizes_of(train, len(sources["labels"]), dim=sources["docs"].shape[1])
    costs.announce(cost, sizes, settings.values)
    with (
        runtime.resumable(Path(__file__), p, inputs, seed=seed) as scratch,
        artifacts.writing(out, name="index", params=asdict(p) | {"seed": seed}, inputs=inputs) as folder,
    ):
        stop = threading.Event()

        def build(name: str) -> Path:
            """The folder of the finished index; one thread builds it, so that it is the same every time."""
            drafts = scratch.folder / f"{name}.snapshots"
            file = file_of(name, p.search)

            def make(part: Path) -> None:
                INDEXES[p.search].build(
                    sources[name], part / file, p.building(seed), drafts=drafts, say=scratch.say, stop=stop
                )

            return scratch.part(name, make)

        with ThreadPoolExecutor() as threads:
            try:
                for part in console.progress(threads.map(build, sources), "index", total=len(sources)):
                    artifacts.adopt(part, folder)
            except BaseException:  # Ctrl-C, or an index that could not be built: do not wait for the others
                stop.set()
                raise
        facts = {name: {"dim": int(v.shape[1]), "count": len(v)} for name, v in sources.items()}
        artifacts.save_json(folder, "index.json", {"search": p.search, "vectors": facts})


if __name__ == "__main__":
    main()
