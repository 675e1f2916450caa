"""The capabilities of a PCI function, which are unknown if they could not be read."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.base.origin import Origin, Source
from probes.base.unknown import Maybe, Reason, Unknown
from probes.facts.pci import functions as pci
from probes.facts.pci.config_space import (
    Acs,
    ConfigSpace,
    PciExpress,
    capabilities,
    extended_capabilities,
    parse_config,
    path_functions,
    probe,
)
from probes.host.machine.local import LocalHost
from tests.support.machines import machine_file
from tests.support.trees import MELLANOX, NVIDIA, add_function

BDF = "0000:15:01.0"


class LiveTree(LocalHost):
    """A tree that pretends to be this machine."""

    def __init__(self, root: Path, is_root: bool = False) -> None:
        super().__init__(str(root))
        self.origin = Origin(Source.LIVE)
        self._root_asks = is_root

    def is_root(self) -> bool:
        return self._root_asks


def put(content: bytearray, offset: int, value: int, size: int = 2) -> None:
    content[offset : offset + size] = value.to_bytes(size, "little")


def config(
    port_type: int = 6, devctl: int = 0x2930, devctl2: int = 0x1000, acs_control: int | None = 0x001D
) -> bytearray:
    """A switch's downstream port: Express at 0x68, ACS at 0x148, ATS at 0x150, BARs at 0x158."""
    content = bytearray(4096)
    put(content, 0x00, 0x1000C030, 4)
    put(content, 0x06, 0x0010)
    content[0x0E] = 1
    content[0x34] = 0x40
    put(content, 0x40, 0x6801)  # power management, next 0x68
    put(content, 0x68, 0x0010)
    put(content, 0x6A, port_type << 4 | 2)
    put(content, 0x6C, 0x2, 4)  # MaxPayload 512 possible
    put(content, 0x70, devctl)
    put(content, 0x90, devctl2)
    put(content, 0x100, 0x14810001, 4)
    if acs_control is not None:
        put(content, 0x148, 0x1501000D, 4)
        put(content, 0x14C, 0x005F)
        put(content, 0x14E, acs_control)
    put(content, 0x150, 0x1581000F, 4)
    put(content, 0x156, 0x8000)
    put(content, 0x158, 0x00010015, 4)
    put(content, 0x15C, 0x3 << (17 + 4), 4)  # 128 GiB and 256 GiB
    put(content, 0x160, 17 << 8 | 1 << 5 | 2, 4)
    return content


def written(root: Path, content: bytes, **files: str) -> Path:
    directory = root / "sys/bus/pci/devices" / BDF
    directory.mkdir(parents=True)
    (directory / "config").write_bytes(content)
    for name, text in files.items():
        file = directory / name.replace("__", "/")
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
    return root


def space(answer: Maybe[ConfigSpace]) -> ConfigSpace:
    assert isinstance(answer, ConfigSpace)
    return answer


def reason(answer: object) -> Reason:
    assert isinstance(answer, Unknown)
    return answer.reason


def test_acs_and_express_of_a_switch_port(tmp_path: Path) -> None:
    found = space(probe(LocalHost(str(written(tmp_path, config()))), [BDF]).functions[BDF])
    assert isinstance(found.acs, Acs)
    assert (found.acs.offset, found.acs.control) == (0x148, 0x1D)
    assert found.acs.on.redirects
    assert (
        str(found.acs.on) == "SrcValid+ TransBlk- ReqRedir+ CmpltRedir+ UpstreamFwd+ EgressCtrl- DirectTrans-"
    )
    assert isinstance(found.express, PciExpress)
    assert found.express.max_payload_bytes == 256
    assert found.express.max_read_request_bytes == 512
    assert found.express.relaxed_ordering
    assert found.express.ten_bit_tags is True
    assert found.ats_enabled is True
    assert not isinstance(found.resizable_bars, Unknown)
    bar = found.resizable_bars[0]
    assert (bar.index, bar.size_bytes, bar.largest_bytes) == (2, 128 << 30, 256 << 30)


def test_source_validation_alone_redirects_nothing() -> None:
    found = space(parse_config(bytes(config(acs_control=0x01))))
    assert isinstance(found.acs, Acs)
    assert not found.acs.on.redirects


def test_no_acs_is_not_disabled_acs() -> None:
    content = config(acs_control=None)
    put(content, 0x100, 0x15010001, 4)
    found = space(parse_config(bytes(content)))
    assert reason(found.acs) is Reason.NOT_THERE
    assert found.ats_enabled is True


def test_without_root_there_are_64_bytes_and_it_says_so(tmp_path: Path) -> None:
    answer = probe(LiveTree(written(tmp_path, config()[:64])), [BDF]).functions[BDF]
    assert reason(answer) is Reason.NEEDS_ROOT
    assert isinstance(answer, Unknown)
    assert (answer.source, answer.detail) == (
        f"/sys/bus/pci/devices/{BDF}/config",
        "PCI config beyond 64 bytes",
    )


def test_root_in_a_container_is_not_asked_to_become_root(tmp_path: Path) -> None:
    answer = probe(LiveTree(written(tmp_path, config()[:64]), is_root=True), [BDF]).functions[BDF]
    assert reason(answer) is Reason.IO_ERROR


def test_a_dump_of_64_bytes_does_not_ask_for_root(tmp_path: Path) -> None:
    answer = probe(LocalHost(str(written(tmp_path, config()[:64]))), [BDF]).functions[BDF]
    assert reason(answer) is Reason.NOT_RECORDED


@pytest.mark.parametrize(
    ("files", "state"),
    [
        ({"link__l1_aspm": "1\n", "link__l0s_aspm": "0\n"}, "L1"),
        ({"link__l1_aspm": "1\n", "link__l0s_aspm": "1\n"}, "L0s L1"),
        ({"link__l1_aspm": "0\n"}, "off"),
        ({"link__l1_aspm": "x\n"}, None),
        ({"link__clkpm": "1\n"}, None),
        ({}, None),  # hidden, which does not mean off: the firmware may have enabled it
    ],
)
def test_any_user_can_read_aspm_where_the_kernel_controls_it(
    tmp_path: Path, files: dict[str, str], state: str | None
) -> None:
    facts = probe(LiveTree(written(tmp_path, config()[:64], **files)), [BDF])
    assert facts.aspm.get(BDF) == state


@pytest.mark.parametrize(
    "files", [{"power__runtime_status": "suspended\n"}, {"power_state": "D3cold\n"}], ids=str
)
def test_a_sleeping_function_is_not_woken(tmp_path: Path, files: dict[str, str]) -> None:
    host = LocalHost(str(written(tmp_path, config(), **files)))
    read: list[str] = []
    original = host.read_bytes

    def noting(path: str, limit: int = 65536) -> Maybe[bytes]:
        read.append(path)
        return original(path, limit)

    host.read_bytes = noting  # type: ignore[method-assign]
    answer = probe(host, [BDF]).functions[BDF]
    assert reason(answer) is Reason.NOT_THERE
    assert "would wake it" in str(answer)
    assert not [path for path in read if path.endswith("config")]


@pytest.mark.parametrize("size", [64, 256, 4096])
def test_a_function_off_the_bus_reads_as_ones(tmp_path: Path, size: int) -> None:
    answer = probe(LiveTree(written(tmp_path, b"\xff" * size)), [BDF]).functions[BDF]
    assert reason(answer) is Reason.DRIVER_ERROR


def test_a_pcie_function_with_256_bytes_has_unknown_acs() -> None:
    assert reason(space(parse_config(bytes(config()[:256]))).acs) is Reason.IO_ERROR


def test_a_function_that_is_not_there(tmp_path: Path) -> None:
    assert reason(probe(LocalHost(str(tmp_path)), [BDF]).functions[BDF]) is Reason.NOT_THERE


@pytest.mark.parametrize("name", ["../../../etc", "", "0000:15:01.0/..", "15:01.0"])
def test_only_bdfs_become_paths(tmp_path: Path, name: str) -> None:
    assert reason(probe(LocalHost(str(tmp_path)), [name]).functions[name]) is Reason.MALFORMED


def test_lists_that_loop_come_to_an_end() -> None:
    content = config()
    content[0x69] = 0x40
    put(content, 0x158, 0x10010015, 4)
    assert set(capabilities(bytes(content))) == {0x01, 0x10}
    assert set(extended_capabilities(bytes(content))) == {0x01, 0x0D, 0x0F, 0x15}


def test_reserved_codes_are_no_sizes() -> None:
    found = space(parse_config(bytes(config(devctl=0x70E0))))
    assert isinstance(found.express, PciExpress)
    assert reason(found.express.max_payload_bytes) is Reason.MALFORMED
    assert reason(found.express.max_read_request_bytes) is Reason.MALFORMED


def test_the_bridges_above_gpus_and_nics_are_read_and_nothing_else(tmp_path: Path) -> None:
    port = ("pci0000:15", "0000:15:01.0")
    add_function(tmp_path, port)
    add_function(tmp_path, (*port, "0000:17:00.0"), NVIDIA, 0x2330, 0x030200)
    add_function(tmp_path, (*port, "0000:18:00.0"), MELLANOX, 0x1021, 0x020000)
    other = ("pci0000:15", "0000:15:02.0")
    add_function(tmp_path, other)
    add_function(tmp_path, (*other, "0000:19:00.0"), 0x144D, 0xA80A, 0x010802)
    facts = pci.probe(LocalHost(str(tmp_path)))
    assert not isinstance(facts, Unknown)
    assert path_functions(facts) == ("0000:15:01.0", "0000:17:00.0", "0000:18:00.0")


def dumps(text: str) -> list[tuple[str, bytes]]:
    """(decoded text, bytes) of each function in the output of lspci -vvvxxxx."""
    found = []
    for block in text.split("\n\n"):
        rows = re.findall(r"(?m)^([0-9a-f]{2,3}): ((?:[0-9a-f]{2} ?){16})$", block)
        if rows:
            found.append((block, b"".join(bytes.fromhex(row) for _, row in rows)))
    return found


@pytest.mark.parametrize("name", ["cap-aer-root", "cap-dpc", "cap-dvsec-cxl", "cap-rebar", "tree-asus-p6t6"])
def test_real_functions_are_read_as_lspci_reads_them(name: str) -> None:
    functions = dumps(machine_file(f"pci_hexdump/{name}.lspci-x").read_text())
    assert functions
    for text, content in functions:
        found = space(parse_config(content))
        expected = re.search(r"MaxPayload (\d+) bytes, MaxReadReq (\d+) bytes", text)
        if expected:
            assert isinstance(found.express, PciExpress)
            sizes = (found.express.max_payload_bytes, found.express.max_read_request_bytes)
            assert sizes == (int(expected[1]), int(expected[2]))
            assert found.express.relaxed_ordering == ("RlxdOrd+" in text)
            assert ("correctable" in found.express.detected) == ("DevSta:\tCorrErr+" in text)
        control = re.search(r"ACSCtl:\s*(.*)", text)
        if control and len(content) > 256:
            assert isinstance(found.acs, Acs)
            assert str(found.acs.on) == control[1].strip()


@given(st.binary(max_size=4096))
def test_no_bytes_stop_the_parser(content: bytes) -> None:
    assert isinstance(parse_config(content), (ConfigSpace, Unknown))


@given(st.binary(min_size=64, max_size=300), st.integers(0, 4095), st.integers(64, 4096))
def test_no_bytes_inside_a_good_space_stop_it(noise: bytes, at: int, length: int) -> None:
    content = config()
    content[at : at + len(noise)] = noise
    parse_config(bytes(content[:length]))
