"""The report as one HTML file: no script, no other file, no other host."""

from collections.abc import Iterable, Sequence
from html import escape

from longtail import __version__
from longtail.report import drawing
from longtail.report.compared import Compared
from longtail.report.facts import Rows, Run
from longtail.report.mistakes import REASONS, SURE, Mistake, Mistakes

COLUMNS = ("P@1", "P@3", "P@5", "PSP@1", "PSP@3", "PSP@5", "N@5", "R@10", "R@100", "C@5")
CURVES = ("N@5", "PSN@5", "P@1", "P@5")  # of a stage's validation
BINS = ("head", "torso", "tail")
SHOWN = 15  # labels in either list
LEAST = 5  # test documents of a label in them
STYLE = """
:root { color-scheme: light dark; --back: #fff; --text: #1c2024; --soft: #5d666f; --line: #dfe3e8; --fill: #f5f7f9;
  --c0: #2a6fb0; --c1: #c2571a; --c2: #2f8a57; --c3: #8a4fae; --c4: #a8822a; --c5: #b03a5b; }
@media (prefers-color-scheme: dark) { :root { --back: #14171a; --text: #e4e7ea; --soft: #9aa4ae; --line: #323940;
  --fill: #1c2125; --c0: #6cb0ef; --c1: #f0935a; --c2: #6ccb95; --c3: #c794e6; --c4: #dcb85f; --c5: #ee86a3; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 2.5rem 1.25rem 4rem; max-width: 68rem; background: var(--back); color: var(--text);
  font: 15px/1.5 system-ui, "Segoe UI", Helvetica, Arial, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.7rem; line-height: 1.2; margin: 0 0 .4rem; }
h2 { font-size: 1.2rem; margin: 3rem 0 .5rem; padding-top: .9rem; border-top: 1px solid var(--line); }
h3 { font-size: 1rem; margin: 1.5rem 0 .4rem; }
p { margin: .4rem 0 .8rem; max-width: 46rem; }
.soft, caption, figcaption, nav { color: var(--soft); }
a { color: var(--c0); }
nav { display: flex; flex-wrap: wrap; gap: .2rem 1.1rem; margin: 1rem 0 0; }
nav a { text-decoration: none; }
.facts { display: grid; grid-template-columns: repeat(auto-fit, minmax(8.5rem, 1fr)); gap: .6rem; margin: 1.4rem 0; }
.facts div { background: var(--fill); border-radius: 8px; padding: .7rem .9rem; }
.facts b { display: block; font-size: 1.45rem; font-weight: 600; line-height: 1.25; }
.facts span { color: var(--soft); font-size: .85rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; margin: .4rem 0 1rem; }
th, td { padding: .28rem .7rem; text-align: left; vertical-align: top; border-bottom: 1px solid var(--line);
  overflow-wrap: break-word; }
th { font-weight: 600; color: var(--soft); font-size: .85rem; white-space: nowrap; }
td.n, th.n { text-align: right; white-space: nowrap; }
tr.strong td { font-weight: 600; }
.pairs { display: grid; grid-template-columns: repeat(auto-fit, minmax(22rem, 1fr)); gap: 0 2rem; }
.pairs > * { min-width: 0; }
figure { margin: .4rem 0 1.2rem; }
svg { width: 100%; height: auto; max-width: 40rem; display: block; font: 11px system-ui, sans-serif; }
svg text { fill: var(--soft); } svg .value { font-size: 10px; }
.grid { stroke: var(--line); } .even { stroke: var(--soft); stroke-dasharray: 4 4; }
.line { fill: none; stroke-width: 2; stroke-linejoin: round; }
.keys { display: flex; flex-wrap: wrap; gap: .1rem 1rem; font-size: .85rem; }
.key i { display: inline-block; width: .8em; height: .8em; border-radius: 2px; margin-right: .35em; }
.line.c0 { stroke: var(--c0); } .line.c1 { stroke: var(--c1); } .line.c2 { stroke: var(--c2); }
.line.c3 { stroke: var(--c3); } .line.c4 { stroke: var(--c4); } .line.c5 { stroke: var(--c5); }
.dot.c0, .bar.c0 { fill: var(--c0); } .dot.c1, .bar.c1 { fill: var(--c1); } .dot.c2, .bar.c2 { fill: var(--c2); }
.dot.c3, .bar.c3 { fill: var(--c3); } .dot.c4, .bar.c4 { fill: var(--c4); } .dot.c5, .bar.c5 { fill: var(--c5); }
i.c0 { background: var(--c0); } i.c1 { background: var(--c1); } i.c2 { background: var(--c2); }
i.c3 { background: var(--c3); } i.c4 { background: var(--c4); } i.c5 { background: var(--c5); }
.up { color: var(--c2); } .down { color: var(--c5); }
.mistake { border-bottom: 1px solid var(--line); padding: .7rem 0; break-inside: avoid; }
.mistake p { margin: .1rem 0; max-width: none; } .mistake ul { margin: .25rem 0 0; padding-left: 1.2rem; }
code { font: .92em ui-monospace, Menlo, Consolas, monospace; }
@media (max-width: 30rem) { .pairs { grid-template-columns: 1fr; } }
@media print { :root { --back: #fff; --text: #000; --soft: #444; --line: #bbb; --fill: #f3f3f3; color-scheme: light;
    --c0: #2a6fb0; --c1: #c2571a; --c2: #2f8a57; --c3: #8a4fae; --c4: #a8822a; --c5: #b03a5b; }
  body { font-size: 10.5pt; max-width: none; padding: 0; } nav { display: none; }
  .wide { overflow: visible; } th, td { padding: .15rem .3rem; font-size: 8pt; }
  svg, table tr { break-inside: avoid; } h2, h3 { break-after: avoid; }
  .bar, i { print-color-adjust: exact; -webkit-print-color-adjust: exact; } }
"""


def write(run: Run, mistakes: Mistakes, compared: Compared | None) -> str:
    """The page."""
    parts = {
        "Phases": phases(run),
        "Curves": curves(run),
        "Frequency": frequency(run),
        "Probabilities": probabilities(run),
        "Labels": labels(run.labels),
        "Mistakes": wrong(mistakes),
        "Parameters": parameters(run, compared),
        "Time and memory": taken(run),
    }
    name = f"{run.stats['dataset']}, {run.pipeline.folder or 'the modular pipeline'}"
    links = "".join(f'<a href="#{_anchor(title)}">{title}</a>' for title in parts)
    body = "".join(f'<section id="{_anchor(title)}"><h2>{title}</h2>{part}</section>' for title, part in parts.items())
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(name)}: report</title><style>{STYLE}</style></head><body>"
        f"<h1>{escape(str(run.stats['dataset']))}</h1>{heading(run)}<nav>{links}</nav>{body}</body></html>\n"
    )


def _anchor(title: str) -> str:
    return title.lower().replace(" ", "-")


def heading(run: Run) -> str:
    """What the run was on, and its main figures."""
    stats, fused = run.stats, run.metrics["fused"]
    method = f"the unified pipeline in {run.pipeline.folder}/" if run.pipeline.folder else "the modular pipeline"
    said = (
        f"A run of {method}, Longtail {__version__}: {stats['train_docs']:,} training and {stats['test_docs']:,} test "
        f"documents, {stats['labels']:,} labels, {stats['labels_per_doc']:.1f} of them on a document."
    )
    figures = {f"{name}, fused": f"{fused[name]:.2f}" for name in ("P@1", "P@5", "PSP@5", "N@5", "R@100")}
    figures["calibration error"] = f"{run.facts['probabilities']['calibration error']:.1f}"
    tiles = "".join(f"<div><b>{value}</b><span>{escape(name)}</span></div>" for name, value in figures.items())
    return f'<p class="soft">{escape(said)}</p><div class="facts">{tiles}</div>'


def table(heads: Sequence[str], rows: Iterable[Sequence], strong: int = -1) -> str:
    """A table: numbers to the right, text escaped, the row `strong` in bold; what is Html stands as it is."""
    body = [[_cell(value) for value in row] for row in rows]
    is_number = [bool(body) and all(right for _, right in column) for column in zip(*body)] or [False] * len(heads)
    head = "".join(f"<th{_right(right)}>{escape(name)}</th>" for name, right in zip(heads, is_number))
    lines = [
        f"<tr{' class=strong' * (place == strong)}>"
        + "".join(f"<td{_right(right)}>{text}</td>" for (text, _), right in zip(row, is_number))
        + "</tr>"
        for place, row in enumerate(body)
    ]
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{"".join(lines)}</tbody></table></div>'


class Html(str):
    """Text that is HTML already; in a table it stands to the right, as numbers do."""


def _cell(value) -> tuple[str, bool]:
    """(what stands in the cell, whether it is a number)."""
    if isinstance(value, Html):
        return str(value), True
    if isinstance(value, float):
        return f"{value:.2f}", True
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}", True
    return escape(str(value)), False


def _right(is_number: bool) -> str:
    return " class=n" if is_number else ""


def phases(run: Run) -> str:
    """The table of phases, as `xc table` prints it, and what the searches lose."""
    rows = [[run.pipeline.rows[name], *(row[column] for column in COLUMNS)] for name, row in run.metrics.items()]
    docs, index = run.facts["docs"], run.facts["index"]
    some = f"; the rows above `fused` on {docs['other rows']:,} of them" * (docs["other rows"] < docs["fused"])
    found = ", ".join(f"{name.removeprefix('recall')} {v:.1f}" for name, v in index.items() if "recall" in name)
    lost = ", ".join(f"{name.removeprefix('lost ')} {v:.2f}" for name, v in index.items() if "lost" in name)
    return (
        table(["", *COLUMNS], rows, strong=len(rows) - 1)
        + f"<p class=soft>In percent, on the {docs['fused']:,} test documents{escape(some)}. Approximate search finds "
        f"of the true nearest: {escape(found)}; exact search would add: {escape(lost)}.</p>"
    )


def curves(run: Run) -> str:
    """What each training stage reached on validation documents, epoch by epoch."""
    if not run.curves:
        return "<p>No stage of this run wrote a curve.</p>"
    drawn = {}
    for stage, rows in run.curves.items():
        series = {name: points(rows, "epoch", name) for name in CURVES if name in rows[0]}
        loss = {"loss": points(rows, "epoch", "loss")}
        drawn[f"{stage}: validation"] = drawing.lines(series, x="epoch", y="percent, validation documents")
        drawn[f"{stage}: loss"] = drawing.lines(loss, x="epoch", y="loss, training documents")
    return side_by_side(drawn)


def side_by_side(parts: dict[str, str]) -> str:
    """The parts, each below its title."""
    inside = "".join(f"<div><h3>{escape(title)}</h3>{part}</div>" for title, part in parts.items())
    return f'<div class="pairs">{inside}</div>'


def points(rows: Rows, x: str, y: str) -> list[tuple[float, float]]:
    """The points of two columns, those rows left out that lack one."""
    return [(float(row[x]), float(row[y])) for row in rows if row.get(x) and row.get(y)]


def frequency(run: Run) -> str:
    """Results for head, torso and tail labels alone."""
    drawn = {}
    for metric in ("P@5", "R@100"):
        groups: dict[str, dict[str, float]] = {}
        for row in run.bins:
            if row["row"] in run.metrics:
                groups.setdefault(run.pipeline.rows[row["row"]], {})[row["bin"]] = float(row[metric])
        drawn[metric] = drawing.bars(groups, x=f"{metric}, percent")
    counts = {part: [_count(row) for row in run.labels if row["bin"] == part] for part in BINS}
    rows = [[part, len(some), min(some), max(some)] for part, some in counts.items() if some]
    return (
        "<p>Labels by their number of training documents, cut so that head, torso and tail each have about a third of "
        "all pairs of a document and a label. Of all that is predicted, each row counts its own labels alone: the P@5 "
        "of the three add up to that of the table above.</p>"
        + table(["", "labels", "fewest training documents", "most"], rows)
        + side_by_side(drawn)
    )


def _count(row: dict[str, str]) -> int:
    return int(row["training_docs"])


def probabilities(run: Run) -> str:
    """Whether the probabilities are right, and what a cut-off gives."""
    figures = run.facts["probabilities"]
    text = f"Probabilities are off by {figures['calibration error']:.2f} points on average (calibration error)."
    if "F1" in figures:
        text += (
            f" Labels of at least {figures['threshold'] / 100:.3f}, the cut-off that was best for F1 on validation "
            f"documents, have a precision of {figures['precision']:.1f}, a recall of {figures['recall']:.1f} and an F1 "
            f"of {figures['F1']:.1f} on the test documents."
        )
    said = {"right": points(run.reliability, "probability", "right")}
    thresholds = [100 * threshold for threshold in run.cutoffs["thresholds"]]
    cut = {
        name: [(threshold, 100 * value) for threshold, value in zip(thresholds, run.cutoffs[name])]
        for name in ("precision", "recall")
    }
    drawn = {
        "Said and right": drawing.lines(
            said, x="probability said, percent", y="right, percent", even=True, square=True
        ),
        "Cut-offs": drawing.lines(cut, x="cut-off, percent", y="percent, validation documents", square=True),
    }
    return f"<p>{text}</p>{side_by_side(drawn)}"


def labels(rows: Rows) -> str:
    """The labels that are found best and worst, of those with enough test documents to say so."""
    tested = [row for row in rows if int(row["test_docs"]) >= LEAST]
    if not tested:
        return f"<p>No label has {LEAST} test documents.</p>"
    best = sorted(tested, key=lambda row: (-float(row["recall@5"]), -int(row["test_docs"])))
    worst = sorted(tested, key=lambda row: (float(row["recall@5"]), -int(row["test_docs"])))

    def listed(some: Rows) -> str:
        figures = [(_shown(float(row["recall@5"]), 1, 1), int(row["test_docs"]), _count(row)) for row in some]
        cells = [[row["text"], row["id"], *rest] for row, rest in zip(some, figures)]
        return table(["label", "", "recall@5", "test", "training"], cells)

    return (
        f"<p>Recall@5: of the test documents with the label, the percentage that has it among the first five. Of the "
        f"{len(tested):,} labels with at least {LEAST} test documents; labels.csv has all {len(rows):,}.</p>"
        + side_by_side({"Worst": listed(worst[:SHOWN]), "Best": listed(best[:SHOWN])})
    )


def wrong(found: Mistakes) -> str:
    """Test documents whose first label is wrong, and why."""
    if not found.shown:
        return f"<p>The first label is right on all {found.ranked:,} test documents that were looked at.</p>"
    drawn = f"{found.ranked:,} of them, drawn at random," if found.ranked < found.of else "They"
    counts = {name: sum(name in one.reasons for one in found.shown) for name in REASONS}
    rows = [[REASONS[name], count] for name, count in sorted(counts.items(), key=lambda item: -item[1]) if count]
    none = sum(not one.reasons for one in found.shown)
    rows += [["none of these", none]] if none else []
    sure = min(SURE, len(found.shown))
    others = f", then {len(found.shown) - sure} others drawn at random" if len(found.shown) > sure else ""
    return (
        f"<p>{found.of:,} test documents have a right label. {drawn} were ranked once more for this report by the "
        f"model that was scored, as no stage keeps rankings of single documents; the first label is wrong on "
        f"{found.wrong:,}. Shown are the {sure} whose wrong label is most probable{others}. A mistake may have several "
        f"reasons, or none of those that are looked for.</p>"
        + table(["reason", "mistakes"], rows)
        + "".join(map(mistake, found.shown))
    )


def mistake(one: Mistake) -> str:
    def named(label: dict) -> str:
        id = f' <span class="soft">{escape(label["id"])}</span>' * (label["id"] != label["text"])
        return f"{escape(label['text'])}{id}, {100 * label['probability']:.1f}%"

    said = "".join(f"<li>{escape(reason)}</li>" for reason in one.reasons.values())
    by = f" by the words {escape(', '.join(one.words))}" if one.words else ""
    return (
        f'<div class="mistake"><p><b>{escape(one.text)}</b> <span class="soft">{escape(one.id)}</span></p>'
        f"<p>given: {named(one.given)}{by}</p><p>right: {named(one.right)}</p>"
        f"<ul>{said}<li>the label given is {escape(one.decided)}</li></ul></div>"
    )


def parameters(run: Run, compared: Compared | None) -> str:
    """What differs from another run, and all values."""
    every = table(["parameter", "value"], [[name, _value(value)] for name, value in run.params.items()])
    every = f"<details><summary>All {len(run.params)} parameters</summary>{every}</details>"
    return f"{since(run)}{differing(run, compared)}{every}"


def since(run: Run) -> str:
    """What stands otherwise in the parameter file by now; nothing where it is the run's."""
    if not run.since:
        return ""
    rows = [[name, _value(ran), _value(now)] for name, ran, now in run.since]
    said = f"{run.pipeline.params.as_posix()} has been changed since the run, whose own values are shown here:"
    return f"<p>{escape(said)}</p>" + table(["parameter", "the run", "the file now"], rows)


def differing(run: Run, compared: Compared | None) -> str:
    if compared is None:
        return "<p>There is no commit to compare with.</p>"
    name = escape(compared.name)
    parts = [f"<h3>Against {name}</h3>"]
    if compared.params:
        rows = [[key, _value(there), _value(here)] for key, there, here in compared.params]
        parts.append(table(["parameter", "there", "here"], rows))
    else:
        parts.append("<p>No parameter differs.</p>")
    shared = [row for row in run.metrics if row in compared.metrics]
    gains = {row: [run.metrics[row][m] - compared.metrics[row].get(m, float("nan")) for m in COLUMNS] for row in shared}
    if not shared:
        parts.append("<p>It has no metrics to compare with.</p>")
    elif any(abs(gain) >= 0.005 for row in gains.values() for gain in row):
        rows = [[run.pipeline.rows[row], *map(_gain, gains[row])] for row in shared]
        parts.append("<p>What is gained here, in points:</p>" + table(["", *COLUMNS], rows))
    else:
        parts.append("<p>The metrics are the same.</p>")
    return "".join(parts)


def _value(value: object) -> str:
    """As in the parameter file."""
    if value is None:
        return "(none)"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _shown(value: float | None, unit: float, digits: int) -> Html:
    """The value in this unit; nothing where it is not known."""
    return Html("" if value is None else f"{value / unit:.{digits}f}")


def _gain(points: float) -> Html:
    if points != points:
        return Html("")
    kind = "up" if points >= 0.005 else "down" if points <= -0.005 else "soft"
    return Html(f'<span class="{kind}">{points:+.2f}</span>')


def taken(run: Run) -> str:
    """What each stage took."""
    rows = [[one.stage, _shown(one.seconds, 1, 1), _shown(one.memory, 1e9, 2)] for one in run.taken]
    missing = [one.stage for one in run.taken if one.seconds is None]
    text = f"In all {sum(one.seconds or 0 for one in run.taken):.0f} seconds."
    if missing:
        text = (
            f"Not recorded for what is there now: {', '.join(missing)}. A stage records its time and memory where it "
            "runs; what came from a cache, or was made by an older version, has none."
        )
    return table(["stage", "seconds", "memory, GB"], rows) + f"<p class=soft>{escape(text)}</p>"
