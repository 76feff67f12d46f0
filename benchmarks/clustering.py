"""Balanced clusters against PECOS's hierarchical k-means: time, memory and quality on the same vectors (Linux).

python -m benchmarks.clustering [--n 1000000] [--dim 384] [--size 8] [--pecos PYTHON]

Each runs in a process of its own, one after the other; the seconds are those of the clustering alone, the peak memory
is that of the whole process, input included. PECOS makes the next power of two clusters, so where that is not n / size
ours is run a second time with PECOS's number: only rows of equal numbers can be compared by mean cosine.
"""

from __future__ import annotations

import itertools
import sys
import tempfile
from pathlib import Path

import click
import numpy as np

from benchmarks.apart import ROOT, printed
from testing.programs import Table
from xcutils.train.clustering import mean_cosine

PEERS = ROOT / ".venv-peers" / "bin" / "python"
CHUNK = 65536  # vectors generated at once
COLUMNS = {  # name of a column: format of its values
    "method": "<10",
    "clusters": ">9,",
    "seconds": ">8.1f",
    "peak GB": ">8.2f",
    "mean cosine": ">12.4f",
    "smallest": ">9",
    "largest": ">8",
}

RUN = """
import json, sys, time
import numpy as np
vectors = np.load(sys.argv[1])
number, seed, threads = map(int, sys.argv[3:])
{imports}
start = time.perf_counter()
{cluster}
seconds = time.perf_counter() - start
peak = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM:"))
np.save(sys.argv[2], clusters)
print(json.dumps({{"seconds": seconds, "peak": peak * 1024 / 1e9}}))
"""
OURS = RUN.format(
    imports="from xcutils.train.clustering import balanced_clusters",
    cluster="clusters = balanced_clusters(vectors, number, seed=seed)",
)
PECOS = RUN.format(
    imports="from pecos.xmc.base import HierarchicalKMeans",
    cluster="chain = HierarchicalKMeans.gen(vectors, max_leaf_size=number, seed=seed, threads=threads)\n"
    "clusters = chain[-1].tocsr().indices.astype(np.int32)",
)


def write_vectors(path: Path, n: int, dim: int, seed: int) -> None:
    """Write (n, dim) float32 unit vectors: noise around a tree of centres of three levels, leaves of unequal size."""
    rng = np.random.default_rng(seed)
    counts = [64, max(64, n // 500), max(64, n // 30)]
    weights = [0.5, 0.6, 0.8]  # against noise of weight 1
    centres = [weight * rng.standard_normal((count, dim), dtype=np.float32) for weight, count in zip(weights, counts)]
    parents = [rng.integers(0, above, size=below) for above, below in itertools.pairwise(counts)]
    popularity = rng.pareto(1.5, counts[2]) + 0.1
    vectors = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=(n, dim))
    for start in range(0, n, CHUNK):
        leaf = rng.choice(counts[2], size=min(CHUNK, n - start), p=popularity / popularity.sum())
        middle = parents[1][leaf]
        rows = rng.standard_normal((len(leaf), dim), dtype=np.float32)
        rows += centres[2][leaf] + centres[1][middle] + centres[0][parents[0][middle]]
        vectors[start : start + CHUNK] = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    vectors.flush()


def measure(name: str, python: str, code: str, vectors: Path, *numbers: int) -> dict:
    """One row of the table: the code run by a Python of its own with numbers (size or clusters, seed, threads)."""
    clusters_file = vectors.with_name("clusters.npy")
    command = [python, "-c", code, str(vectors), str(clusters_file), *map(str, numbers)]
    found = printed(name, command, OMP_NUM_THREADS=str(numbers[-1]))
    clusters = np.load(clusters_file)
    sizes = np.bincount(clusters)
    return {
        "method": name,
        "clusters": len(sizes),
        "seconds": found["seconds"],
        "peak GB": found["peak"],
        "mean cosine": mean_cosine(np.load(vectors, mmap_mode="r"), clusters),
        "smallest": sizes.min(),
        "largest": sizes.max(),
    }


@click.command()
@click.option("--n", default=1_000_000, show_default=True, help="Vectors.")
@click.option("--dim", default=384, show_default=True, help="Dimensions.")
@click.option("--size", default=8, show_default=True, help="Vectors in a cluster.")
@click.option("--seed", default=0, show_default=True, help="Seed of the vectors and of both methods.")
@click.option("--threads", default=2, show_default=True, help="Threads of both methods.")
@click.option("--pecos", help="A Python that has libpecos.  [default: .venv-peers/bin/python if it exists]")
def main(n: int, dim: int, size: int, seed: int, threads: int, pecos: str | None) -> None:
    """Cluster generated vectors with ours and with PECOS and print one table."""
    pecos = pecos or (str(PEERS) if PEERS.exists() else None)
    with tempfile.TemporaryDirectory() as folder:
        vectors = Path(folder) / "vectors.npy"
        write_vectors(vectors, n, dim, seed)
        rows = [measure("ours", sys.executable, OURS, vectors, -(-n // size), seed, threads)]
        if pecos:
            rows.append(measure("PECOS", pecos, PECOS, vectors, size, seed, threads))
            if rows[1]["clusters"] != rows[0]["clusters"]:
                rows.append(measure("ours", sys.executable, OURS, vectors, rows[1]["clusters"], seed, threads))
    table = Table(COLUMNS)
    table.print_head()
    for row in rows:
        table.print_row(list(row.values()))
    if not pecos:
        click.echo("PECOS was not run: `make peers-env` installs it in .venv-peers, or give a Python with --pecos.")


if __name__ == "__main__":
    main()
