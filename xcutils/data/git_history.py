"""The history of a git repository as a dataset: which files will a change touch?

document  a commit's message: subject and body, MOST_WORDS words at most, without trailers (Signed-off-by and the like)
          and without the number of a pull request; its id is the commit's hash
label     a file that the commit touches, by the path it has at HEAD: renames are followed, over several steps too. Its
          id is the path, its text the path's words. A file that was deleted and made again under its name is one file
left out  merges, commits by bots, reverts, commits of more than MOST_FILES files, without a message, or without a
          label; files that are gone at HEAD, since nobody can change them; bookkeeping files (BOOKKEEPING); submodules,
          which are pointers and not files. `skipped` counts them, each by the first reason that holds
split     the newest TEST_SHARE of the commits that are left are for test: test is the future. In either split commits
          of the same message are one document with the files of all; a test document whose message is a training
          document's too is left out
"""

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from xcutils.data.commits import Commit, commits_to, files_at, find_head
from xcutils.data.corpora import TEST_SHARE, Collector, Corpus, Dataset, known_labels, no_pairs
from xcutils.data.skips import Skips

MOST_WORDS = 40  # of a message
MOST_CHARACTERS = 400  # of them, for languages without spaces
MOST_FILES = 30  # that a commit may touch; one that touches more is about none of them

# Files that follow from others, that every change touches or that nobody edits; by their names, in lower case.
BOOKKEEPING = {
    "lock files": r".+\.lock(b|file)?|.+[-.]lock\.(json|ya?ml)|npm-shrinkwrap\.json|go\.sum|package\.resolved",
    "changelogs": r"(change-?log|changes|news|history|release[-_]?notes)([-_.]v?\d[\d.x]*)?(\.(md|rst|txt|adoc))?",
    "generated files": r".+\.min\.(js|css)|.+\.(js|css)\.map|.+_pb2(_grpc)?\.pyi?|.+\.pb\.(go|cc|h)|.+\.generated\..+",
    "binary files": r".+\.(png|jpe?g|gif|bmp|ico|icns|webp|tiff?|psd|pdf|woff2?|ttf|otf|eot|mp[34]|ogg|wav|webm|mov|avi"
    r"|zip|gz|tgz|bz2|xz|7z|jar|war|whl|exe|dll|so|dylib|a|o|class|pyc|bin|dat|npy|npz|parquet|sqlite|db)",
}
_BOOKKEEPING = re.compile("|".join(BOOKKEEPING.values()))

BOT = re.compile(r".*(\[bot\]|-bot)|dependabot|renovate( bot)?")  # an author's name, in lower case
REVERT = re.compile(r'\ARevert "|^This reverts commit ', re.MULTILINE)
PULL_REQUEST = re.compile(r"\s*\((#|!)\d+\)$")  # at the end of a subject
# A line at the end of a message that says who or where, not what: any key with a hyphen, and some without.
TRAILER = re.compile(
    r"\w+(-\w+)+: .*|(fixes|closes|resolves|refs?)(: .*|:? #\d+\.?)|(links?|bug|issue|ticket|cc|reviewed by): .*"
    r"|differential revision: .*|\(cherry picked from commit \w+\)|\[[\w.-]+: .*\]|-{3,}",
    re.IGNORECASE,
)
CAMEL_CASE = re.compile(r"(?<=[^\W\d_])(?=[A-Z][a-z])|(?<=[a-z\d])(?=[A-Z])")


class Doc(NamedTuple):
    """A commit that may be a document; its paths are later names of the files that it touches."""

    hash: str
    text: str
    paths: list[str]


def read_git(folder: Path, name: str) -> Dataset:
    """The commits up to HEAD and the files that they touch; see above."""
    folder = Path(folder)
    head, is_shallow = find_head(folder)
    report = Skips()
    docs, names, skipped = _usable(commits_to(folder, head), is_shallow)
    docs, unlabelled = _labelled(docs, names, files_at(folder, head))
    codes: dict[str, int] = {}
    train, test, repeated = _split(docs, codes)
    train, test, label_ids, unknown = known_labels(train, test, list(codes))
    left_out = skipped | unlabelled | {"test_commits_with_a_training_message": repeated}
    left_out = {reason: count for reason, count in left_out.items() if count} | unknown
    report.notes.append(f"{folder}: text = messages of {len(docs):,} commits up to {head[:10]}, labels = their files")
    if is_shallow:
        report.notes.append(
            f"note: {folder} is a shallow clone, its history is cut off; `git fetch --unshallow` there brings the rest"
        )
    texts = [words_of(path) for path in label_ids]
    return Dataset(name, train, test, label_ids, texts, no_pairs(), no_pairs(), left_out, report)


# Docs and labels


def text_of(message: str) -> str:
    """The words of a message's subject and body."""
    subject, *body = message.strip().splitlines() or [""]
    while body and (not body[-1].strip() or TRAILER.fullmatch(body[-1].strip())):
        body.pop()
    words = " ".join([PULL_REQUEST.sub("", subject), *body]).split()
    return " ".join(words[:MOST_WORDS])[:MOST_CHARACTERS].strip()


def words_of(path: str) -> str:
    """The path, split at / . _ - and between the words of camelCase."""
    return " ".join(re.split(r"[\s/._-]+", CAMEL_CASE.sub(" ", path))).strip() or path


def is_bookkeeping(path: str) -> bool:
    return _BOOKKEEPING.fullmatch(path.rpartition("/")[2].lower()) is not None


def _why_not(commit: Commit, text: str, is_shallow: bool) -> str | None:
    """Why the commit is no document; None if it may be one."""
    if commit.parents > 1:
        return "merges"
    if is_shallow and not commit.parents:  # it seems to add all files that were there before it
        return "commits_where_history_is_cut_off"
    if BOT.fullmatch(commit.author.strip().lower()):
        return "commits_by_bots"
    if REVERT.search(commit.message.strip()):
        return "reverts"
    if len(commit.changes) > MOST_FILES:
        return f"commits_of_more_than_{MOST_FILES}_files"
    return None if text else "commits_without_message"


def _usable(commits: Iterable[Commit], is_shallow: bool) -> tuple[list[Doc], "_Names", dict[str, int]]:
    """The commits that may be docs, oldest first; the renames; how many commits were left out, by reason."""
    usable = []
    names = _Names()
    skipped: Counter[str] = Counter()
    for commit in commits:
        doc = Doc(commit.hash, text_of(commit.message), names.follow(commit.changes))
        reason = _why_not(commit, doc.text, is_shallow)
        if reason is None:
            usable.append(doc)
        else:
            skipped[reason] += 1
    return usable[::-1], names, dict(sorted(skipped.items()))


class _Names:
    """The names that files got later, while history is read from its newest commit on."""

    def __init__(self) -> None:
        self._later: dict[str, str] = {}  # a name -> the last one known of its file

    def follow(self, changes: list[tuple[str, str]]) -> list[str]:
        """The last known names of the files of the next older commit."""
        paths = [self._later.get(after, after) for _, after in changes]
        renamed = {before: path for (before, after), path in zip(changes, paths) if before != after}
        self._later |= renamed
        return paths

    def at_head(self, path: str, files: set[str]) -> str | None:
        """The file's name among those at HEAD, after all of history was read; None if the file is gone.

        A commit of another branch may have used the old name after the commit that changed it.
        """
        seen = set()
        while path not in files and path in self._later and path not in seen:
            seen.add(path)
            path = self._later[path]
        return path if path in files else None


def _labelled(docs: list[Doc], names: _Names, files: set[str]) -> tuple[list[Doc], dict[str, int]]:
    """The docs that have a label, their paths being labels; what was left out, by reason."""
    gone, bookkeeping = set(), set()
    labelled = []
    for doc in docs:
        now = {path: names.at_head(path, files) for path in doc.paths}
        labels = [path for path in now.values() if path is not None and not is_bookkeeping(path)]
        gone |= {path for path in now if now[path] is None}
        bookkeeping |= {path for path in now.values() if path is not None and is_bookkeeping(path)}
        if labels:
            labelled.append(doc._replace(paths=labels))
    counts = {"commits_without_labels": len(docs) - len(labelled)}
    return labelled, counts | {"files_gone_at_HEAD": len(gone), "bookkeeping_files": len(bookkeeping)}


def _split(docs: list[Doc], codes: dict[str, int]) -> tuple[Corpus, Corpus, int]:
    """(training docs, test docs, commits left out of these): the last TEST_SHARE of the docs are for test.

    codes  path -> label; paths are added as they come
    """
    n_test = round(TEST_SHARE * len(docs))
    train = _together(docs[: len(docs) - n_test], codes)
    known = set(train.texts)
    new = [doc for doc in docs[len(docs) - n_test :] if doc.text not in known]
    return train, _together(new, codes), n_test - len(new)


def _together(docs: list[Doc], codes: dict[str, int]) -> Corpus:
    """The docs, those of the same text as one, with the id of the oldest."""
    collected = Collector(by_text=True)
    for doc in docs:
        collected.add(doc.hash, doc.text, [codes.setdefault(path, len(codes)) for path in doc.paths])
    return replace(collected.corpus(), keys=None)
