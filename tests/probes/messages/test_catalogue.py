"""The catalogue of messages: each sample is found, by one entry only, and each entry is well formed."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.base.codec import Codec
from probes.base.text import leading_version
from probes.messages.catalogue import CALLS, FILES, catalogue, codes, explain, find_failure, shape_of
from probes.messages.form import pattern_of, placeholders_of, words_of
from probes.messages.message import (
    NODE_WORDS,
    NOTHING_KNOWN,
    Case,
    Context,
    Message,
    Proof,
    Weight,
    is_version,
)

MESSAGES = catalogue().messages
_IN_TEXT = re.compile(r"(?<!\$)\{(\w+)\}")


@pytest.mark.parametrize("file", FILES)
def test_each_sample_is_found_by_its_own_entry_only(file: str) -> None:
    everything = catalogue()
    wrong = []
    for message in catalogue(file).messages:
        for sample in message.samples:
            found = {form.message.id for form, _ in everything.matches(sample) if not form.message.is_general}
            if found - {message.id} if not message.is_general else found:
                wrong.append(f"{message.id}: {sample!r} is also a sample of {sorted(found - {message.id})}")
            best = everything.find(sample)
            if best is None or best.message.id != message.id:
                wrong.append(f"{message.id}: {sample!r} is read as {best and best.message.id}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("file", FILES)
def test_each_form_has_a_sample_and_whole_words(file: str) -> None:
    wrong = []
    for message in catalogue(file).messages:
        for form in message.forms:
            if not words_of(form):
                wrong.append(f"{message.id}: {form!r} has no whole word by which it is found")
            if not any(re.search(pattern_of(form), sample) for sample in message.samples):
                wrong.append(f"{message.id}: no sample has the form {form!r}")
            if len(re.findall(r"(?<!\\)\*|:text\}", form)) > 3:
                wrong.append(f"{message.id}: {form!r} leaves too much open")
    assert not wrong, "\n".join(wrong)


def test_no_two_entries_have_one_id() -> None:
    ids = [message.id for message in MESSAGES]
    assert not sorted({name for name in ids if ids.count(name) > 1})


@pytest.mark.parametrize("file", FILES)
def test_entries_name_only_what_is_known(file: str) -> None:
    ids = {message.id for message in MESSAGES}
    wrong = []
    for message in catalogue(file).messages:
        wrong += [f"{message.id}: {problem}" for problem in _problems(message, ids)]
    assert not wrong, "\n".join(wrong)


def _problems(message: Message, ids: set[str]) -> list[str]:
    names = set.union(*(placeholders_of(form) for form in message.forms))
    texts = [message.id, message.title, message.cause, message.fix]
    wrong = [] if message.title and message.source else ["it needs a title and a source"]
    for case in message.cases:
        texts += [text for text in (case.title, case.cause, case.fix) if text is not None]
        wrong += [f"no entry {name}" for name in case.beside.split("|") if name and name not in ids]
        wrong += [f"no word {word}" for word in case.node.split("|") if word and word not in NODE_WORDS]
        wrong += [f"no placeholder {name}" for name in case.values.keys() - names - _named(message)]
        if case.version and not re.fullmatch(r"(?:(?:<=|>=|<|>|==)\d[\d.]* ?)+", case.version):
            wrong.append(f"no version {case.version!r}")
        if case == Case():
            wrong.append("a case without a condition")
    if message.versions and not re.fullmatch(r"[\d.]*-[\d.]*|[\d.]+", message.versions):
        wrong.append(f"no versions {message.versions!r}")
    said = {name for text in texts for name in _IN_TEXT.findall(text)}
    wrong += [f"no form has {{{name}}}" for name in said - names - _named(message)]
    wrong += [
        f"a second line or a blank too many in {text!r}" for text in texts if text != " ".join(text.split())
    ]
    for weight in (message.weight, *(case.weight for case in message.cases if case.weight is not None)):
        Weight(weight)
    for proof in (message.proves, *(case.proves for case in message.cases if case.proves is not None)):
        Proof(proof)
    return wrong + [f"no table {table}" for table in message.codes.values() if table not in codes()]


def _named(message: Message) -> set[str]:
    return {f"{name}_name" for name in message.codes}


def test_the_types_of_the_entries_are_right() -> None:
    codec = Codec()
    for message in MESSAGES:
        assert codec.decode(Message, codec.encode(message)) == message


def test_each_number_has_a_name() -> None:
    for table, rows in codes().items():
        for code in rows.values():
            assert code.name, (table, code.number)


def test_every_entry_can_be_explained() -> None:
    for message in MESSAGES:
        for sample in message.samples:
            found = catalogue().find(sample)
            assert found is not None
            meaning = explain(found, NOTHING_KNOWN)
            assert meaning.title
            assert not _IN_TEXT.search(meaning.id), meaning.id


@given(st.text(max_size=3000))
def test_any_text_is_read_or_unknown(text: str) -> None:
    found = catalogue().find(text)
    assert found is None or explain(found).title


@pytest.mark.parametrize(
    ("form", "line", "values"),
    [
        ("port {port} of {nic} is {state}", "x: port 1 of mlx5_0 is DOWN now", {"state": "DOWN"}),
        ("port {port:number} down", "port -1  down", {"port": "-1"}),
        ("error {code:hex}", "error 0xff", {"code": "0xff"}),
        ("is {state:up|down}", "link is down", {"state": "down"}),
        ("failed: {why:text}", "it failed: no such file", {"why": "no such file"}),
        ("begin * end {x}", "begin of the end 5", {"x": "5"}),
        (r"a\*b \{c\}", "a*b {c}", {}),
        ("status=({name}){number:number}", "status=(IBV_WC_X)12", {"name": "IBV_WC_X", "number": "12"}),
    ],
)
def test_a_form_reads_its_placeholders(form: str, line: str, values: dict[str, str]) -> None:
    match = re.search(pattern_of(form), line)
    assert match is not None
    assert values.items() <= match.groupdict().items()


@pytest.mark.parametrize(
    ("form", "line"),
    [("port down", "airport down"), ("port down", "port downs"), ("is {state:up|down}", "is upper")],
)
def test_a_form_has_whole_words(form: str, line: str) -> None:
    assert re.search(pattern_of(form), line) is None


def test_parts_of_words_that_differ_find_no_message() -> None:
    assert words_of("mlx5_{n} port * of {x:a|b}x end") == ["port", "of", "end"]
    assert words_of("is {state:up|down} now") == ["is", "now"]
    assert words_of("{code:CUDA_ERROR_UNKNOWN}") == ["CUDA_ERROR_UNKNOWN"]


@pytest.mark.parametrize(
    ("condition", "version", "holds"),
    [
        ("<2.21", "2.20.3", True),
        ("<2.21", "2.21.0", False),
        (">=2.29.2 <2.30.7", "2.30.3+cuda12.9", True),
        (">=2.29.2 <2.30.7", "2.30.7", False),
        ("<=2.30", "2.30.7", True),
        ("==2.30.7", "2.30.7", True),
    ],
)
def test_a_case_compares_versions(condition: str, version: str, holds: bool) -> None:
    assert is_version(condition, leading_version(version)) is holds


def test_an_unknown_version_is_within_no_bounds() -> None:
    assert not is_version("<2.21", Context().version)


def test_a_sample_is_never_taken_for_a_line_that_says_nothing() -> None:
    samples = {sample: message.id for message in MESSAGES for sample in message.samples}
    taken = [
        f"{id_}: {sample}" for sample, id_ in samples.items() if not catalogue().may_match(shape_of(sample))
    ]
    assert not taken


CALLED = catalogue(CALLS).messages


@pytest.mark.parametrize("message", CALLED, ids=lambda message: message.id)
def test_what_failed_is_found_in_any_words(message: Message) -> None:
    for sample in message.samples:
        for line in (sample, sample.upper()):
            found = find_failure(line)
            assert found is not None, line
            assert found.message.id == message.id, (line, found.message.id)
            assert explain(found).title
    for form in message.forms:
        assert form == form.lower()
        assert any(re.search(pattern_of(form), sample.lower()) for sample in message.samples), form


def test_entries_about_calls_name_only_what_is_known() -> None:
    given = {"error"}  # of every line
    for message in CALLED:
        names = set.union(given, *(placeholders_of(form) for form in message.forms)) | _named(message)
        texts = [message.title, message.cause, message.fix]
        for case in message.cases:
            texts += [text for text in (case.title, case.cause, case.fix) if text is not None]
            assert case.values.keys() <= names, message.id
        assert {name for text in texts for name in _IN_TEXT.findall(text)} <= names, message.id
        assert all(" ".join(text.split()) == text for text in texts), message.id
        assert set(message.codes.values()) <= codes().keys()


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("ibv_reg_mr failed: Cannot allocate memory", "cannot allocate memory"),
        ("failed to register the memory, errno: 14", "14"),
        ("could not create a QP (EINVAL)", "einval"),
        ("ibv_create_cq failed", ""),
    ],
)
def test_the_errno_of_a_line_is_read(line: str, error: str) -> None:
    found = find_failure(line)
    assert found is not None
    assert found.values["error"] == error


@given(st.text(max_size=3000))
def test_any_text_names_a_failure_or_none(text: str) -> None:
    found = find_failure(text)
    assert found is None or explain(found).title
