"""What differs from another revision: a commit, a tag, or an experiment by its name."""

import subprocess
from dataclasses import dataclass
from pathlib import Path

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from longtail.recipes import flat
from longtail.report.facts import Run, rows_of
from xcutils.core.errors import UserError

LAST = "HEAD"


@dataclass(frozen=True)
class Compared:
    """What the run has otherwise than another one.

    name     of the other revision, as people say it
    params   (name, there, here), None where a side has no such value
    metrics  row -> {metric: there}; empty where that revision has none
    """

    name: str
    params: list[tuple[str, object, object]]
    metrics: dict[str, dict[str, float]]


def compare(run: Run, revision: str | None) -> Compared | None:
    """The run beside the revision, the last commit by default; None where there is none to compare with."""
    folder = run.data.parent
    commit = find(folder, revision or LAST)
    if commit is None:
        if revision is None:
            return None
        raise UserError(f"{revision} is no commit, tag or experiment of this repository: `dvc exp show` lists them.")
    there = flat(_tree(folder, commit, run.pipeline.params))
    names = dict.fromkeys([*there, *run.params])
    differing = [(name, there.get(name), run.params.get(name)) for name in names if _differ(name, there, run.params)]
    name = revision or f"the last commit, {_git(folder, 'log', '-1', '--format=%h, %s', commit)}"
    return Compared(name, differing, rows_of(_tree(folder, commit, run.pipeline.metrics)))


def find(folder: Path, revision: str) -> str | None:
    """The commit of a revision; experiments are branches below refs/exps, called by the last part of their name."""
    commit = _git(folder, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}")
    if commit:
        return commit
    named = (_git(folder, "for-each-ref", "--format=%(objectname) %(refname)", "refs/exps") or "").splitlines()
    return next((line.split()[0] for line in named if line.rsplit("/", 1)[-1] == revision), None)


def _differ(name: str, there: dict, here: dict) -> bool:
    return (name in there) != (name in here) or there[name] != here[name]


def _tree(folder: Path, commit: str, file: Path) -> dict:
    """The tree in a YAML or JSON file of that commit; an empty one where the file is missing or says nothing."""
    try:
        tree = YAML(typ="safe").load(_git(folder, "show", f"{commit}:./{file.as_posix()}") or "")
    except YAMLError:
        tree = {}
    return tree if isinstance(tree, dict) else {}


def _git(folder: Path, *words: str) -> str | None:
    """What git prints; None where it fails or is not there."""
    try:
        done = subprocess.run(["git", "-C", str(folder), *words], capture_output=True, text=True, errors="replace")
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None
