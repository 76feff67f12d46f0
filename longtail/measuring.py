"""What the pipeline and its predictions cost, measured: seconds, memory, milliseconds per text, bytes of the model."""

import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from longtail.serving import load_system, model_of
from xcutils.core import artifacts
from xcutils.core.errors import UserError
from xcutils.core.ragged import to_strings

DEEP, FEW = 100, 10  # labels per text in batch, as for the metrics, and one by one


def measure(data: Path, single: int = 1000) -> dict[str, float]:
    """Time per text in batch and one by one, of loading the model, and its size; in a process of its own.

    single  texts that are timed one by one, on one thread
    """
    command = [sys.executable, "-m", "longtail.measuring", str(data), str(single)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise UserError(f"the predictions of {data} could not be timed: mend what is said above, then measure again.")
    return json.loads(done.stdout)


def timed(data: Path, single: int) -> dict[str, float]:
    """What `measure` gives, in this process."""
    begin = time.perf_counter()
    system = load_system(data)
    loaded = time.perf_counter() - begin
    texts = to_strings(artifacts.load_ragged(artifacts.check(data / "prepare" / "test"), "texts"))
    system.rank(texts[:single], DEEP)  # what is mapped from files is read once
    begin = time.perf_counter()
    system.rank(texts, DEEP)
    batch = (time.perf_counter() - begin) / len(texts)
    alone = []
    for text in texts[:single]:
        begin = time.perf_counter()
        system.answers([text], FEW)
        alone.append(time.perf_counter() - begin)
    return {
        "ms_batch": 1000 * batch,
        "ms_single": 1000 * float(np.median(alone)),
        "ms_p99": 1000 * float(np.percentile(alone, 99)),
        "model_mb": sum(path.stat().st_size for path in model_of(data).iterdir()) / 1e6,
        "load_seconds": loaded,
    }


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


if __name__ == "__main__":
    print(json.dumps(timed(Path(sys.argv[1]), int(sys.argv[2]))))
