"""HNSW graphs over the augmented label embeddings, the classifiers, and the training documents (retrieval memory).

reads   augment <fit>/labels (L, D), classifier <fit>/{classifiers (L, D), docs (N, D)} of the last fit
writes  {labels,classifiers,docs}.hnsw and index.json {name: {dim, count}}; no graphs when exact search is asked for
"""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import click

from xcutils import artifacts, estimates, runtime
from xcutils.folds import last_fold
from xcutils.neighbours import build_graph
from xcutils.params import load_params, load_top, value


@dataclass(frozen=True)
class Params:
    search: Literal["hnsw", "exact"]
    m: int = value(low=2)  # links per vector
    ef_construction: int = value(low=1)  # vectors looked at per insertion
    threads: int = value(low=1)  # per graph; more than one is faster and not repeatable to the bit


@click.command()
@click.argument("train", type=click.Path(exists=True, path_type=Path))
@click.argument("augment", type=click.Path(exists=True, path_type=Path))
@click.argument("classifier", type=click.Path(exists=True, path_type=Path))
@click.argument("out", type=click.Path(path_type=Path))
@runtime.command
def main(train: Path, augment: Path, classifier: Path, out: Path) -> None:
    p, seed = load_params(Params, "index"), load_top().seed
    runtime.start(seed)
    estimates.announce("index", estimates.prepared(train, estimates.rows(augment, "labels")))
    fit = last_fold(artifacts.load_json(artifacts.check(train), "meta.json")["refit"])
    sources = {
        "labels": artifacts.load_array(artifacts.check(augment) / fit, "labels"),
        "classifiers": artifacts.load_array(artifacts.check(classifier) / fit, "classifiers"),
        "docs": artifacts.load_array(classifier / fit, "docs"),
    }

    def build(name: str) -> tuple[str, object]:
        made = build_graph(sources[name], m=p.m, ef_construction=p.ef_construction, seed=seed, threads=p.threads)
        return name, made

    facts = {name: {"dim": int(v.shape[1]), "count": len(v)} for name, v in sources.items()}
    with artifacts.writing(out) as folder:
        if p.search == "hnsw":
            with ThreadPoolExecutor() as pool:  # each graph is built by one thread, so that it can be repeated
                for name, graph in runtime.progress(pool.map(build, sources), "index", total=len(sources)):
                    graph.save_index(str(folder / f"{name}.hnsw"))
        artifacts.save_json(folder, "index.json", {"search": p.search, "vectors": facts})


if __name__ == "__main__":
    main()
