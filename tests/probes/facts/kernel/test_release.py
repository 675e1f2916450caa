"""The kernel's release and restrictions, and what it does not show."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.base.unknown import Reason, Unknown
from probes.facts.kernel.release import (
    SECURE_BOOT,
    KernelFacts,
    parse_banner,
    parse_config,
    parse_lockdown,
    parse_secure_boot,
    parse_switch,
    parse_version,
    probe,
    unpack,
)
from probes.host.machine.local import LocalHost

RELEASE = "6.8.0-45-generic"
CONFIG = "# Linux/x86 6.8.0 Kernel Configuration\nCONFIG_64BIT=y\nCONFIG_DMA_SHARED_BUFFER=y\nCONFIG_X=m\n"


def write(root: Path, path: str, content: str | bytes) -> None:
    file = root / path.lstrip("/")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content.encode() if isinstance(content, str) else content)


def facts_of(root: Path) -> KernelFacts:
    return probe(LocalHost(str(root)))


def with_release(root: Path) -> Path:
    write(root, "/proc/sys/kernel/osrelease", f"{RELEASE}\n")
    return root


def test_release_and_version(tmp_path: Path) -> None:
    facts = facts_of(with_release(tmp_path))
    assert facts.release == RELEASE
    assert facts.version == (6, 8)


def test_the_release_is_also_in_proc_version(tmp_path: Path) -> None:
    write(tmp_path, "/proc/version", "Linux version 5.14.0-503.el9.x86_64 (mockbuild@x) (gcc) #1 SMP\n")
    facts = facts_of(tmp_path)
    assert facts.release == "5.14.0-503.el9.x86_64"
    assert facts.version == (5, 14)


@pytest.mark.parametrize("text", ["../../../etc", "6.8/..", "", "generic", "6.8 x"])
def test_a_release_that_is_none_never_becomes_part_of_a_path(tmp_path: Path, text: str) -> None:
    write(tmp_path, "/proc/sys/kernel/osrelease", text)
    release = facts_of(tmp_path).release
    assert isinstance(release, Unknown)
    assert release.reason is Reason.MALFORMED


def test_an_empty_tree_knows_nothing_and_claims_nothing(tmp_path: Path) -> None:
    facts = facts_of(tmp_path)
    for fact in vars(facts).values():
        assert isinstance(fact, Unknown)
        assert fact.reason is Reason.NOT_THERE


@pytest.mark.parametrize(("last", "expected"), [(1, True), (0, False)])
def test_secure_boot_is_the_fifth_byte(tmp_path: Path, last: int, expected: bool) -> None:
    write(tmp_path, SECURE_BOOT, bytes([6, 0, 0, 0, last]))
    assert facts_of(tmp_path).secure_boot is expected


@pytest.mark.parametrize("variable", [b"", b"\x06\0\0\0", b"\x06\0\0\0\x02", b"\x06\0\0\0\x01\x01"])
def test_another_secure_boot_variable_is_malformed(variable: bytes) -> None:
    answer = parse_secure_boot(variable)
    assert isinstance(answer, Unknown)
    assert answer.reason is Reason.MALFORMED


def test_lockdown_signatures_and_disabled_modules(tmp_path: Path) -> None:
    write(tmp_path, "/sys/kernel/security/lockdown", "none [integrity] confidentiality\n")
    write(tmp_path, "/sys/module/module/parameters/sig_enforce", "Y\n")
    write(tmp_path, "/proc/sys/kernel/modules_disabled", "0\n")
    write(tmp_path, "/proc/cmdline", "root=/dev/sda1 iommu=pt\n")
    facts = facts_of(tmp_path)
    assert facts.lockdown == "integrity"
    assert facts.signatures_enforced is True
    assert facts.modules_disabled is False
    assert facts.cmdline == "root=/dev/sda1 iommu=pt"


def test_a_switch_that_is_neither_names_its_file(tmp_path: Path) -> None:
    write(tmp_path, "/proc/sys/kernel/modules_disabled", "maybe\n")
    answer = facts_of(tmp_path).modules_disabled
    assert isinstance(answer, Unknown)
    assert answer.source == "/proc/sys/kernel/modules_disabled"


@pytest.mark.parametrize("path", [f"/boot/config-{RELEASE}", f"/lib/modules/{RELEASE}/config"])
def test_dma_buf_is_looked_up_in_the_kernels_config(tmp_path: Path, path: str) -> None:
    write(with_release(tmp_path), path, CONFIG + "CONFIG_Y=y\n" * 20000)
    assert facts_of(tmp_path).dma_shared_buffer is True


def test_a_config_without_the_option_means_no_dma_buf(tmp_path: Path) -> None:
    write(
        with_release(tmp_path),
        f"/boot/config-{RELEASE}",
        CONFIG.replace("DMA_SHARED_BUFFER", "DMA_SHARED_OTHER"),
    )
    assert facts_of(tmp_path).dma_shared_buffer is False


def test_the_config_inside_the_kernel_serves_too(tmp_path: Path) -> None:
    write(tmp_path, "/proc/config.gz", gzip.compress(CONFIG.encode()))
    assert facts_of(tmp_path).dma_shared_buffer is True


@pytest.mark.parametrize(
    ("options", "answer"),
    [("USER_MEM ON_DEMAND_PAGING", True), ("USER_MEM", False), ("ON_DEMAND_PAGING", False), ("", False)],
)
def test_mlx5_takes_dmabuf_with_both_of_its_options(tmp_path: Path, options: str, answer: bool) -> None:
    lines = "".join(f"CONFIG_INFINIBAND_{option}=y\n" for option in options.split())
    write(with_release(tmp_path), f"/boot/config-{RELEASE}", CONFIG + lines)
    assert facts_of(tmp_path).mlx5_dmabuf is answer


def test_a_config_that_is_none_is_malformed(tmp_path: Path) -> None:
    write(tmp_path, "/proc/config.gz", b"not gzip")
    answer = facts_of(tmp_path).dma_shared_buffer
    assert isinstance(answer, Unknown)
    assert answer.reason is Reason.MALFORMED


def test_a_bomb_is_not_unpacked() -> None:
    assert unpack(gzip.compress(b"\0" * 10_000_000), limit=1_000_000) == b""


@given(st.binary())
def test_no_bytes_stop_the_byte_parsers(content: bytes) -> None:
    unpack(content)
    parse_config(content, "CONFIG_X")
    assert isinstance(parse_secure_boot(content), (bool, Unknown))


@given(st.text())
def test_no_text_stops_the_text_parsers(text: str) -> None:
    parse_banner(text)
    parse_version(text)
    parse_switch(text)
    lockdown = parse_lockdown(text)
    assert isinstance(lockdown, Unknown) or lockdown.isprintable()


@given(st.integers(0, 9999), st.integers(0, 9999), st.sampled_from(["", ".0", "-rc1", ".12-generic", "+"]))
def test_every_release_gives_its_version(major: int, minor: int, rest: str) -> None:
    assert parse_version(f"{major}.{minor}{rest}") == (major, minor)
