"""GPUs and their driver: from sysfs, /proc/driver/nvidia and NVML, each of which may be missing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.base.unknown import Maybe, Reason, Unknown
from probes.facts.gpu.gpus import (
    DriverFacts,
    Flavor,
    GpuFacts,
    MemoryMode,
    is_vgpu,
    memory_mode,
    parse_fields,
    parse_version,
    probe,
)
from probes.facts.pci.functions import probe as probe_pci
from probes.facts.system.numa import NumaFacts, NumaNode
from probes.host.machine.local import LocalHost
from probes.host.nvml import NvmlFacts, NvmlGpu

OPEN = (
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  595.45.04  Release Build  (dvs-builder@U22)\n"
    "GCC version:  gcc version 11.4.0 (Ubuntu 11.4.0-1ubuntu1~22.04)\n"
)
PROPRIETARY = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12 19:39:15 UTC 2024\n"
INFORMATION = (
    "Model: \t\t NVIDIA H100 80GB HBM3\nIRQ:   \t\t 312\n"
    "GPU UUID: \t GPU-1c22d5a4-0000-1111-2222-333344445555\n"
    "Bus Type: \t PCIe\nBus Location: \t 0000:1b:00.0\nDevice Minor: \t 3\nGPU Excluded:\t No\n"
)
BDFS = ("0000:1b:00.0", "0000:43:00.0")


def write(root: Path, path: str, text: str) -> None:
    file = root / path.lstrip("/")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def a_node(root: Path, bdfs: tuple[str, ...] = BDFS, driver: str = "nvidia") -> Path:
    for bdf in bdfs:
        device = f"/sys/bus/pci/devices/{bdf}"
        uevent = "PCI_CLASS=30200\nPCI_ID=10DE:2330\nPCI_SUBSYS_ID=10DE:16C1\n"
        write(root, f"{device}/uevent", (f"DRIVER={driver}\n" if driver else "") + uevent)
        write(root, f"{device}/numa_node", "0\n")
        bars = [(0x0, 0xFFFFFF, 0x140204), (0, 0, 0), (0x100000000000, 0x101FFFFFFFFF, 0x14220C)]
        text = "".join(f"{start:#018x} {end:#018x} {flags:#018x}\n" for start, end, flags in bars)
        write(root, f"{device}/resource", text)
    return root


def facts_of(root: Path, nvml: Maybe[NvmlFacts] | None = None) -> GpuFacts:
    host = LocalHost(str(root))
    pci = probe_pci(host)
    assert not isinstance(pci, Unknown)
    return probe(host, pci, nvml)


def nvml_gpu(index: int, bdf: str) -> NvmlGpu:
    return NvmlGpu(
        index, bdf, "NVIDIA H100", f"GPU-{index}", (9, 0), 80 << 30, 128 << 30, 18, (), 0, True, False
    )


def nvml_of(*gpus: Maybe[NvmlGpu]) -> NvmlFacts:
    return NvmlFacts("595.45.04", "13.2", gpus)


def test_open_and_proprietary_modules_are_told_apart() -> None:
    assert parse_version(OPEN) == ("595.45.04", Flavor.OPEN)
    assert parse_version(PROPRIETARY) == ("535.183.01", Flavor.PROPRIETARY)
    assert parse_version("NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  580.95.05  R") == (
        "580.95.05",
        Flavor.OPEN,
    )
    assert parse_version("something else 595.45.04") is None


def test_gpus_are_listed_without_driver_and_nvml(tmp_path: Path) -> None:
    facts = facts_of(a_node(tmp_path, driver=""))
    assert [gpu.bdf for gpu in facts.gpus] == list(BDFS)
    assert [gpu.index for gpu in facts.gpus] == [0, 1]
    assert isinstance(facts.driver.version, Unknown)
    assert facts.driver.version.reason is Reason.NOT_THERE
    assert facts.driver.nvml == "a directory tree has no commands, drivers or devices"
    assert isinstance(facts.gpus[0].compute_capability, Unknown)


def test_a_gpu_for_a_virtual_machine_is_still_a_gpu(tmp_path: Path) -> None:
    assert [gpu.driver for gpu in facts_of(a_node(tmp_path, driver="vfio-pci")).gpus] == ["vfio-pci"] * 2


def test_the_aperture_is_the_largest_prefetchable_bar_whatever_its_number(tmp_path: Path) -> None:
    assert facts_of(a_node(tmp_path)).gpus[0].bar1_total_bytes == 0x2000000000


def test_the_drivers_files_are_joined_by_bdf(tmp_path: Path) -> None:
    root = a_node(tmp_path)
    write(root, "/proc/driver/nvidia/version", OPEN)
    write(root, "/proc/driver/nvidia/params", "ResmanDebugLevel: 4294967295\nGrdmaPciTopoCheckOverride: 0\n")
    write(root, f"/proc/driver/nvidia/gpus/{BDFS[0]}/information", INFORMATION)
    facts = facts_of(root)
    first, second = facts.gpus
    assert (first.name, first.minor) == ("NVIDIA H100 80GB HBM3", 3)
    assert first.uuid == "GPU-1c22d5a4-0000-1111-2222-333344445555"
    assert isinstance(second.uuid, Unknown)
    assert facts.driver.flavor is Flavor.OPEN
    assert not isinstance(facts.driver.parameters, Unknown)
    assert facts.driver.parameters["GrdmaPciTopoCheckOverride"] == "0"


def test_what_the_driver_has_not_asked_the_gpu_yet_is_unknown(tmp_path: Path) -> None:
    text = "Model: \t\t Unknown\nGPU UUID: \t GPU-????????-????-????-????-????????????\nDevice Minor: \t 0\n"
    write(a_node(tmp_path), f"/proc/driver/nvidia/gpus/{BDFS[0]}/information", text)
    gpu = facts_of(tmp_path).gpus[0]
    assert isinstance(gpu.uuid, Unknown)
    assert gpu.name != "Unknown"
    assert gpu.minor == 0


def test_a_hidden_proc_leaves_the_version_known_and_the_flavour_unknown(tmp_path: Path) -> None:
    write(a_node(tmp_path), "/sys/module/nvidia/version", "570.124.06\n")
    driver = facts_of(tmp_path).driver
    assert driver.version == "570.124.06"
    assert isinstance(driver.flavor, Unknown)


def test_nvml_is_joined_by_bdf(tmp_path: Path) -> None:
    facts = facts_of(a_node(tmp_path), nvml_of(nvml_gpu(1, BDFS[0]), nvml_gpu(0, BDFS[1])))
    assert [(gpu.index, gpu.bdf) for gpu in facts.gpus] == [(0, BDFS[1]), (1, BDFS[0])]
    assert facts.driver.nvml is None
    assert facts.driver.cuda_version == "13.2"
    assert facts.gpus[0].compute_capability == (9, 0)


def test_a_gpu_off_the_bus_says_so_and_the_others_stay(tmp_path: Path) -> None:
    lost = Unknown(Reason.DRIVER_ERROR, BDFS[1], "GPU is lost")
    first, second = facts_of(a_node(tmp_path), nvml_of(nvml_gpu(0, BDFS[0]), lost)).gpus
    assert first.nvlinks == 18
    assert second.nvml == lost
    assert second.index == 1


def test_a_gpu_that_lost_even_its_bdf_is_the_remaining_gpu(tmp_path: Path) -> None:
    lost = Unknown(Reason.DRIVER_ERROR, "1", "GPU is lost")
    assert facts_of(a_node(tmp_path), nvml_of(nvml_gpu(0, BDFS[0]), lost)).gpus[1].nvml == lost


def test_a_gpu_hidden_from_a_container_takes_no_index_of_one_that_is_shown(tmp_path: Path) -> None:
    gpus = facts_of(a_node(tmp_path), nvml_of(nvml_gpu(0, BDFS[1]))).gpus
    assert [(gpu.index, gpu.bdf) for gpu in gpus] == [(0, BDFS[1]), (1, BDFS[0])]
    assert isinstance(gpus[1].nvml, Unknown)


def test_a_mismatch_of_versions_has_its_own_message(tmp_path: Path) -> None:
    mismatch = Unknown(Reason.DRIVER_ERROR, "NVML", "driver/library version mismatch")
    facts = facts_of(a_node(tmp_path), mismatch)
    assert facts.driver.nvml == "driver/library version mismatch"
    assert facts.gpus[0].nvml == mismatch


def test_hostile_names_reach_no_terminal(tmp_path: Path) -> None:
    gpu = replace(nvml_gpu(0, BDFS[0]), name="H100\x1b[2J")
    assert "\x1b" not in facts_of(a_node(tmp_path), nvml_of(gpu)).gpus[0].name


@given(st.text())
def test_no_driver_file_crashes_the_parsers(text: str) -> None:
    parse_version(text)
    parse_version(f"NVRM version: {text}")
    assert all(name.isprintable() for name in parse_fields(text))


def test_gpus_that_only_the_driver_lists_are_named(tmp_path: Path) -> None:
    """A sandbox that hides /sys, and a dump whose vendor files could not be read."""
    (tmp_path / "sys/bus/pci/devices").mkdir(parents=True)
    write(tmp_path, f"/proc/driver/nvidia/gpus/{BDFS[0]}/information", INFORMATION)
    assert facts_of(tmp_path).unplaced == (BDFS[0],)
    nvml = NvmlFacts("570", "12.8", tuple(nvml_gpu(n, bdf) for n, bdf in enumerate(BDFS)))
    assert facts_of(tmp_path, nvml).unplaced == BDFS
    assert facts_of(a_node(tmp_path), nvml).unplaced == ()


@pytest.mark.parametrize(
    ("name", "share"), [("NVIDIA A30-8C", True), ("GRID A100D-40C", True), ("NVIDIA A100-SXM4-80GB", False)]
)
def test_a_vgpu_profile_is_known_by_its_name(tmp_path: Path, name: str, share: bool) -> None:
    nvml = replace(nvml_gpu(0, BDFS[0]), is_vgpu=False)
    gpu = facts_of(a_node(tmp_path, BDFS[:1]), NvmlFacts("570", "12.8", (nvml,))).gpus[0]
    assert is_vgpu(replace(gpu, name=name)) is share


# The memory mode on Grace


CPUS = NumaNode(0, "0-71", 480 << 30, {0: 10})
GPU_MEMORY = NumaNode(2, "", 277 << 30, {0: 80})
FOR_MIG = NumaNode(3, "", 0, {0: 80})
ABSENT = Unknown(Reason.NOT_THERE, "/sys/devices/system/node")


@pytest.mark.parametrize(
    ("option", "nodes", "mode"),
    [
        ('"driver"', (CPUS,), MemoryMode.DRIVER),
        ('"numa"', (CPUS, GPU_MEMORY), MemoryMode.NUMA),
        ('""', (CPUS, GPU_MEMORY, FOR_MIG), MemoryMode.NUMA),
        ('""', (CPUS, FOR_MIG), MemoryMode.DRIVER),
    ],
)
def test_the_option_or_the_numa_nodes_decide(
    option: str, nodes: tuple[NumaNode, ...], mode: MemoryMode
) -> None:
    parameters = {"CoherentGPUMemoryMode": option}
    driver = DriverFacts("580.95.05", Flavor.OPEN, parameters, "13.0", None)
    assert memory_mode(driver, NumaFacts(nodes)) is mode


@pytest.mark.parametrize("parameters", [{}, ABSENT])
def test_without_numa_nodes_the_mode_is_unknown(parameters: Maybe[dict[str, str]]) -> None:
    driver = DriverFacts("570.124.06", Flavor.OPEN, parameters, "12.8", None)
    assert memory_mode(driver, ABSENT) is ABSENT
