"""Words that must not come back: phrases that no admin would say, in what users and maintainers read."""

import re
from pathlib import Path

import pytest

from probes.base.data_files import read_toml
from probes.checks.registry import CHECKS
from probes.messages.catalogue import catalogue, codes
from tests.support.sources import constants

ROOT = Path(__file__).parents[1]
# In strings that a user may see, in docstrings and in the manual.
PHRASES = re.compile(
    r"\b(somebody|nobody|anew|do(?:es)? without|go(?:es)? by (?!default|the name)|lacks|"
    r"(?:is|was|are|were|be) (?:told|felt|held)|feels? it|would feel|"
    r"(?<!cannot )tells? (?:what|who|how|which|no)|could not be made|of theirs|"
    r"near the line|the bar\b|(?<!gdrtop )hangs? on|stands? (?:behind|for nothing)|"
    r"takes? back|let by|far side|far end|the way (?:of|on|to) (?:the )?(?:GPU|NIC|traffic)|"
    r"whether .{1,40} is not known|is not known whether|is to be (?:had|seen)|heir|"
    r"this is no|(?:is|are) no (?:name|object|number)s?|no word about|or end that|hand-over|"
    r"as they should be|, as v?\d+|directly, by DMA-BUF|RDMA by DMA-BUF|memory by DMA-BUF|"
    r"by (?:NVLink|nvidia_peermem|TCP)|Unset, it|logs? of an? (?:NCCL )?job|jobs? of several nodes)\b",
    re.IGNORECASE,
)


RATING = "near the line"  # a value in saved results of earlier versions, never shown


def test_no_explanation_of_an_event_has_a_replaced_phrase() -> None:
    tables = read_toml("probes.live.model", "explanations.toml").values()
    assert not [text for table in tables for text in table.values() if PHRASES.search(text)]


def test_no_use_of_a_module_has_a_replaced_phrase() -> None:
    assert not PHRASES.search((ROOT / "probes/facts/kernel/ladder.txt").read_text(encoding="utf-8"))


@pytest.mark.parametrize("package", ["probes", "widgets", "tui"])
def test_no_string_or_docstring_has_a_replaced_phrase(package: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {match[0]!r} in {' '.join(text.split())[:100]!r}"
        for path in sorted((ROOT / package).rglob("*.py"))
        for line, text in constants(path)
        if len(text.split()) > 2 and text != RATING and (match := PHRASES.search(text))
    ]
    assert not found, "\n".join(found)


def test_no_table_of_texts_has_a_replaced_phrase() -> None:
    tables = [*(ROOT / "probes" / "setup").rglob("*.toml")]
    found = [
        f"{path.relative_to(ROOT)}: {match[0]!r}"
        for path in tables
        if (match := PHRASES.search(path.read_text(encoding="utf-8")))
    ]
    assert tables
    assert not found


def test_no_text_of_a_check_has_a_replaced_phrase() -> None:
    said = [(check.id, check.texts()) for check in CHECKS]
    found = [
        f"{name}: {match[0]!r}"
        for name, texts in said
        for text in (texts.title, texts.source, texts.ok, texts.impact)
        if (match := PHRASES.search(text))
    ]
    assert not found


def test_no_page_has_a_replaced_phrase() -> None:
    pages = [*ROOT.glob("*.md")]
    pages += sorted((ROOT / "tui" / "manual").glob("*.md"))
    found = [
        f"{path.relative_to(ROOT)}: {match[0]!r}"
        for path in pages
        if path.exists() and (match := PHRASES.search(path.read_text(encoding="utf-8")))
    ]
    assert not found


def test_no_message_has_a_replaced_phrase() -> None:
    texts = {
        f"{message.id}: {text}"
        for message in catalogue().messages
        for part in (message, *message.cases)
        for text in (part.title, part.cause, part.fix)
        if text is not None
    }
    texts |= {
        f"{table}.{code.number}: {text}"
        for table, rows in codes().items()
        for code in rows.values()
        for text in (code.cause, code.fix)
    }
    found = [f"{match[0]!r} in {text}" for text in sorted(texts) if (match := PHRASES.search(text))]
    assert not found, "\n".join(found)


# What gdrtop cannot know when it writes a fix, by the beginning of the text.
CANNOT_KNOW = {
    "If it fails, read": "the step before has not run yet",
    "If it reuses the old modules": "the pod of the step before does not exist yet",
    "If it does, drain": "gdrtop reads the state only of processes that use GPUs or RDMA",
    "If one is slow or fails": "the measurement of the step before",
    "If data is wrong": "the measurement of the step before",
    "If they are faster": "the measurement of the step before",
    "If host memory is as slow": "the measurement of the step before",
    "If the driver or OFED was not ready yet": "only the journal says so, which the step before shows",
    "If that is not possible": "whether the job's image may be changed",
}


def test_no_fix_asks_the_reader_what_gdrtop_has_read() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {text}"
        for folder in ("checks", "plans", "queries")
        for path in sorted((ROOT / "probes" / folder).rglob("*.py"))
        for line, text in constants(path)
        if text.startswith("If ") and not text.startswith(tuple(CANNOT_KNOW))
    ]
    assert not found, "\n".join(found)
