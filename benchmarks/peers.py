"""Peers on the split that `xc export` wrote, beside Longtail: one table of accuracy and cost.

reads   EXPORT/{trn,tst,lbl}.json.gz, filter_labels_test.txt   metrics.json and timings of Longtail (both optional)
writes  OUT/METHOD.{npy,json,log} by peers_run.py, a process per method in the peers' environment
        OUT/peers.{md,json}

The peers only rank: filtering and metrics happen here, the same for all.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import click
import numpy as np
from scipy import sparse

from benchmarks.peers_run import ALONE_TOP, METHODS, TOP, positives_of, read_items
from xcutils.core.errors import UserError
from xcutils.data.datasets import describe
from xcutils.search import metrics, propensity

SCRIPT = Path(__file__).with_name("peers_run.py")
ACCURACY = ("P@1", "P@3", "P@5", "PSP@1", "PSP@3", "PSP@5", "N@5", "R@10", "R@100", "C@5")
COSTS = {
    "train_seconds": "train s",
    "ms_batch": "ms/text batch",
    "ms_single": "ms one by one",
    "ms_p99": "p99",
    "rss_mb": "RSS MB",
    "model_mb": "model MB",
}
TITLES = {
    "frequent": "most frequent labels",
    "bm25": "BM25 on label text (bm25s)",
    "tfidf-knn": "TF-IDF 10-NN",
    "xr-linear": "PECOS XR-Linear",
    "xr-linear-labels": "PECOS XR-Linear + label texts",
    "parabel": "omikuji Parabel",
    "bonsai": "omikuji Bonsai",
    "plt": "napkinXC PLT",
    "classifier": "Longtail, classifiers alone",
    "fused": "Longtail",
}
OURS = ("classifier", "fused")


def filter_ranking(ranking: np.ndarray, pairs: np.ndarray) -> np.ndarray:
    """(N, k) int: the ranking without the pairs; what stood behind moves up, -1 fills the end.

    ranking  (N, k) int  label ids, best first, -1 for none
    pairs    (M, 2) int  doc and label that are not to be predicted; repeated or never ranked ones do no harm
    """
    ranking, pairs = np.asarray(ranking), np.asarray(pairs, dtype=np.int64).reshape(-1, 2)
    if pairs.size and (pairs[:, 0].min() < 0 or pairs[:, 0].max() >= len(ranking)):
        raise ValueError(f"filter pairs name docs outside 0..{len(ranking) - 1}")
    width = int(max(ranking.max(initial=-1), pairs[:, 1].max(initial=-1))) + 2  # of a key's label part; -1 takes one
    keys = np.arange(len(ranking), dtype=np.int64)[:, None] * width + ranking + 1
    drop = np.isin(keys, pairs[:, 0] * width + pairs[:, 1] + 1) | (ranking < 0)
    order = np.argsort(drop, axis=1, kind="stable")  # kept labels first, in the order they had
    return np.where(np.take_along_axis(drop, order, axis=1), -1, np.take_along_axis(ranking, order, axis=1))


def read_pairs(path: Path, shape: tuple[int, int]) -> np.ndarray:
    """(M, 2) int64 of a `row col` file; none if it is missing or empty. shape: (N, L) the pairs must fit into."""
    if not path.is_file():
        return np.empty((0, 2), dtype=np.int64)
    try:
        pairs = np.array(path.read_text(encoding="utf-8").split(), dtype=np.int64).reshape(-1, 2)
    except ValueError:
        raise UserError(f"{path} must hold two whole numbers on each line: export the dataset again.") from None
    if pairs.size and (pairs.min() < 0 or (pairs.max(axis=0) >= shape).any()):
        raise UserError(f"{path} names docs or labels that the export does not have: export the dataset again.")
    return pairs


def accuracy(
    ranking: np.ndarray, positives: sparse.csr_matrix, inv_propensity: np.ndarray, pairs: np.ndarray
) -> dict[str, float]:
    """{column of ACCURACY: percent} of a ranking from which the filter pairs have been removed.

    ranking         (N, k) int    as a method wrote it
    positives       (N, L) CSR    of the test docs
    inv_propensity  (L,)   float
    pairs           (M, 2) int    doc, label
    """
    percents = metrics.evaluate(filter_ranking(ranking, pairs), positives, inv_propensity)
    return {column: percents[column] for column in ACCURACY}


def format_table(rows: Sequence[dict]) -> str:
    """A markdown table, one line per row in the given order; "-" where a row lacks a value.

    rows  {"method": name, column of ACCURACY: percent or absent, key of COSTS: number or absent}
    """
    lines = [
        "| method | " + " | ".join([*ACCURACY, *COSTS.values()]) + " |",
        "|---|" + "--:|" * (len(ACCURACY) + len(COSTS)),
    ]
    for row in rows:
        percents = ["-" if row.get(column) is None else f"{row[column]:.2f}" for column in ACCURACY]
        costs = [_cost(row.get(column)) for column in COSTS]
        lines.append("| " + " | ".join([TITLES.get(row["method"], row["method"]), *percents, *costs]) + " |")
    return "\n".join(lines)


def _cost(value: float | None) -> str:
    """Three digits that matter, and no exponent; "-" for none."""
    if value is None:
        return "-"
    if value >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def format_best(rows: Sequence[dict]) -> list[str]:
    """A line per accuracy column: who is best, and how far Longtail's best is from the best peer.

    rows  as for format_table; a tie names all
    """
    lines = []
    for column in ACCURACY:
        values = {row["method"]: row[column] for row in rows if row.get(column) is not None}
        if not values:
            continue
        best = max(values.values())
        names = " and ".join(TITLES.get(name, name) for name, value in values.items() if value == best)
        ours = max((value for name, value in values.items() if name in OURS), default=None)
        peers = max((value for name, value in values.items() if name not in OURS), default=None)
        gap = "" if ours is None or peers is None else f" (Longtail {ours - peers:+.2f} against the best peer)"
        lines.append(f"best {column}: {names}, {best:.2f}{gap}")
    return lines


def longtail_rows(scores: dict, timings: dict) -> list[dict]:
    """Longtail's rows: what metrics.json says of `classifier` and `fused`, with their costs.

    scores   {"fused": {"P@1": percent, ...}, "classifier": ...}; a name that is absent gives no row
    timings  {key of COSTS: number}, which are those of `fused`, or {name: such a dict}
    """
    if not any(name in timings for name in OURS):
        timings = {"fused": timings}
    rows = []
    for name in (name for name in OURS if name in scores):
        percents = {column: scores[name].get(column) for column in ACCURACY}
        rows.append({"method": name, **percents, **{key: timings.get(name, {}).get(key) for key in COSTS}})
    return rows


def is_fresh(result: Path, inputs: Sequence[Path]) -> bool:
    """Is the result there, and newer than all of its inputs?"""
    return result.is_file() and result.stat().st_mtime > max(path.stat().st_mtime for path in inputs)


def run_method(method: str, export: Path, out: Path, python: Path, threads: int, limit: float) -> str:
    """Run peers_run.py for one method, its output in OUT/METHOD.log; why there is no result, empty if there is one.

    limit  seconds after which it is ended
    """
    for suffix in ("json", "npy"):
        (out / f"{method}.{suffix}").unlink(missing_ok=True)
    # Waiting threads sleep, as in Longtail's own stages, and no library takes more threads than it is given.
    limits = {"OMP_WAIT_POLICY": "passive", "OMP_NUM_THREADS": str(threads), "RAYON_NUM_THREADS": str(threads)}
    command = [str(python), str(SCRIPT), method, str(export), str(out), "--threads", str(threads)]
    with open(out / f"{method}.log", "w", encoding="utf-8") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, **limits})
        try:
            code = process.wait(limit)
        except subprocess.TimeoutExpired:
            return f"was stopped after {limit:,.0f} s"
        finally:
            process.kill()
            process.wait()
            for left in out.glob("*.work"):  # what it could not remove itself
                shutil.rmtree(left, ignore_errors=True)
    ended_well = code == 0 and (out / f"{method}.json").is_file()
    return "" if ended_well else f"failed: see {out / method}.log"


def read_result(method: str, out: Path, n_docs: int) -> tuple[np.ndarray, dict]:
    """The ranking (N, k) and the costs that peers_run.py wrote."""
    try:
        ranking = np.load(out / f"{method}.npy", allow_pickle=False)
        costs = json.loads((out / f"{method}.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"The result of {method} in {out} cannot be read ({error}): run with --again.") from None
    if len(ranking) != n_docs:
        raise UserError(f"{out / method}.npy ranks {len(ranking)} docs, the export has {n_docs}: run with --again.")
    return ranking, costs


def read_json(path: Path | None) -> dict:
    """The file's object; an empty one for no file."""
    if path is None:
        return {}
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{path} is not valid JSON ({error}): make it again.") from None


def report(rows: Sequence[dict], constants: tuple[float, float], missing: dict[str, str], out: Path) -> str:
    """The whole text that is printed and written to peers.md; also writes peers.json.

    missing  {method: why it has no row}
    """
    a, b = constants
    lines = [format_table(rows), "", *(f"- {line}" for line in format_best(rows)), ""]
    lines.append(
        f"PSP with A={a}, B={b}. RSS is the peak of a process that trains and predicts, ours of the largest stage. "
        f"In batch {TOP} labels of a text, one by one {ALONE_TOP}, by one thread: median and p99."
    )
    lines += ["", *(f"- not in the table: {TITLES[method]} {why}" for method, why in missing.items())]
    text = "\n".join(lines)
    (out / "peers.md").write_text(text + "\n", encoding="utf-8")
    facts = {"propensity": {"a": a, "b": b}, "rows": list(rows), "missing": missing}
    (out / "peers.json").write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
    return text


def compare(export: Path, out: Path, methods: Sequence[str], constants: tuple[float, float]) -> list[dict]:
    """A row for each method whose result is in `out`, in the given order."""
    n_labels = len(read_items(export / "lbl.json.gz"))
    train, test = (positives_of(read_items(export / f"{name}.json.gz"), n_labels) for name in ("trn", "tst"))
    frequency = np.asarray(train.sum(axis=0)).ravel()
    weights = propensity.inverse_propensity(frequency, train.shape[0], *constants)
    pairs = read_pairs(export / "filter_labels_test.txt", test.shape)
    rows = []
    for method in methods:
        ranking, costs = read_result(method, out, test.shape[0])
        rows.append({"method": method, **accuracy(ranking, test, weights, pairs), **costs})
    return rows


def _folder(**options):
    return click.Path(file_okay=False, path_type=Path, **options)


def _file():
    return click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command(help=__doc__.split("\n\n")[0])
@click.option("--export", required=True, type=_folder(exists=True), help="folder that `xc export` wrote")
@click.option("--out", required=True, type=_folder(), help="folder for results")
@click.option("--peers-python", default=".venv-peers/bin/python", type=click.Path(path_type=Path), show_default=True)
@click.option("--methods", default=",".join(METHODS), show_default=True, help="comma-separated")
@click.option("--limit", default=3600.0, show_default=True, help="seconds after which a method is ended")
@click.option("--metrics", "scores", type=_file(), help="Longtail's metrics.json")
@click.option("--timings", type=_file(), help="Longtail's costs, JSON")
@click.option("--dataset", help="name that decides the constants of PSP  [default: the export's own]")
@click.option("--threads", type=click.IntRange(min=1), default=os.cpu_count() or 1, show_default="all cores")
@click.option("--again", is_flag=True, help="run methods whose result is there already, too")
def main(export, out, peers_python, methods, limit, scores, timings, dataset, threads, again):
    try:
        names = _known(methods)
        constants = propensity.CONSTANTS[propensity.family_of(dataset or describe(export).name)]
        ours = longtail_rows(read_json(scores), read_json(timings))
        missing = _run_all(names, export, out, peers_python, threads, again, limit)
        rows = compare(export, out, [name for name in names if name not in missing], constants)
        missing |= {name: "was left out (--methods)" for name in METHODS if name not in names}
        click.echo(report([*rows, *ours], constants, missing, out))
    except UserError as error:
        raise click.ClickException(str(error)) from None
    if any(why.startswith("failed") for why in missing.values()):
        sys.exit(1)


def _known(methods: str) -> list[str]:
    names = [name.strip() for name in methods.split(",") if name.strip()]
    for name in names:
        if name not in METHODS:
            raise UserError(f"There is no method '{name}'; known are {', '.join(METHODS)}.")
    return names


def _run_all(
    names: Sequence[str], export: Path, out: Path, python: Path, threads: int, again: bool, limit: float
) -> dict[str, str]:
    """{method: why it has no result}, after every method without a fresh result has been run."""
    inputs = [export / f"{name}.json.gz" for name in ("trn", "tst", "lbl")]
    for path in inputs:
        if not path.is_file():
            raise UserError(f"{path} is missing: write it with `xc export`.")
    out.mkdir(parents=True, exist_ok=True)
    missing = {}
    for name in names:
        if not again and is_fresh(out / f"{name}.json", [*inputs, SCRIPT]):
            click.echo(f"{TITLES[name]}: result is up to date", err=True)
            continue
        if not python.is_file():
            raise UserError(f"{python} is missing: `make peers` makes the peers' environment.")
        click.echo(f"{TITLES[name]}: running", err=True)
        if why := run_method(name, export.resolve(), out.resolve(), python, threads, limit):
            click.echo(f"{TITLES[name]} {why}", err=True)
            missing[name] = why
    return missing


if __name__ == "__main__":
    main()
