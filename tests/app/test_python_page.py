"""docs/python.md and docs/labels.md: their blocks of Python run as they stand, one after the other."""

import pytest

from tests.app.test_docs import blocks

pytestmark = pytest.mark.stage


def test_the_blocks_of_the_pages_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    code = [*blocks("docs/python.md", "python"), *blocks("docs/labels.md", "python")]
    assert len(code) >= 7
    for block in code:
        exec(compile(block, "docs", "exec"), names)
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) > 8 and "LabelInfo(id='red', text='red', docs=10)" in printed
    assert "shoe" in [line.split()[0] for line in printed[:3]]
    assert (tmp_path / "toys" / "README.md").is_file()
