"""Faults of GPUs, their driver, NVLink, and the NVLink fabric."""

from __future__ import annotations

from dataclasses import replace

from probes.facts.gpu.gpus import NVLSM
from probes.facts.kernel.release import SMMU_SVA_OPTION
from probes.plans.packages import FABRIC_MANAGER
from probes.simulation.bandwidth.cuda import WITHOUT_SVA
from probes.simulation.faults.fault import (
    ChangeDescription,
    Faults,
    add_file,
    as_change,
    bind,
    change_fields,
    fault,
    remove_path,
    replace_content,
)
from probes.simulation.node.devices.pci import real_path
from probes.simulation.node.jobs.processes import add_fabric_manager, library_directory
from probes.simulation.node.model.description import NodeDescription, NumaDescription, RootDescription
from probes.simulation.node.model.tree import Tree, log
from probes.simulation.node.modules.modules import set_modinfo
from probes.simulation.node.system.services import (
    UNITS,
    set_fabric_manager_version,
    stop,
    stop_nvlsm,
    uninstall,
)
from probes.simulation.node.system.software import install_library, set_library_version

_LOST, _UNLISTED, _WITHOUT_DRIVER, _NOUVEAU, _FOR_GUESTS = 5, 6, 7, 4, 2
_WITH_FEWER_NVLINKS, _IN_FABRIC = 3, 3
_MANAGER_PID, _RESTARTED_AT = 1390, 1800.0
_SXID = "20034, Data {0x0, 0x0}, Link 31 LTSSM Fault Up"

FAULTS = Faults()


def _unlisted(number: int) -> ChangeDescription:
    return lambda node: replace(node, nvml=replace(node.nvml, unlisted=node.nvml.unlisted | {number}))


@as_change
def _bound(tree: Tree, number: int, driver: str) -> None:
    """Bind a GPU to another driver, or to none ("")."""
    bdf = tree.gpus[number].bdf
    bind(tree, real_path(tree, bdf), driver)
    tree.remove(f"/proc/driver/nvidia/gpus/{bdf}")


@as_change
def _xid(tree: Tree, gpu: int, text: str) -> None:
    log(tree, f"NVRM: Xid (PCI:{tree.gpus[gpu].bdf[:-2]}): {text}")


def _without_sva(tree: Tree) -> None:
    path = f"/boot/config-{tree.description.kernel}"
    replace_content(tree, path, tree.text(path).replace(f"{SMMU_SVA_OPTION}=y", WITHOUT_SVA))


def _refused_sva(tree: Tree) -> None:
    """Log the driver's error, on nodes that can have it."""
    if SMMU_SVA_OPTION not in tree.text(f"/boot/config-{tree.description.kernel}"):
        raise LookupError
    log(tree, f"NVRM: GPU {tree.gpus[0].bdf}: Enabling SMMU SVA feature failed! ret: -22", 20.0)


_stopped = as_change(stop)


def _nics_elsewhere(node: NodeDescription) -> NodeDescription:
    """Attach the NICs of the first switch to root ports of their own, on the same socket."""
    roots = list(node.root)
    for place, root in enumerate(node.root):
        if root.bus == "0000:00":
            others = RootDescription("0000:20", root.numa, ports=["compute mlx5_0", "compute mlx5_1"])
            roots[place : place + 1] = replace(root, switch=root.switch[:1]), others
    return replace(node, root=tuple(roots))


def _numa_mode(node: NodeDescription) -> NodeDescription:
    """Turn GPU memory into NUMA nodes without CPUs."""
    count = len(node.numa) + 4  # one for each GPU
    distances = tuple(10 if number < len(node.numa) else 80 for number in range(count))
    cpus = tuple(replace(cpu, distances=distances) for cpu in node.numa)
    memory = NumaDescription("", node.gpu.memory_gib, distances)
    return replace(node, gpu_memory_mode="", numa=(*cpus, memory, memory, memory, memory))


@FAULTS.fault("driver-library-missing", "The driver's libraries are not installed")
def _no_libraries(tree: Tree) -> None:
    for name in ("libcuda.so", "libcuda.so.1", "libnvidia-ml.so.1"):
        tree.remove(f"{library_directory(tree)}/{name}")


@FAULTS.fault("ib-umad-missing", "ib_umad is not loaded", on="hgx-b200", excludes=("nvlsm-missing",))
def _without_umad(tree: Tree) -> None:
    if "ib_umad" not in tree.live_modules:
        raise LookupError("ib_umad")  # no Fabric Manager of this node needs it
    stop(tree, FABRIC_MANAGER, "failed")
    tree.live_modules.remove("ib_umad")
    tree.remove("/sys/module/ib_umad")
    for number in range(len(tree.cards)):
        tree.remove(f"/dev/infiniband/umad{number}")


# fmt: off
FAULTS += (
    fault("gpu-without-driver", "GPU7 has no driver",
          _bound(_WITHOUT_DRIVER, ""), change_description=_unlisted(_WITHOUT_DRIVER),
          finds=("gpu-without-driver", "gpu-not-served")),
    fault("gpu-without-driver-nouveau", "GPU4 uses nouveau",
          _bound(_NOUVEAU, "nouveau"), change_description=_unlisted(_NOUVEAU)),
    fault("gpu-without-driver-passed-through", "GPU2 is reserved for a virtual machine",
          _bound(_FOR_GUESTS, "vfio-pci"), change_description=_unlisted(_FOR_GUESTS)),
    fault("driver-library-mismatch", "The driver's libraries are older than the loaded driver",
          lambda tree: set_library_version(tree, "535.216.01"),
          change_description=change_fields(nvml={
              "refusal": "driver/library version mismatch: reload the kernel modules or reboot"}),
          on="dgx-a100"),
    fault("xid-79-fell-off-bus", "GPU5 has fallen off the bus (Xid 79)",
          _xid(_LOST, "79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."),
          change_description=lambda node: replace(
              node, nvml=replace(node.nvml, lost=node.nvml.lost | {_LOST}))),
    fault("gpu-missing-from-nvml", "GPU6 is missing from NVML", change_description=_unlisted(_UNLISTED)),
    fault("persistence-off", "Persistence mode is off, and its daemon is not running",
          _stopped("nvidia-persistenced"),
          change_description=change_fields(nvml={"persistence": False})),
    fault("gpu-without-near-nic", "The first switch's NICs are behind the host bridge instead",
          change_description=_nics_elsewhere, on="dgx-a100"),
    fault("mig-with-gdr", "MIG is on", change_description=change_fields(nvml={"mig": True})),
    fault("vgpu-without-gdr", "The GPUs are vGPUs",
          change_description=change_fields(nvml={"is_vgpu": True}), on="cloud-vm"),
    fault("geforce-no-gdr", "GeForce GPUs",
          change_description=change_fields(gpu={"name": "NVIDIA GeForce RTX 4090"}), on="pcie-l40s"),
    fault("gpu-too-old-for-gdr", "GPUs older than Kepler",
          change_description=change_fields(gpu={"capability": (2, 0)}), on="pcie-l40s"),
    fault("gdr-read-off-on-old-gpus", "Volta GPUs without NVLink",
          change_description=change_fields(gpu={"capability": (7, 0)}), on="pcie-l40s"),
    fault("confidential-computing-on", "Confidential computing is on",
          change_description=change_fields(nvml={"confidential_computing": True})),
    fault("c2c-grace-specifics", "NCCL 2.26, which does not use GPUDirect RDMA over C2C",
          lambda tree: install_library(tree, "libnccl.so.2", "libnccl.so.2.26.2"), on="gb200"),
    fault("c2c-grace-specifics-gb10", "GB10 GPUs (DGX Spark)",
          change_description=change_fields(gpu={"name": "NVIDIA GB10"}), on="gb200"),
    fault("smmu-sva-missing", "A kernel built without SVA of the SMMU", _without_sva,
          finds=("smmu-sva-missing", "cuda-fails-to-start"), on="dgx-spark"),
    fault("smmu-sva-refused", "The SMMU passes DMA through, so it shares no page tables with GPU0",
          _refused_sva, on="gb200"),
    fault("gpu-memory-in-kubernetes", "GPU memory is a NUMA node on a Kubernetes node with Grace",
          lambda tree: tree.directory("/sys/fs/cgroup/kubepods.slice"), change_description=_numa_mode,
          on="gb300"),
    fault("xid-119-gsp-timeout", "The GSP of GPU0 timed out (Xid 119)",
          _xid(0, "119, pid=4711, name=python3, "
                  "Timeout after 6s of waiting for RPC response from GPU0 GSP!")),
    fault("xid-memory-error", "GPU1 had a memory error (Xid 63)",
          _xid(1, "63, pid=4711, name=python3, Row Remapper: New row marked for remapping")),
    fault("xid-nvlink-error", "GPU0 had an NVLink error (Xid 74)",
          _xid(0, "74, pid=4711, name=python3, NVLink: fatal error detected on link 6")),
    fault("xid-of-a-program", "A program failed on GPU1 (Xid 31)",
          _xid(1, "31, pid=4711, name=python3, MMU Fault: ENGINE GRAPHICS faulted")),
    fault("xid-other", "A context switch on GPU0 timed out (Xid 109)",
          _xid(0, "109, pid=4711, name=python3, Ch 00000008, errorString CTX SWITCH TIMEOUT, Info 0x4c00e")),
    fault("gpu-recovery-action", "GPU0 needs a reset (Xid 154)",
          _xid(0, "154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)")),
    fault("fabric-manager-down", "Fabric Manager is stopped",
          _stopped(FABRIC_MANAGER),
          finds=("fabric-manager-down", "cuda-fails-to-start"), excludes=("fabric-manager-down-absent",)),
    fault("fabric-manager-down-version", "Fabric Manager is older than the driver",
          lambda tree: set_fabric_manager_version(tree, "570.86.15"),
          excludes=("fabric-manager-down-absent",)),
    fault("imex-down", "IMEX is stopped", _stopped("nvidia-imex"), on="gb200"),
    fault("nvlink-down", "GPU3 has fewer NVLinks than the others",
          change_description=change_fields(nvml={"with_fewer_nvlinks": frozenset({_WITH_FEWER_NVLINKS})})),
    fault("gpu-fabric-not-registered", "GPU3 is not registered with the NVLink fabric",
          change_description=change_fields(nvml={"outside_fabric": frozenset({_IN_FABRIC})}), on="hgx-b200"),
    fault("gpu-fabric-unhealthy", "The NVLink fabric reports reduced bandwidth for GPU3",
          change_description=change_fields(nvml={"with_reduced_nvlink": frozenset({_IN_FABRIC})}),
          on="gb200"),
    fault("gpu-fabric-differs", "GPU3 is in another NVLink clique than the other GPUs",
          change_description=change_fields(nvml={"in_other_clique": frozenset({_IN_FABRIC})}), on="gb200"),
    fault("nvlsm-down", "NVLSM has exited", stop_nvlsm, on="hgx-b200"),
    fault("imex-channels-missing", "There is no IMEX channel",
          remove_path("/dev/nvidia-caps-imex-channels"), on="gb200"),
    fault("sxid", "An NVSwitch reported a link fault (SXid 20034)",
          lambda tree: log(tree, f"nvidia-nvswitch0: SXid (PCI:{tree.nvswitches[0]}): {_SXID}")),
    # On a GPU that NVML does not list: for a GPU that responds, the finding is a note.
    fault("gpu-driver-start-failed", "The driver could not initialize GPU6",
          lambda tree: log(
              tree, f"NVRM: GPU {tree.gpus[_UNLISTED].bdf}: RmInitAdapter failed! (0x62:0x40:1860)"),
          change_description=_unlisted(_UNLISTED)),
    fault("persistence-off-daemon-runs", "nvidia-persistenced runs with --no-persistence-mode",
          add_file(f"{UNITS}/nvidia-persistenced.service",
                   "[Service]\nExecStart=/usr/bin/nvidia-persistenced --user nvidia-persistenced "
                   "--no-persistence-mode --verbose\n"),
          change_description=change_fields(nvml={"persistence": False}), excludes=("persistence-off",)),
    fault("fabric-manager-down-absent", "Fabric Manager is not installed",
          lambda tree: uninstall(tree, FABRIC_MANAGER), remove_path("/usr/bin/nv-fabricmanager")),
    fault("gsp-firmware-missing", "The GPU driver's firmware is not installed",
          lambda tree: set_modinfo(tree, "nvidia", "firmware", "\n".join(
              f"nvidia/{tree.description.driver.version}/gsp_{chips}.bin" for chips in ("ga10x", "tu10x")))),
    fault("nvlsm-missing", "NVLSM is not installed",
          _stopped(FABRIC_MANAGER, "failed"), remove_path(NVLSM), on="hgx-b200"),
    fault("fabric-manager-restarted-under-jobs", "Fabric Manager was restarted while the job was running",
          lambda tree: add_fabric_manager(tree, _MANAGER_PID, _RESTARTED_AT)),
)
