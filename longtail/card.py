"""The model card of a bundle, in the form that the Hugging Face hub reads: YAML facts, then text."""

import io

from ruamel.yaml import YAML

from longtail import __version__
from xcutils.core.pipelines import PIPELINES

SHOWN = ("P@1", "P@3", "P@5", "PSP@1", "PSP@5", "N@5", "R@10", "R@100")
COUNTS = {
    "train_docs": "training documents",
    "validation_docs": "of them for validation",
    "test_docs": "test documents",
    "labels": "labels",
    "labels_per_doc": "labels per document",
    "docs_per_label": "documents per label",
    "words_per_doc": "words per document",
    "words_per_label": "words per label",
}


def card(parts: dict[str, dict], with_documents: bool) -> str:
    """The text of README.md.

    parts  about, metrics and parameters, as in the files of the bundle
    """
    about, metrics, parameters = parts["about"], parts["metrics"], parts["parameters"]
    sections = [
        f"---\n{front_matter(about, metrics)}---",
        f"# Labels for short texts: {about['dataset'] or 'a dataset of your own'}",
        "Given a short text, this model finds the few right ones among very many labels, each with the probability "
        f"that it is right. It was trained with Longtail {about['version']} on {about['created'][:10]}; its hash is "
        f"`{about['hash'][:16]}`.",
        "## How to load it\n\n```python\nimport longtail\n\n"
        'model = longtail.load("path/to/this/folder")\nmodel.predict("a text", k=5)\n```\n\n'
        'On the command line: `xc predict --bundle path/to/this/folder "a text"`.',
        f"## Data\n\n{_data(about['data'])}",
        f"## Metrics\n\n{_metrics(metrics, PIPELINES.get(about['pipeline'], PIPELINES['']))}",
        f"## Parameters\n\n{_parameters(parameters)}",
        f"## Limits\n\n{_limits(with_documents)}",
    ]
    return "\n\n".join(sections) + "\n"


def front_matter(about: dict, metrics: dict) -> str:
    """The facts that the hub reads, as YAML."""
    task = {"type": "text-classification", "name": "extreme multi-label classification"}
    name = about["dataset"] or "own data"
    facts: dict = {
        "library_name": "longtail",
        "pipeline_tag": task["type"],
        "tags": ["extreme-classification", "multi-label", "longtail"],
    }
    if "fused" in metrics:
        figures = [{"type": key, "value": metrics["fused"][key]} for key in SHOWN if key in metrics["fused"]]
        data = {"name": name, "type": name.lower().replace(" ", "-"), "split": "test"}
        facts["model-index"] = [
            {"name": f"longtail-{data['type']}", "results": [{"task": task, "dataset": data, "metrics": figures}]}
        ]
    out = io.StringIO()
    yaml = YAML()
    yaml.default_flow_style = False
    yaml.dump(facts, out)
    return out.getvalue()


def _data(stats: dict) -> str:
    if not stats:
        return "Its numbers are not known: the prepared data were not there when the bundle was written."
    lines = [f"| {title} | {_number(stats[key])} |" for key, title in COUNTS.items() if key in stats]
    return "\n".join(["| | |", "|---|--:|", *lines])


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:,.2f}"


def _metrics(metrics: dict, pipeline) -> str:
    if "fused" not in metrics:
        return "This model has not been measured on test documents."
    rows = {title: metrics[row] for row, title in pipeline.rows.items() if row in metrics}
    lines = [
        f"| {title} | " + " | ".join(f"{figures[key]:.2f}" for key in SHOWN if key in figures) + " |"
        for title, figures in rows.items()
    ]
    head = ["| | " + " | ".join(SHOWN) + " |", "|---|" + "--:|" * len(SHOWN)]
    flag = f" --{pipeline.folder}" if pipeline.folder else ""
    said = (
        f"In percent, on test documents that no stage but the last one reads; `fused` is what this model answers. "
        f"`{pipeline.command}` measures them, `xc table{flag}` prints them."
    )
    found = metrics.get("probabilities", {}).get("calibration error")
    error = "" if found is None else f" Probabilities are off by {found:.1f} on average."
    return "\n".join([said + error, "", *head, *lines])


def _parameters(parameters: dict[str, dict]) -> str:
    lines = [
        f"{section}:\n" + "\n".join(f"  {key}: {value}" for key, value in values.items() if not isinstance(value, dict))
        for section, values in parameters.items()
    ]
    return "What each stage of the training ran with:\n\n```\n" + "\n".join(lines) + "\n```"


def _limits(with_documents: bool) -> str:
    held = "It holds the texts of its training documents" if with_documents else "It holds no training documents"
    return "\n".join(
        [
            "- Probabilities and cut-offs were learnt on validation documents; of other texts they need not be right.",
            "- A text none of whose words is known gets the most frequent labels.",
            "- Labels with few training documents are found less often than frequent ones.",
            f"- {held}{': mind whose they are before you give it away' * with_documents}.",
            f"- It is read by Longtail {__version__} and by versions that have the same format of bundles.",
        ]
    )
