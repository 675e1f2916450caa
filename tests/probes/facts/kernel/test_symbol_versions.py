"""The versions of the peer-memory symbol, by modprobe and in the files of a directory tree."""

from __future__ import annotations

import lzma
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from probes.base.unknown import Maybe, Reason, Unknown
from probes.facts.kernel.installed_modules import parse_elf
from probes.facts.kernel.module_files import PEER_MEMORY_SYMBOL
from probes.facts.kernel.symbol_versions import NEEDED, SymbolVersions, parse_versions, read_versions
from probes.host.machine.local import LocalHost
from probes.host.protocol import CommandOutput
from tests.support.module_elf import exported, module_file, needed, needed_extended

PEERMEM, CORE = "/lib/modules/6/nvidia-peermem.ko", "/lib/modules/6/ib_core.ko"
OTHERS = {"module_layout": 1, "ib_x": 2}
SYMBOL = {**OTHERS, PEER_MEMORY_SYMBOL: 0x6E1AAA01}
OTHER_OFED = {**OTHERS, PEER_MEMORY_SYMBOL: 0x2F90C4D7}


class Modprobe(LocalHost):
    """A directory tree in which modprobe prints something."""

    def __init__(self, needs: str, exports: str, error: str = "") -> None:
        super().__init__("/nowhere")
        self._printed = {True: needs, False: exports}
        self._error = error

    def run(self, argv: Sequence[str], seconds: float = 2.0) -> Maybe[CommandOutput]:
        text = self._printed[argv[1] == NEEDED]
        return CommandOutput(tuple(argv), int(not text), text, "" if text else self._error)


def printed(needs: str, exports: str, error: str = "") -> SymbolVersions:
    return read_versions(Modprobe(needs, exports, error), PEERMEM, "ib_core", CORE)


def in_tree(
    root: Path, needs: Mapping[str, bytes], exports: Mapping[str, bytes], order: str = "<"
) -> SymbolVersions:
    for path, sections in ((PEERMEM, needs), (f"{CORE}.xz", exports)):
        file = root / path[1:]
        file.parent.mkdir(parents=True, exist_ok=True)
        content = module_file(order=order, sections=sections, name="x")
        file.write_bytes(lzma.compress(content) if path.endswith(".xz") else content)
    return read_versions(LocalHost(str(root)), PEERMEM, "ib_core", f"{CORE}.xz")


def test_modprobe_prints_both_versions() -> None:
    needs = f"0x00000001\tmodule_layout\n0x2f90c4d7\t{PEER_MEMORY_SYMBOL}\n"
    same = printed(needs, f"0x2f90c4d7\t{PEER_MEMORY_SYMBOL}\n0x00000002\t{PEER_MEMORY_SYMBOL}_x\n")
    assert (same.expected, same.exported, same.differ) == (0x2F90C4D7, 0x2F90C4D7, False)
    assert printed(needs, f"0x00000003\t{PEER_MEMORY_SYMBOL}\n").differ is True


def test_a_symbol_without_a_version_is_not_compared() -> None:
    without = printed(f"0x00000001\t{PEER_MEMORY_SYMBOL}\n", f"0x00000000\t{PEER_MEMORY_SYMBOL}\n")
    assert isinstance(without.differ, Unknown)
    assert without.differ.reason is Reason.NOT_THERE
    assert isinstance(printed("0x00000001\tmodule_layout\n", "0x00000001\tib_x\n").differ, Unknown)


def test_an_old_modprobe_says_why_nothing_is_known() -> None:
    failed = printed(
        f"0x00000001\t{PEER_MEMORY_SYMBOL}\n", "", "modprobe: unrecognized option '--show-exports'"
    )
    assert isinstance(failed.differ, Unknown)
    assert "unrecognized option" in failed.differ.detail


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("absolute", [False, True])
def test_files_of_a_tree_are_read_without_modprobe(tmp_path: Path, order: str, absolute: bool) -> None:
    core = exported(order, absolute, **SYMBOL)
    fitting = in_tree(tmp_path, needed(order, **SYMBOL), core, order)
    assert (fitting.expected, fitting.exported, fitting.differ) == (0x6E1AAA01, 0x6E1AAA01, False)
    assert in_tree(tmp_path, needed_extended(order, **OTHER_OFED), core, order).differ is True


def test_a_kernel_without_versions_compares_nothing(tmp_path: Path) -> None:
    assert isinstance(in_tree(tmp_path, {}, {}).differ, Unknown)
    absent = read_versions(LocalHost(str(tmp_path)), "(builtin)", "ib_core", "/lib/modules/6/no.ko")
    assert isinstance(absent.expected, Unknown)
    assert isinstance(absent.exported, Unknown)


@settings(max_examples=50)
@given(st.binary(max_size=300), st.integers(0, 900), st.binary(max_size=24))
def test_any_bytes_are_read(content: bytes, place: int, patch: bytes) -> None:
    module = module_file(sections={**needed(**SYMBOL), **exported(**SYMBOL)})
    for data in (content, module[:place] + patch + module[place + len(patch) :], module[:place]):

        def read(offset: int, count: int, data: bytes = data) -> bytes:
            return data[offset : offset + count]

        elf = parse_elf(read)
        version = None if elf is None else elf.value(f"__crc_{PEER_MEMORY_SYMBOL}".encode())
        assert version is None or 0 <= version < 1 << 32


@given(st.text())
def test_any_output_is_read(text: str) -> None:
    line = f"0x00000007\t{PEER_MEMORY_SYMBOL}\n"
    assert parse_versions(line + text, PEER_MEMORY_SYMBOL) == 7
    parse_versions(text, PEER_MEMORY_SYMBOL)
