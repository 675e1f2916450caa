"""The limits of locked memory, and where they are set."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.base.unknown import Reason, Unknown
from probes.facts.system.limits import (
    LimitsLine,
    MemlockLimit,
    parse_limits,
    parse_limits_conf,
    parse_unit_limit,
    probe,
)
from probes.facts.system.services import UnitSetting
from probes.host.machine.local import LocalHost
from tests.support.trees import write

LIMITS = (
    "Limit                     Soft Limit           Hard Limit           Units     \n"
    "Max processes             96365                96365                processes \n"
    "Max locked memory         {} {} bytes     \n"
)


@pytest.mark.parametrize(
    ("soft", "hard", "expected"),
    [
        ("8388608             ", "unlimited           ", MemlockLimit(8388608, math.inf)),
        ("unlimited           ", "unlimited           ", MemlockLimit(math.inf, math.inf)),
        ("0                   ", "0                   ", MemlockLimit(0, 0)),
    ],
)
def test_the_limit_of_a_process(soft: str, hard: str, expected: MemlockLimit) -> None:
    assert parse_limits(LIMITS.format(soft, hard)) == expected


def test_a_file_without_the_line_is_no_limit_of_zero() -> None:
    answer = parse_limits("Limit Soft\n")
    assert isinstance(answer, Unknown)
    assert answer.reason is Reason.MALFORMED


def test_lines_of_limits_conf_with_their_place(tmp_path: Path) -> None:
    write(tmp_path, "/etc/security/limits.conf", "\n# * soft memlock 1\n* soft memlock 64\n* - nofile 5\n")
    write(tmp_path, "/etc/security/limits.d/rdma.conf", "* - memlock unlimited # RDMA\n@hpc hard memlock x\n")
    facts = probe(LocalHost(str(tmp_path)))
    assert facts.lines == (
        LimitsLine("*", "soft", 65536, "/etc/security/limits.conf:3"),
        LimitsLine("*", "-", math.inf, "/etc/security/limits.d/rdma.conf:1"),
    )
    assert isinstance(facts.own, Unknown)
    assert facts.services == {}


def test_the_services_that_start_jobs(tmp_path: Path) -> None:
    write(tmp_path, "/usr/lib/systemd/system/slurmd.service", "[Service]\nLimitMEMLOCK=infinity\n")
    write(tmp_path, "/usr/lib/systemd/system/ssh.service", "[Service]\nExecStart=sshd\n")
    services = probe(LocalHost(str(tmp_path))).services
    assert services["slurmd.service"] == UnitSetting("infinity", "/usr/lib/systemd/system/slurmd.service")
    assert set(services) == {"slurmd.service", "ssh.service"}
    ssh = services["ssh.service"]
    assert isinstance(ssh, Unknown)
    assert ssh.reason is Reason.NOT_THERE


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("infinity", MemlockLimit(math.inf, math.inf)),
        ("64M", MemlockLimit(64 << 20, 64 << 20)),
        ("8388608:infinity", MemlockLimit(8388608, math.inf)),
    ],
)
def test_limits_of_units(value: str, expected: MemlockLimit) -> None:
    assert parse_unit_limit(value) == expected


@pytest.mark.parametrize("value", ["", "lots", "1:2:3", "-1"])
def test_what_is_no_limit_is_malformed(value: str) -> None:
    assert isinstance(parse_unit_limit(value), Unknown)


@given(st.text())
def test_no_text_stops_the_parsers(text: str) -> None:
    parse_limits(text)
    parse_unit_limit(text)
    assert all(line.domain.isprintable() for line in parse_limits_conf(text, "x"))


@pytest.mark.parametrize(
    ("release", "expected"),
    [
        ('NAME="Ubuntu"\nID=ubuntu\nID_LIKE=debian\n', MemlockLimit(float(256 << 30), float(256 << 30))),
        ("ID=debian\n", MemlockLimit(float(256 << 30), float(256 << 30))),
        ('ID="rocky"\nID_LIKE="rhel centos fedora"\n', None),
    ],
)
def test_the_limit_of_a_login_without_a_line(
    tmp_path: Path, release: str, expected: MemlockLimit | None
) -> None:
    write(tmp_path, "/etc/os-release", release)
    limit = str(256 << 30)
    write(tmp_path, "/proc/1/limits", f"Max locked memory         {limit} {limit} bytes\n")
    default = probe(LocalHost(str(tmp_path))).login_default
    assert default == expected if expected else isinstance(default, Unknown)
