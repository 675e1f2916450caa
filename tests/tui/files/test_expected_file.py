"""A site's table of expected figures on disk: used, absent, or refused with the reason."""

import os
from pathlib import Path

import pytest

from probes.bandwidth.model.expected import MAX_TABLE_BYTES, TableError
from tui.files.expected_file import read_table, site_table

ROW = '[[pair]]\nname = "ours"\nport_gbps = 400\n'


def test_a_table_is_read(tmp_path: Path) -> None:
    path = tmp_path / "expected.toml"
    path.write_text(ROW)
    table, trouble = site_table(str(path))
    assert table is not None
    assert table.rows[0].name == "ours"
    assert trouble == ""


def test_without_a_table_nothing_is_said(tmp_path: Path) -> None:
    assert site_table(str(tmp_path / "expected.toml")) == (None, "")
    assert site_table(str(tmp_path / "none" / "expected.toml")) == (None, "")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"[[pair", "not valid TOML"),
        (b"\xff\xfe", "not UTF-8 text"),
        (b"#" * (MAX_TABLE_BYTES + 1), "too large"),
        (b'[[pair]]\nname = "\\u001b[2J"\nport = 1\n', "unknown field port"),
    ],
)
def test_a_bad_table_is_named_and_not_used(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "expected.toml"
    path.write_bytes(content)
    table, trouble = site_table(str(path))
    assert table is None
    assert str(path) in trouble
    assert words in trouble
    assert trouble.endswith("gdrtop uses its own figures")


def test_a_directory_is_called_one(tmp_path: Path) -> None:
    with pytest.raises(TableError, match="is a directory, not a table of expected figures"):
        read_table(str(tmp_path))


def test_a_pipe_does_not_block(tmp_path: Path) -> None:
    path = tmp_path / "expected.toml"
    os.mkfifo(path)
    with pytest.raises(TableError, match="not a regular file"):
        read_table(str(path))
