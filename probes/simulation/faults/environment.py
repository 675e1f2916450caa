"""Faults of the environment: limits, device files, driver containers, the SSH session, tools, libraries."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from probes.facts.system.cpu import POLICIES
from probes.facts.system.platform import SERVICE_ACCOUNT
from probes.facts.system.tool_names import PERFTEST
from probes.simulation.faults.fault import as_change, change_fields, described, remove_path
from probes.simulation.node.devices.network import SOCKETS, listening, route_over
from probes.simulation.node.devices.ports import netdev_of, port_of
from probes.simulation.node.jobs.processes import (
    FIRST_RANK,
    JOB,
    add_rank,
    default_libraries,
    limits,
    put_in_container,
)
from probes.simulation.node.jobs.traffic import scale_job
from probes.simulation.node.model.description import NodeDescription
from probes.simulation.node.model.tree import Tree, Via, log
from probes.simulation.node.model.workload import changes

_SMALL = str(8 << 20)
_OLD_VERBS = "libibverbs.so.1.11.32.0"

_PROGRAMS = tuple(f"/usr/bin/{name}" for name in PERFTEST)
_without_perftest = remove_path(*_PROGRAMS)


def _at_rdma_limit(tree: Tree) -> None:
    """Limit the objects of the job's service on each NIC; the first NIC has no more of them."""
    group = "/sys/fs/cgroup/system.slice/slurmd.service"
    names = [nic.name for nic in tree.nics]
    tree.add(f"{group}/rdma.max", "".join(f"{name} hca_handle=max hca_object=4096 \n" for name in names))
    used = "".join(f"{name} hca_handle=8 hca_object={812 if i else 4096} \n" for i, name in enumerate(names))
    tree.add(f"{group}/rdma.current", used)


@as_change
def _set_clocks(tree: Tree, files: Mapping[str, str], last: bool = False) -> None:
    """Change files of all clock policies, or of the last one."""
    names = sorted(tree.directories.get(POLICIES, ()), key=lambda name: int(name.removeprefix("policy")))
    for name in names[-1:] if last else names:
        tree.add_values(f"{POLICIES}/{name}", files)


def _hung(tree: Tree) -> None:
    """Log a rank that waits in the GPU driver (kernel/hung_task.c, check_hung_task)."""
    log(tree, f"INFO: task python3:{FIRST_RANK} blocked for more than 120 seconds.", level=3)
    log(tree, f"task:python3 state:D stack:0 pid:{FIRST_RANK} tgid:{FIRST_RANK} ppid:1", level=6)
    log(tree, " __schedule+0x2cb/0x760", level=6)
    log(tree, " os_acquire_rwlock_write+0x35/0x50 [nvidia]", level=6)
    for program in tree.programs:
        program.is_blocked = program.is_blocked or program.pid == FIRST_RANK
    scale_job(tree, changes(before=0.0))


def _far_nic(tree: Tree) -> None:
    add_rank(tree, 44002, job=JOB)
    for number in range(len(tree.nics) - 1):
        tree.remove(f"/proc/44002/root/dev/infiniband/uverbs{number}")


_POD_STATUS = "Name:\tgdrtop\nState:\tR (running)\nUid:\t0\t0\t0\t0\nCapEff:\t{:016x}\n"
_POD_CAPABILITIES = 0xA80425FB  # containerd's default for root, without CAP_IPC_LOCK
_IPC_LOCK = 1 << 14


def _in_pod(tree: Tree) -> None:
    """Show the node to a pod with IPC_LOCK and the device plugin's NICs, in a network namespace of its own.

    RDMA devices are shared, so sysfs shows all of them, but no counters (core/sysfs.c, setup_port); RDMA
    netlink has those of the driver.
    """
    tree.directory(SERVICE_ACCOUNT)
    tree.add("/proc/1/cgroup", "0::/\n")
    allowed = tree.text("/proc/40000/status").partition("Cpus_allowed_list")
    status = _POD_STATUS.format(_POD_CAPABILITIES | _IPC_LOCK)
    tree.add("/proc/40000/status", f"{status}{allowed[1]}{allowed[2]}")
    tree.add("/proc/40000/cgroup", "0::/\n")
    given = ",".join(nic.bdf for nic in tree.compute_nics)
    tree.add("/proc/40000/environ", f"PCIDEVICE_NVIDIA_COM_HOSTDEV={given}\0".encode())
    _set_shm(tree, 16 << 30)
    for program in tree.programs:
        put_in_container(tree, program.pid)
    for nic in tree.nics:
        tree.remove(f"{port_of(nic)}/counters")
        tree.statistics[f"{nic.name}/1"] = tree.remove(f"{port_of(nic)}/hw_counters")
        if nic not in tree.compute_nics:
            number = tree.nics.index(nic)
            tree.refused.add(f"/dev/infiniband/uverbs{number}")


def _set_shm(tree: Tree, size_bytes: int) -> None:
    mounts = "".join(
        line for line in tree.text("/proc/mounts").splitlines(True) if not line.startswith("shm ")
    )
    line = f"shm /dev/shm tmpfs rw,nosuid,nodev,noexec,relatime,size={size_bytes >> 10}k 0 0\n"
    tree.add("/proc/mounts", mounts + line)


def _with_host_path(tree: Tree) -> None:
    """Mount /dev/infiniband by hostPath instead: the device control group lets the pod open no device."""
    _in_pod(tree)
    tree.add("/proc/40000/environ", b"")
    tree.refused.update(f"/dev/infiniband/uverbs{number}" for number in range(len(tree.nics)))
    for program in tree.programs:
        program.via = Via.TCP if program.is_nccl else program.via


def _without_rights(tree: Tree) -> None:
    """Give the pod neither IPC_LOCK nor more than the runtime's shared memory."""
    _in_pod(tree)
    status = tree.text("/proc/40000/status").replace(
        f"{_POD_CAPABILITIES | _IPC_LOCK:016x}", f"{_POD_CAPABILITIES:016x}"
    )
    tree.add("/proc/40000/status", status)
    tree.add("/proc/40000/limits", limits(_SMALL, _SMALL))
    _set_shm(tree, 64 << 20)


def _without_peermem(description: NodeDescription) -> NodeDescription:
    live = tuple(name for name in description.modules.live if name != "nvidia_peermem")
    return change_fields(driver={"flavor": "proprietary"}, modules={"live": live})(description)


def _ssh_over_nic(tree: Tree) -> None:
    nic = next((nic for nic in tree.nics if nic.kind.layer == "Ethernet"), tree.nics[0])
    route_over(tree, netdev_of(tree, nic))


def _old_verbs_in_job(tree: Tree) -> None:
    mapped = [path for path in default_libraries(tree) if "libibverbs" not in path]
    add_rank(tree, 45000, libraries=[*mapped, f"/opt/image/lib/{_OLD_VERBS}"])


@as_change
def _limit(tree: Tree, pid: int, size_bytes: int) -> None:
    """Limit the memory that a rank or, at 40000, this process may lock."""
    if pid != 40000:
        add_rank(tree, pid)
    tree.add(f"/proc/{pid}/limits", limits(str(size_bytes), str(size_bytes)))


def _limited_container(tree: Tree) -> None:
    add_rank(tree, 44003)
    put_in_container(tree, 44003)
    tree.add("/proc/44003/limits", limits(str(64 << 20), str(64 << 20)))


def _listens_on_port(tree: Tree) -> None:
    tree.add("/proc/net/tcp", f"{SOCKETS}{listening(22)}{listening(18515)}")


def _hide_last_rank(tree: Tree) -> None:
    tree.remove(f"/proc/{FIRST_RANK + len(tree.gpus) - 1}")  # its other ranks are there


def _without_device_files(tree: Tree) -> None:
    add_rank(tree, 44001)
    tree.remove("/proc/44001/root/dev")
    tree.remove("/proc/44001/fd")
    tree.link("/proc/44001/fd/3", "/dev/nvidia0")


@as_change
def _built_with(tree: Tree, library: str) -> None:
    """Install a perftest that names this library, or none ("")."""
    for path in _PROGRAMS:
        tree.add(path, b"\x7fELF\0" + f"{library}\0ibv_reg_mr\0".lstrip("\0").encode())


def _no_gdrdrv(description: NodeDescription) -> NodeDescription:
    modules = description.modules
    live = tuple(name for name in modules.live if name != "gdrdrv")
    return change_fields(modules={"live": live, "on_disk": (*modules.on_disk, "gdrdrv")})(description)


FAULTS = tuple(
    described("environment", globals(), clocks=_set_clocks, last_clock=partial(_set_clocks, last=True))
)
