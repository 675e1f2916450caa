"""The messages in the kernel log; a log that cannot be read is not an empty one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.base.text import printable_lines
from probes.base.unknown import Maybe, Reason, Unknown
from probes.facts.kernel.log import (
    KEPT_OF_EACH_KIND,
    OTHER_NIC_KINDS,
    KernelLogFacts,
    KernelMessage,
    LogKind,
    full_bdf,
    parse_log,
    probe,
    recognize,
)
from probes.host.machine.local import LocalHost
from probes.host.protocol import CommandOutput
from probes.messages.catalogue import KERNEL_OTHER_NICS, catalogue
from tests.support.machines import machine_file

NOT_INSTALLED = Unknown(Reason.NOT_THERE, "", "not installed")
TOO_MUCH = Unknown(Reason.MALFORMED, "dmesg", "too much output")


class Logging(LocalHost):
    """A host with given answers of dmesg and journalctl."""

    def __init__(
        self,
        root: Path,
        dmesg: Maybe[tuple[int, str]] = NOT_INSTALLED,
        warnings: Maybe[tuple[int, str]] = NOT_INSTALLED,
        journal: Maybe[tuple[int, str]] = NOT_INSTALLED,
        is_root: bool = False,
    ) -> None:
        super().__init__(str(root))
        self._answers = {"dmesg": dmesg, "warnings": warnings, "journalctl": journal}
        self._root_asks = is_root
        self.left_out = 0  # bytes of dmesg's output

    def run(self, argv: Sequence[str], seconds: float = 2.0) -> Maybe[CommandOutput]:
        name = "warnings" if any(word.startswith("--level") for word in argv) else argv[0]
        answer = self._answers[name]
        if isinstance(answer, Unknown):
            return answer
        status, text = answer
        error = "" if status == 0 else "Operation not permitted"
        return CommandOutput(tuple(argv), status, text, error, self.left_out if name == "dmesg" else 0)

    def is_root(self) -> bool:
        return self._root_asks


def only_message(line: str) -> KernelMessage:
    message = recognize(line, 1.0)
    assert message is not None
    return message


def facts(answer: Maybe[KernelLogFacts]) -> KernelLogFacts:
    assert isinstance(answer, KernelLogFacts)
    return answer


XID = "NVRM: Xid (PCI:0000:9b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
LOG = f"<6>[    0.000000] Linux version 6.8.0\n<3>[  171.620236] {XID}\n"


def test_an_xid_names_its_gpu_and_number() -> None:
    message = only_message(XID)
    assert (message.kind, message.bdf, message.number) == (LogKind.XID, "0000:9b:00.0", 79)


@pytest.mark.parametrize(
    ("line", "kind", "module", "symbol", "number"),
    [
        (
            "nvidia_peermem: disagrees about version of symbol ib_register_peer_memory_client",
            LogKind.SYMBOL_VERSION,
            "nvidia_peermem",
            "ib_register_peer_memory_client",
            None,
        ),
        (
            "nvidia_peermem: Unknown symbol ib_register_peer_memory_client (err -22)",
            LogKind.UNKNOWN_SYMBOL,
            "nvidia_peermem",
            "ib_register_peer_memory_client",
            -22,
        ),
        (
            "nvidia-peermem nv_mem_client_init:649 ERROR error while registering traditional client",
            LogKind.PEERMEM,
            "nvidia_peermem",
            None,
            None,
        ),
        (
            "nvidia: module verification failed: signature and/or required key missing - tainting kernel",
            LogKind.UNSIGNED,
            "nvidia",
            None,
            None,
        ),
        (
            "mlx5_core: version magic '6.8.0-40 SMP' should be '6.8.0-45 SMP'",
            LogKind.OTHER_KERNEL,
            "mlx5_core",
            None,
            None,
        ),
    ],
)
def test_module_messages_name_module_and_symbol(
    line: str, kind: LogKind, module: str, symbol: str | None, number: int | None
) -> None:
    message = only_message(line)
    assert (message.kind, message.module, message.symbol, message.number) == (kind, module, symbol, number)


@pytest.mark.parametrize(
    ("line", "kind", "bdf"),
    [
        ("NVRM: GPU 0000:29:00.0: GPU has fallen off the bus.", LogKind.GPU_LOST, "0000:29:00.0"),
        (
            "NVRM: GPU 0000:29:00.0: RmInitAdapter failed! (0x26:0x65:1482)",
            LogKind.GPU_DRIVER,
            "0000:29:00.0",
        ),
        (
            "NVRM: GPU 0009:01:00.0: Enabling SMMU SVA feature failed due to lack of necessary kernel "
            "configs.",
            LogKind.SMMU_SVA,
            "0009:01:00.0",
        ),
        (
            "WARNING: CPU: 61 PID: 8130 at drivers/iommu/arm/arm-smmu-v3/arm-smmu-v3.c:1237 "
            "arm_smmu_write_ctx_desc+0x1a8/0x1d0",
            LogKind.SMMU_SVA,
            None,
        ),
        ("NVRM: dma-buf attach failed: PCI topology not supported for dma-buf", LogKind.P2P_REFUSED, None),
        ("NVRM: failed to map dynamic attachment with no P2P support", LogKind.P2P_REFUSED, None),
        ("Loading of unsigned module is rejected", LogKind.SIGNATURE_REJECTED, None),
        ("Loading of module with unavailable key is rejected", LogKind.SIGNATURE_REJECTED, None),
        (
            "Lockdown: modprobe: unsigned module loading is restricted; see man kernel_lockdown.7",
            LogKind.LOCKDOWN,
            None,
        ),
        (
            "mlx5_core 0000:5c:00.0: mlx5_pcie_event: Detected insufficient power on the PCIe slot (27W).",
            LogKind.NIC_POWER,
            "0000:5c:00.0",
        ),
        ("mlx5_core 0000:41:00.0 enp65s0f0np0: Link down", LogKind.NIC_LINK, "0000:41:00.0"),
        ("mlx5_core 0000:53:00.0 mlx5_3: Port: 1 Link DOWN", LogKind.NIC_LINK, "0000:53:00.0"),
        ("bnxt_en 0000:53:00.0 bnxt_re0: Port: 1 Link DOWN", LogKind.NIC_LINK, "0000:53:00.0"),
        (
            "mlx5_core 0000:41:00.0: wait_func_handle_exec_timeout:1128:(pid 1859): cmd[0]: "
            "CREATE_DCT(0x710) No done completion",
            LogKind.NIC_COMMAND,
            "0000:41:00.0",
        ),
        (
            "infiniband efa_0: Failed to process command REG_MR (opcode 7) comp_status 1 err -12",
            LogKind.NIC_COMMAND,
            None,
        ),
        ("efa 0000:4f:00.0 rdmap79s0: Failed to register mr [-12]", LogKind.NIC_COMMAND, "0000:4f:00.0"),
        (
            "mlx5_core 0000:41:00.0: wait_func_handle_exec_timeout:1057: cmd[0]: ACCESS_REG(0x805) "
            "timeout. Will cause a leak of a command resource",
            LogKind.NIC_COMMAND,
            "0000:41:00.0",
        ),
        (
            "mlx5_core 0000:41:00.0: poll_health:781: device's health compromised - reached miss count",
            LogKind.NIC_HEALTH,
            "0000:41:00.0",
        ),
        (
            "mlx5_core 0000:41:00.0: 63.0 Gb/s available PCIe bandwidth, limited by 8.0 GT/s PCIe x8 link at "
            "0000:40:01.0 (capable of 252.048 Gb/s with 16.0 GT/s PCIe x16 link)",
            LogKind.PCIE_BANDWIDTH,
            "0000:41:00.0",
        ),
        (
            "pcieport 0000:40:01.0: AER: Corrected error message received from 0000:41:00.0",
            LogKind.AER,
            "0000:40:01.0",
        ),
        (
            "mlx5_core 0000:41:00.0: PCIe Bus Error: severity=Corrected, type=Physical Layer",
            LogKind.AER,
            "0000:41:00.0",
        ),
        (
            "DMAR: [DMA Read NO_PASID] Request device [3b:00.0] fault addr 0xdeadb000",
            LogKind.IOMMU_FAULT,
            "0000:3b:00.0",
        ),
        ("DMAR: DRHD: handling fault status reg 2", LogKind.IOMMU_FAULT, None),
        (
            "AMD-Vi: Event logged [IO_PAGE_FAULT device=41:00.1 domain=0x0021 address=0x0 flags=0x0020]",
            LogKind.IOMMU_FAULT,
            "0000:41:00.1",
        ),
        (
            "arm-smmu-v3 arm-smmu-v3.6.auto: event: F_TRANSLATION client: 0009:01:00.0 sid: 0x10100",
            LogKind.IOMMU_FAULT,
            "0009:01:00.0",
        ),
        (
            "NVRM: knvlinkUpdatePostRxDetectLinkMask_IMPL: Failed to update Rx Detect Link mask!",
            LogKind.NVLINK,
            None,
        ),
        (
            "NVRM: knvlinkDiscoverPostRxDetLinks_GH100: Getting peer0's postRxDetLinkMask failed!",
            LogKind.NVLINK,
            None,
        ),
        (
            "nvidia 0000:01:00.0: AMD-Vi: Event logged [IO_PAGE_FAULT domain=0x000f address=0x0]",
            LogKind.IOMMU_FAULT,
            "0000:01:00.0",
        ),
        (
            "infiniband mlx5_0: reg_mr_callback:104: async reg mr failed. status -12",
            LogKind.NIC_COMMAND,
            None,
        ),
        ("nv_mem nv_mem_client_init:390 nv_mem_client_init failed", LogKind.PEERMEM, None),
        (
            "bnxt_en 0000:12:00.0: QPLIB: bnxt_re_is_fw_stalled: FW STALL Detected. cmdq[0xe]=0x3 waited "
            "(103641 > 100000) msec active 1",
            LogKind.NIC_HEALTH,
            "0000:12:00.0",
        ),
        (
            "bnxt_en 0000:12:00.0 ens1f0np0: Firmware fatal reset event received",
            LogKind.NIC_HEALTH,
            "0000:12:00.0",
        ),
        ("bnxt_en 0000:12:00.0 ens1f0np0: NIC Link is Down", LogKind.NIC_LINK, "0000:12:00.0"),
        (
            "bnxt_en 0000:12:00.0 ens1f0np0: Chip temperature has gone above the fatal thermal threshold!",
            LogKind.NIC_POWER,
            "0000:12:00.0",
        ),
        ("bnxt_en 0000:12:00.0: QPLIB: cmdq[0x1b]=0xb status 0x5", LogKind.NIC_COMMAND, "0000:12:00.0"),
        (
            "ice 0000:51:00.0 rocep81s0: critical PE Error, GLPE_CRITERR=0x00000010",
            LogKind.NIC_HEALTH,
            "0000:51:00.0",
        ),
        ("infiniband rocep81s0: Requesting a reset", LogKind.NIC_HEALTH, None),
        ("ice 0000:51:00.0 ens2f0: NIC Link is Down", LogKind.NIC_LINK, "0000:51:00.0"),
        (
            "efa 0000:4f:00.0 rdmap79s0: Failed to process command CREATE_QP (opcode 1) err -12",
            LogKind.NIC_COMMAND,
            "0000:4f:00.0",
        ),
        ("ionic 0000:24:00.0: FW heartbeat stalled at 1042", LogKind.NIC_HEALTH, "0000:24:00.0"),
        ("mana 39d4:00:02.0: HWC: Request timed out!", LogKind.NIC_HEALTH, "39d4:00:02.0"),
        ("cxi_ss1 0000:21:00.0: cxi0[hsn0] HSN cable is not plugged", LogKind.NIC_LINK, "0000:21:00.0"),
        ("INFO: task nvidia-smi:4242 blocked for more than 120 seconds.", LogKind.HUNG_TASK, None),
        ("nvidia-nvswitch0: SXid (PCI:0000:a9:00.0): 20034, Fatal, Link 30", LogKind.SXID, "0000:a9:00.0"),
    ],
)
def test_what_a_message_is_about(line: str, kind: LogKind, bdf: str | None) -> None:
    message = only_message(line)
    assert (message.kind, message.bdf) == (kind, bdf)


@pytest.mark.parametrize("start", ["<3>[   12.1] ", "               "])
def test_a_gpu_lost_in_a_message_of_three_lines_has_its_bdf(start: str) -> None:
    """The kernel prints the time of each line; dmesg and journalctl indent the lines of one message."""
    log = (
        "<3>[   12.1] NVRM: The NVIDIA GPU 0000:18:00.0\n"
        f"{start}NVRM: (PCI ID: 10de:2330) installed in this system has\n"
        f"{start}NVRM: fallen off the bus and is not responding to commands.\n"
        "<3>[   12.2] NVRM: Xid (PCI:0000:3b:00): 31, pid=7\n"
    )
    lost, xid = parse_log(log).messages
    assert (lost.kind, lost.bdf) == (LogKind.GPU_LOST, "0000:18:00.0")
    assert lost.text.endswith("has fallen off the bus and is not responding to commands.")
    assert xid.number == 31


@pytest.mark.parametrize("start", ["<3>[   12.1] ", "               "])
def test_a_gpu_that_the_driver_does_not_support_has_its_bdf(start: str) -> None:
    """The message as the open driver has it since 535 (osapi.c)."""
    log = (
        "<3>[   12.1] NVRM: The NVIDIA GPU 0000:18:00.0 (PCI ID: 10de:2901)\n"
        f"{start}NVRM: installed in this system is not supported by the\n"
        f"{start}NVRM: NVIDIA 535.261.03 driver release.\n"
        f"{start}NVRM: Please see 'Appendix A - Supported NVIDIA GPU Products'\n"
    )
    (message,) = parse_log(log).messages
    assert (message.kind, message.bdf) == (LogKind.GPU_DRIVER, "0000:18:00.0")
    assert message.text.endswith("is not supported by the NVIDIA 535.261.03 driver release.")


def test_a_message_of_several_lines_that_ends_early_swallows_nothing() -> None:
    log = (
        "[1.5] NVRM: The NVIDIA GPU 0000:18:00.0\n"
        "[1.5] NVRM: The NVIDIA GPU 0000:3b:00.0\n"
        "[1.6] mlx5_core 0000:41:00.0: Link down\n"
        "[1.7] NVRM: fallen off the bus\n"
        "[1.8] NVRM: The NVIDIA GPU 0000:9b:00.0\n"
    )
    assert [message.kind for message in parse_log(log).messages] == [LogKind.NIC_LINK, LogKind.GPU_LOST]


@pytest.mark.parametrize(
    "line",
    [
        "mlx5_core 0000:41:00.1: 63.008 Gb/s available PCIe bandwidth (8.0 GT/s PCIe x8 link)",
        "mlx5_core 0000:41:00.0 enp65s0f0np0: Link up",
        "mlx5_core 0000:53:00.0 mlx5_3: Port: 1 Link ACTIVE",
        "nvidia_peermem: module uses symbols from proprietary module nvidia, inheriting taint.",
        "nvidia_peermem: module uses symbols nvidia_p2p_get_pages from proprietary module nvidia, inheriting "
        "taint.",
        "pcieport 0000:40:01.0: AER: enabled with IRQ 27",
        "mlx5_core 0000:41:00.0: firmware version: 22.36.1010",
        "bnxt_en 0000:12:00.0 ens1f0np0: NIC Link is Up, 100000 Mbps full duplex, Flow control: none",
        "bnxt_en 0000:12:00.0 ens1f0np0: Chip temperature has gone below the warning thermal threshold!",
        "ice 0000:51:00.0: The DDP package was successfully loaded: ICE OS Default Package version 1.3.30.0",
        "infiniband rdmap79s0: Feature 5 isn't supported",
        "usb 1-1: bnxt_en 0000:12:00.0 ens1f0np0: NIC Link is Down",
        "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  570.124.06",
        "INFO: task said NVRM: Xid (PCI:0000:9b:00): 79, fell",
        "",
    ],
)
def test_harmless_lines_are_not_reported(line: str) -> None:
    assert recognize(line, 1.0) is None


def test_the_last_start_of_each_driver_is_known() -> None:
    lines = (
        "<5>[   12.0] NVRM: loading NVIDIA UNIX x86_64 Kernel Module  535.183.01",
        "<5>[  900.5] NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  570.124.06",
        "<6>[   11.0] mlx5_core 0000:41:00.0: firmware version: 28.43.2026",
        "<6>[  950.0] mlx5_core 0000:41:00.0: Port module event: module 0, Cable plugged",
    )
    assert parse_log("\n".join(lines)).started == {"nvidia": 900.5, "0000:41:00.0": 11.0}


def test_dmesg_is_read_with_the_time_since_boot(tmp_path: Path) -> None:
    found = facts(probe(Logging(tmp_path, dmesg=(0, LOG))))
    assert found.source.startswith("dmesg")
    assert found.since_seconds == 0.0
    assert [message.seconds for message in found.messages] == [171.620236]


def test_a_silent_log_is_silent(tmp_path: Path) -> None:
    found = facts(probe(Logging(tmp_path, dmesg=(0, "<6>[    0.000000] Linux version 6.8.0\n"))))
    assert (found.messages, found.counts) == ((), {})


def test_the_journal_is_asked_where_dmesg_is_refused(tmp_path: Path) -> None:
    journal = f"[  171.620236] node7 kernel: {XID}\n"
    found = facts(probe(Logging(tmp_path, dmesg=(1, ""), journal=(0, journal))))
    assert found.source.startswith("journalctl")
    assert found.messages[0].number == 79


def test_where_both_refuse_root_is_needed_and_nothing_is_claimed(tmp_path: Path) -> None:
    restrict = tmp_path / "proc/sys/kernel/dmesg_restrict"
    restrict.parent.mkdir(parents=True)
    restrict.write_text("1\n")
    answer = probe(Logging(tmp_path, dmesg=(1, ""), journal=(0, "")))
    assert isinstance(answer, Unknown)
    assert answer.reason is Reason.NEEDS_ROOT
    assert "dmesg_restrict" in answer.detail


def test_root_is_not_asked_to_become_root(tmp_path: Path) -> None:
    answer = probe(Logging(tmp_path, dmesg=(1, ""), is_root=True))
    assert isinstance(answer, Unknown)
    assert answer.reason is Reason.IO_ERROR


def test_of_a_log_too_long_the_warnings_are_read(tmp_path: Path) -> None:
    found = facts(probe(Logging(tmp_path, dmesg=TOO_MUCH, warnings=(0, LOG))))
    assert found.only_warnings
    assert found.counts == {LogKind.XID: 1}


def test_of_a_log_of_100_megabytes_the_end_and_older_warnings_are_read(tmp_path: Path) -> None:
    newest = f"<6>[9000.000000] usb 1-1: new device\n<3>[9001.000000] {XID.replace('79', '31')}\n"
    warnings = f"{LOG}<3>[9001.000000] {XID.replace('79', '31')}\n"
    host = Logging(tmp_path, dmesg=(0, newest), warnings=(0, warnings))
    host.left_out = 100 << 20
    found = facts(probe(host))
    assert found.only_warnings
    assert [message.seconds for message in found.messages] == [171.620236, 9001.0]
    assert found.since_seconds == 0.0


def test_the_end_of_a_long_log_is_used_where_its_warnings_take_too_long(tmp_path: Path) -> None:
    host = Logging(tmp_path, dmesg=(0, LOG), warnings=Unknown(Reason.TIMED_OUT, "dmesg", "3 s"))
    host.left_out = 100 << 20
    found = facts(probe(host))
    assert not found.only_warnings
    assert found.counts == {LogKind.XID: 1}


def test_a_tree_of_files_has_no_log(tmp_path: Path) -> None:
    answer = probe(LocalHost(str(tmp_path)))
    assert isinstance(answer, Unknown)
    assert answer.reason is Reason.NOT_THERE


def test_a_flood_is_counted_and_only_its_end_kept() -> None:
    line = "[{0}.000001] nvidia-peermem nv_get_p2p_free_callback:127 ERROR detected invalid context"
    flood = "\n".join(line.format(second) for second in range(500))
    found = parse_log(f"[0.5] {XID}\n{flood}")
    assert found.counts == {LogKind.XID: 1, LogKind.PEERMEM: 500}
    assert len(found.messages) == 1 + KEPT_OF_EACH_KIND
    assert found.messages[0].kind is LogKind.XID
    assert found.messages[-1].seconds == 499.000001


def test_the_real_xid_119_log_shows_gpu_and_process() -> None:
    found = parse_log(machine_file("dmesg/h100-xid119-gsp-timeout.log").read_text())
    assert found.counts[LogKind.XID] > 3
    assert {(m.bdf, m.number) for m in found.messages if m.kind is LogKind.XID} == {("0000:9b:00.0", 119)}


def test_the_real_boot_log_of_a_mlx5_node() -> None:
    found = parse_log(machine_file("dmesg/pstore-mlx5-boot-panic.txt").read_text())
    assert LogKind.NIC_LINK in found.counts
    assert LogKind.PCIE_BANDWIDTH not in found.counts


def test_real_lines_of_a_fleet_are_recognised() -> None:
    text = machine_file("dmesg/gpud-kernel-lines.txt").read_text()
    beginnings = {
        "NVRM: Xid (": LogKind.XID,
        "nvidia-nvswitch": LogKind.SXID,
        "nvidia-peermem nv_": LogKind.PEERMEM,
        "NVRM: GPU 0000:29:00.0: GPU has fallen": LogKind.GPU_LOST,
    }
    seen = set()
    for line in text.splitlines():
        for beginning, kind in beginnings.items():
            if line.startswith(beginning):
                assert only_message(line).kind is kind
                seen.add(kind)
    assert seen == set(beginnings.values())


def test_each_message_of_other_nics_is_in_the_catalogue() -> None:
    assert OTHER_NIC_KINDS.keys() <= {message.id for message in catalogue(KERNEL_OTHER_NICS).messages}


def test_a_hostile_line_does_not_reach_the_terminal() -> None:
    text = only_message("NVRM: Xid (PCI:0000:9b:00): 13, name=\x1b]0;x\x07" + "a" * 5000).text
    assert text.isprintable()
    assert len(text) <= 300


def test_bdfs_are_spelt_as_in_sysfs() -> None:
    assert full_bdf("00000000:9B:00.0") == full_bdf("0000:9b:00") == "0000:9b:00.0"
    assert full_bdf("10000:01:00") == "10000:01:00.0"


PIECES = st.sampled_from(
    ["NVRM: Xid (PCI:", "0000:9b:00", "): ", "mlx5_core ", "[1.5] ", "DMAR: [DMA ", ": "]
)


@pytest.mark.slow
@given(st.lists(st.one_of(PIECES, st.text(max_size=20))).map("".join))
def test_no_text_stops_the_parser(text: str) -> None:
    for message in parse_log(printable_lines(text)).messages:
        assert message.text.isprintable()
    parse_log(text)


@given(st.binary())
def test_no_bytes_stop_the_parser(content: bytes) -> None:
    parse_log(content.decode("utf-8", "replace"))
