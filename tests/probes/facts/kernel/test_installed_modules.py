"""Module files are read without modinfo: plain, packed, signed, and any bytes."""

from __future__ import annotations

import gzip
import lzma
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from probes.base.unknown import Reason, Unknown
from probes.facts.kernel.installed_modules import modinfo_of, read_module_file, unpack
from probes.facts.kernel.module_files import ModuleFile
from probes.host.machine.local import LocalHost
from tests.support.module_elf import module_file

FIELDS = {
    "version": "570.124.06",
    "license": "Dual MIT/GPL",
    "name": "nvidia",
    "vermagic": "6.8.0-60-generic SMP preempt",
    "depends": "",
}


def written(root: Path, name: str, content: bytes) -> ModuleFile | Unknown:
    path = root / "lib" / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    return read_module_file(LocalHost(str(root)), f"/lib/{name}")


@pytest.mark.parametrize(
    ("name", "pack"), [("nvidia.ko", bytes), ("nvidia.ko.gz", gzip.compress), ("nvidia.ko.xz", lzma.compress)]
)
def test_the_fields_of_plain_and_packed_files(tmp_path: Path, name: str, pack: type[bytes]) -> None:
    file = written(tmp_path, name, pack(module_file(**FIELDS)))
    assert isinstance(file, ModuleFile)
    assert (file.name, file.version, file.license) == ("nvidia", "570.124.06", "Dual MIT/GPL")
    assert file.kernel == "6.8.0-60-generic"
    assert file.path == f"/lib/{name}"
    assert isinstance(file.signer, Unknown)
    assert file.signer.reason is Reason.NOT_THERE  # unsigned


def test_a_signed_file_is_not_called_unsigned(tmp_path: Path) -> None:
    file = written(tmp_path, "nvidia.ko", module_file(signed=True, order=">", **FIELDS))
    assert isinstance(file, ModuleFile)
    assert isinstance(file.signer, Unknown)
    assert file.signer.reason is Reason.NOT_RECORDED


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.ko", b"\x7fELF", "not a kernel module"),
        ("a.ko.zst", b"\x28\xb5\x2f\xfd", "zstd"),
        ("a.ko.xz", lzma.compress(b"x" * 100)[:40], "damaged"),
    ],
)
def test_other_files_are_malformed(tmp_path: Path, name: str, content: bytes, words: str) -> None:
    file = written(tmp_path, name, content)
    assert isinstance(file, Unknown)
    assert file.reason is Reason.MALFORMED
    assert words in file.detail


@settings(max_examples=50)
@given(st.binary(max_size=400), st.integers(0, 200), st.binary(max_size=16))
def test_any_bytes_are_read(content: bytes, place: int, patch: bytes) -> None:
    module = module_file(**FIELDS)
    for data in (content, module[:place] + patch + module[place + len(patch) :], module[:place]):

        def read(offset: int, count: int, data: bytes = data) -> bytes:
            return data[offset : offset + count]

        strings = modinfo_of(read)
        assert strings is None or all(isinstance(string, bytes) for string in strings)
        unpack(data)
