"""The phases of the pipeline, one module each; `python -m stages.<name> <in>... <out>`."""

import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

from xcutils.core import processor

# Idle OpenMP workers sleep instead of spinning: on a shared machine spinning costs far more than it saves.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
processor.same_everywhere()  # before numpy and torch are loaded

if importlib.util.find_spec("torch") is None:
    sys.exit(f"error: {sys.executable} lacks Longtail's packages: run `make env`, then `source .venv/bin/activate`.")

from xcutils.core.params import Parameters, check_all, read, with_changes
from xcutils.core.pipelines import Pipeline, pipeline_of


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
    os._exit(code if isinstance(code, int) else int(code is not None))
