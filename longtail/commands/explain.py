"""`xc explain`: why a text gets its labels."""

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from longtail.commands.options import bundle_option, pipeline_option, run_option
from xcutils.core import console
from xcutils.core.pipelines import PIPELINES

if TYPE_CHECKING:
    from longtail.explain import Explanation

INDENT = " " * 9


@click.command()
@click.argument("text")
@click.option("-k", "k", type=click.IntRange(1, 100), default=3, show_default=True, help="Labels, the best ones.")
@click.option("--label", "labels", multiple=True, metavar="ID", help="This label instead; may be given several times.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per label.")
@bundle_option
@run_option
@pipeline_option
@console.command
def explain(
    text: str, k: int, labels: tuple[str, ...], as_json: bool, bundle: Path | None, data: Path, pipeline: str
) -> None:
    """Why TEXT gets its labels: words, parts of the score, documents.

    For each label: the parts of its score, the words that speak for and against it, each with what the score falls by
    when the word is taken out of the text, and the nearest training documents that have the label.
    """
    from longtail.models import Model
    from longtail.places import Bundle, Run

    model = Model(Bundle(bundle) if bundle else Run(data, PIPELINES[pipeline]))
    text = text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    found = model.explain(text, labels or None, k)
    if as_json:
        lines = [json.dumps(dataclasses.asdict(one), ensure_ascii=False) for one in found]
    else:
        lines = [text, *(line for one in found for line in as_lines(one))]
    click.echo("\n".join(lines))


def as_lines(why: "Explanation") -> list[str]:
    """An explanation as it is printed."""
    named = why.id if why.id == why.text else f"{why.id}  {why.text}"
    parts = ", ".join(f"{name} {value:+.3f}" for name, value in why.parts.items())
    lines = [f"  {why.probability:.3f}  {named}"]
    if not why.known:
        return [*lines, f"{INDENT}no known word in this text: the probability is the label's share of the documents"]
    lines.append(f"{INDENT}score {why.score:.3f} = {parts}")
    weights = {word.text: word.weight for word in why.words}
    if why.named:
        lines.append(f"{INDENT}for it: {_weighed(weights, why.named)}; without {_these(why.named)} {why.without:.3f}")
    against = sorted((word for word in weights if weights[word] < 0), key=lambda word: weights[word])
    if against:
        lines.append(f"{INDENT}against it: {_weighed(weights, against)}")
    if why.documents:
        lines.append(f"{INDENT}nearest training documents that have it (similarity, share of the memory):")
    for doc in why.documents:
        shown = "  ".join(part for part in (doc.id, doc.text) if part is not None) or "(its text is not in the bundle)"
        lines.append(f"{INDENT}  {doc.similarity:.3f}  {doc.share:.3f}  {shown}")
    return lines


def _weighed(weights: dict[str, float], words: list[str]) -> str:
    return ", ".join(f"{word} {weights[word]:+.3f}" for word in words)


def _these(words: list[str]) -> str:
    return "it" if len(words) == 1 else "them all"
