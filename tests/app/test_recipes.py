"""Recipes: what differs from a base, each what its method is; put in place with nothing lost; run on tiny data."""

import json
import math
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ruamel.yaml import YAML

from longtail.cli import main
from longtail.recipes import ANY, Layer, complete, flat, values_of
from stages import check_parameters
from testing.tiny import ROOT, UNIDEC, branch, invoke, run_stages, small_checkpoint
from xcutils.core import artifacts
from xcutils.core.params import read
from xcutils.core.pipelines import pipeline_of

FILES = {file.stem: file for file in sorted((ROOT / "recipes").glob("*.yaml"))}
LARGE = [name for name in FILES if name.endswith(("-131k", "-1.3m"))]
SMALL = [name for name in FILES if name not in LARGE]
UNIFIED = [name for name in FILES if name.startswith(("unidec", "depsl"))]

# All that is different from params.yaml, or unidec/params.yaml: what makes the recipe its method.
ONE_POSITIVE = {"encoder.positives": 1, "encoder.epochs": 40}
RANDOM = {"encoder.cluster_from": 1000}
NO_M4 = {"classifier.encoder_lr": 0.0, "classifier.epochs": 1}
OWN = {"gandalf.labels": 1.0, "gandalf.targets": "glas", "gandalf.own": 0.9}
OWN |= {"classifier.patience": 8, "classifier.tail": 1.0}
RENEE = {
    "classifier.labels": "all",
    "K": 0,
    "gandalf.labels": 1.0,
    "classifier.loss": "bce",
    "classifier.start": "random",
    "classifier.normalise": False,
    "classifier.tau": 1.0,
    "classifier.epochs": 20,
    "classifier.patience": 0,
    "classifier.batch_size": 256,
    "classifier.lr": 5.0,
    "classifier.optimizer": "sgd",
    "classifier.weight_decay": 0.00004,
    "classifier.warmup": 50,
}
NGAME_PAPER = {
    "K": 0,
    "encoder.ngrams": 1,
    "encoder.loss": "triplet",
    "encoder.positives": 1,
    "encoder.epochs": 40,
    "encoder.patience": 0,
    "encoder.batch_size": 1600,
    "encoder.aux_lr": 0.003,
    "encoder.weight_decay": 0.0,
    "encoder.warmup": 20,
    "encoder.validate_every": 10,
    "encoder.keep": "last",
    "encoder.cluster_first": 2,
    "encoder.cluster_double": 4,
    "encoder.refresh": 5,
    "classifier.labels": "batch",
    "classifier.loss": "triplet",
    "classifier.dropout": 0.5,
    "classifier.encoder_lr": 0.0,
    "classifier.epochs": 40,
    "classifier.patience": 0,
    "classifier.batch_size": 2048,
    "classifier.lr": 0.001,
    "classifier.warmup": 20,
    "classifier.validate_every": 10,
    "classifier.keep": "last",
    "classifier.cluster_from": 4,
    "classifier.cluster_first": 1,
    "classifier.cluster_double": 4,
    "classifier.cluster_last": 64,
    "score.shortlist": 300,
    "score.neighbours": 0,
    "score.tail": 0.0,
}
OF_NGAME = ("K", "encoder.weight_decay", "encoder.cluster_first", "classifier.cluster_first", "classifier.cluster_last")
DEXA_PAPER = {key: value for key, value in NGAME_PAPER.items() if key not in OF_NGAME}
DEXA_PAPER |= {"encoder.aux_start": "xavier", "encoder.cluster_last": 512, "classifier.cluster_double": 1000}
UNIDEC_PAPER = {
    "train.ngrams": 1,
    "train.pretrained": 0.0,
    "train.start": "xavier",
    "train.normalise": False,
    "train.normalise_first": False,
    "train.classifier_dropout": 0.1,
    "train.label_dropout": 0.1,
    "train.classifier_symmetric": True,
    "train.tau": 0.0556,
    "train.bce_tau": 0.0556,
    "train.bce_weight": 1.0,
    "train.bce_bias": False,
    "train.bce_mean": True,
    "train.extra": 0,
    "train.cap": 3000,
    "train.mined_from": 100,
    "train.cluster_from": 5,
    "train.average_after": 0,
    "train.epochs": 30,
    "train.patience": 0,
    "train.tail": 0.0,
    "train.batch_size": 576,
    "train.head_lr": 0.002,
    "train.classifier_lr": 0.01,
    "train.weight_decay": 0.05,
    "train.head_weight_decay": 0.05,
    "train.classifier_weight_decay": 0.05,
    "train.updates": "all",
    "train.warmup": 48,
    "train.schedule": "cosine",
    "train.validate_every": 5,
    "train.keep": "last",
    "score.neighbours": 0,
    "score.tail": 0.0,
}
DEPSL_PAPER = {key: value for key, value in UNIDEC_PAPER.items() if key != "train.classifier_symmetric"}
DEPSL_PAPER |= {"train.classifier_loss": "none", "train.symmetric": False}
METHODS = {
    "dexa": {},
    "ngame": {"K": 0},
    "dpr": {"K": 0, "encoder.loss": "infonce", "encoder.tau": 0.2, **ONE_POSITIVE, **RANDOM, **NO_M4},
    "ance": {
        "K": 0,
        "encoder.loss": "pairwise",
        "encoder.mined": 20,
        "encoder.mined_from": 200,
        "encoder.tau": 0.2,
        **ONE_POSITIVE,
        **RANDOM,
        **NO_M4,
    },
    "siamesexml": {"K": 0, "encoder.loss": "contrastive", **ONE_POSITIVE, **RANDOM},
    "dexml": {"K": 0, "encoder.labels": "all", **RANDOM, **NO_M4},
    "renee": {**RENEE, "gandalf.targets": "self"},
    "renee-gandalf": RENEE,
    "dexa-gandalf": OWN,
    "ngame-gandalf": {"K": 0, **OWN},
    "unidec": {},
    "depsl": {"train.classifier_loss": "none"},
    "ngame-paper": NGAME_PAPER,
    "dexa-paper": DEXA_PAPER,
    "unidec-paper": UNIDEC_PAPER,
    "depsl-paper": DEPSL_PAPER,
    "unidec-gandalf": {"gandalf.labels": 1.0, "gandalf.targets": "glas", "gandalf.own": 0.9},
}
# Some of what the papers and their code say, in the words of the parameters: of every size, then of one.
PAPERS = {
    "dexa": {"encoder.loss": "triplet", "encoder.margin": 0.3, "encoder.lr": 2e-4, "classifier.labels": "batch"},
    "ngame": {"K": 0, "encoder.loss": "triplet", "encoder.margin": 0.3, "classifier.dropout": 0.5},
    "renee": {"K": 0, "classifier.loss": "bce", "classifier.momentum": 0.9, "gandalf.targets": "self"},
    "renee-gandalf": {"K": 0, "classifier.loss": "bce", "gandalf.targets": "co-occurrence", "gandalf.delta": 0.1},
    "dexml": {"K": 0, "encoder.labels": "all", "encoder.pooling": "cls", "encoder.lr": 3e-4},
    "dpr": {"K": 0, "encoder.loss": "infonce", "encoder.lr": 2e-5, "encoder.warmup": 1237, "encoder.epochs": 40},
    "ance": {"K": 0, "encoder.loss": "pairwise", "encoder.mined": 1, "encoder.mined_from": 200},
    "siamesexml": {"K": 0, "encoder.loss": "contrastive", "encoder.contrast": 0.9, "encoder.slope": 1.5},
    "unidec": {"train.lr": 1e-4, "train.head_lr": 2e-4, "train.classifier_lr": 1e-3, "train.refresh": 5},
    "depsl": {"train.classifier_loss": "none", "train.lr": 1e-4, "train.symmetric": False},
}
OF_SIZE = {
    "dexa-1.3m": {"K": 65536, "encoder.weight_decay": 0.01},
    "ngame-131k": {"encoder.weight_decay": 0.0, "encoder.cluster_first": 2},
    "dpr-131k": {"encoder.batch_size": 128, "encoder.weight_decay": 0.0},
    "siamesexml-131k": {"encoder.batch_size": 4095, "encoder.epochs": 50, "encoder.negatives": 1},
    "unidec-131k": {"eta": 6, "train.batch_size": 576, "train.dim": 384},
    "unidec-1.3m": {"beta": 1, "train.batch_size": 1098, "train.dim": 256},
    "depsl-131k": {"eta": 6, "train.batch_size": 576, "train.dim": 512},
    "depsl-1.3m": {"beta": 1, "train.batch_size": 2200, "train.dim": 384},
}
# Recipes that are another one but for these lines.
LARGER = {"dataset": "data/raw/LF-AmazonTitles-1.3M", "prepare.validation": 0.0025, "index.threads": 12}
TWINS = {
    **{f"{name}-1.3m": (f"{name}-131k", LARGER) for name in ("dpr", "ance", "siamesexml")},
    "ngame-1.3m": ("dexa-1.3m", {"K": 0}),
    "renee-gandalf-131k": ("renee-131k", {"gandalf.targets": "co-occurrence"}),
    "renee-gandalf-1.3m": ("renee-1.3m", {"gandalf.targets": "co-occurrence"}),
}
DISTILBERT = "sentence-transformers/msmarco-distilbert-base-v4"


def values(name: str) -> dict:
    """{name: value} of a recipe, or of a parameter file by its path."""
    return flat(values_of(name, ROOT) if name in FILES else read(ROOT / name))


def layers(name: str) -> list[Layer]:
    """The files of a recipe: the complete one first, its own last."""
    return complete(name, ROOT).layers


def written(name: str) -> str:
    """The whole parameter file that putting a recipe in place writes."""
    return complete(name, ROOT).text


def place_of(name: str) -> str:
    return "unidec/params.yaml" if name in UNIFIED else "params.yaml"


def lines_of(text: str) -> dict[str, str]:
    """{name: its line} of a parameter file, together with a comment that goes on below it."""
    found, section, name = {}, "", ""
    for line in text.splitlines():
        match = re.match(r"( *)(\w+):( ?)", line)
        if match:
            section = section if match[1] else match[2]
            name = f"{section}.{match[2]}" if match[1] else match[2]
        if match and match[3]:
            found[name] = line
        elif re.match(" +# ", line):
            found[name] += " " + line.strip(" #")
    return found


def comments(text: str) -> dict[str, str]:
    """{name: comment} of the lines of a parameter file that have one."""
    return {name: line.partition(" # ")[2] for name, line in lines_of(text).items() if " # " in line}


# --- what they hold ---------------------------------------------------------------------------------------------------


def test_every_method_has_its_recipe():
    assert set(METHODS) == set(SMALL)
    assert {name.rpartition("-")[0] for name in LARGE} == set(PAPERS)


def test_the_recipes_are_short():
    lines = {name: file.read_text(encoding="utf-8").splitlines() for name, file in FILES.items()}
    assert sum(map(len, lines.values())) <= 1000
    long = {line for one in lines.values() for line in one if len(line) > 120}
    assert {line.strip("# ") for line in long} == {complete(n, ROOT).command for n in LARGE if n in UNIFIED}


@pytest.mark.parametrize(("name", "file"), [("dexa", "params.yaml"), ("unidec", "unidec/params.yaml")])
def test_the_parameter_file_is_the_complete_recipe_line_by_line(name, file):
    """The comments stand in the recipe; who edits one of the two edits both."""
    assert (ROOT / file).read_text(encoding="utf-8") == layers(name)[0].body
    assert len(layers(name)) == 1 and written(name) == FILES[name].read_text(encoding="utf-8")


@pytest.mark.parametrize("name", FILES)
def test_bases_end_at_the_complete_recipe_of_the_pipeline(name):
    assert layers(name)[0].file == FILES["unidec" if name in UNIFIED else "dexa"]


@pytest.mark.parametrize("name", [name for name in FILES if name not in ("dexa", "unidec")])
def test_every_line_of_a_recipe_says_something_that_its_base_does_not(name):
    *below, own = layers(name)
    base, notes = values(below[-1].file.stem), {}
    for layer in below[1:]:
        notes |= {key: note for key, (_, note) in layer.given.items()}
    known = comments(below[0].text)
    for key, value in flat(own.tree).items():
        note = own.given[key][1]
        assert value != base[key] or note not in ("", notes.get(key)), key
        assert key not in known or known[key] not in note, key  # the comment of a parameter stands once


@pytest.mark.parametrize("name", FILES)
def test_a_recipe_passes_the_checks_of_the_stages(name):
    tree = values_of(name, ROOT)
    checked = flat(check_parameters(tree, name, pipeline_of(Path(place_of(name)))).values)
    assert all(checked[key] == value for key, value in flat(tree).items())


@pytest.mark.parametrize("name", FILES)
def test_what_is_put_in_place_is_complete_and_commented(name):
    text, there = written(name), (ROOT / place_of(name)).read_text(encoding="utf-8")
    tree = YAML(typ="safe").load(text)
    assert list(flat(tree)) == list(values(place_of(name))) and flat(tree) == values(name)
    notes = {key: note for layer in layers(name)[1:] for key, (_, note) in layer.given.items() if note}
    own, known = comments(text), comments(there)
    for key in {*notes, *known}:
        parts = [part for part in (known.get(key, ""), notes.get(key, "")) if part]
        assert own[key] == "; ".join([part.rstrip(",") for part in parts[:-1]] + parts[-1:])
    for line in text.splitlines():
        value, mark, _ = line.partition("  #")
        assert not mark or not value or len(value.rstrip()) > 21 or line.index("#") == 23, line


@pytest.mark.parametrize("name", METHODS)
def test_what_differs_from_the_default_makes_the_method_and_nothing_else_does(name):
    own, there = values(name), values(place_of(name))
    assert {key: own[key] for key in own if own[key] != there[key]} == METHODS[name]


@pytest.mark.parametrize("name", LARGE)
def test_the_papers_settings_are_for_the_papers_data(name):
    method, _, size = name.rpartition("-")
    own, paper = values(name), PAPERS[method] | OF_SIZE.get(name, {})
    assert {key: own[key] for key in paper} == paper
    dataset = {"131k": "data/raw/LF-AmazonTitles-131K", "1.3m": "data/raw/LF-AmazonTitles-1.3M"}[size]
    assert dataset in head(name) if name in UNIFIED else own["dataset"] == dataset
    assert own.get("encoder.kind", own.get("train.kind")) == "transformer"


@pytest.mark.parametrize(("name", "other", "changes"), [(name, *twin) for name, twin in TWINS.items()])
def test_a_method_that_is_another_with_one_change_differs_in_nothing_else(name, other, changes):
    own, there = values(name), values(other)
    assert {key: own[key] for key in own if own[key] != there[key]} == changes


@pytest.mark.parametrize(
    "name", [f"{name}-{size}" for name in ("siamesexml", "dpr", "ance") for size in ("131k", "1.3m")]
)
def test_rows_of_dexas_table_have_its_encoder_and_random_batches(name):
    own, dexa = values(name), values("dexa-131k")
    assert own["encoder.model"] == dexa["encoder.model"] == DISTILBERT and own["encoder.pooling"] == "mean"
    assert own["encoder.cluster_from"] > own["encoder.epochs"] and own["encoder.positives"] == 1
    assert "DistilBERT" in head(name) and "[DEXA] Table 2" in head(name)


@pytest.mark.parametrize(
    ("name", "pool", "positives", "most"),
    [("depsl-1.3m", 4000, 22.2, 1.1), ("unidec-1.3m", 3000, 22.2, 1.1), ("unidec-131k", 3000, 2.29, 1.6)],
)
def test_as_many_labels_are_drawn_for_a_batch_as_the_papers_pool_has(name, pool, positives, most):
    own = values(name)
    drawn = own["train.batch_size"] * (min(own["beta"], positives) + own["eta"])
    assert pool <= drawn <= most * pool
    assert f"= {own['train.batch_size']} documents" in head(name) and f"|L_B| = {pool} labels" in head(name)
    assert f"= {drawn:.0f} labels" in head(name)


RATES_OF_RENEE = [("renee-131k", 0.05, 512), ("renee-1.3m", 0.01, 1024), ("renee-gandalf-131k", 0.05, 512)]


@pytest.mark.parametrize(("name", "lr", "batch"), RATES_OF_RENEE)
def test_renees_rates_are_converted_from_the_sum_over_a_batch_to_its_mean(name, lr, batch):
    own = values(name)
    assert own["classifier.batch_size"] == batch
    assert own["classifier.lr"] == pytest.approx(lr * batch)
    assert float(own["classifier.lr"]) * float(own["classifier.weight_decay"]) == pytest.approx(lr * 1e-4, rel=1e-3)


def head(name: str) -> str:
    """The comment at the recipe's head, without marks."""
    return " ".join(line.strip("# ") for line in layers(name)[-1].head.splitlines())


@pytest.mark.parametrize("name", FILES)
def test_the_head_names_method_source_and_departures(name):
    title = complete(name, ROOT).title
    assert title.endswith(".") and len(title) <= 118
    assert title.lower().startswith(name.split("-")[0])
    assert "Source: [" in head(name) and "Differs from the paper" in head(name)
    others = set(re.findall(r"\b([\w.-]+)\.yaml", head(name))) - {"params", "dvc"}
    assert others <= set(FILES)


def test_sources_are_in_the_table_of_papers():
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    known = "\n".join(page.read_text(encoding="utf-8") for page in pages)
    texts = [file.read_text(encoding="utf-8") for file in [*FILES.values(), ROOT / "docs" / "methods.md"]]
    keys = {key.removesuffix(" code") for text in texts for key in re.findall(r"\[([A-Z][\w -]+)\](?!\()", text)}
    assert {"DEXA", "Renee", "Kharbanda 2024"} <= keys
    assert [key for key in sorted(keys) if f"| [{key}] |" not in known] == []


# --- docs/methods.md --------------------------------------------------------------------------------------------------


def test_the_methods_page_names_code_and_recipes_that_exist():
    text = (ROOT / "docs" / "methods.md").read_text(encoding="utf-8")
    named = re.findall(r"`(\w+)`(?:, `\w+`)* in `([\w/]+\.py)`", text)
    assert len(named) > 15
    for group, file in re.findall(r"((?:`\w+`, )*`\w+`) in `([\w/]+\.py)`", text):
        code = (ROOT / file).read_text(encoding="utf-8")
        for name in re.findall(r"`(\w+)`", group):
            assert re.search(rf"^\s*(def|class) {name}\b|^{name} = ", code, flags=re.MULTILINE), (name, file)
    assert set(re.findall(r"`recipes/([\w.-]+)\.yaml`", text)) == set(FILES)


# --- putting one in place ---------------------------------------------------------------------------------------------


def git(folder: Path, *args: str) -> str:
    who = ["-c", "user.name=a", "-c", "user.email=a@b"]
    return subprocess.run(["git", *who, *args], cwd=folder, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def project(tmp_path) -> Path:
    """A folder with the repository's parameters and recipes, all committed."""
    (tmp_path / "unidec").mkdir()
    for name in ("params.yaml", "unidec/params.yaml", ".gitignore"):
        shutil.copy(ROOT / name, tmp_path / name)
    shutil.copytree(ROOT / "recipes", tmp_path / "recipes")
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "-m", "all")
    return tmp_path


def xc(folder: Path, *args) -> str:
    result = invoke(folder, main, ["recipe", *args])
    assert (result.exit_code, result.stderr) == (0, ""), result.stderr
    return result.stdout


def refused(folder: Path, *args) -> str:
    result = invoke(folder, main, ["recipe", *args])
    assert result.exit_code == 1 and result.stdout == "" and result.stderr.count("\n") == 1
    return result.stderr


def contents(folder: Path) -> dict[str, bytes]:
    """Every file but git's."""
    files = [file for file in folder.rglob("*") if file.is_file() and ".git" not in file.parts]
    return {file.relative_to(folder).as_posix(): file.read_bytes() for file in files}


@pytest.mark.parametrize("name", ["dpr", "depsl", "renee-131k"])
def test_a_recipe_is_put_in_place_and_git_gives_the_old_file_back(project, name):
    before = contents(project)
    said = xc(project, name)
    place = place_of(name)
    assert (project / place).read_text(encoding="utf-8") == written(name)
    assert f"{place} is now recipe {name}." in said and f"Back: git checkout {place}" in said
    assert ("Next: dvc repro unidec/dvc.yaml," if name in UNIFIED else "Next: dvc repro,") in said
    assert contents(project) == before | {place: written(name).encode()}
    git(project, "checkout", place)
    assert contents(project) == before


def test_a_unified_recipe_says_where_its_dataset_is(project):
    said = xc(project, "depsl").splitlines()
    assert said[-2] == "Its dataset is that of params.yaml, data/raw/hpo."
    assert said[-1] == "Next: dvc repro unidec/dvc.yaml, then dvc metrics show unidec/metrics.json"


@pytest.mark.parametrize("name", [name for name in LARGE if name in UNIFIED])
def test_a_unified_recipe_for_a_certain_dataset_says_the_command_that_sets_it(project, name):
    dataset = f"data/raw/LF-AmazonTitles-{name.rpartition('-')[2].upper()}"
    said = xc(project, name)
    assert "dvc repro" not in said and "Its dataset" not in said
    assert f"It is for {dataset}; the dataset of params.yaml is another one, data/raw/hpo" in said
    command = next(line.removeprefix("Next: ") for line in said.splitlines() if line.startswith("Next: "))
    assert command.startswith(f"dvc exp run unidec/dvc.yaml -S dataset={dataset} -S prepare.") and command in head(name)
    assert complete(name, ROOT).command == command
    text = (project / "params.yaml").read_text(encoding="utf-8").replace(f"dataset: {ANY}", f"dataset: {dataset}")
    (project / "params.yaml").write_text(text, encoding="utf-8")
    said = xc(project, name)
    assert f"Its dataset is that of params.yaml, {dataset}." in said and f"Next: {command}" in said


def test_only_recipes_for_a_certain_dataset_have_a_command_of_their_own():
    assert {name for name in FILES if complete(name, ROOT).command} == set(LARGE) & set(UNIFIED)


def test_uncommitted_changes_are_kept_beside_the_file(project):
    file = project / "params.yaml"
    changed = file.read_bytes().replace(b"epochs: 10 ", b"epochs: 11 ")
    file.write_bytes(changed)
    said = xc(project, "ngame")
    assert (project / "params.yaml.before").read_bytes() == changed
    assert "they are in params.yaml.before. Back: mv params.yaml.before params.yaml" in said
    assert "before" not in git(project, "status", "--porcelain")
    shutil.move(project / "params.yaml.before", file)
    assert file.read_bytes() == changed


@pytest.mark.parametrize("staged", [False, True])
def test_an_earlier_copy_is_never_written_over(project, staged):
    file = project / "unidec" / "params.yaml"
    kept = []
    for number in (1, 2, 3, 2):
        file.write_bytes((ROOT / "unidec/params.yaml").read_bytes() + f"# {number}\n".encode())
        kept.append(file.read_bytes())
        if staged:
            git(project, "add", ".")
        said = xc(project, "depsl")
    copies = {path: content for path, content in contents(project).items() if ".before" in path}
    names = [f"unidec/params.yaml.before{mark}" for mark in ("", "-2", "-3")]
    assert copies == dict(zip(names, kept[:3]))
    assert "they are in unidec/params.yaml.before-2." in said


def test_one_recipe_after_another_leaves_nothing_behind(project):
    xc(project, "dpr")
    before = contents(project)
    assert "Back: xc recipe dpr" in xc(project, "ance")
    assert xc(project, "ance").startswith("params.yaml is recipe ance already.")
    xc(project, "dpr")
    assert contents(project) == before


def test_without_git_the_present_file_is_kept(project, monkeypatch):
    shutil.rmtree(project / ".git")
    old = (project / "params.yaml").read_bytes()
    xc(project, "dpr")
    assert (project / "params.yaml.before").read_bytes() == old
    monkeypatch.setenv("PATH", "")
    (project / "params.yaml").write_bytes(old + b"# mine\n")
    xc(project, "dpr")
    assert (project / "params.yaml.before-2").read_bytes() == old + b"# mine\n"


@pytest.mark.parametrize("content", [None, b"K: [", b"K: \xff", b"- a\n"])
def test_a_file_that_is_missing_or_damaged_is_replaced(project, content):
    file = project / "params.yaml"
    file.unlink()
    if content is not None:
        file.write_bytes(content)
    assert ("params.yaml.before" in xc(project, "dpr")) == (content is not None)
    assert file.read_text(encoding="utf-8") == written("dpr")
    assert content is None or (project / "params.yaml.before").read_bytes() == content


def test_nothing_is_written_when_the_disk_is_full(project, monkeypatch):
    def full(_):
        raise OSError(28, "No space left on device")

    (project / "params.yaml").write_bytes((ROOT / "params.yaml").read_bytes() + b"# mine\n")
    before = (project / "params.yaml").read_bytes()
    monkeypatch.setattr("os.fsync", full)
    assert "No space left" in refused(project, "dpr")
    assert (project / "params.yaml").read_bytes() == before


@pytest.mark.parametrize(
    "dataset",
    ["my.csv", "data/raw/mine", "/a b/c: d #e.csv", "true", "-x", "C:\\new", 'say "hi".csv', "größe/\U0001f600"],
)
def test_the_dataset_stays_unless_the_recipe_is_for_a_certain_one(project, dataset):
    file = project / "params.yaml"
    text = file.read_text(encoding="utf-8").replace(
        "dataset: " + ANY, "dataset: " + json.dumps(dataset, ensure_ascii=False)
    )
    file.write_text(text, encoding="utf-8")
    git(project, "commit", "--quiet", "-am", "own")
    assert f"It keeps your dataset, {dataset}." in xc(project, "dpr")
    assert flat(read(file)) == values("dpr") | {"dataset": dataset}
    assert "# a folder or a file" in file.read_text(encoding="utf-8")
    assert "* dpr " in xc(project) and "dataset" not in xc(project, "--show", "dpr")
    assert "data/raw/LF-AmazonTitles-131K" in xc(project, "--show", "dexa-131k")
    # The dataset is named in this file alone, which is a recipe otherwise: it must not be lost.
    assert "they are in params.yaml.before." in xc(project, "dexa-131k")
    assert read(file)["dataset"] == "data/raw/LF-AmazonTitles-131K"
    assert flat(read(project / "params.yaml.before")) == values("dpr") | {"dataset": dataset}


def test_all_recipes_are_listed_and_those_in_place_are_marked(project):
    lines = xc(project).splitlines()
    assert sorted(line[2:].split()[0] for line in lines) == sorted(FILES)
    assert [line.split()[1] for line in lines if line.startswith("*")] == ["dexa", "unidec"]
    assert all(any(f" {name} " in line and head(name)[:40] in line for line in lines) for name in FILES)
    xc(project, "ngame")
    (project / "unidec" / "params.yaml").write_text("beta: [")
    (project / "recipes" / "own.yaml").write_text("K: [")
    lines = xc(project).splitlines()
    assert [line.split()[1] for line in lines if line.startswith("*")] == ["ngame"]
    assert "cannot be used: recipes/own.yaml is not valid YAML" in next(line for line in lines if " own " in line)


def test_show_is_a_table_of_the_differences_and_changes_nothing(project):
    before = contents(project)
    lines = [line.split() for line in xc(project, "--show", "dexml").splitlines()]
    assert lines[0] == ["present", "dexml"]
    there = values("params.yaml")
    assert lines[1:] == [[key, str(there[key]), str(new)] for key, new in METHODS["dexml"].items()]
    assert xc(project, "--show", "dexa") == "params.yaml has the values of recipe dexa.\n"
    assert contents(project) == before
    shown = xc(project, "--show", "renee").splitlines()
    assert any(line.split() == ["classifier.normalise", "true", "false"] for line in shown)


def test_lines_that_one_file_lacks_are_shown(project):
    file = project / "params.yaml"
    file.write_text(file.read_text().replace("  chunk: 4096", "  chunks: 4096"))
    lines = [line.split() for line in xc(project, "--show", "dexa").splitlines()[1:]]
    assert lines == [["encoder.chunk", "-", "4096"], ["encoder.chunks", "4096", "-"]]


@pytest.mark.parametrize(
    ("args", "parts"),
    [
        (["dexxa"], ["no recipe 'dexxa'", "did you mean dexa", "`xc recipe` lists them all."]),
        (["NGAME"], ["did you mean ngame"]),
        (["../params"], ["no recipe '../params'"]),
        (["zzzz"], ["no recipe 'zzzz': `xc recipe`"]),
        (["--show"], ["--show wants the name"]),
    ],
)
def test_an_unknown_name_is_one_sentence(project, args, parts):
    before = contents(project)
    said = refused(project, *args)
    assert all(part in said for part in parts)
    assert contents(project) == before


def test_a_recipe_that_is_wrong_is_refused_and_nothing_changes(project):
    wrong = FILES["dexa"].read_text().replace("margin: 0.3", "margin: -1")
    (project / "recipes" / "own.yaml").write_text(wrong)
    less = re.sub(r"^score:\n(  .*\n)+", "", FILES["unidec"].read_text(), flags=re.MULTILINE)
    (project / "recipes" / "less.yaml").write_text(less)
    before = contents(project)
    assert "recipes/own.yaml: encoder.margin is -1" in refused(project, "own")
    assert "recipes/less.yaml: score must be a section" in refused(project, "less")
    assert contents(project) == before


WRONG_BASES = {
    "nowhere": ("base: dexxa\nK: 0\n", ["its base 'dexxa' is no recipe", "did you mean dexa"]),
    "number": ("base: 5\n", ["base is 5; it must be the name of a recipe"]),
    "itself": ("base: own\n", ["go in a circle, own - own"]),
    "round": ("base: other\n", ["go in a circle, own - other - own"]),
    "section": ("base: dexa\nencodr: {lr: 0.1}\n", ["encodr is not in its base dexa; known there: K, dataset, seed"]),
    "value": ("base: dpr\nencoder: {rate: 0.1}\n", ["encoder.rate is not in its base dpr; known there: kind, model"]),
    "other pipeline": ("base: unidec\nK: 0\n", ["K is not in its base unidec; known there: beta, eta"]),
    "no section": ("base: dexa\nencoder: 5\n", ["encoder must be a section of `name: value` lines, not 5"]),
    "nothing": ("base: dexa\nencoder:\n", ["encoder must be a section of `name: value` lines, not None"]),
    "no value": ("base: dexa\nseed: {a: 1}\n", ["seed must be a value, not {'a': 1}"]),
    "twice": ("base: dexa\nK: 0\nK: 1\n", ["is not valid YAML"]),
    "range": ("base: dpr\nencoder: {margin: -1}\n", ["encoder.margin is -1"]),
}


@pytest.mark.parametrize(("text", "parts"), WRONG_BASES.values(), ids=WRONG_BASES)
def test_a_recipe_that_does_not_go_with_its_base_is_one_sentence_that_names_the_file(project, text, parts):
    (project / "recipes" / "own.yaml").write_text(text)
    (project / "recipes" / "other.yaml").write_text("base: own\n")
    before = contents(project)
    said = refused(project, "own")
    assert "recipes/own.yaml" in said and all(part in said for part in parts)
    assert contents(project) == before
    assert len(xc(project).splitlines()) == len(FILES) + 2  # the others can still be seen and used


def test_the_file_that_sets_a_wrong_value_is_named_and_not_the_one_that_was_asked_for(project):
    (project / "recipes" / "other.yaml").write_text("base: dexa\nencoder: {margin: -1}\n")
    (project / "recipes" / "own.yaml").write_text("base: other\nK: 0\n")
    assert "recipes/other.yaml: encoder.margin is -1" in refused(project, "own")


def test_a_users_recipe_with_a_base_is_put_in_place_with_its_head_and_notes(project):
    head = "# Mine: with fewer steps.\n#\n# It is quicker.\n"
    values = "base: ngame\nencoder:\n  epochs: 1e1  # enough\nscore: {tau: .2}  # tried\nindex: {m: 9}  # tried too\n"
    (project / "recipes" / "own.yaml").write_text(head + values)
    assert "own  " in xc(project) and "Mine: with fewer steps." in xc(project)
    assert "params.yaml is now recipe own." in xc(project, "own")
    lines = (project / "params.yaml").read_text(encoding="utf-8").splitlines()
    assert lines[:5] == [*head.splitlines(), "#", layers("dexa")[0].body.splitlines()[0]]
    for line in (
        "  epochs: 1e1          # 0 = the encoder as it is; enough",
        "  tau: .2              # temperature of the memory's weights; tried",
        "  m: 9                 # links per vector; auto: 12, or 16 above 50,000 vectors; tried too",
        "  recall: 0.95         # share of the true ten nearest that a search must find; it sets how far searches look",
    ):
        assert line in lines
    assert "Back: xc recipe own" in xc(project, "dpr")


@pytest.mark.parametrize("text", ["# Flow.\n{}", "{}"], ids=["with a head", "without one"])
def test_a_users_complete_recipe_may_be_written_in_any_way_and_be_a_base(project, text):
    trees = json.dumps(values_of("dexa", ROOT))
    (project / "recipes" / "mine.yaml").write_text(text.format(trees) + "\n")
    (project / "recipes" / "own.yaml").write_text("base: mine\nK: 7\nencoder: {lr: 0.5, loss: 'triplet'}  # tried\n")
    xc(project, "own")
    expected = values("dexa") | {"K": 7, "encoder.lr": 0.5, "encoder.loss": "triplet"}
    assert flat(read(project / "params.yaml")) == expected
    xc(project, "mine")
    assert (project / "params.yaml").read_text() == text.format(trees) + "\n"


def test_in_a_folder_without_recipes_are_those_that_came_with_longtail(tmp_path):
    lines = xc(tmp_path).splitlines()
    assert {line[2:].split()[0] for line in lines} >= set(FILES)
    assert "params.yaml is now recipe dpr." in xc(tmp_path, "dpr")
    assert "unidec/params.yaml is now recipe depsl." in xc(tmp_path, "depsl")
    assert (tmp_path / "params.yaml").read_text(encoding="utf-8") == written("dpr")
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes" / "own.yaml").write_text("base: ance\nseed: 5\n")
    xc(tmp_path, "own")
    assert flat(read(tmp_path / "params.yaml")) == values("ance") | {"seed": 5}
    assert len(xc(tmp_path).splitlines()) == len(lines) + 1


def test_without_any_recipes_it_says_where_to_run(tmp_path, monkeypatch):
    monkeypatch.setattr("longtail.recipes.find", Path)
    assert "run from the folder that holds dvc.yaml" in refused(tmp_path)


# --- any values -------------------------------------------------------------------------------------------------------

WORDS = st.text(st.characters(max_codepoint=0xFFFF, exclude_categories=["Cs"]), max_size=12).map(json.dumps)
PLAIN = st.sampled_from(["1e-4", "0.000010", "-.5", "~", "true", "a b", "data/raw/x", "'it''s: #1'", "[1, 2]", "0x1F"])
NUMBERS = st.one_of(st.integers(), st.floats(allow_nan=False, allow_infinity=False)).map(json.dumps)
SPELLED = st.one_of(NUMBERS, WORDS, PLAIN)
NOTES = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=120).map(lambda note: note.strip(" #"))
LINES = {name: [*flat(values_of(name, ROOT))] for name in ("dexa", "unidec")}


@st.composite
def chains(draw) -> tuple[str, list[tuple[dict[str, str], str, bool]]]:
    """(a complete recipe, and for each of some recipes above it its values, their note, and whether in braces)."""
    bottom = draw(st.sampled_from(sorted(LINES)))
    changes = st.dictionaries(st.sampled_from(LINES[bottom]), SPELLED, max_size=8)
    return bottom, draw(st.lists(st.tuples(changes, NOTES, st.booleans()), min_size=1, max_size=3))


def spelled(base: str, changes: dict[str, str], note: str, braces: bool) -> str:
    """A recipe of these values with a note on each."""
    lines, sections, behind = [f"base: {base}"], {}, f"  # {note}" if note else ""
    for name, value in changes.items():
        section, _, key = name.rpartition(".")
        sections.setdefault(section, []).append(f"{key}: {value}")
    for section, parts in sections.items():
        if section and braces:
            lines.append(f"{section}: {{{', '.join(parts)}}}{behind}")
        else:
            lines += (
                [f"{section}:", *(f"  {part}{behind}" for part in parts)] if section else [p + behind for p in parts]
            )
    return "\n".join(lines) + "\n"


@settings(max_examples=60, deadline=None)
@given(chains())
def test_what_is_written_reads_back_as_the_values_of_all_layers(tmp_path_factory, chain):
    base, recipes = chain
    root = tmp_path_factory.mktemp("any")
    (root / "recipes").mkdir()
    expected, notes, untouched = values(base), {}, lines_of(written(base))
    for number, (changes, note, braces) in enumerate(recipes):
        file = root / "recipes" / f"r{number}.yaml"
        file.write_text(spelled(base, changes, note, braces), encoding="utf-8")
        expected |= {key: value for key, value in flat(read(file)).items() if key != "base"}
        notes |= dict.fromkeys(changes, note)
        base = file.stem
    made = complete(base, root)
    assert list(flat(made.tree).items()) == list(expected.items())
    assert flat(YAML(typ="safe").load(made.text)) == expected
    lines = lines_of(made.text)
    for key, line in untouched.items():
        assert lines[key].endswith(notes[key]) if key in notes else lines[key] == line


# --- runs on tiny data ------------------------------------------------------------------------------------------------

# Sizes of things: what the tiny project has in their stead. Lengths of training, data and checkpoints are its own too.
SIZES = re.compile(r"dataset|(prepare|embed)\..*|.*\.(model|epochs|batch_size|warmup|buckets|dim)|index\..*|score\..*")
RATES = {"encoder.lr", "encoder.aux_lr", "train.lr", "train.head_lr", "train.classifier_lr", "classifier.encoder_lr"}


def method_of(name: str) -> dict:
    """What the recipe changes apart from sizes; rates of the encoder only where they are a transformer's, or 0."""
    own, there = values(name), values(place_of(name))
    changes = {key: value for key, value in own.items() if value != there[key] and not SIZES.fullmatch(key)}
    return {key: value for key, value in changes.items() if key not in RATES or value == 0 or name in LARGE}


def assert_sound(file: Path, rows: set[str]) -> None:
    """The rows are there, and every figure is a percentage."""
    report = json.loads(file.read_text(encoding="utf-8"))
    assert rows <= set(report)
    assert all(0 <= figure <= 100 for row in report.values() for figure in row.values())


def assert_trained(folder: Path, section: str, expected: dict) -> None:
    """The stage used the recipe's values, and every step's loss was finite."""
    used = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))["parameters"]
    for key, value in expected.items():
        if key.startswith(f"{section}."):
            assert used[key.partition(".")[2]] == value, key
    for row in (folder / "curve-choose.csv").read_text().splitlines()[1:]:
        _, loss, skipped = row.split(",")[:3]
        assert math.isfinite(float(loss)) and skipped == "0"


@pytest.mark.stage
@pytest.mark.parametrize(
    "name", [name for name in [*SMALL, *LARGE] if name not in UNIFIED and (name in SMALL or name.endswith("-131k"))]
)
def test_the_method_runs_to_the_end(name, tiny_run, tiny_model, tmp_path):
    changes = method_of(name)
    given = {"K": 12 if values(name)["K"] else 0, **{key: v for key, v in changes.items() if key != "K"}}
    folder, stages = branch(tiny_run, tmp_path / "run", "gandalf", **small_checkpoint(tiny_model), **given)
    run_stages(folder, stages)
    assert_sound(folder / "metrics.json", {"BM25", "zero-shot", "encoder", "classifier", "memory", "fused"})
    for stage in ("encoder", "classifier"):
        assert_trained(folder / "data" / stage, stage, changes)
    aux = artifacts.load_array(folder / "data" / "encoder" / "final", "aux")
    assert len(aux) == given["K"]
    texts = artifacts.load_array(folder / "data" / "gandalf" / "final", "points")
    assert (len(texts) > 0) == (values(name)["gandalf.labels"] > 0)


@pytest.mark.stage
@pytest.mark.parametrize("loss", ["supcon", "infonce"])
@pytest.mark.parametrize("labels", ["batch", "all"])
def test_other_losses_of_the_encoder_run_over_the_batch_and_over_all_labels(
    loss, labels, tiny_run, tiny_model, tmp_path
):
    changes = {"encoder.loss": loss, "encoder.labels": labels, "encoder.mined": 2, "encoder.chunk": 7}
    folder, _ = branch(tiny_run, tmp_path / "run", "encoder", **small_checkpoint(tiny_model), **changes)
    run_stages(folder, ["encoder", "augment"])
    assert_trained(folder / "data" / "encoder", "encoder", changes)


@pytest.mark.stage
@pytest.mark.parametrize("name", [*(name for name in SMALL if name in UNIFIED), "unidec-131k", "depsl-1.3m"])
def test_the_unified_method_runs_to_the_end(name, tiny_run, tiny_model, tmp_path):
    changes = method_of(name)
    given = {f"{UNIDEC}:{key}": value for key, value in changes.items()}
    folder, stages = branch(tiny_run, tmp_path / "run", "unidec/embed", **small_checkpoint(tiny_model), **given)
    run_stages(folder, stages)
    rows = {"encoder", "memory", "fused"} | (set() if name.startswith("depsl") else {"concatenated", "classifier"})
    assert_sound(folder / "unidec" / "metrics.json", rows)
    assert_trained(folder / "unidec" / "data" / "train", "train", changes)
