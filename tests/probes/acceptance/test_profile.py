"""Profiles of audits: what is not shown is never passed, and a site's mistakes are named."""

import re
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.acceptance.profile import (
    SHIPPED,
    Answer,
    Answered,
    ProfileError,
    answered,
    counted,
    parse_profile,
    shipped,
)
from probes.checks.judgment import judge
from tests.support.doctor import examination_of

ROW = '[[criterion]]\nid = "a"\ntext = "b"\n'


def answers(node: str, profile: str = "") -> dict[str, Answered]:
    examination = examination_of(node)
    chosen = parse_profile("ours", profile) if profile else shipped("clustermax")
    judgment = judge(examination)
    return {each.id: each for each in answered(chosen, examination, judgment)}


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_profile_is_dated_and_has_a_source(name: str) -> None:
    profile = shipped(name)
    assert profile.title
    assert profile.source
    assert profile.date


def test_a_healthy_node_passes_what_can_be_shown() -> None:
    given_answers = answers("hgx-h100")
    assert given_answers["gpudirect-rdma"].answer is Answer.PASS
    assert given_answers["pcie-acs"].answer is Answer.PASS
    assert Answer.FAIL not in {each.answer for each in given_answers.values()}


def test_a_fault_fails_its_criterion_and_no_other() -> None:
    given_answers = answers("hgx-h100+acs-on")
    failed = {name for name, each in given_answers.items() if each.answer is Answer.FAIL}
    assert failed == {"pcie-acs"}
    assert "acs-redirect-enabled" in given_answers["pcie-acs"].evidence[0]


def test_what_is_unknown_is_not_shown() -> None:
    answer = answers("hgx-h100", f'{ROW}checks = ["acs-redirect-enabled", "network-congested"]\n')["a"]
    assert answer.answer is Answer.NOT_SHOWN
    assert "watching" in answer.evidence[0]


def test_a_measurement_that_was_not_made_is_not_shown() -> None:
    answer = answers("hgx-h100", f'{ROW}path = "any"\nmeasured = "gpu"\n')["a"]
    words = "no test with GPU memory is kept of GPU0, GPU1, GPU2, GPU3 and 12 more; gdrtop bench measures it"
    assert (answer.answer, answer.evidence) == (Answer.NOT_SHOWN, (words,))


def test_a_note_fails_only_where_the_audit_asks_for_it() -> None:
    row = f'{ROW}checks = ["firmware-below-floor"]\n'
    fault = "hgx-h100+firmware-below-floor-without-vfs"
    assert answers(fault, row)["a"].answer is Answer.PASS
    assert answers(fault, f'{row}notes = "fail"\n')["a"].answer is Answer.FAIL
    assert answers("hgx-h100", f'{row}notes = "fail"\n')["a"].answer is Answer.PASS


def test_a_module_that_is_not_loaded_fails() -> None:
    assert answers("hgx-h100", f'{ROW}loaded = ["gdrdrv"]\n')["a"].answer is Answer.PASS
    assert answers("hgx-h100+no-gdr-path", f'{ROW}loaded = ["nvidia_peermem"]\n')["a"].answer is Answer.FAIL


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "no [[criterion]]"),
        ("criterion = 3", "no [[criterion]]"),
        ("a = [", "not TOML"),
        (f"{ROW}", "says neither"),
        (f'{ROW}check = ["acs-redirect-enabled"]', "check is not known"),
        (f'{ROW}checks = "acs-redirect-enabled"', "not a list of texts"),
        (f'{ROW}checks = ["acs-redirect-enable"]', "did you mean acs-redirect-enabled"),
        (f'{ROW}loaded = ["nvidia_permem"]', "did you mean nvidia_peermem"),
        (f'{ROW}path = "fast"', "one of any"),
        (f'{ROW}notes = "x"', "notes is one of fail"),
        (f'{ROW}instead = "x"\n{ROW}instead = "y"', "twice"),
        (f'{ROW}instead = 3', "not a text"),
        ('[[criterion]]\nid = "a"\ninstead = "x"', "needs an id and a text"),
        (f'owner = "me"\n{ROW}instead = "x"', "owner is not known"),
    ],
)  # fmt: skip
def test_a_mistake_in_a_profile_is_named(text: str, what: str) -> None:
    with pytest.raises(ProfileError, match=re.escape(what)):
        parse_profile("ours", text)


@given(st.text(max_size=300))
def test_no_text_crashes_the_reader(text: str) -> None:
    with suppress(ProfileError):
        parse_profile("any", text)


def test_the_count_says_what_is_open() -> None:
    rows = [Answered("a", "b", answer, ()) for answer in Answer]
    assert counted(rows) == "1 criterion passed, 1 failed, 1 not shown"
