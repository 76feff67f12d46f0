"""Digests of code: what counts as code of a pipeline, what changes a digest, and which code gives the same figures."""

import json
from pathlib import Path

import pytest

from study import code
from xcutils.core.errors import UserError
from xcutils.core.pipelines import MODULAR, PIPELINES, UNIDEC

STAGES = {
    "prepare": {"deps": ["${dataset}", "stages/prepare.py", "xcutils/core"], "outs": ["data/prepare"]},
    "encoder": {"deps": ["data/prepare", "stages/encoder.py", "xcutils/train"], "outs": ["data/encoder"]},
}
SECOND = {
    "train": {"wdir": "..", "deps": ["data/prepare", "unidec/train.py"], "outs": ["unidec/data/train"]},
    "score": {"deps": ["data/train", "score.py"], "outs": [{"data/score": {"cache": False}}]},
}
SOURCES = {
    "stages/prepare.py": "a = 1",
    "stages/encoder.py": "a = 2",
    "xcutils/core/ragged.py": "a = 3",
    "xcutils/core/inner/more.py": "a = 4",
    "xcutils/train/losses.py": "a = 5",
    "xcutils/rank/fusion.py": "a = 6",
    "unidec/train.py": "a = 7",
    "unidec/score.py": "a = 8",
}
FILES = {
    "dvc.yaml": json.dumps({"stages": STAGES}),
    "unidec/dvc.yaml": json.dumps({"stages": SECOND}),
    "data/prepare/notes.txt": "no code",
    **SOURCES,
}


@pytest.fixture
def same_results(tmp_path, monkeypatch):
    """A function that writes the table of code with the same figures."""
    file = tmp_path / "same-results.yaml"
    monkeypatch.setattr(code, "SAME_RESULTS", file)

    def write(text: str) -> None:
        file.write_text(text)

    write("{}")
    return write


@pytest.fixture
def tree(repository, tmp_path, same_results) -> Path:
    """A working tree with FILES."""
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def files_of(pipeline) -> set[str]:
    trees = {"": {"stages": STAGES}, "unidec": {"stages": SECOND}}
    return set(code.source_files(FILES, code.dependencies(trees, pipeline)))


def test_code_is_that_of_the_stages_and_of_those_before_them():
    rooms = {"stages/prepare.py", "xcutils/core/ragged.py", "xcutils/core/inner/more.py"}
    assert files_of(MODULAR) == rooms | {"stages/encoder.py", "xcutils/train/losses.py"}
    assert files_of(UNIDEC) == rooms | {"unidec/train.py", "unidec/score.py"}


def test_a_commit_and_a_working_tree_with_the_same_code_have_the_same_digest(repository, tree):
    commit = repository("one", FILES)
    digests = {code.digest_at(commit, pipeline) for pipeline in PIPELINES.values()}
    assert digests == {code.digest_now(pipeline) for pipeline in PIPELINES.values()} and len(digests) == 2


@pytest.mark.parametrize(
    ("name", "text", "of_modular", "of_unidec"),
    [
        ("xcutils/core/ragged.py", "a = 0", True, True),
        ("xcutils/core/new.py", "a = 0", True, True),
        ("xcutils/core/ragged.py", '"""What it is."""\n\n\na = (  # why\n    3\n)', False, False),
        ("xcutils/train/losses.py", "a = 0", True, False),
        ("unidec/train.py", "a = 0", False, True),
        ("xcutils/rank/fusion.py", "a = 0", False, False),
        ("data/prepare/notes.txt", "other", False, False),
    ],
)
def test_a_digest_changes_with_what_the_code_of_its_pipeline_does(tree, name, text, of_modular, of_unidec):
    before = [code.digest_now(pipeline) for pipeline in (MODULAR, UNIDEC)]
    (tree / name).write_text(text)
    after = [code.digest_now(pipeline) for pipeline in (MODULAR, UNIDEC)]
    assert [one != other for one, other in zip(before, after)] == [of_modular, of_unidec]


def test_a_file_that_is_gone_changes_the_digest(tree):
    before = code.digest_now(MODULAR)
    (tree / "xcutils/core/ragged.py").unlink()
    assert code.digest_now(MODULAR) != before


def test_a_commit_of_something_else_has_a_digest_of_no_code(repository, tree):
    assert code.digest_at(repository("two", {"a": "b"}), MODULAR) == code.digest({}) not in code.current()


def test_code_of_one_group_gives_the_same_figures(tree, same_results):
    modular, unified = (code.digest_now(pipeline) for pipeline in (MODULAR, UNIDEC))
    assert code.current() == {modular, unified}
    same_results(f'one:\n  "{modular}": first\n  "a1": compared\nother:\n  "b2": first\n  "b3": compared\n')
    assert code.current() == {modular, unified, "a1"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('one:\n  "a1": first\nother:\n  "a1": again\n', "a1 is there twice"),
        ("one: [a1, a2]\n", "one must hold lines like"),
        ("one:\n  123456789012: first\n", "one must hold lines like"),
        ('one:\n  "a1":\n', "one must hold lines like"),
    ],
)
def test_a_table_that_says_nothing_clear_is_refused(same_results, text, message):
    same_results(text)
    with pytest.raises(UserError, match=message):
        code.read_groups(code.SAME_RESULTS)


def test_the_table_of_this_repository_can_be_read_and_every_record_has_a_digest():
    from study import records
    from study.findings import RESULTS

    groups = code.read_groups(code.SAME_RESULTS)
    recorded = {record.code for record in records.read(RESULTS).values()}
    assert len(groups) >= len(PIPELINES) and all(set(group) & recorded for group in groups.values())


def test_the_command_prints_what_to_add_to_the_table(tree, same_results, capsys):
    modular, unified = (code.digest_now(pipeline) for pipeline in (MODULAR, UNIDEC))
    same_results(f'known:\n  "{modular}": first\n')
    code.main([], standalone_mode=False)
    first, second = capsys.readouterr().out.splitlines()
    assert first == f'dvc.yaml: "{modular}" is in the group `known` of same-results.yaml'
    assert second == f'unidec/dvc.yaml: "{unified}" is in no group of same-results.yaml'


@pytest.mark.parametrize(
    "one, other, same",
    [
        ("def f():\n    return 1", "def f():  # one\n    'It is one.'\n    return 1\n", True),
        ("def f():\n    return 1", "def f():\n    return 2", False),
        ("class A:\n    'An A.'", "class A:\n    'A B.'", True),
        ("A = 'text'", "A = 'other text'", False),
        ("f(a, b=None)", "f(a)", False),
        ("A = None", "A = 0", False),
        ("A = [1, 2]", "A = [[1], 2]", False),
    ],
)
def test_what_code_means_is_what_it_does(one, other, same):
    assert (code.meaning(one) == code.meaning(other)) == same


def test_what_code_means_is_the_same_in_every_version_of_python():
    """The records of one machine are read on another: this digest was made with Python 3.11."""
    text = "@a\nclass A(B):\n  n: int = 1\n  def f(self, *x, y=None) -> str:\n    return f'{x!r:>{y}} {self.n}'\n"
    assert code.meaning(text) == "32fe3147bd70883ba8cc2d7c406f7713"
