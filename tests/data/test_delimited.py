import csv
import gzip
import io

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xcutils.core.errors import UserError
from xcutils.data.delimited import records
from xcutils.data.lines import MOST_LINE, MOST_TEXT
from xcutils.data.skips import Skips


@pytest.fixture
def read(tmp_path):
    """A function that reads bytes as a file: ([(line, cells)], [(line, reason)])."""

    def run(content: bytes, form: str = "csv") -> tuple[list, list]:
        path, report = tmp_path / f"a.{form}", Skips()
        path.write_bytes(content)
        rows = list(records(path, form, report, header=True))
        assert report.read[str(path)] == len(rows) - 1 + report.total
        return rows, [(row.line, row.reason) for row in report.rows]

    return run


def test_cells_may_hold_everything_in_quotes(read):
    rows, skipped = read(b'\xef\xbb\xbftext,label\r\n"a\r\nb, ""c""\td",1\r\n\r\n\xf0\x9f\x98\x80 5" disk,\xd7\xa9')
    assert rows == [(1, ["text", "label"]), (2, ['a\r\nb, "c"\td', "1"]), (5, ['😀 5" disk', "ש"])]
    assert not skipped


CELL = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=6)


@pytest.mark.parametrize("form", ["csv", "tsv"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
@settings(derandomize=True, deadline=None, max_examples=60)
@given(st.data())
def test_written_and_read_back_the_same(tmp_path_factory, form, end, data):
    width = data.draw(st.integers(2, 3))
    cell = CELL.filter(
        lambda text: end == "\r\n" or "\r" not in text
    )  # csv.writer puts what its line end has in quotes
    row = st.lists(cell, min_size=width, max_size=width)
    table = data.draw(st.lists(row, min_size=1, max_size=5))
    file = io.StringIO(newline="")
    delimiter = {"csv": ",", "tsv": "\t"}[form]
    csv.writer(file, delimiter=delimiter, lineterminator=end).writerows(table)
    path, report = tmp_path_factory.mktemp("a") / f"a.{form}.gz", Skips()
    path.write_bytes(gzip.compress(file.getvalue().encode()))
    assert [cells for _, cells in records(path, form, report, header=True)] == table and not report.total


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (b"x", "1 columns instead of 2"),
        (b"x,y,z", "3 columns instead of 2"),
        (b"x,\xff", "byte 3 of the line is not UTF-8"),
        (b"x\0,y", "NUL byte"),
        (b'"x"y,z', "the quotes are wrong"),
        (b"x\ry,z", "the quotes are wrong"),
        (b"x" * (MOST_TEXT + 1) + b",y", "a cell is longer than 1,048,576 characters"),
        (b'"' + (b"x" * 99 + b"\n") * (MOST_TEXT // 99) + b'z",y', "a cell is longer than 1,048,576 characters"),
        (b"x" * (MOST_LINE + 1) + b",y", "the line is longer than 8 MB"),
        (b'"x\n' + b"x" * (MOST_LINE + 1) + b'",y', "the line is longer than 8 MB"),
    ],
    ids=range(10),
)
def test_a_bad_record_is_skipped_and_named(read, line, says):
    rows, skipped = read(b"a,b\n1,2\n" + line + b"\n3,4\n5,6\n")
    assert [cells for _, cells in rows] == [["a", "b"], ["1", "2"], ["3", "4"], ["5", "6"]]
    ((where, reason),) = skipped
    assert says in reason and where in (3, 4)


def test_a_stray_quote_costs_its_own_line_alone(read):
    body = b"".join(b"%d,x\n" % n for n in range(50))
    rows, skipped = read(b'a,b\n"stray,y\n' + body + b'"z"z,y\nlast,1\n')
    assert len(rows) == 52 and [line for line, _ in skipped] == [2, 53]


def test_a_record_without_end_takes_no_memory_without_end(read, monkeypatch):
    monkeypatch.setattr("xcutils.data.delimited.MOST_LINE", 1000)
    endless = b'x,"\n' + b'",y,"\n' * 2000 + b'"\n'
    rows, skipped = read(b"a,b\n1,2\n" + endless + b"3,4\n5,6\n")
    assert [cells for _, cells in rows] == [["a", "b"], ["1", "2"], ["3", "4"], ["5", "6"]]
    assert skipped == [(3, "the record is longer than 8 MB")]


def test_quotes_in_tsv_may_be_only_characters(read):
    content = b'a\tb\n"open\t1\nx\t2\n"he" said\t3\ny\t4\n5" disk\t"6"\n'
    rows, skipped = read(content, "tsv")
    assert [cells for _, cells in rows[1:]] == [
        ['"open', "1"],
        ["x", "2"],
        ['"he" said', "3"],
        ["y", "4"],
        ['5" disk', "6"],
    ]
    assert not skipped
    rows, _ = read(b'a\tb\n"open\t1\n' + b"x\t2\n" * 5 + b'closed"\t3\n', "tsv")
    assert len(rows) == 8  # the lines between the two quotes are rows


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b'a,b\n1,2\n"x\ny', "line 3: a quote opened here is never closed: the file is cut off"),
        (b"a,b\n1,2\nx", "line 3: the file ends in the middle of a line"),
        (b"a,b\n1,2\nx,\xe2\x82", "line 3: the file ends in the middle of a line"),
        (b"a,b,c\n1,2\n3,4\n5,6,7\n", "line 1 has 3 columns, but 2 of the other 3 rows have another number"),
        (b"a\xff,b\n1,2\n", "line 1: byte 2 of the line is not UTF-8: correct the header"),
        ("a,b\n1,2\n".encode("utf-16"), "is UTF-16: convert it to UTF-8"),
    ],
)
def test_a_file_that_cannot_be_trusted_is_refused(read, content, says):
    with pytest.raises(UserError, match=f"a.csv.*{says}"):
        read(content)
