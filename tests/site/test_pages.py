"""The pages of the documentation site: complete, linked, and without markup from what they show."""

import re
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from markdown_it.token import Token

from probes.checks.registry import CHECKS
from probes.messages.catalogue import catalogue
from probes.simulation.faults.catalogue import FAULTS
from tests.site.__main__ import shown_on
from tests.site.pages import (
    Shown,
    exact_words,
    finding_pages,
    literal,
    page_of_message,
    pages,
    prose,
    shown_by,
    title_of,
)
from tui.manual import SUBJECTS

HOSTILE = "# <script>alert(1)</script> *a* `b` [c](d) ![e](f) &amp; {g}`h` \\ | - 1. https://x.y/<z> ~~~ ```"


@cache
def made() -> dict[str, str]:
    return pages({CHECKS[0].id: Shown(HOSTILE, HOSTILE, f"{HOSTILE}\n````", HOSTILE)})


@cache
def tokens(text: str) -> list[Token]:
    """The tokens of Markdown, those of lines in place."""
    body = re.sub(r"\A---\n.*?\n---\n", "", text, flags=re.S)
    return [
        each
        for block in MarkdownIt("commonmark").enable("table").parse(body)
        for each in (block.children or [block] if block.type == "inline" else [block])
    ]


def plain(text: str) -> str:
    return "".join("\n" if each.type == "softbreak" else each.content for each in tokens(text))


def test_each_check_has_a_page_with_what_it_says() -> None:
    for check in CHECKS:
        page = made()[f"findings/{check.id}/index"]
        texts = check.texts()
        for text in (texts.title, texts.impact, texts.ok, texts.source):
            assert " ".join(text.split()) in plain(page), check.id
        assert f"](/findings/{check.id}/index.md)" in made()["findings/index"]


def test_each_message_has_a_page_that_its_words_find() -> None:
    for message in catalogue().messages:
        page = made()[f"{page_of_message(message)}index"]
        shown = plain(page)
        for line in (*map(exact_words, message.forms), *message.samples):
            assert " ".join(line.split()) in shown, message.id
        assert message.source.split()[0] in shown
        head = page.partition("\n---\n")[0]
        assert len(title_of(message)) > 3, message.id
        assert '"description": "' in head


def test_every_page_of_the_manual_is_there() -> None:
    assert {f"manual/{subject}/index" for subject in SUBJECTS} <= {*made()}


def test_addresses_are_safe_and_differ() -> None:
    wanted = len(CHECKS) + len(catalogue().messages) + len(SUBJECTS)
    programs = {message.program for message in catalogue().messages}
    upstream = [name for name in made() if name.startswith("upstream/")]
    assert len(made()) == wanted + len(programs) + len(upstream) + len(("", "findings", "messages"))
    for name in made():
        assert re.fullmatch(r"([a-z0-9]+(-[a-z0-9]+)*/)*index", name), name
        assert max(map(len, name.split("/"))) <= 100


def test_every_link_leads_to_a_page() -> None:
    for name, text in made().items():
        targets = [each.attrs.get("href", "") for each in tokens(text) if each.type == "link_open"]
        for target in map(str, targets):
            if target.startswith("/"):
                assert target.removeprefix("/").partition("#")[0].removesuffix(".md") in made(), (
                    name,
                    target,
                )
            else:
                assert re.match("https?://", target), (name, target)
    listed = re.findall(r"^((?:[a-z0-9-]+/)+index)$", made()["index"], re.M)
    assert {"findings/index", "messages/index", "manual/doctor/index", "upstream/textual/index"} <= {*listed}
    assert {*listed} <= {*made()}


def test_no_page_has_html_or_several_titles() -> None:
    for name, text in made().items():
        found = tokens(text)
        assert not [each.content for each in found if each.type.startswith("html")], name
        assert [each.tag for each in found if each.type == "heading_open"].count("h1") == 1, name
        # MyST's own markup: roles and directives.
        for each in found:
            if each.type == "fence":
                assert re.fullmatch(r"|text|diff|json|bash|\{(toctree|asciinema)\}.*", each.info), (
                    name,
                    each.info,
                )
        if not name.startswith("upstream/") and name != "index":
            assert "{toctree}" not in text


def test_what_a_node_says_is_no_markup() -> None:
    page = made()[f"findings/{CHECKS[0].id}/index"]
    assert plain(page).count("<script>alert(1)</script>") == 3
    assert not [each for each in tokens(page) if each.type in ("em_open", "image", "code_inline")][1:]


@given(st.text(max_size=80))
@settings(max_examples=200)
def test_any_text_stays_a_text(text: str) -> None:
    text = "".join(each if each.isprintable() else " " for each in text)
    assert plain(f"x{prose(text)}") == f"x{' '.join(text.split())}"
    (fence,) = tokens(literal(text))
    assert fence.content.strip() == text.strip()


def test_every_fault_shows_a_check_on_its_page() -> None:
    assert {id_ for fault in FAULTS.values() for id_ in (*fault.finds, *fault.shows)} == {*shown_by()}


@pytest.mark.parametrize("id_", ["acs-redirect-enabled", "peermem-not-loaded"])
def test_a_simulated_node_shows_evidence_and_fix(id_: str) -> None:
    fault = shown_by()[id_]
    shown = shown_on(f"{fault.on}+{fault.name}", (id_,))[id_]
    assert shown.cause
    assert shown.evidence
    assert "needs root" in shown.fix
    assert prose(shown.cause) in dict(finding_pages({id_: shown}))[f"findings/{id_}/index"]
