"""A probe is declared with its field; the table runs it, in order, with what it needs."""

# ruff: noqa: RUF009 - the declaration returns a dataclasses.field()

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from probes.base.unknown import Maybe, Reason, Unknown
from probes.host.machine.local import LocalHost
from probes.host.probe_table import ProbedFields, Probing, probes_of

probed: ProbedFields[Probing] = ProbedFields()


@dataclass(frozen=True)
class Facts:
    label: str
    total: Maybe[int] = probed("total", lambda run: 1 + number(run), needs=("number",))
    number: Maybe[int] = probed("number", lambda run: 41)
    etc: Maybe[str] = probed("etc", lambda run: "read", directories=("/etc",))


def number(run: Probing) -> int:
    answer = run.answer("number", int)
    assert not isinstance(answer, Unknown)
    return answer


def facts_of(root: Path) -> Facts:
    return Facts("a tree", **Probing(LocalHost(str(root)), 5.0).run(probes_of(Facts)))


def test_a_probe_starts_after_those_whose_answers_it_needs(tmp_path: Path) -> None:
    facts = facts_of(tmp_path)
    assert (facts.number, facts.total) == (41, 42)


def test_a_directory_that_a_dumped_tree_leaves_out_is_not_recorded(tmp_path: Path) -> None:
    etc = facts_of(tmp_path).etc
    assert isinstance(etc, Unknown)
    assert (etc.reason, etc.source) == (Reason.NOT_RECORDED, "/etc")
    (tmp_path / "etc").mkdir()
    assert facts_of(tmp_path).etc == "read"


def test_an_answer_of_another_type_is_an_error_of_the_program(tmp_path: Path) -> None:
    run = Probing(LocalHost(str(tmp_path)), 5.0)
    run.run(probes_of(Facts))
    with pytest.raises(TypeError, match="number is no str"):
        run.answer("number", str)


def test_a_field_without_a_value_is_required() -> None:
    with pytest.raises(TypeError, match="total"):
        Facts("nothing probed")
