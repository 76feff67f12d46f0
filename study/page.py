"""docs/study.md: what was measured for each direction, and for each recipe."""

from __future__ import annotations

import statistics
from pathlib import Path

from longtail.recipes import flat
from study.directions import DIRECTIONS, Claim, Direction, settings
from study.experiments import differences
from study.records import Record, Rows
from study.verdicts import NO_DIFFERENCE, SEEDS, look_up, name_of, noises
from xcutils.core import params
from xcutils.core.errors import UserError
from xcutils.core.pipelines import MODULAR

FIGURES = ("P@1", "P@3", "P@5", "PSP@1", "PSP@3", "PSP@5", "C@5")
RECIPE_ROWS = {  # the rows of metrics.json that are about the recipe's method; of the others it is `fused`
    **dict.fromkeys(("dexa", "ngame", "siamesexml"), ("encoder", "classifier", "fused")),
    **dict.fromkeys(("dpr", "ance", "dexml", "depsl"), ("encoder",)),
    "renee": ("classifier",),
    "unidec": ("encoder", "classifier", "concatenated"),
}
INTRO = f"""# Do the papers' findings hold here?

Written by `python -m study.findings` (`make study`): directions in which the papers' figures go, and the same
comparisons on the default dataset (9,101 training documents of 4 words and 20 labels each, 10,402 labels); settings
named `sparse-` have a thinned copy of it (D9). A row is a difference of settings, which the last table explains; a
setting is an experiment `study-<setting>-s<seed>` for each seed. Figures are points of percent on the test documents:
the mean over seeds {", ".join(map(str, SEEDS))} ± standard deviation (least to greatest), or the figure of one seed
where a run takes long. "Parts" are the terms of the difference. The figures of every single experiment are in
`study/results.json`.

"Agrees" and "does not agree" are about the sign. "No difference": the seeds do not all have the same sign, or the mean
is within the standard deviation; for one seed, within the usual deviation of the metric's other differences. Where the
papers see nearly none (= 0), up to {NO_DIFFERENCE} points agree. The spread is that of training: all seeds have the
same test documents. Models are fitted once, without the validation documents, and what a row does not look at is
trained briefly: the figures compare with each other, not with those of other pages.

DEXA: Dahiya et al., KDD 2023. Thesis: Kharbanda, Compute Efficient Extreme Multi-Label Classification, UCLA 2024
(Gandalf and UniDEC). Renee: Jain et al., MLSys 2023.
"""
RECIPES_INTRO = "Each as it is in `recipes/`, one run of all stages, with the rows that are its own."
SETTINGS_INTRO = (
    "Seconds are the mean of runs in which `prepare` and `embed` came from the cache (not so with `--again`)."
)


def document(records: dict[str, Record], older: int, files: dict[str, dict], notes: dict[str, str]) -> str:
    """The whole page.

    records  of experiments with the present code, or with code that gives the same figures
    older    how many others there are, whose figures may be others now
    files  {parameter file: its values}, recipes included
    notes  {direction: explanation}
    """
    rows = {name: record.rows for name, record in records.items()}
    seconds = {name: record.seconds for name, record in records.items() if record.seconds is not None}
    noise = noises(rows)
    text = [INTRO, *summary(rows, noise)]
    if older:
        left_out = f"{older} of {older + len(rows)} recorded experiments ran with older code"
        text += [f"{left_out}: their figures are left out, and `--fresh` runs them again.", ""]
    for name, direction in DIRECTIONS.items():
        text += section(name, direction, rows, noise, notes.get(name) or "")
    columns = ["recipe", "row", *FIGURES, "seconds"]
    text += ["## Recipes", "", RECIPES_INTRO, "", *table(columns, recipe_lines(rows, seconds, files), len(columns) - 2)]
    columns = ["setting", "file", "changed in it", "seconds"]
    text += ["## Settings", "", SETTINGS_INTRO, "", *table(columns, setting_lines(seconds, files), 1)]
    return "\n".join(text)


def table(columns: list[str], lines: list[list[str]], numbers: int = 0) -> list[str]:
    """A Markdown table, of which the last `numbers` columns are numbers."""
    rule = "|" + "---|" * (len(columns) - numbers) + "--:|" * numbers
    return [f"| {' | '.join(columns)} |", rule, *(f"| {' | '.join(line)} |" for line in lines), ""]


def summary(rows: dict[str, Rows], noise: dict[str, float]) -> list[str]:
    """How many claims of each direction agree."""
    lines = []
    for name, direction in DIRECTIONS.items():
        found = [look_up(claim, rows, noise).verdict for claim in direction.claims]
        counts = ", ".join(f"{found.count(one)} {one}" for one in dict.fromkeys(found))
        lines.append([f"{name}. {direction.statement}", counts])
    return table(["direction", "rows"], lines)


def section(name: str, direction: Direction, rows: dict[str, Rows], noise: dict[str, float], note: str) -> list[str]:
    """The direction with a line for each of its claims."""
    columns = ["difference", "of", "sign", "paper", "here", "parts", "seeds", "verdict"]
    lines = [claim_line(claim, rows, noise) for claim in direction.claims]
    text = [f"## {name}. {direction.statement}", "", f"{direction.source}. {direction.here}".strip(), ""]
    return [*text, *table(columns, lines), *([note.strip(), ""] if note.strip() else [])]


def claim_line(claim: Claim, rows: dict[str, Rows], noise: dict[str, float]) -> list[str]:
    """The claim's cells: difference, place, sign, paper, ours, parts, seeds, verdict."""
    found = look_up(claim, rows, noise)
    expected = "either" if claim.expected == "?" else f"{claim.expected} 0"
    given = [f"`{claim.formula}`", claim.place.replace("/", ", "), expected, claim.paper]
    return [*given, found.ours, found.sides, str(found.seeds), found.verdict]


def recipes(files: dict[str, dict]) -> dict[str, str]:
    """{experiment: file of the recipe}"""
    return {f"study-recipe-{Path(file).stem}": file for file in files if file.startswith("recipes/")}


def recipe_rows(recipe: str) -> tuple[str, ...]:
    """The rows of metrics.json that are about the recipe's method."""
    return RECIPE_ROWS.get(recipe.removesuffix("-gandalf"), ("fused",))


def recipe_lines(rows: dict[str, Rows], seconds: dict[str, float], files: dict[str, dict]) -> list[list[str]]:
    """The cells of every recipe's rows."""
    lines = []
    for name, file in recipes(files).items():
        recipe, found = Path(file).stem, rows.get(name)
        if found is None:
            lines.append([recipe, "not run yet", *[""] * (len(FIGURES) + 1)])
            continue
        took = f"{seconds[name]:.0f}" if name in seconds else ""
        for row in recipe_rows(recipe):
            lines.append([recipe, row, *(f"{found[row][figure]:.2f}" for figure in FIGURES), took])
    return lines


def setting_lines(seconds: dict[str, float], files: dict[str, dict]) -> list[list[str]]:
    """What each setting changes in the file it starts from, and how long it took."""
    lines = []
    for name, setting in settings().items():
        old = flat(files[str(MODULAR.params)]) | flat(files[setting.start])
        changes = " ".join(f"`{change}`" for change in differences(old, setting.changes)) or "nothing"
        took = [seconds[one] for seed in SEEDS if (one := name_of(name, seed)) in seconds]
        lines.append([name, setting.start, changes, f"{statistics.fmean(took):.0f}" if took else ""])
    return lines


def read_notes(file: Path) -> dict[str, str]:
    """{direction: explanation}, written by hand."""
    notes = params.read(file)
    if unknown := set(notes) - set(DIRECTIONS):
        raise UserError(f"{file}: {', '.join(sorted(unknown))} is not a direction; known: {', '.join(DIRECTIONS)}.")
    return notes
