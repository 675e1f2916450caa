"""Data files of gdrtop: files of texts alone are read as tomllib reads them, in less time."""

import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.base import data_files
from probes.base.data_files import parse_toml, read_toml
from probes.checks.registry import CHECKS
from tests.support.sources import PACKAGES, ROOT

FILES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.toml"))
LINE = st.text(st.sampled_from("ab [](){}=.,#'\"\\\t\n1é"), max_size=12)
KEY = st.text(st.sampled_from("ab-_1"), min_size=1, max_size=4)


def read(path: Path) -> dict[str, Any]:
    package, *names = path.relative_to(ROOT).parts
    return read_toml(package, "/".join(names))


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_file_is_read_as_tomllib_reads_it(path: Path) -> None:
    assert read(path) == parse_toml(path.read_text(encoding="utf-8"))


def test_texts_of_checks_are_in_the_form_that_is_read_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """One text a line, without a backslash: all of them in 1 ms instead of 10."""
    monkeypatch.setattr(data_files, "parse_toml", None)
    texts = [path for path in FILES if path.name == "texts.toml"]
    assert sum(len(read(path)) for path in texts) == len(CHECKS)


@given(
    st.lists(
        st.one_of(st.builds("[{}]".format, KEY), st.builds('{} = "{}"'.format, KEY, LINE), LINE), max_size=6
    )
)
def test_what_is_read_fast_is_what_tomllib_reads(lines: list[str]) -> None:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    text = "\n".join(lines)
    texts = data_files._parse_texts(text)
    try:
        parsed = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return  # the test above reads every file of gdrtop with it
    assert texts is None or texts == parsed
