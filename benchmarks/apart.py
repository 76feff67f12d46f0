"""Measurements in processes of their own, so that one's memory and threads are not another's."""

import json
import os
import subprocess
import sys
from pathlib import Path

import click

ROOT = Path(__file__).resolve().parents[1]


def measured(module: str, *args) -> dict:
    """What the module's `measure`, given the arguments as strings, prints as JSON in a new process."""
    code = f"import sys; from {module} import measure; measure(*sys.argv[1:])"
    env = {**os.environ, "OMP_WAIT_POLICY": "passive", "PYTHONPATH": str(ROOT)}
    words = [str(argument) for argument in args]
    done = subprocess.run([sys.executable, "-c", code, *words], cwd=ROOT, env=env, capture_output=True, text=True)
    if done.returncode:
        raise click.ClickException(f"{module} {' '.join(words)} failed ({done.returncode}):\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])
