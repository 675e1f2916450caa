"""lspci: the tree, links and registers that a text shows, judged by the checks of PCIe."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.facts.pci.config_space import ConfigSpace, PciExpress, parse_config
from probes.messages.message import Weight
from probes.nccl.log.facts import Place
from probes.read.pci_functions import read_functions
from probes.read.reading import Section
from tests.support.machines import machine_file
from tests.support.read_texts import found_in, kinds_of, read, serious_in

OFF = "SrcValid- TransBlk- ReqRedir- CmpltRedir- UpstreamFwd- EgressCtrl- DirectTrans-"
ON = "SrcValid+ TransBlk- ReqRedir+ CmpltRedir+ UpstreamFwd+ EgressCtrl- DirectTrans-"
HEAD = "\tControl: I/O- Mem+ BusMaster+ SpecCycle- MemWINV-\n"


def express(kind: str, width: str = "16", speed: str = "32", best: str = "32", request: str = "4096") -> str:
    return f"""\
	Capabilities: [68] Express (v2) {kind}, MSI 00
		DevCap:	MaxPayload 512 bytes, PhantFunc 0
			ExtTag+ RBE+
		DevCtl:	CorrErr+ NonFatalErr+ FatalErr+ UnsupReq+
			RlxdOrd+ ExtTag+ PhantFunc- AuxPwr- NoSnoop+
			MaxPayload 256 bytes, MaxReadReq {request} bytes
		DevSta:	CorrErr- NonFatalErr- FatalErr- UnsupReq- AuxPwr- TransPend-
		LnkCap:	Port #0, Speed {best}GT/s, Width x16, ASPM not supported
		LnkCtl:	ASPM Disabled; RCB 64 bytes, Disabled- CommClk+
		LnkSta:	Speed {speed}GT/s ({"ok" if speed == best else "downgraded"}), Width x{width}
		DevCtl2: Completion Timeout: 50us to 50ms, TimeoutDis- 10BitTagReq+ OBFF Disabled,
"""


def bridge(address: str, kind: str, primary: str, secondary: str, acs: str = "", **more: str) -> str:
    control = f"\tCapabilities: [148 v1] Access Control Services\n\t\tACSCtl:\t{acs}\n" if acs else ""
    name = (
        "Intel Corporation Device 352a"
        if kind.startswith("Root")
        else "Broadcom / LSI PEX890xx PCIe Gen 5 Switch"
    )
    bus = f"\tBus: primary={primary}, secondary={secondary}, subordinate=1f, sec-latency=0\n"
    return f"{address} PCI bridge: {name} (rev b0)\n{HEAD}{bus}{express(kind, **more)}{control}\n"


def end(address: str, name: str, **more: str) -> str:
    driver = "nvidia" if "NVIDIA" in name else "mlx5_core"
    return f"{address} {name}\n{HEAD}{express('Endpoint', **more)}\tKernel driver in use: {driver}\n\n"


GPU, NIC = (
    "3D controller: NVIDIA Corporation Device 2330 (rev a1)",
    ("Infiniband controller: Mellanox Technologies MT2910 Family [ConnectX-7]"),
)


def tree(acs: str = OFF, host: str = "Intel Corporation Device 09a2", **nic: str) -> str:
    return (
        f"00:00.0 Host bridge: {host} (rev 20)\n\tSubsystem: Dell Device 0b73\n\n"
        + bridge("00:01.0", "Root Port (Slot+)", "00", "10")
        + bridge("10:00.0", "Upstream Port", "10", "11")
        + bridge("11:00.0", "Downstream Port (Slot+)", "11", "12", acs)
        + bridge("11:01.0", "Downstream Port (Slot+)", "11", "13", acs)
        + end("12:00.0", GPU)
        + end("13:00.0", NIC, **nic)
    )


def test_a_healthy_tree_has_no_finding() -> None:
    reading = read(tree())
    assert reading.shown == (
        "1 NVIDIA GPU and 1 ConnectX function: 1 of 1 GPUs share a PCIe switch with a NIC.",
    )
    assert serious_in(tree()) == set()
    assert reading.unread == 0


def test_redirects_between_gpu_and_nic_are_found_with_their_ports() -> None:
    found = found_in(tree(ON))["acs-redirect-enabled"]
    assert "setpci -s 0000:11:00.0" in found.fix
    assert "acs-redirect-enabled" not in found_in(tree(ON).replace("Mellanox", "Samsung"))


def test_in_a_virtual_machine_the_hypervisor_controls_acs() -> None:
    assert "acs-redirect-enabled" not in found_in(tree(ON, "Red Hat, Inc. QEMU PCIe Host bridge"))


@pytest.mark.parametrize(
    ("nic", "name"),
    [
        ({"width": "8"}, "pcie-link-degraded-width"),
        ({"speed": "8"}, "pcie-link-degraded-speed"),
        ({"request": "512"}, "pcie-devctl-read-request"),
    ],
)
def test_a_nic_below_what_it_can_do_is_found(nic: dict[str, str], name: str) -> None:
    assert "13:00.0" in found_in(tree(**nic))[name].text + found_in(tree(**nic))[name].cause


def test_a_card_alone_may_be_limited_by_its_slot() -> None:
    statement = found_in(end("13:00.0", NIC, width="4"))["pcie-link-degraded-width"]
    assert "32 GT/s x4 of 32 GT/s x16" in statement.cause
    assert "LnkCap of the port above" in statement.fix
    assert serious_in(end("12:00.0", GPU, speed="2.5")) == set()  # an idle GPU


def test_the_registers_of_a_bridge_to_conventional_pci_are_read() -> None:
    lines = bridge("02:00.0", "PCI-Express to PCI/PCI-X Bridge", "02", "03").splitlines()
    answers = read_functions(Section("lspci", tuple(lines), Place("text", 1))).answers
    (config,) = (content for (_, path), content in answers.items() if path.endswith("/config"))
    space = parse_config(config)
    assert isinstance(space, ConfigSpace)
    assert isinstance(space.express, PciExpress)
    assert space.express.max_read_request_bytes == 4096


def test_of_a_tree_without_its_root_port_both_ends_of_a_link_are_not_compared() -> None:
    cut = tree().partition("10:00.0")
    text = f"{cut[1]}{cut[2]}".replace("Speed 32GT/s (ok)", "Speed 16GT/s (downgraded)", 1)
    assert serious_in(text) == set()
    assert "1 of 1 GPUs share a PCIe switch" in read(text).shown[0]


def test_without_root_nothing_is_concluded_from_what_is_missing() -> None:
    denied = f"13:00.0 {NIC}\n{HEAD}\tCapabilities: <access denied>\n\tKernel driver in use: mlx5_core\n"
    assert set(found_in(denied)) == {"lspci-needs-root"}


def test_a_list_without_details_is_no_fault() -> None:
    text = (
        "00:02.0 PCI bridge [0604]: Red Hat, Inc. QEMU PCIe Root port [1b36:000c]\n"
        "c1:00.0 VGA compatible controller [0300]: NVIDIA Corporation AD102GL [10de:26b1] (rev a1)\n"
    )
    assert read(text).statements == ()
    assert read(text).shown == ("1 NVIDIA GPU in the list.",)
    assert kinds_of("c1:00.0 0300: 10de:26b1 (rev a1)\n") == {"lspci"}


def test_a_gpu_with_nouveau_is_found() -> None:
    assert "gpu-without-driver-nouveau" in found_in(tree().replace("in use: nvidia", "in use: nouveau"))


def test_a_function_that_does_not_answer_is_found() -> None:
    gone = f"12:00.0 {GPU.replace('rev a1', 'rev ff')} (prog-if ff)\n\t!!! Unknown header type 7f\n"
    assert "pcie-function-gone" in serious_in(gone)


def test_lines_of_acs_without_their_ports_are_a_warning() -> None:
    text = f"\t\tACSCtl:\t{ON}\n\t\tACSCtl:\t{OFF}\n"
    statement = found_in(text)["acs-redirect-enabled"]
    assert statement.cause.startswith("1 port of 2")
    assert statement.weight is Weight.WARNING
    assert found_in(f"\t\tACSCtl:\t{OFF}\n")["acs-without-redirects"].weight is Weight.HARMLESS


def test_the_tree_shows_what_shares_a_root_port() -> None:
    text = """\
-+-[0000:00]-+-00.0  Intel Corporation Device 09a2
 |           \\-01.0-[10-13]----00.0-[11-13]--+-00.0-[12]----00.0  NVIDIA Corporation Device 2330
 |                                           \\-01.0-[13]----00.0  Mellanox Technologies MT2910 Family
 \\-[0000:80]---01.0-[81]----00.0  NVIDIA Corporation Device 2330
"""
    assert read(text).shown == ("1 of 2 GPUs are below the same root port as a ConnectX NIC.",)


def test_a_real_node_is_judged_as_it_is() -> None:
    content = machine_file("lspci/h100-8gpu-supermicro-lspci-vvv.txt").read_text()
    assert "8 of 8 GPUs share a PCIe switch" in read(content).shown[0]
    assert serious_in(content) == set()
    assert "acs-redirect-enabled" in serious_in(content.replace(OFF, ON))


@given(st.text(alphabet="0123456789abcdef:.-+[] x()LnkStaCpACSCtlGTwidhNVIA\n\t", max_size=400))
def test_any_lines_are_read_without_a_crash(text: str) -> None:
    read(tree() + text)
    read(f"{text}\n13:00.0 {NIC}\n{text}")
