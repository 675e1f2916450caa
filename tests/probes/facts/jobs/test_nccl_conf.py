"""How NCCL reads its configuration file, and which lines it silently ignores."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.base.text import printable_lines
from probes.base.unknown import Reason, Unknown
from probes.facts.jobs.nccl_conf import NcclConf, parse_nccl_conf, read_nccl_conf
from probes.host.machine.local import LocalHost
from tests.support.trees import write


def test_variables_of_the_file(tmp_path: Path) -> None:
    write(tmp_path, "/etc/nccl.conf", "# site\nNCCL_IB_TC=106\nNCCL_IB_TC=0\nPATH=/x\n")
    assert read_nccl_conf(LocalHost(str(tmp_path))) == NcclConf({"NCCL_IB_TC": "106"}, ())


@pytest.mark.parametrize(
    "line", ["NCCL_NET_GDR_LEVEL = PHB", " NCCL_DEBUG=INFO", "export NCCL_DEBUG=INFO", "NCCL_DEBUG"]
)
def test_a_line_that_nccl_ignores_is_reported(line: str) -> None:
    assert parse_nccl_conf(line) == NcclConf({}, (line,))


def test_blanks_and_comments_behind_a_value_belong_to_it() -> None:
    assert parse_nccl_conf("NCCL_NET_GDR_LEVEL= PHB # near").values == {"NCCL_NET_GDR_LEVEL": " PHB # near"}


def test_a_missing_file_is_reported(tmp_path: Path) -> None:
    answer = read_nccl_conf(LocalHost(str(tmp_path)))
    assert isinstance(answer, Unknown)
    assert answer.reason is Reason.NOT_THERE


@given(st.text())
def test_no_text_stops_the_parser(text: str) -> None:
    found = parse_nccl_conf(printable_lines(f"NCCL_X={text}\n NCCL_{text}"))
    for value in (*found.values.values(), *found.ignored):
        assert value.isprintable()
