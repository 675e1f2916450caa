"""Limits, kernel options, rdma(8), ethtool, Fabric Manager and IMEX, as people paste them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.messages.message import Weight
from tests.support.machines import machine_file
from tests.support.read_texts import found_in, kinds_of, read, serious_in

QUEUE = "link mlx5_0/1 lqpn 18 rqpn 19 type RC state {} rq-psn 1 sq-psn 2 pid 77 comm ib_write_bw\n"
HEAD = "[Feb 25 2025 13:59:45]"


@pytest.mark.parametrize(
    ("text", "amount", "weight"),
    [
        ("max locked memory           (kbytes, -l) 8192\n", "8 MiB", Weight.WARNING),
        ("max locked memory           (kbytes, -l) 64\n", "64 KiB", Weight.WARNING),
        ("max locked memory           (kbytes, -l) 33554432\n", "32 GiB", Weight.NOTE),
        (
            "Max locked memory         65536                65536                bytes\n",
            "64 KiB",
            Weight.WARNING,
        ),
    ],
)
def test_a_limit_of_locked_memory_is_found(text: str, amount: str, weight: Weight) -> None:
    statement = found_in(text)["memlock-shell"]
    assert f"The limit is {amount}." in statement.cause
    assert statement.weight is weight


def test_a_number_is_a_limit_by_the_command_before() -> None:
    assert "64 KiB" in found_in("u@n1:~$ ulimit -l\n64\n")["memlock-shell"].cause
    assert read("u@n1:~$ ulimit -l\nunlimited\n").shown == ("Locked memory is not limited.",)
    assert read("u@n1:~$ nproc\n64\n").kinds == ()


def test_without_a_limit_the_text_says_so() -> None:
    text = "core file size              (blocks, -c) 0\nmax locked memory           (kbytes, -l) unlimited\n"
    assert read(text).shown == ("Locked memory is not limited.",)
    assert found_in(text) == {}


def test_options_of_the_kernel_are_judged_by_the_checks() -> None:
    text = (
        "BOOT_IMAGE=/vmlinuz root=UUID=1 ro intel_iommu=on pci=noacs module_blacklist=nvidia_peermem quiet\n"
    )
    assert {"acs-option-ignored", "module-blacklisted-cmdline", "iommu-translated"} <= found_in(text).keys()
    assert found_in("BOOT_IMAGE=/vmlinuz root=UUID=1 ro intel_iommu=on iommu=pt quiet\n") == {}
    assert "iommu=pt" in read("BOOT_IMAGE=/vmlinuz root=UUID=1 ro iommu=pt\n").shown[0]


def test_a_broken_queue_pair_is_found_with_its_program() -> None:
    text = QUEUE.format("RTS") * 3 + QUEUE.format("ERR")
    assert "mlx5_0/1 lqpn" not in read(text).shown[0]
    assert read(text).shown == ("4 queue pairs: 3 RTS, 1 ERR.",)
    assert found_in(text)["queue-pair-broken"].cause.startswith("mlx5_0 QP 18 of ib_write_bw")
    assert found_in(QUEUE.format("RTS")) == {}


def test_namespaces_are_shown() -> None:
    assert "exclusive" in read("netns exclusive copy-on-fork on\n").shown[0]
    assert "share" in read("netns shared copy-on-fork on\n").shown[0]


def test_an_empty_list_of_devices_is_a_warning() -> None:
    head = "    device          \t   node GUID\n    ------          \t----------------\n"
    assert "no-verbs-device" in serious_in(head)
    assert read(f"{head}    mlx5_0          \t506b4b0300c33f6e\n").shown == ("1 RDMA device: mlx5_0.",)


def test_an_interface_without_link_is_a_warning() -> None:
    text = "Settings for ens1np0:\n\tSpeed: Unknown!\n\tLink detected: no (No cable)\n"
    assert found_in(text)["netdev-without-link"].cause == "No cable."
    good = "Settings for ens1np0:\n\tSpeed: 400000Mb/s\n\tLink detected: yes\n"
    assert read(good).shown == ("ens1np0 has a link of 400 Gb/s.",)
    driver = "driver: mlx5_core\nversion: 24.10-1.1.4\nfirmware-version: 28.43.1014 (MT_0000000838)\n"
    assert "firmware 28.43.1014" in read(driver).shown[0]
    assert "ethtool -i" not in kinds_of("driver: nvidia\n")  # of YAML


def test_errors_of_fabric_manager_are_found() -> None:
    good = f"{HEAD} [INFO] [tid 1803] multicast group 0 is freed.\nMessage payload details: Flags:0\n"
    assert read(good).shown == ("2 lines of Fabric Manager or IMEX without an error.",)
    bad = (
        f"{good}{HEAD} [ERROR] [tid 1] fabric manager version 535.1 doesn't match with driver version 535.2\n"
    )
    assert "fabric-manager-down-version" in serious_in(bad)
    assert "fabric-manager-error" in serious_in(
        f"{good}{HEAD} [ERROR] [tid 1] failed to initialize NVSwitch\n"
    )


def test_the_state_of_an_imex_domain_is_found() -> None:
    assert read("Connectivity Table Legend:\nDomain State: UP\n").shown == ("The IMEX domain is up.",)
    assert "imex-domain-not-up" in serious_in("Connectivity Table Legend:\nDomain State: DEGRADED\n")


def test_a_real_log_of_fabric_manager() -> None:
    text = machine_file("dmesg/fabricmanager.log").read_text()
    assert kinds_of(text) == {"Fabric Manager log"}
    assert found_in(text)["fabric-manager-error"].weight is Weight.NOTE


def test_counters_that_are_not_zero_are_notes() -> None:
    text = "link mlx5_0/1 rx_write_requests 12 out_of_sequence 3 local_ack_timeout_err 0 \n"
    statement = found_in(text)["port-counters-not-zero"]
    assert statement.title == "1 counter of mlx5_0/1 is not 0"
    assert "out_of_sequence 3 (loses packets)" in statement.cause
    assert statement.weight is Weight.NOTE
    assert read(text.replace(" 3 ", " 0 ")).shown == ("All 2 counters of errors and congestion are 0.",)
    assert kinds_of(text) == {"rdma statistic"}


def test_counters_of_an_interface_and_of_perfquery_are_read() -> None:
    text = "$ ethtool -S ens1np0\nNIC statistics:\n     rx_packets: 12\n     rx_discards_phy: 7\n"
    assert "of ens1np0" in found_in(text)["port-counters-not-zero"].title
    text = "# Port counters: Lid 1 port 1 (CapMask: 0x5A00)\nSymbolErrorCounter:..............4\n"
    assert "has signal errors" in found_in(text)["port-counters-not-zero"].cause


def test_the_version_of_the_driver_shows_its_modules() -> None:
    text = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release\nGCC version:  gcc\n"
    assert read(text).shown == ("NVIDIA driver 580.65.06, open kernel modules.",)
    assert found_in(text) == {}
    closed = text.replace("Open Kernel Module for x86_64", "x86_64 Kernel Module")
    assert found_in(closed)["dmabuf-needs-open-module"].weight is Weight.NOTE


@given(st.text(alphabet="abcdelnqprstuvw 0123456789():=,-_[]/.\n\t", max_size=400))
def test_any_lines_are_read_without_a_crash(text: str) -> None:
    for start in ("max locked memory (kbytes, -l) ", "BOOT_IMAGE=/x ", "netns shared ", "Settings for a:\n"):
        read(start + text)
    read(QUEUE.format("ERR") + text)
    read(f"{HEAD} [ERROR] [tid 1] {text}\n")


# From a post about IPoIB on a mailing list.
QUERY_ERRORS = """\
Errors for "dl380g7 mlx4_0"
   GUID 0x7cfe900300179b31 port 1: [VL15Dropped == 14] [PortXmitWait == 4294967295]
Errors for 0x2c903006e29b0 "MF0;ys23ib4:SX6036/U1"
   GUID 0x2c903006e29b0 port ALL: [LinkDownedCounter == 48] [PortXmitDiscards == 15854]
   GUID 0x2c903006e29b0 port 1: [LinkDownedCounter == 8] [PortXmitWait == 4294967295]

## Summary: 5 nodes checked, 2 bad nodes found
##          42 ports checked, 6 ports have errors beyond threshold
"""


def test_counters_of_a_fabric_are_notes_of_each_port() -> None:
    notes = [row for row in read(QUERY_ERRORS).statements if row.id == "port-counters-not-zero"]
    assert [note.title for note in notes] == ["1 counter of MF0;ys23ib4:SX6036/U1 port 1 is not 0"]
    assert "link_downed 8" in notes[0].cause
    assert "5 nodes checked, 2 bad nodes found" in read(QUERY_ERRORS).shown[0]
    assert serious_in(QUERY_ERRORS) == set()
    line = "   GUID 0x1070fd0300370ea2 port 7: [SymbolErrorCounter == 512] [PortXmitWait == 14681376621]\n"
    assert "0x1070fd0300370ea2 port 7" in found_in(line)["port-counters-not-zero"].title


def test_a_summary_of_ibdiagnet_names_the_stages_with_errors() -> None:
    text = "-I- Stage            Warnings   Errors     Comment\n-I- Discovery        {}          0\n"
    errors = "-I- Speed / Width checks      0          15\n"
    assert found_in(text.format(3) + errors)["ibdiagnet-summary"].weight is Weight.WARNING
    assert "Speed / Width checks 15" in found_in(errors.join((text.format(0), "")))["ibdiagnet-summary"].title
    assert serious_in(text.format(3)) == set()
    assert "no warning and no error in 1 stage" in read(text.format(0)).shown[0]


def test_counters_of_files_are_read_by_port() -> None:
    text = "".join(
        f"/sys/class/infiniband/mlx5_0/ports/1/{name}:{value}\n"
        for name, value in (("hw_counters/out_of_sequence", 10233), ("counters/symbol_error", 0))
    )
    assert found_in(text)["port-counters-not-zero"].title == "1 counter of mlx5_0/1 is not 0"
    assert found_in(text.replace("10233", "0")) == {}
    assert read(text).unread == 0


UCX_INFO = """\
# Memory domain: self
#     Component: self
#         memory types: host (access,reg_nonblock,reg,cache)
#
#      Transport: self
#         Device: memory
#      Transport: tcp
#         Device: eth0
{}#      Transport: cma
#         Device: memory
"""
UCX_NIC = """\
# Memory domain: mlx5_0
#     Component: ib
#         memory types: host (access,reg,cache){}
#
#      Transport: rc_mlx5
#         Device: mlx5_0:1
"""
UCX_GPU = "#      Transport: cuda_copy\n#         Device: cuda\n"


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        (UCX_INFO.format(UCX_GPU + UCX_NIC.format(", cuda (access,reg,cache)")), set()),
        (UCX_INFO.format(UCX_GPU + UCX_NIC.format("")), {"ucx-nics-host-memory"}),
        (UCX_INFO.format(UCX_NIC.format("")), {"ucx-without-gpus"}),
        (UCX_INFO.format(UCX_GPU), {"ucx-without-rdma"}),
        (UCX_INFO.format("").partition("#      Transport: cma")[0], set()),  # cut
        (
            "# Library version: 1.18.0\n# Configured with: --prefix=/usr --without-verbs\n",
            {"ucx-without-rdma"},
        ),
        ("# Library version: 1.18.0\n# Configured with: --with-verbs --with-cuda=/usr\n", set()),
    ],
)
def test_ucx_info_shows_whether_ucx_has_nics_and_gpus(text: str, rows: set[str]) -> None:
    assert found_in(text).keys() == rows
    assert read(text).unread == 0


ROCM_TOPO = """\
============================ ROCm System Management Interface ============================
================================ Weight between two GPUs =================================
       GPU0         GPU1
GPU0   0            15
GPU1   15           0

=============================== Link Type between two GPUs ===============================
       GPU0         GPU1
GPU0   0            XGMI
GPU1   XGMI         0

======================================= Numa Nodes =======================================
GPU[0]		: (Topology) Numa Node: 0
================================== End of ROCm SMI Log ===================================
"""


def test_rocm_smi_is_not_taken_for_nvidia_smi() -> None:
    assert read(ROCM_TOPO).shown == ("Links between pairs of GPUs: 1 XGMI.",)
    assert kinds_of(ROCM_TOPO) == {"rocm-smi"}
    assert found_in(ROCM_TOPO) == {}


FIRMWARE = """\
Querying Mellanox devices firmware ...

Device #1:
----------

  Device Type:      ConnectX7
  PSID:             MT_0000000838
  PCI Device Name:  0000:8e:00.0
  Versions:         Current        Available
     FW             28.47.1026     28.47.1026
     FW (Running)   28.46.3048     N/A
     PXE            3.8.0100       N/A

  Status:           Up to date
"""


def test_firmware_that_does_not_run_yet_is_found() -> None:
    assert found_in(FIRMWARE)["firmware-not-active"].cause == "28.47.1026 is flashed and 28.46.3048 runs."
    assert serious_in(FIRMWARE) == set()
    other = FIRMWARE.replace("8e:00", "8f:00").replace("     FW (Running)   28.46.3048     N/A\n", "")
    assert "nic-firmware-mismatch" in found_in(FIRMWARE + other.partition("...")[2])


def test_mst_status_names_the_rdma_devices() -> None:
    text = (
        "MST modules:\n------------\n    MST PCI module is not loaded\nPCI devices:\n------------\n"
        "BlueField3(rev:1)       /dev/mst/mt41692_pciconf0.1   03:00.1   mlx5_1          net-p1    -1\n"
    )
    assert "mlx5_1 at 03:00.1" in read(text).shown[0]
    assert serious_in(text) == set()
