"""Markdown: whatever a node says is text, in a paragraph, a table and a code span."""

import html
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from probes.base.text import printable
from widgets.report.markdown import block, code, escaped

MARKDOWN = MarkdownIt("commonmark").enable(["table", "strikethrough"])
WORDS = st.text(
    st.one_of(st.sampled_from("`*_~[](){}<>#!|\\&;:@$+-=.0123456789 \t\n\"'/wh"), st.characters()),
    max_size=60,
)


def one_line(text: str) -> str:
    return " ".join(printable(text).split())


@pytest.mark.slow
@given(WORDS)
def test_escaped_text_is_shown_as_it_is(text: str) -> None:
    rendered = MARKDOWN.render(escaped(text))
    inside = re.fullmatch(r"(?:<p>(.*)</p>\n)?", rendered, re.S)
    assert inside is not None
    assert not re.search(r"<(?!p>|/p>)", rendered)
    assert html.unescape(inside[1] or "") == one_line(text)


@given(WORDS, WORDS)
def test_a_cell_of_a_table_stays_one_cell(cell: str, other: str) -> None:
    rendered = MARKDOWN.render(f"| a | b |\n|---|---|\n| {escaped(cell)} | {escaped(other)} |\n")
    cells = re.findall(r"<td>(.*?)</td>", rendered, re.S)
    assert [html.unescape(cell) for cell in cells] == [one_line(cell), one_line(other)]


@given(WORDS)
def test_a_code_span_is_shown_as_it_is(text: str) -> None:
    rendered = MARKDOWN.render(f"x {code(text)}")
    shown = one_line(text)
    expected = f"x <code>{html.escape(shown, quote=True)}</code>" if shown else "x"
    assert html.unescape(rendered) == html.unescape(f"<p>{expected}</p>\n")


@given(st.lists(WORDS, max_size=5))
def test_a_block_of_code_ends_where_it_ends(lines: list[str]) -> None:
    rendered = MARKDOWN.render(f"{block(lines)}\nafter")
    assert rendered.count("<pre>") == 1
    assert rendered.endswith("</code></pre>\n<p>after</p>\n")
