"""Files of others: no bytes may stop the parsers, take them long, or reach the terminal as escapes."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from probes.setup.env import yaml_tree
from probes.setup.env.assignments import MAX_ASSIGNMENTS, FileKind, ParsedFile, parse_conf
from probes.setup.env.pod_file import parse_pod
from probes.setup.env.shell_file import parse_shell
from probes.setup.env.yaml_tree import YamlError, mappings_of, read_yaml

WORDS = st.sampled_from(
    (
        *("export ", "NCCL_IB_HCA", "=", "NCCL_NET=Socket", "'", '"', "\\", "\n", "$(", "`", ";"),
        *(" -x ", "--export=", "env:", "- name: ", "value: ", "&a ", "*a", "{", "}", "[", "]", ": ", "|"),
        *("#SBATCH ", "# ", "unset ", "set -a", "bash -c ", "\r", "\x1b[31m", "\0", "\u202e", "🙂"),
        "!!python/object:os.system ",
    )
)
FILES = st.one_of(st.text(max_size=200), st.lists(WORDS, max_size=30).map("".join))


def check(parsed: ParsedFile) -> None:
    for group in parsed.groups:
        assert group.name.isprintable()
        assert len(group.assignments) <= MAX_ASSIGNMENTS
        for assignment in group.assignments:
            assert assignment.line > 0
            assert assignment.value is None or (
                assignment.value.isprintable() and len(assignment.value) <= 256
            )
    for problem in parsed.problems:
        assert problem.line >= 0
        assert f"{problem.title}{problem.detail}{problem.fix}".isprintable()


@settings(max_examples=40)
@given(FILES)
@example("export NCCL_DEBUG='\nNCCL_NET=Socket")
@example("\\")
def test_any_text_is_a_shell_file(text: str) -> None:
    check(parse_shell(text))


@settings(max_examples=40)
@given(FILES)
def test_any_text_is_an_nccl_conf(text: str) -> None:
    parsed = parse_conf(text)
    check(parsed)
    assert parsed.kind is FileKind.NCCL_CONF


@settings(max_examples=40)
@given(FILES)
@example("a: &a [*a, *a]")
@example("!!binary x: y")
@example("? [a, b]\n: c")
def test_any_text_is_a_manifest_or_one_error(text: str) -> None:
    check(parse_pod(text))


def refused(text: str) -> str:
    try:
        read_yaml(text)
    except YamlError as error:
        return error.reason
    return ""


@pytest.mark.slow
def test_bombs_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "nested more than" in refused("[" * 10_000)
    assert "aliases" in refused("a: &a x\nb: [" + "*a," * 300 + "]")
    monkeypatch.setattr(yaml_tree, "_MAX_EVENTS", 500)
    assert "elements" in refused("- a\n" * 1000)


def test_a_billion_laughs_is_one_mapping_each() -> None:
    lines = ["l0: &l0 {name: a, image: b, env: {NCCL_NET: Socket}}"]
    lines += [f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 9)}]" for n in range(1, 10)]
    text = "\n".join(lines)
    assert len(list(mappings_of(read_yaml(text)))) == 3
    parsed = parse_pod(text)
    assert sum(len(group.assignments) for group in parsed.groups) == 1


def test_nothing_in_a_manifest_is_constructed() -> None:
    (document,) = read_yaml("!!python/object/apply:os.system ['true']")
    assert list(mappings_of([document])) == []
