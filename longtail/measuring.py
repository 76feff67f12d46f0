"""What the pipeline and its predictions cost, measured: seconds, memory, milliseconds per text, bytes of the model."""

import os
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

from longtail.serving import load_system
from xcutils.core import artifacts
from xcutils.core.errors import UserError
from xcutils.core.folds import last_fit
from xcutils.core.ragged import to_strings


def measure(data: Path, single: int = 200) -> dict[str, float]:
    """Time per text in batch and one by one, and the size of what prediction reads.

    single  texts that are timed one by one
    """
    system = load_system(data)
    texts = to_strings(artifacts.load_ragged(artifacts.check(data / "prepare" / "test"), "texts"))
    begin = time.perf_counter()
    system.answers(texts, 100)
    batch = (time.perf_counter() - begin) / len(texts)
    alone = []
    for text in texts[:single]:
        begin = time.perf_counter()
        system.answers([text], 100)
        alone.append(time.perf_counter() - begin)
    return {
        "ms_batch": 1000 * batch,
        "ms_single": 1000 * statistics.median(alone),
        "model_mb": _model_bytes(data) / 1e6,
    }


def _model_bytes(data: Path) -> int:
    """The size of the files that a prediction reads."""
    fold = last_fit(artifacts.load_json(data / "prepare" / "train", "meta.json")["refit"])
    folders = [data / "classifier" / fold, data / "index", data / "prepare" / "tokenizer", data / "prepare" / "labels"]
    files = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
    files += [data / "augment" / fold / "labels.npy", *(data / "prepare" / "train").glob("positives.*")]
    return sum(path.stat().st_size for path in files)


def measure_training() -> dict[str, float]:
    """Seconds of the whole pipeline, run anew from the first stage to the last, and the peak memory of any stage."""
    begin = time.perf_counter()
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    command = [sys.executable, "-m", "dvc", "repro", "--force"]
    if subprocess.run(command, stdout=subprocess.DEVNULL, env={**os.environ, "PATH": path}).returncode:
        raise UserError("`dvc repro --force` failed: mend what it says, then measure again.")
    seconds = time.perf_counter() - begin
    unit = 1 if sys.platform == "darwin" else 1024  # the system counts in bytes there, in KiB elsewhere
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * unit
    return {"train_seconds": seconds, "rss_mb": peak / 1e6}
