"""Measurements in processes of their own, so that one's memory and threads are not another's (Linux)."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import click

ROOT = Path(__file__).resolve().parents[1]
# Runs the command of its arguments and adds a line on what it took to the file of the first one. The system counts what
# a process held before it became another program, so a small one has to start what is measured.
LAUNCHER = """
import json, os, resource, subprocess, sys, time
begin = time.perf_counter()
code = subprocess.call(sys.argv[2:])
usage = resource.getrusage(resource.RUSAGE_CHILDREN)
seconds, cpu = time.perf_counter() - begin, usage.ru_utime + usage.ru_stime
if code == 0:
    with open(sys.argv[1], "a") as file:
        took = {"peak": usage.ru_maxrss * 1024.0, "seconds": seconds, "cpu": cpu}
        file.write(json.dumps({"stage": os.environ.get("DVC_STAGE", ""), **took}) + chr(10))
sys.exit(code if code >= 0 else 128 - code)
"""


@dataclass(frozen=True)
class Measured:
    """What a stage took."""

    peak: float  # bytes, of its largest process
    seconds: float
    cpu: float  # seconds of all threads


def measured(module: str, *args) -> dict:
    """What the module's `measure`, given the arguments as strings, prints as JSON in a new process."""
    code = f"import sys; from {module} import measure; measure(*sys.argv[1:])"
    return printed(module, [sys.executable, "-c", code, *map(str, args)])


def printed(name: str, command: list[str], **settings: str) -> dict:
    """What the command prints as JSON in its last line.

    settings  of its environment, beside those that all have
    """
    env = {**os.environ, "OMP_WAIT_POLICY": "passive", "PYTHONPATH": str(ROOT), **settings}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
    if done.returncode:
        raise click.ClickException(f"{name} failed ({done.returncode}):\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def peak_gb() -> float:
    """The most memory that this process has held.

    Linux hands getrusage's maximum on to a started process, so a large parent would be counted: VmHWM is not.
    """
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) * 1024 / 1e9
