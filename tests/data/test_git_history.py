"""Repositories made by git itself, read as datasets."""

import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from longtail.cli import main
from testing.tiny import invoke
from xcutils.core.errors import UserError
from xcutils.data import commits
from xcutils.data.corpora import Dataset, split_validation
from xcutils.data.datasets import load_dataset, write_xc
from xcutils.data.git_history import MOST_CHARACTERS, MOST_FILES, is_bookkeeping, text_of, words_of

BEGIN = 1_600_000_000  # seconds of the first commit; each is a minute after the one before


def content(name: str, lines: int = 20) -> str:
    """Lines that no other file has, so that a file is told by its content."""
    return "".join(f"line {n} of {name}\n" for n in range(lines))


class History:
    """A repository, and the hashes of its commits by message."""

    def __init__(self, folder: Path, *options: str):
        self.folder = folder
        self.hashes: dict[str, str] = {}
        self.minutes = 0
        folder.mkdir(parents=True)
        self.git("init", "--quiet", "--initial-branch=main", *options)

    def git(self, *arguments: str, input: bytes = b"", **env: str) -> str:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
        own = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1", "GIT_ALLOW_PROTOCOL": "file"}
        for who in ("AUTHOR", "COMMITTER"):
            own |= {f"GIT_{who}_NAME": "Ann", f"GIT_{who}_EMAIL": "ann@example.org"}
            own[f"GIT_{who}_DATE"] = f"{BEGIN + 60 * self.minutes} +0000"
        done = subprocess.run(
            ["git", *arguments], cwd=self.folder, env=kept | own | env, check=True, capture_output=True, input=input
        )
        return done.stdout.decode("utf-8", "replace").strip()

    def write(self, **files: str | None) -> None:
        """Write the files, or remove those that are None; `__` in a name is a dot."""
        for name, text in files.items():
            path = self.folder / name.replace("__", ".")
            if text is None:
                path.unlink()
            else:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8")

    def commit(self, message: str | bytes, *options: str, author: str = "Ann", **files: str | None) -> str:
        """The hash of a commit that changes the files, or what was changed before."""
        self.write(**files)
        self.git("add", "--all")
        raw = message if isinstance(message, bytes) else message.encode()
        wanted = ["--quiet", "--allow-empty", "--allow-empty-message", "--cleanup=verbatim", "--file=-", *options]
        self.git("commit", *wanted, input=raw, GIT_AUTHOR_NAME=author)
        self.minutes += 1
        hash = self.git("rev-parse", "HEAD")
        self.hashes[raw.decode("utf-8", "replace")] = hash
        return hash

    def touch(self, message: str, *names: str, **options: str) -> str:
        """The hash of a commit that adds a line to each file, which is made if it is not there."""
        texts = {name: self.folder / name.replace("__", ".") for name in names}
        files = {name: path.read_text() if path.exists() else content(name) for name, path in texts.items()}
        return self.commit(message, **options, **{name: f"{text}{message}\n" for name, text in files.items()})

    def move(self, message: str, *pairs: tuple[str, str]) -> str:
        """The hash of a commit that renames files."""
        for old, new in pairs:
            (self.folder / new).parent.mkdir(parents=True, exist_ok=True)
            self.git("mv", old, new)
        return self.commit(message)


@pytest.fixture
def history(tmp_path) -> History:
    return History(tmp_path / "mine")


def later(history: History, count: int = 6) -> None:
    """Commits that take the test split up, so that what stands before them is for training."""
    for n in range(count):
        history.touch(f"later {n}", "later")


def labels(data: Dataset) -> dict[str, set[str]]:
    """The labels of each doc of both splits, by its text."""
    return {
        text: {data.label_ids[label] for label in corpus.positives[row]}
        for corpus in (data.train, data.test)
        for row, text in enumerate(corpus.texts)
    }


def assert_same(one: Dataset, two: Dataset) -> None:
    assert (one.label_ids, one.label_texts) == (two.label_ids, two.label_texts)
    for mine, theirs in ((one.train, two.train), (one.test, two.test)):
        assert (mine.ids, mine.texts, mine.identity) == (theirs.ids, theirs.texts, theirs.identity)
        assert np.array_equal(mine.positives.values, theirs.positives.values)
        assert np.array_equal(mine.positives.offsets, theirs.positives.offsets)


def test_messages_are_docs_and_files_are_labels(history):
    history.touch("Add the Reader\n\nIt reads.\n", "src/tableReader__py", "README__md")
    history.touch("Read faster", "src/tableReader__py")
    history.touch("Say so", "README__md")
    history.touch("Read less", "src/tableReader__py")
    data = load_dataset(history.folder)
    assert data.name == "mine"
    assert data.train.texts == ["Add the Reader It reads.", "Read faster", "Say so"]
    assert data.train.ids == list(history.hashes.values())[:3]
    assert (data.test.ids, data.test.texts) == ([history.hashes["Read less"]], ["Read less"])
    assert data.label_ids == ["README.md", "src/tableReader.py"]
    assert data.label_texts == ["README md", "src table Reader py"]
    assert labels(data) == {
        "Add the Reader It reads.": {"README.md", "src/tableReader.py"},
        "Read faster": {"src/tableReader.py"},
        "Say so": {"README.md"},
        "Read less": {"src/tableReader.py"},
    }
    assert data.skipped == {} and data.report.total == 0
    head = history.hashes["Read less"][:10]
    assert data.report.notes == [f"{history.folder}: text = messages of 4 commits up to {head}, labels = their files"]


# Texts


@pytest.mark.parametrize(
    ("message", "text"),
    [
        ("", ""),
        ("\n \n", ""),
        ("subject", "subject"),
        ("  subject\n\n\tthe  body\n  goes on \n", "subject the body goes on"),
        ("subject (#123)\n\nbody (#4)", "subject body (#4)"),
        ("subject\n\nbody\n\nSigned-off-by: A <a@b>\nCo-authored-by: B <b@c>\n\nReviewed-by: C\n", "subject body"),
        ("subject\n\nChange-Id: I0123\n", "subject"),
        ('subject\n\nFixes: 0123abc ("a thing")\nLink: https://example.org\nCc: x', "subject"),
        ("subject\n\nbody\n\nFixes #12.\n", "subject body"),
        ("subject\n\n(cherry picked from commit 0123abc)\n[ann: made it build]\n", "subject"),
        ("subject\n\nbody\n\ngit-svn-id: https://example.org/trunk@12 0000-11\n", "subject body"),
        ("subject\n\nbody\n---------\n\nCo-authored-by: B <b@c>", "subject body"),
        ("sub-command: a subject", "sub-command: a subject"),
        ("subject\n\nSigned-off-by: A\nis said before this", "subject Signed-off-by: A is said before this"),
        ("subject\r\n\r\nbody\r\n\r\nSigned-off-by: A\r\n", "subject body"),
        (" ".join(f"w{n}" for n in range(60)), " ".join(f"w{n}" for n in range(40))),
        ("字" * 2000, "字" * MOST_CHARACTERS),
    ],
)
def test_a_text_is_subject_and_body_without_trailers(message, text):
    assert text_of(message) == text


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("xcutils/data/git_history.py", "xcutils data git history py"),
        ("src/HTTPServerTest.java", "src HTTP Server Test java"),
        ("fooBar2Baz-qux.min.js", "foo Bar2 Baz qux min js"),
        ("Makefile", "Makefile"),
        (".github/CODEOWNERS", "github CODEOWNERS"),
        ("a file\nof two lines.txt", "a file of two lines txt"),
        ("größe/Überblick.md", "größe Überblick md"),
        ("__", "__"),
    ],
)
def test_a_labels_text_is_its_path_in_words(path, words):
    assert words_of(path) == words


def test_a_message_that_is_not_utf8_is_mended(history):
    """`git commit` would mend it too, but older programs did not."""
    raw = b"caf\xe9 without a word on its encoding"
    head = f"commit refs/heads/main\ncommitter Ann <ann@example.org> {BEGIN} +0000\ndata {len(raw)}\n".encode()
    history.git("fast-import", "--quiet", input=head + raw + b"\nM 644 inline a\ndata 2\nx\n\n")
    history.git("reset", "--quiet", "--hard")
    history.git("config", "i18n.commitEncoding", "ISO-8859-1")
    history.commit(b"caf\xe9 with one", a=content("a"))
    history.git("config", "--unset", "i18n.commitEncoding")
    history.touch("café in UTF-8", "a")
    history.touch("the last", "a")
    data = load_dataset(history.folder)
    assert data.train.texts == ["caf\ufffd without a word on its encoding", "café with one", "café in UTF-8"]


# Labels


def test_renames_are_followed_to_the_name_at_the_end(history):
    history.touch("one", "a__py", "other__py")
    history.move("two", ("a.py", "b/a.py"))
    history.touch("three", "b/a__py")
    history.move("four", ("b/a.py", "b/c.py"))
    history.write(**{"b/c__py": (history.folder / "b/c.py").read_text() + "one more line\n"})
    history.move("five", ("b/c.py", "d.py"))
    later(history)
    data = load_dataset(history.folder)
    assert data.label_ids == ["d.py", "later", "other.py"]
    assert labels(data)["one"] == {"d.py", "other.py"}
    assert all(labels(data)[text] == {"d.py"} for text in ("two", "three", "four", "five"))
    assert data.skipped == {}


def test_a_name_that_was_given_to_another_file_is_that_file_from_then_on(history):
    history.touch("old a", "a__py")
    history.move("a becomes b", ("a.py", "b.py"))
    history.commit("new a", a__py=content("another thing"))
    history.touch("both", "a__py", "b__py")
    later(history)
    found = labels(load_dataset(history.folder))
    assert found["old a"] == found["a becomes b"] == {"b.py"}
    assert found["new a"] == {"a.py"} and found["both"] == {"a.py", "b.py"}


def test_two_files_that_change_places(history):
    history.touch("first", "a__py")
    history.touch("second", "b__py")
    history.move("away", ("a.py", "x.py"))
    history.move("into its place", ("b.py", "a.py"))
    history.move("and back", ("x.py", "b.py"))
    later(history)
    found = labels(load_dataset(history.folder))
    assert found["first"] == found["away"] == found["and back"] == {"b.py"}
    assert found["second"] == found["into its place"] == {"a.py"}


def test_a_branch_that_still_uses_the_old_name(history):
    history.touch("one", "a__py")
    history.git("checkout", "--quiet", "-b", "side")
    history.git("checkout", "--quiet", "main")
    history.move("renamed", ("a.py", "b.py"))
    history.git("checkout", "--quiet", "side")
    history.touch("on the side", "a__py")
    history.git("checkout", "--quiet", "main")
    history.git("merge", "--quiet", "--no-ff", "-m", "Merge side", "side")
    later(history)
    data = load_dataset(history.folder)
    assert labels(data)["one"] == labels(data)["on the side"] == {"b.py"}
    assert data.skipped == {"merges": 1}


def test_empty_files_are_no_renames_of_each_other(history):
    history.commit("one", **{"a/empty__py": "", "a/code__py": content("code")})
    history.commit("two", **{"a/empty__py": None, "b/empty__py": ""})
    later(history)
    data = load_dataset(history.folder)
    assert labels(data)["one"] == {"a/code.py"} and labels(data)["two"] == {"b/empty.py"}
    assert data.skipped == {"files_gone_at_HEAD": 1}


def simulated(rng: np.random.Generator, steps: int) -> tuple[bytes, dict[str, set[str]]]:
    """(a linear history for `git fast-import`, the labels of each message): files are told by numbers, not by names.

    A name that became free by a rename may be given to a new file; that file is not deleted, nor is the name of a
    deleted file given again. The last third of the commits are to one file of their own, to be the test split.
    """
    names: dict[int, str] = {}
    texts: dict[int, str] = {}
    touched: dict[str, set[int]] = {}
    free: list[str] = []
    kept: set[int] = set()
    lines = []
    for step in range(steps + steps // 2):
        message = f"step {step}" if step < steps else f"later {step}"
        lines += ["commit refs/heads/main", f"committer Ann <ann@example.org> {BEGIN + 60 * step} +0000"]
        lines += [f"data {len(message)}", message]
        if step >= steps:
            lines += ["M 644 inline later", f"data {len(message)}", message, ""]
            continue
        act = rng.choice(["make", "edit", "rename", "delete"], p=[0.3, 0.35, 0.25, 0.1]) if len(names) > 3 else "make"
        file = int(rng.choice([*names])) if names else 0
        if act == "make":
            file = len(texts)
            again = bool(free) and rng.random() < 0.5
            names[file], texts[file] = (free.pop() if again else f"d{file % 3}/new{file}.py"), content(f"file {file}")
            kept |= {file} if again else set()
        elif act == "edit":
            texts[file] += f"edited in {message}\n"
        elif act == "rename":
            old, names[file] = names[file], f"d{step % 4}/moved{step}.py"
            free.append(old)
            lines.append(f"R {old} {names[file]}")
        elif file not in kept:
            lines.append(f"D {names.pop(file)}")
        touched[message] = {file} if act != "delete" or file not in kept else set()
        if act in ("make", "edit"):
            lines += [f"M 644 inline {names[file]}", f"data {len(texts[file])}", texts[file]]
        lines.append("")
    found = {message: {names[file] for file in files if file in names} for message, files in touched.items()}
    return "\n".join(lines).encode(), {message: files for message, files in found.items() if files}


@pytest.mark.parametrize("seed", range(8))
def test_labels_are_those_of_a_simulation_that_knows_each_file(history, seed):
    stream, expected = simulated(np.random.default_rng(seed), steps=80)
    history.git("fast-import", "--quiet", input=stream)
    found = labels(load_dataset(history.folder))
    assert {text: names for text, names in found.items() if text.startswith("step")} == expected


def test_files_that_are_gone_are_no_labels(history):
    history.touch("made", "gone__py", "stays__py")
    history.touch("worked on", "gone__py")
    history.commit("taken out", gone__py=None)
    history.touch("made again", "back__py")
    history.commit("for a while", back__py=None)
    history.touch("and now", "back__py")
    later(history)
    data = load_dataset(history.folder)
    assert data.label_ids == ["back.py", "later", "stays.py"]
    assert labels(data)["made"] == {"stays.py"} and "worked on" not in labels(data)
    assert labels(data)["made again"] == labels(data)["for a while"] == {"back.py"}
    assert data.skipped == {"commits_without_labels": 2, "files_gone_at_HEAD": 1}


LOCKS = ["Cargo.lock", "a/package-lock.json", "yarn.lock", "poetry.lock", "dvc.lock", "pnpm-lock.yaml", "go.sum"]
LOCKS += ["npm-shrinkwrap.json", "bun.lockb", "gradle.lockfile", "packages.lock.json", "Package.resolved"]
CHANGELOGS = ["CHANGELOG.md", "docs/changelog", "ChangeLog-1.2.x.txt", "CHANGES.rst", "NEWS", "HISTORY.md"]
GENERATED = ["static/app.min.js", "a.css.map", "api_pb2.py", "api_pb2_grpc.py", "x.pb.go", "schema.generated.ts"]
BINARY = ["docs/logo.PNG", "a.woff2", "paper.pdf", "data.tar.gz", "lib.so"]
CODE = ["changelog.py", "changes.js", "src/history.c", "news/index.html", "lock.py", "locks.json", "block.yaml"]
CODE += ["admin.js", "README.md", "CHANGELOG/reader.py", "go.mod", "logo.svg", "a.pbx", "package.json", "Makefile"]


@pytest.mark.parametrize("path", [*LOCKS, *CHANGELOGS, *GENERATED, *BINARY])
def test_bookkeeping_files(path):
    assert is_bookkeeping(path)


@pytest.mark.parametrize("path", CODE)
def test_files_that_are_no_bookkeeping(path):
    assert not is_bookkeeping(path)


def test_bookkeeping_files_are_no_labels(history):
    history.touch("code", "a__py", "CHANGELOG__md", "poetry__lock")
    history.touch("a release", "CHANGELOG__md")
    later(history)
    data = load_dataset(history.folder)
    assert labels(data)["code"] == {"a.py"} and "a release" not in labels(data)
    assert data.skipped == {"commits_without_labels": 1, "bookkeeping_files": 2}


ODD = ["two words.py", 'a "quoted" one.py', "line\nbreak.py", "tab\there.py", "größe/日本.py", "back\\slash.py", "-x"]


def test_odd_names_are_kept(history):
    for name in ODD:
        (history.folder / name).parent.mkdir(exist_ok=True)
        (history.folder / name).write_text(content(name))
    history.commit("odd names")
    history.git("mv", "--", ODD[2], "line\nmoved.py")
    history.commit("moved")
    later(history)
    data = load_dataset(history.folder)
    now = {*ODD, "line\nmoved.py"} - {ODD[2]}
    assert labels(data)["odd names"] == now and labels(data)["moved"] == {"line\nmoved.py"}


def test_a_name_that_is_not_utf8_is_written_out(history):
    raw = os.fsencode(history.folder) + b"/caf\xe9.py"
    try:
        with open(raw, "w") as file:
            file.write(content("x"))
    except OSError:
        pytest.skip("this file system has only names in UTF-8")
    history.commit("an old name")
    later(history)
    assert labels(load_dataset(history.folder))["an old name"] == {"caf\\xe9.py"}


def test_submodules_are_no_files(history, tmp_path):
    other = History(tmp_path / "other")
    other.touch("theirs", "x")
    history.touch("ours", "a__py", "lib")
    history.commit("no longer a file", lib=None)
    history.git("-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(other.folder), "lib")
    history.commit("with a submodule")
    history.git("-C", "lib", "commit", "--quiet", "--allow-empty", "-m", "theirs again")
    history.commit("a newer one")
    later(history)
    data = load_dataset(history.folder)
    assert history.git("diff", "--name-only", "HEAD~7", "HEAD~6") == "lib"
    assert data.label_ids == [".gitmodules", "a.py", "later"]
    assert labels(data)["ours"] == {"a.py"} and labels(data)["with a submodule"] == {".gitmodules"}
    assert data.skipped == {"commits_without_labels": 2, "files_gone_at_HEAD": 1}


# What is left out


def test_commits_are_left_out_by_reason(history):
    history.touch("one", "a", "b")
    history.touch("Update x to 2", "a", author="dependabot[bot]")
    history.touch("Update y to 3", "a", author="renovate-bot")
    history.touch("Update z to 4", "a", author="Renovate Bot")
    history.touch("by a man called Talbot", "a", author="Jim Talbot")
    history.touch('Revert "one"\n\nThis reverts commit 0123abc.', "a")
    history.touch('Reapply "one"\n\nThis reverts commit 4567def.', "a")
    history.touch("Revert to the slow way, by hand", "a")
    history.touch("", "a")
    history.touch("   \n", "a")
    history.commit("no file at all")
    history.touch("as many as may be", *(f"file{n}" for n in range(MOST_FILES)))
    history.touch("too many", *(f"file{n}" for n in range(MOST_FILES)), "a")
    history.git("checkout", "--quiet", "-b", "side", "HEAD~1")
    history.touch("on the side", "b")
    history.git("checkout", "--quiet", "main")
    history.git("merge", "--quiet", "--no-ff", "-m", "Merge pull request 1", "side")
    later(history)
    data = load_dataset(history.folder)
    assert data.skipped == {
        "commits_by_bots": 3,
        "commits_of_more_than_30_files": 1,
        "commits_without_message": 2,
        "merges": 1,
        "reverts": 2,
        "commits_without_labels": 1,
    }
    known = ["one", "by a man called Talbot", "Revert to the slow way, by hand", "as many as may be", "on the side"]
    assert data.train.texts[:5] == known
    data.report.refuse_above(0.0)  # they are no bad rows


def test_renames_are_read_from_commits_that_are_left_out(history):
    many = [f"file{n}" for n in range(MOST_FILES + 5)]
    for first in (0, 20):
        history.touch(f"from {first}", *many[first : first + 20])
    history.move("a move of all", *((name, f"src/{name}") for name in many))
    later(history)
    data = load_dataset(history.folder)
    assert labels(data)["from 0"] == {f"src/{name}" for name in many[:20]}
    assert data.skipped == {"commits_of_more_than_30_files": 1}


# Splits


def test_the_newest_commits_are_for_test(history):
    messages = [f"change {n}" for n in range(20)]
    for message in messages:
        history.touch(message, "a")
    data = load_dataset(history.folder)
    assert data.train.texts == messages[:15] and data.test.texts == messages[15:]
    assert data.train.ids + data.test.ids == list(history.hashes.values())


def test_newest_is_by_date_where_neither_comes_from_the_other(history):
    history.touch("root", "a")
    history.git("branch", "side")
    history.touch("main 1", "a")
    history.git("checkout", "--quiet", "side")
    history.touch("side 1", "b")
    history.git("checkout", "--quiet", "main")
    history.touch("main 2", "a")
    history.git("checkout", "--quiet", "side")
    history.touch("side 2", "b")
    history.git("checkout", "--quiet", "main")
    history.git("merge", "--quiet", "--no-ff", "-m", "Merge side", "side")
    data = load_dataset(history.folder)
    assert data.train.texts + data.test.texts == ["root", "main 1", "side 1", "main 2", "side 2"]


def test_labels_without_a_training_doc_are_left_out(history):
    for n in range(12):
        history.touch(f"change {n}", "a")
    history.touch("a new file", "new")
    history.touch("both", "a", "new")
    later(history, 2)
    data = load_dataset(history.folder)
    assert data.label_ids == ["a"] and data.test.texts == ["both"]
    assert data.skipped == {"labels_without_training_docs": 2, "test_docs_without_known_labels": 3}


def test_commits_of_the_same_message_are_one_doc_of_one_split(history):
    first = history.touch("wip", "a")
    history.touch("once", "b")
    history.touch("wip\n\nSigned-off-by: A <a@b>", "b")
    for n in range(9):
        history.touch(f"change {n}", "c")
    history.touch("wip", "c")
    again = history.touch("again", "a")
    history.touch("again", "c")
    history.touch("end", "a")
    data = load_dataset(history.folder)
    assert data.train.texts == ["wip", "once", *(f"change {n}" for n in range(9))]
    assert data.train.ids[0] == first and labels(data)["wip"] == {"a", "b"}
    assert data.test.texts == ["again", "end"] and data.test.ids[0] == again and labels(data)["again"] == {"a", "c"}
    assert data.skipped == {"test_commits_with_a_training_message": 1}


def test_an_import_is_the_same_dataset(history, tmp_path):
    for n in range(40):
        history.touch(f"change {n}", f"file{n % 7}", f"file{n % 5}")
    data = load_dataset(history.folder)
    write_xc(tmp_path / "out", data)
    again = load_dataset(tmp_path / "out")
    assert_same(data, again)
    assert data.name == again.name == "mine"
    assert not len(again.train_filter) and not len(again.test_filter)
    is_validation = [split_validation(one.train.identity, 0.2).tolist() for one in (data, again)]
    assert is_validation[0] == is_validation[1] and any(is_validation[0])


# Repositories


@pytest.fixture
def plain(history) -> History:
    """A repository with a rename, and with letters that settings could spoil."""
    history.touch("one", "a__py", "b__py")
    history.move("mövéd", ("a.py", "src/größe.py"))
    for n in range(10):
        history.touch(f"change {n}", "b__py", *(["src/größe__py"] if n % 2 else []))
    return history


def test_a_bare_repository_a_worktree_and_the_git_folder_give_the_same(plain, tmp_path):
    whole = load_dataset(plain.folder)
    plain.git("clone", "--quiet", "--bare", ".", str(tmp_path / "bare.git"))
    plain.git("worktree", "add", "--quiet", "--detach", str(tmp_path / "tree"))
    assert (tmp_path / "tree" / ".git").is_file()
    for place, name in ((tmp_path / "bare.git", "bare"), (tmp_path / "tree", "tree"), (plain.folder / ".git", "mine")):
        data = load_dataset(place)
        assert data.name == name
        assert_same(data, whole)


def test_a_worktree_has_a_head_of_its_own(plain, tmp_path):
    plain.git("worktree", "add", "--quiet", "--detach", str(tmp_path / "tree"), "HEAD~4")
    data = load_dataset(tmp_path / "tree")
    assert data.train.texts + data.test.texts == ["one", "mövéd", *(f"change {n}" for n in range(6))]


def test_files_that_are_not_committed_change_nothing(plain):
    whole = load_dataset(plain.folder)
    plain.write(b__py="changed", untracked=content("new"))
    plain.git("add", "untracked")
    assert_same(load_dataset(plain.folder), whole)


def test_data_in_a_repository_is_data(plain):
    (plain.folder / "train.csv").write_text("text,label\n" + "".join(f"text {n},x\n" for n in range(20)))
    assert load_dataset(plain.folder).label_ids == ["x"]
    (plain.folder / "dataset.yaml").write_text("format: git\nname: Ours\n")
    data = load_dataset(plain.folder)
    assert data.name == "Ours" and data.label_ids == ["b.py", "src/größe.py"]
    (plain.folder / "dataset.yaml").unlink()
    assert load_dataset(plain.folder / ".git").label_ids == data.label_ids


def test_a_folder_inside_a_repository_is_none(plain):
    with pytest.raises(UserError, match="holds no dataset.*nor is it a git repository"):
        load_dataset(plain.folder / "src")


def test_a_shallow_clone_is_read_as_far_as_it_goes(plain, tmp_path):
    clone = tmp_path / "clone"
    plain.git("clone", "--quiet", "--depth=8", plain.folder.as_uri(), str(clone))
    data = load_dataset(clone)
    assert data.train.texts + data.test.texts == [f"change {n}" for n in range(3, 10)]
    assert data.skipped == {"commits_where_history_is_cut_off": 1}
    assert "is a shallow clone, its history is cut off; `git fetch --unshallow`" in data.report.notes[1]
    result = invoke(tmp_path, main, ["import", clone, tmp_path / "out"])
    assert result.exit_code == 0 and "history is cut off" in result.stdout


def test_what_is_left_out_is_told(plain):
    plain.touch("Bump it", "b__py", author="dependabot[bot]")
    for n in range(20):
        plain.touch(f"more {n}", "b__py")
    result = invoke(plain.folder.parent, main, ["check", plain.folder])
    assert (result.exit_code, result.stderr) == (0, "")
    assert "\nleft out: 1 commits by bots\n" in result.stdout
    assert result.stdout.endswith("no problems, every row can be used\nIt can be trained on.\n")


def odd_settings(folder: Path) -> dict[str, str]:
    """What a user might have set, and what git sets for the programs that it starts."""
    config = folder / "gitconfig"
    config.write_text(
        "[diff]\n renames = false\n renameLimit = 1\n external = false\n noprefix = true\n ignoreSubmodules = none\n"
        "[core]\n quotePath = true\n pager = false\n abbrev = 7\n[log]\n showSignature = true\n showRoot = false\n"
        " follow = true\n decorate = full\n date = relative\n mailmap = true\n[color]\n ui = always\n"
        "[i18n]\n logOutputEncoding = ISO-8859-1\n[format]\n pretty = oneline\n[alias]\n log = status\n",
    )
    gits = {"GIT_DIR": str(folder), "GIT_WORK_TREE": "/", "GIT_INDEX_FILE": "nowhere", "GIT_EXTERNAL_DIFF": "false"}
    gits |= {"GIT_CONFIG_GLOBAL": str(config), "GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "diff.renames"}
    return gits | {"GIT_CONFIG_VALUE_0": "copies", "HOME": str(folder), "LANG": "de_DE.UTF-8", "GIT_PAGER": "false"}


def test_settings_of_the_user_and_the_machine_change_nothing(plain, tmp_path, monkeypatch):
    whole = load_dataset(plain.folder)
    assert "src/größe.py" in labels(whole)["one"]
    for name, value in odd_settings(tmp_path).items():
        monkeypatch.setenv(name, value)
    shutil.copy(tmp_path / "gitconfig", tmp_path / ".gitconfig")
    monkeypatch.chdir("/")
    assert_same(load_dataset(plain.folder), whole)


def test_settings_of_the_repository_change_nothing(plain, tmp_path):
    for n in range(3):
        plain.touch(f"of the same minute {n}", "b__py")
        plain.minutes -= 1
    signed = plain.git("cat-file", "commit", "HEAD").replace("\n\n", "\ngpgsig no signature\n\n", 1) + "\n"
    plain.git("reset", "--quiet", plain.git("hash-object", "-t", "commit", "-w", "--stdin", input=signed.encode()))
    whole = load_dataset(plain.folder)
    odd_settings(tmp_path)
    with open(plain.folder / ".git" / "config", "a") as file:
        file.write((tmp_path / "gitconfig").read_text())
    plain.git("commit-graph", "write", "--reachable")
    plain.git("repack", "-a", "-d", "--quiet")
    plain.git("replace", "HEAD~3", "HEAD~8")
    (plain.folder / ".git" / "info" / "grafts").write_text(plain.git("rev-parse", "HEAD~6") + "\n")
    assert_same(load_dataset(plain.folder), whole)


def test_the_same_history_elsewhere_gives_the_same_dataset(plain, tmp_path):
    plain.git("clone", "--quiet", ".", str(tmp_path / "elsewhere"))
    assert_same(load_dataset(tmp_path / "elsewhere"), load_dataset(plain.folder))


def test_all_of_history_is_read_by_one_process(plain, monkeypatch):
    started = []

    class Counted(subprocess.Popen):
        def __init__(self, command, **options):
            started.append(command)
            super().__init__(command, **options)

    monkeypatch.setattr(subprocess, "Popen", Counted)
    load_dataset(plain.folder)
    assert sum("log" in command for command in started) == 1 and len(started) == 4


@pytest.mark.parametrize("size", [1, 7, 100])
def test_gits_output_may_be_cut_anywhere(plain, monkeypatch, size):
    whole = load_dataset(plain.folder)
    monkeypatch.setattr(commits, "BLOCK", size)
    assert_same(load_dataset(plain.folder), whole)


def test_a_repository_of_sha256(tmp_path):
    history = History(tmp_path / "mine", "--object-format=sha256")
    history.touch("one", "a")
    history.move("two", ("a", "b"))
    later(history)
    data = load_dataset(history.folder)
    assert labels(data)["one"] == {"b"} and {len(id) for id in data.train.ids} == {64}


# What cannot be read


def test_a_repository_without_a_commit_is_refused(history):
    with pytest.raises(UserError, match="mine is a git repository without a commit: commit something"):
        load_dataset(history.folder)


def test_what_only_looks_like_a_repository_is_refused(tmp_path):
    (tmp_path / ".git").mkdir()
    with pytest.raises(UserError, match=r"git cannot read all of its history \(not a git repository: .*clone it again"):
        load_dataset(tmp_path)
    (tmp_path / ".git").rmdir()
    (tmp_path / ".git").write_text("gitdir: /nowhere\n")
    with pytest.raises(UserError, match="not a git repository: /nowhere"):
        load_dataset(tmp_path)


@pytest.mark.parametrize("lost", ["HEAD", "HEAD~5", "HEAD^{tree}", "HEAD~5^{tree}"])
def test_a_damaged_repository_is_refused(plain, lost):
    hash = plain.git("rev-parse", lost)
    (plain.folder / ".git" / "objects" / hash[:2] / hash[2:]).unlink()
    with pytest.raises(UserError, match=r"git cannot read all of its history \(.+\): clone it again") as refused:
        load_dataset(plain.folder)
    assert "\n" not in str(refused.value)


def test_a_partial_clone_is_refused_and_nothing_is_fetched(plain, tmp_path):
    plain.write(**{"c__py": (plain.folder / "b.py").read_text() + "and more\n", "b__py": None})
    plain.commit("a rename that only the content tells")
    plain.git("config", "uploadpack.allowFilter", "true")
    plain.git("clone", "--quiet", "--bare", "--filter=blob:none", plain.folder.as_uri(), str(tmp_path / "part.git"))
    before = sorted(tmp_path.joinpath("part.git").rglob("*"))
    with pytest.raises(UserError, match="git cannot read all of its history .*the whole of it"):
        load_dataset(tmp_path / "part.git")
    assert sorted(tmp_path.joinpath("part.git").rglob("*")) == before


def test_without_git_a_sentence_says_so(plain, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="The program `git` is not there: install it"):
        load_dataset(plain.folder)
    result = invoke(tmp_path, main, ["check", plain.folder])
    assert result.exit_code == 1 and result.stderr.startswith("error: The program `git` is not there")
