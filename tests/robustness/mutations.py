"""Mutate files of every form of dataset: each must be read or refused with a sentence, in little time and memory.

python -m tests.robustness.mutations [--count 10000] [--form csv] [--seed 0]

makes   a small dataset of each form; again and again one of its files is mutated (bytes flipped, deleted, inserted,
        doubled, cut off; lines swapped; of a gzip file the packed bytes or the content) and the dataset is read
prints  a row per form: files read whole, read with rows skipped, refused, and those that nobody caught
exit    1 if a read ended in a traceback, took too long or too much memory
"""

import csv
import gzip
import io
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path

import click
import numpy as np

from testing.programs import Table, finish
from xcutils.core.errors import UserError
from xcutils.data.corpora import Dataset, split_validation
from xcutils.data.datasets import load_dataset
from xcutils.data.summaries import check_trainable, statistics

SECONDS = 5  # for one file
MEMORY = 1 << 30  # bytes that reading may take beyond what the process has when it starts
DOCS = 30
TEST_DOCS = 10
N_LABELS = 12
WORDS = ["red", "blue", "box", "ball", "näïve", "日本語", "😀", "שלום", 'say "hi"', "tab\there", "a,b", "c;d"]
OUTCOMES = ("read whole", "rows skipped", "refused", "uncaught")
COLUMNS = {"form": "<9", "files": ">7,", **dict.fromkeys(OUTCOMES, ">13,"), "slowest ms": ">11.0f", "peak MB": ">8.0f"}
SHOWN = 5  # uncaught exceptions of a form


# --- small datasets, one per form -------------------------------------------------------------------------------------


def example(seed: int = 0) -> tuple[list[dict], list[dict], list[dict]]:
    """(training docs, test docs, labels) of a small dataset with ids, texts of many kinds and several labels."""
    rng = np.random.default_rng(seed)
    labels = [{"id": f"L{n}", "text": WORDS[n] if n else ""} for n in range(N_LABELS)]

    def docs(name: str, count: int) -> list[dict]:
        made = []
        for n in range(count):
            words = " ".join(rng.choice(WORDS, rng.integers(1, 6)).tolist())
            own = sorted(rng.choice(N_LABELS, rng.integers(1, 4), replace=False).tolist())
            made.append({"id": f"{name}{n}", "text": f"{words} {n}", "labels": [labels[o]["id"] for o in own]})
        return made

    return docs("A", DOCS), docs("B", TEST_DOCS), labels


def _table(rows: list[dict], delimiter: str) -> bytes:
    file = io.StringIO(newline="")
    writer = csv.DictWriter(file, list(rows[0]), delimiter=delimiter)
    writer.writeheader()
    writer.writerows({key: "|".join(v) if isinstance(v, list) else v for key, v in row.items()} for row in rows)
    return file.getvalue().encode()


def _json_lines(rows: list[dict]) -> bytes:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()


def _parquet(rows: list[dict]) -> bytes:
    import pyarrow
    from pyarrow import parquet

    out = io.BytesIO()
    parquet.write_table(pyarrow.Table.from_pylist(rows), out, row_group_size=16)
    return out.getvalue()


def _xc_json() -> dict[str, bytes]:
    *splits, labels = example()
    number = {label["id"]: n for n, label in enumerate(labels)}
    files = {"lbl.json.gz": _json_lines([{"uid": label["id"], "title": label["text"]} for label in labels])}
    for name, docs in zip(("trn.json.gz", "tst.json.gz"), splits):
        rows = [{"uid": d["id"], "title": d["text"], "target_ind": [number[o] for o in d["labels"]]} for d in docs]
        files[name] = _json_lines(rows)
    return {name: gzip.compress(content, mtime=0) for name, content in files.items()} | {
        "filter_labels_train.txt": b"0 1\n3 2\n",
        "tst_filter_labels.txt": b"0 0\n2 3\n",
    }


def _xc_text() -> dict[str, bytes]:
    *splits, labels = example()
    number = {label["id"]: n for n, label in enumerate(labels)}
    files = {"Y.txt": "".join(label["text"] + "\n" for label in labels)}
    for name, docs in zip(("trn", "tst"), splits):
        files[f"{name}_X.txt"] = "".join(doc["text"] + "\n" for doc in docs)
        rows = [" ".join(f"{number[label]}:1.00000" for label in doc["labels"]) for doc in docs]
        files[f"{name}_X_Y.txt"] = "\n".join([f"{len(docs)} {len(labels)}", *rows, ""])
    files |= {"trn_filter_labels.txt": "0 1\n3 2\n", "filter_labels_test.txt": "0 0\n2 3\n"}
    return {name: text.encode() for name, text in files.items()}


def _tables(suffix: str, write) -> dict[str, bytes]:
    train, test, labels = example()
    files = {f"train.{suffix}": write(train), f"test.{suffix}": write(test), f"labels.{suffix}": write(labels)}
    if suffix.endswith("gz"):
        files = {name: gzip.compress(content, mtime=0) for name, content in files.items()}
    return files | {"dataset.yaml": b"separator: '|'\n"}


FORMS = {
    "xc-json": _xc_json,
    "xc-text": _xc_text,
    "csv": lambda: _tables("csv", lambda rows: _table(rows, ",")),
    "tsv": lambda: _tables("tsv", lambda rows: _table(rows, "\t")),
    "jsonl": lambda: _tables("jsonl", _json_lines),
    "parquet": lambda: _tables("parquet", _parquet),
    "csv.gz": lambda: _tables("csv.gz", lambda rows: _table(rows, ",")),
    "tsv.gz": lambda: _tables("tsv.gz", lambda rows: _table(rows, "\t")),
    "jsonl.gz": lambda: _tables("jsonl.gz", _json_lines),
}


# --- mutations --------------------------------------------------------------------------------------------------------


PIECES = [  # that confuse a reader
    *(b"\0", b'"', b"\n", b"\r\n", b",", b"\t", b"\xff", b"\xef\xbb\xbf"),
    *(b"[", b"{", b"9" * 30, b":", b"-1", b"1e999"),
]


def mutated(content: bytes, rng: np.random.Generator) -> bytes:
    """The content with one to four changes."""
    changed = bytearray(content)
    for _ in range(rng.integers(1, 5)):
        changed = CHANGES[rng.integers(len(CHANGES))](changed, rng)
    return bytes(changed)


def _span(content: bytearray, rng: np.random.Generator) -> tuple[int, int]:
    start = int(rng.integers(len(content) + 1))
    return start, min(len(content), start + int(2 ** rng.uniform(0, 8)))


def _flip(content: bytearray, rng: np.random.Generator) -> bytearray:
    if content:
        content[rng.integers(len(content))] ^= 1 << int(rng.integers(8))
    return content


def _overwrite(content: bytearray, rng: np.random.Generator) -> bytearray:
    start, end = _span(content, rng)
    content[start:end] = rng.bytes(end - start)
    return content


def _delete(content: bytearray, rng: np.random.Generator) -> bytearray:
    start, end = _span(content, rng)
    del content[start:end]
    return content


def _insert(content: bytearray, rng: np.random.Generator) -> bytearray:
    piece = PIECES[rng.integers(len(PIECES))] if rng.random() < 0.7 else rng.bytes(int(rng.integers(1, 50)))
    start, _ = _span(content, rng)
    content[start:start] = piece
    return content


def _double(content: bytearray, rng: np.random.Generator) -> bytearray:
    start, end = _span(content, rng)
    content[end:end] = content[start:end] * int(rng.integers(1, 4))
    return content


def _cut(content: bytearray, rng: np.random.Generator) -> bytearray:
    return content[: rng.integers(len(content) + 1)]


def _swap_lines(content: bytearray, rng: np.random.Generator) -> bytearray:
    lines = bytes(content).split(b"\n")
    one, two = rng.integers(len(lines), size=2)
    lines[one], lines[two] = lines[two], lines[one]
    return bytearray(b"\n".join(lines))


CHANGES = (_flip, _overwrite, _delete, _insert, _double, _cut, _swap_lines)


def mutated_file(name: str, content: bytes, rng: np.random.Generator) -> bytes:
    """The file's bytes with some changes; of a gzip file these are in the packed bytes or in the content."""
    if name.endswith(".gz") and rng.random() < 0.5:
        return gzip.compress(mutated(gzip.decompress(content), rng), compresslevel=1, mtime=0)
    return mutated(content, rng)


# --- reading ----------------------------------------------------------------------------------------------------------


class TooSlow(Exception):
    pass


def _stop(*_) -> None:
    raise TooSlow(f"reading took more than {SECONDS} s")


def check_sound(data: Dataset) -> None:
    """What every Dataset promises, whatever its files were."""
    assert len(set(data.label_ids)) == len(data.label_ids) == len(data.label_texts)
    for corpus, pairs in ((data.train, data.train_filter), (data.test, data.test_filter)):
        assert len(set(corpus.ids)) == len(corpus.ids) == len(corpus.texts) == len(corpus.positives)
        assert all(text.strip() and "\0" not in text for text in corpus.texts)
        "".join([*corpus.ids, *corpus.texts, *data.label_ids, *data.label_texts]).encode("utf-8")
        positives = corpus.positives.values
        assert corpus.positives.lengths.all() and (0 <= positives).all() and (positives < len(data.label_ids)).all()
        assert (0 <= pairs).all() and (pairs < [max(len(corpus.ids), 1), max(len(data.label_ids), 1)]).all()


def outcome(folder: Path) -> tuple[str, str]:
    """(one of OUTCOMES, what was said) of reading the folder as the prepare stage and `xc check` do."""
    try:
        data = load_dataset(folder)
        check_sound(data)
        is_validation = split_validation(data.train.identity, 0.1)
        statistics(data, is_validation)
        data.report.save(folder.parent / "skipped.csv")
        data.report.refuse_above(1)
        check_trainable(data, is_validation)
        return ("rows skipped", "") if data.report.total else ("read whole", "")
    except UserError as error:
        return ("refused", str(error)) if str(error).strip() else ("uncaught", "an empty sentence")
    except Exception:
        return "uncaught", traceback.format_exc()


def timed_outcome(folder: Path) -> tuple[str, str, float]:
    """`outcome` and its seconds; what takes longer than SECONDS is stopped and is "uncaught"."""
    begin = time.perf_counter()
    signal.signal(signal.SIGALRM, _stop)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        found, told = outcome(folder)
    except TooSlow as error:
        found, told = "uncaught", str(error)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return found, told, time.perf_counter() - begin


def run_form(form: str, count: int, seed: int, folder: Path) -> dict:
    """The outcomes of `count` mutated datasets, the slowest in seconds, and the first uncaught exceptions."""
    rng = np.random.default_rng([seed, list(FORMS).index(form)])
    whole, place = FORMS[form](), Path(folder) / form
    place.mkdir()
    for name, content in whole.items():
        (place / name).write_bytes(content)
    found, told = outcome(place)
    assert found == "read whole", told
    counts: Counter = Counter()
    slowest = 0.0
    failures: list[str] = []
    for n in range(count):
        name = list(whole)[rng.integers(len(whole))]
        (place / name).write_bytes(mutated_file(name, whole[name], rng))
        found, told, seconds = timed_outcome(place)
        slowest = max(slowest, seconds)
        counts[found] += 1
        if found == "uncaught" and len(failures) < SHOWN:
            failures.append(f"{form} {n}, {name}: {told}")
        (place / name).write_bytes(whole[name])
    return {"form": form, "counts": dict(counts), "slowest": slowest, "failures": failures}


def limit_memory() -> None:
    """Let the process grow by MEMORY and no more: what wants more fails, and is counted."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))


def in_own_process(form: str, count: int, seed: int) -> dict:
    """`run_form` in a process of its own, with a limit on its memory; one that dies is a failure too."""
    command = [sys.executable, "-m", "tests.robustness.mutations", "--worker", "--form", form]
    command += ["--count", str(count), "--seed", str(seed)]
    env = {**os.environ, "ARROW_DEFAULT_MEMORY_POOL": "system"}  # the default one reserves more than it will use
    done = subprocess.run(command, capture_output=True, text=True, env=env)
    if done.returncode:
        failures = [f"{form} died: {done.stderr[-2000:]}"]
        return {"form": form, "counts": {"uncaught": 1}, "slowest": 0, "peak_mb": 0, "failures": failures}
    return json.loads(done.stdout.splitlines()[-1])


def work(form: str, count: int, seed: int) -> None:
    """What the process of one form does: print `run_form` and the peak of its memory as JSON."""
    import pyarrow.parquet  # noqa: F401  its libraries are no memory that reading takes

    limit_memory()
    with tempfile.TemporaryDirectory() as folder:
        result = run_form(form, count, seed, Path(folder))
    result["peak_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps(result))


@click.command()
@click.option("--count", default=10_000, show_default=True, help="Mutated files per form.")
@click.option("--form", "forms", type=click.Choice(list(FORMS)), multiple=True, help="Only this form; may be repeated.")
@click.option("--seed", default=0, show_default=True)
@click.option("--worker", is_flag=True, hidden=True)
def main(count: int, forms: tuple[str, ...], seed: int, worker: bool) -> None:
    """Read mutated files of every form and count what becomes of them."""
    if worker:
        work(forms[0], count, seed)
        return
    failures = []
    table = Table(COLUMNS)
    table.print_head()
    for form in forms or FORMS:
        result = in_own_process(form, count, seed)
        counts = [result["counts"].get(name, 0) for name in OUTCOMES]
        table.print_row([form, sum(counts), *counts, 1000 * result["slowest"], result["peak_mb"]])
        failures += result["failures"]
    finish(failures)


if __name__ == "__main__":
    main()
