"""Faults of the environment: limits, device files, driver containers, the SSH session, tools, libraries."""

from __future__ import annotations

from dataclasses import replace

from probes.facts.system.tool_names import PERFTEST
from probes.simulation.faults.fault import (
    ChangeDescription,
    Faults,
    add_file,
    add_link,
    change_fields,
    described,
    fault,
    remove_path,
)
from probes.simulation.node.devices.network import SOCKETS, listening, route_over
from probes.simulation.node.devices.ports import netdev_of
from probes.simulation.node.jobs.processes import (
    FIRST_RANK,
    JOB,
    add_rank,
    default_libraries,
    library_directory,
    limits,
    put_in_container,
)
from probes.simulation.node.jobs.traffic import scale_job
from probes.simulation.node.model.description import ClusterDescription, NodeDescription
from probes.simulation.node.model.tree import Tree, log
from probes.simulation.node.model.workload import changes
from probes.simulation.node.system.kubernetes import DRIVER, OFED, PEERMEM

_SMALL = str(8 << 20)
_OLD_VERBS = "libibverbs.so.1.11.32.0"

_PROGRAMS = tuple(f"/usr/bin/{name}" for name in PERFTEST)

FAULTS = Faults()


@FAULTS.fault("rdma-cgroup-limit", "A job has used up the RDMA objects its cgroup allows")
def _at_rdma_limit(tree: Tree) -> None:
    """Limit the objects of the job's service on each NIC; the first NIC has no more of them."""
    group = "/sys/fs/cgroup/system.slice/slurmd.service"
    names = [nic.name for nic in tree.nics]
    tree.add(f"{group}/rdma.max", "".join(f"{name} hca_handle=max hca_object=4096 \n" for name in names))
    used = "".join(f"{name} hca_handle=8 hca_object={812 if i else 4096} \n" for i, name in enumerate(names))
    tree.add(f"{group}/rdma.current", used)


@FAULTS.fault("task-hung-in-driver", "A rank is hung in the GPU driver")
def _hung(tree: Tree) -> None:
    """Log a rank that waits in the GPU driver (kernel/hung_task.c, check_hung_task)."""
    log(tree, f"INFO: task python3:{FIRST_RANK} blocked for more than 120 seconds.", level=3)
    log(tree, f"task:python3 state:D stack:0 pid:{FIRST_RANK} tgid:{FIRST_RANK} ppid:1", level=6)
    log(tree, " __schedule+0x2cb/0x760", level=6)
    log(tree, " os_acquire_rwlock_write+0x35/0x50 [nvidia]", level=6)
    for program in tree.programs:
        program.is_blocked = program.is_blocked or program.pid == FIRST_RANK
    scale_job(tree, changes(before=0.0))


@FAULTS.fault("dev-infiniband-near-nic-missing", "A job's container has only the device file of a far NIC")
def _far_nic(tree: Tree) -> None:
    add_rank(tree, 44002, job=JOB)
    for number in range(len(tree.nics) - 1):
        tree.remove(f"/proc/44002/root/dev/infiniband/uverbs{number}")


def _without_peermem(description: NodeDescription) -> NodeDescription:
    live = tuple(name for name in description.modules.live if name != "nvidia_peermem")
    return change_fields(driver={"flavor": "proprietary"}, modules={"live": live})(description)


def _cluster(cluster: ClusterDescription) -> ChangeDescription:
    """Put the node into a Kubernetes cluster with NVIDIA's operators, which bring the drivers."""
    return change_fields(system={"cluster": cluster, "packages": {}, "slurm": ""})


_OPERATORS = ClusterDescription(driver="570.124.06", rdma=True, ofed="doca3.5.0-26.07-0.7.0.0-0")
_WAITING_FOR_MOFED = replace(
    _OPERATORS,
    waiting=(PEERMEM, OFED),
    log=("waiting for mellanox ofed and nvidia drivers to be installed",) * 3,
)
_OFED_LOOP = replace(
    _OPERATORS,
    waiting=(OFED,),
    reason="CrashLoopBackOff",
    log=(
        "storage modules are loaded for current driver,terminating prior driver reload failure due to"
        ' UNLOAD_STORAGE_MODULES not set to "true"',
    ),
)
_DRIVER_LOOP = ClusterDescription(
    driver="560.35.03",
    waiting=(DRIVER,),
    reason="CrashLoopBackOff",
    log=("Could not unload NVIDIA driver kernel modules, driver is in use",),
)


def _driver_container(tree: Tree) -> None:
    tree.add(f"/run/nvidia/driver/lib/modules/{tree.description.kernel}/modules.dep", "")


def _mofed(tree: Tree) -> None:
    tree.remove("/run/mellanox/drivers/.driver-ready")
    tree.directory("/run/mellanox/drivers")


@FAULTS.fault("ssh-over-nic", "The SSH session and the default route use an RDMA NIC", finds=())
def _ssh_over_nic(tree: Tree) -> None:
    nic = next((nic for nic in tree.nics if nic.kind.layer == "Ethernet"), tree.nics[0])
    route_over(tree, netdev_of(tree, nic))


@FAULTS.fault("old-userspace-abi", "A job's image has an old libibverbs")
def _old_verbs_in_job(tree: Tree) -> None:
    mapped = [path for path in default_libraries(tree) if "libibverbs" not in path]
    add_rank(tree, 45000, libraries=[*mapped, f"/opt/image/lib/{_OLD_VERBS}"])


def _no_gdrdrv(description: NodeDescription) -> NodeDescription:
    modules = description.modules
    live = tuple(name for name in modules.live if name != "gdrdrv")
    return change_fields(modules={"live": live, "on_disk": (*modules.on_disk, "gdrdrv")})(description)


def _library_alone(tree: Tree) -> None:
    place = library_directory(tree)
    tree.add(f"{place}/libgdrapi.so.2.5", "")
    tree.link(f"{place}/libgdrapi.so.2", "libgdrapi.so.2.5")


_OTHER_PROGRAMS = ("perftest-missing", "perftest-without-cuda", "perftest-without-dmabuf")

# fmt: off
FAULTS += described("environment")
FAULTS += (
    fault("memlock-shell", "This shell can lock only 8 MiB of memory",
          add_file("/proc/40000/limits", limits(_SMALL, _SMALL))),
    fault("perftest-port-in-use", "A program is listening on perftest's port 18515",
          add_file("/proc/net/tcp", f"{SOCKETS}{listening(22)}{listening(18515)}")),
    fault("k8s-rdma-not-enabled", "A driver container without nvidia_peermem or DMA-BUF",
          _driver_container, change_description=_without_peermem, on="bare-roce"),
    fault("k8s-peermem-ctr-crashloop", "The driver container has no module files",
          lambda tree: tree.directory("/run/nvidia/driver/lib/modules"),
          change_description=_cluster(_DRIVER_LOOP), on="pcie-l40s"),
    fault("memlock-or-ipc-lock", "A job can lock only 8 MiB of memory",
          lambda tree: add_rank(tree, 44000), add_file("/proc/44000/limits", limits(_SMALL, _SMALL))),
    fault("memlock-container-runtime", "containerd limits how much memory a job can lock",
          add_file("/etc/systemd/system/containerd.service", "[Service]\nLimitMEMLOCK=64M\n"),
          lambda tree: add_rank(tree, 44003), lambda tree: put_in_container(tree, 44003),
          add_file("/proc/44003/limits", limits(str(64 << 20), str(64 << 20)))),
    fault("pid-namespace-hides-users", "A job that NVML lists is not in /proc",  # its other ranks are
          lambda tree: tree.remove(f"/proc/{FIRST_RANK + len(tree.gpus) - 1}")),
    fault("dev-infiniband-not-in-container", "A job's container has no RDMA device files",
          lambda tree: add_rank(tree, 44001), remove_path("/proc/44001/root/dev", "/proc/44001/fd"),
          add_link("/proc/44001/fd/3", "/dev/nvidia0")),
    fault("k8s-operators", "The GPU Operator and the Network Operator installed both drivers",
          _driver_container, remove_path("/usr/bin/ofed_info", "/var/lib/dkms"),
          change_description=_cluster(_OPERATORS), finds=()),
    fault("k8s-waiting-for-mofed", "The MOFED container is not ready",
          _mofed, _driver_container, remove_path("/var/lib/dkms"),
          change_description=_cluster(_WAITING_FOR_MOFED)),
    fault("k8s-mofed-storage-modules", "Storage modules block the MOFED container",
          _mofed, lambda tree: tree.live_modules.append("rpcrdma"), change_description=_cluster(_OFED_LOOP)),
    fault("perftest-without-cuda", "perftest is built without CUDA",
          *(add_file(path, b"\x7fELF\0ibv_reg_mr\0") for path in _PROGRAMS), excludes=_OTHER_PROGRAMS[::2]),
    fault("perftest-without-dmabuf", "perftest is built without DMA-BUF",
          *(add_file(path, b"\x7fELF\0libcuda.so.1\0ibv_reg_mr\0") for path in _PROGRAMS),
          excludes=_OTHER_PROGRAMS[:2]),
    fault("libcuda-link-missing", "The symlink libcuda.so is missing",
          lambda tree: tree.remove(f"{library_directory(tree)}/libcuda.so"), excludes=_OTHER_PROGRAMS),
    fault("perftest-missing", "perftest is not installed", remove_path(*_PROGRAMS),
          excludes=_OTHER_PROGRAMS[1:]),
    fault("gdrdrv-missing", "GDRCopy is installed without its driver gdrdrv",
          _library_alone, change_description=_no_gdrdrv),
)
