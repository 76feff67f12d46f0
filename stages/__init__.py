"""The phases of the pipeline, one module each; `python -m stages.<name> <in>... <out>`."""

import importlib
import importlib.util
import json
import os
import resource
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

from xcutils.core import processor

BEGIN = time.monotonic()

# Idle OpenMP workers sleep instead of spinning: on a shared machine spinning costs far more than it saves.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
processor.same_everywhere()  # before numpy and torch are loaded

if importlib.util.find_spec("torch") is None:
    sys.exit(f"error: {sys.executable} lacks Longtail's packages: run `make env`, then `source .venv/bin/activate`.")

from xcutils.core import artifacts
from xcutils.core.params import Parameters, check_all, read, with_changes
from xcutils.core.pipelines import Pipeline, pipeline_of

TIMINGS = Path(".scratch", "timings")
LAST = (artifacts.MANIFEST, "stats.json")  # what a stage writes last: `prepare` writes several artifacts


def parameters(file: Path = Path("params.yaml"), changes: Sequence[str] = ()) -> Parameters:
    """The checked parameter file; every section is checked by its own stage's Params, whichever stage reads it.

    changes  values that are set first, `name=value` as for `dvc exp run -S`
    """
    return check_parameters(with_changes(read(file), changes, str(file)), str(file), pipeline_of(file))


def check_parameters(tree: dict, where: str, pipeline: Pipeline) -> Parameters:
    """The tree of a parameter file, checked whole."""
    kinds = {name: importlib.import_module(module).Params for name, module in pipeline.stages.items()}
    return check_all(tree, where, pipeline.top, kinds)


def run(main: Callable[[], object]) -> NoReturn:
    """Run a stage's command and leave at once: Python takes 0.3 s to take down torch's modules one by one."""
    code: object = 0
    try:
        main()
    except SystemExit as stopped:
        code = stopped.code
    if isinstance(code, str):
        print(code, file=sys.stderr)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            code = code or 1  # nobody can read what was said
    if not code:
        record(Path(sys.argv[-1]))
    os._exit(code if isinstance(code, int) else int(code is not None))


def record(out: Path) -> None:
    """Write what the stage took into TIMINGS, beside the run, where no stage and no hash of an output sees it.

    seconds  since the stage's first line
    memory   bytes that it held, at most
    made     the fingerprint of what it wrote, so that a reader can tell whether the figures are of what is there
    """
    unit = 1 if sys.platform == "darwin" else 1024  # the system counts in bytes there, in KiB elsewhere
    facts = {
        "seconds": round(time.monotonic() - BEGIN, 3),
        "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit,
        "made": made(out),
    }
    if not facts["made"]:  # it was asked for its help alone
        return
    try:
        timing_of(out).parent.mkdir(parents=True, exist_ok=True)
        timing_of(out).write_text(json.dumps(facts) + "\n", encoding="utf-8")
    except OSError:
        pass  # the report says that nothing was recorded


def timing_of(out: Path) -> Path:
    """The file that says what the stage that writes `out` took."""
    return TIMINGS / f"{'-'.join(out.parts)}.json"


def made(out: Path) -> str:
    """The fingerprint of a stage's output folder: that of the file which is written last; empty where there is none."""
    return next((artifacts.sha256(file) for name in LAST if (file := out / name).is_file()), "")
