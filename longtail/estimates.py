"""What each stage of a pipeline will take, before anything is run: `xc estimate`.

The figures are the stages' own, which stand beside their code as `cost`; here they are only asked for and shown.
"""

import importlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType

from longtail import files, sizes
from stages import parameters
from xcutils.core import runtime
from xcutils.core.costs import Estimate, Host, Sizes, duration, gigabytes, this_host
from xcutils.core.errors import UserError
from xcutils.core.pipelines import MODULAR, PIPELINES, Pipeline
from xcutils.core.rules import reasons, settled


def stage_module(pipeline: Pipeline, stage: str) -> ModuleType:
    """The code of a stage, which states its own cost."""
    return importlib.import_module(pipeline.stages[stage])


def with_dims(s: Sizes, pipeline: Pipeline, params: dict, first: dict) -> Sizes:
    """The sizes with the dimensions of the vectors that the parameters lead to.

    params, first  of the pipeline, and of the root's, which prepares and embeds
    """
    dim = stage_module(pipeline, pipeline.trains).network(params).dim
    return replace(s, dim=dim, embed_dim=stage_module(MODULAR, "embed").network(first).dim)


def estimates(s: Sizes, pipeline: Pipeline, params: dict, host: Host) -> list[Estimate]:
    """What each stage of the pipeline will take, in their order; `s` has the dimensions."""
    params = settled(params, s)
    return [stage_module(pipeline, stage).cost(s, params, host) for stage in pipeline.stages]


def report(pipeline: Pipeline, path: Path | None, like: str | None, changes: Sequence[str], **numbers) -> Iterator[str]:
    """The lines that `xc estimate` prints.

    path, like  the dataset, or the name of a published one; without either the prepared data, else that of params.yaml
    changes     [FILE:]NAME=VALUE as for `dvc exp run -S`
    numbers     docs, labels, positives, test, tokens instead of the dataset's own
    """
    device = runtime.start()
    by_file = changes_by_file(changes, [MODULAR.params, pipeline.params])
    first, params = (
        parameters(files.find(str(one.params)), by_file[str(one.params)]).values for one in (MODULAR, pipeline)
    )
    name, found = sizes.find(path, like, first)
    found = with_dims(sizes.scaled(found, first, **numbers), pipeline, params, first)
    host = this_host()
    yield sizes.describe_sizes(name, found)
    yield from reasons(params, found)
    yield from table(estimates(found, pipeline, params, host), host)
    if device.type != "cpu":
        yield f"All this is of a run on the CPU; on {device} a stage that works there is not refused."


def changes_by_file(changes: Sequence[str], files: list[Path]) -> dict[str, list[str]]:
    """{file: its changes}, each written as `dvc exp run -S` has it: FILE:NAME=VALUE, without FILE of params.yaml."""
    found: dict[str, list[str]] = {str(file): [] for file in files}
    for change in changes:
        file, colon, rest = change.partition(":")
        if not colon or "=" in file:  # a colon of the value
            file, rest = str(MODULAR.params), change
        if file not in found:
            other = next((p.folder for p in PIPELINES.values() if str(p.params) == file), None)
            if other is not None:
                raise UserError(f"-S {change} is a parameter of another pipeline: add --{other}.")
            raise UserError(f"-S {change}: {file} is no parameter file; known: {', '.join(found)}.")
        found[file].append(rest)
    return found


def table(made: list[Estimate], host: Host) -> Iterator[str]:
    """The estimates as a table, and what does not fit here."""
    room = runtime.memory()
    yield f"{'stage':<12}{'memory':>10}{'of files':>10}{'time':>9}{'disk':>10}   largest parts"
    for one in made:
        peak, mapped, disk = (gigabytes(v) for v in (one.peak, one.peak - one.needed, one.disk))
        yield f"{one.stage:<12}{peak:>10}{mapped:>10}{duration(one.seconds):>9}{disk:>10}   {one.largest()}"
    seconds, disk = duration(sum(one.seconds for one in made)), gigabytes(sum(one.disk for one in made))
    yield f"{'in all':<32}{seconds:>9}{disk:>10}"
    yield f"Times are rough: from {host.speed / 1e9:.0f} GFLOPS of {host.threads} threads just now, to the last epoch."
    refusals = [text for one in made if (text := one.refusal(room))]
    yield from (f"does not fit: {text}" for text in refusals)
    yield "Memory of files (mapped) is not counted against the machine's: it can be dropped and read again."
    if not refusals:
        yield f"All stages fit into the {gigabytes(room)} that are available here."
