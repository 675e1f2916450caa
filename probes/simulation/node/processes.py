"""Processes of a simulated node: init, gdrtop, and a training job with one rank per GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from probes.simulation.node.tree import Tree

FIRST_RANK = 41000
_OWN = 40000
NCCL_VERSION = "2.27.7"
_RESIDENT_KB = 18 << 20
_UID, _USER, _SLURM_JOB = 1000, "alice", 4711


def add_processes(tree: Tree) -> None:
    """Add process 1, gdrtop, and a rank on every GPU if the driver is loaded."""
    tree.add("/proc/1/comm", "systemd\n")
    tree.add("/proc/1/cmdline", b"/sbin/init\0")
    tree.link("/proc/self", str(_OWN))
    tree.add(f"/proc/{_OWN}/limits", limits())
    tree.add(f"/proc/{_OWN}/status", _own_status(tree))
    tree.directory("/etc/systemd/system")
    tree.add("/etc/security/limits.d/rdma.conf", "* soft memlock unlimited\n* hard memlock unlimited\n")
    tree.add("/etc/passwd", f"root:x:0:0:root:/root:/bin/bash\n{_USER}:x:{_UID}:{_UID}::/home/{_USER}:\n")
    if "nvidia" in tree.live_modules:
        for number in range(len(tree.gpus)):
            add_rank(tree, FIRST_RANK + number, number)


def _own_status(tree: Tree) -> str:
    """Return the status of gdrtop's process, which may use all CPUs and NUMA nodes."""
    nodes = tree.description.numa
    cpus = ",".join(node.cpus for node in nodes if node.cpus)
    memory = ",".join(str(number) for number, node in enumerate(nodes) if node.memory_gib)
    return (
        "Name:\tgdrtop\nState:\tR (running)\nUid:\t0\t0\t0\t0\nCapEff:\t000001ffffffffff\n"
        f"Cpus_allowed_list:\t{cpus}\nMems_allowed_list:\t{memory}\n"
    )


def put_in_container(tree: Tree, pid: int) -> None:
    """Move a process into a Kubernetes pod."""
    pod = "kubepods-burstable-pod1b2c3d4e_5f60_4718_9a8b_0c1d2e3f4a5b.slice"
    path = f"/kubepods.slice/kubepods-burstable.slice/{pod}/cri-containerd-{'3f' * 32}.scope"
    tree.add(f"/proc/{pid}/cgroup", f"0::{path}\n")


def add_rank(
    tree: Tree,
    pid: int,
    gpu: int = 0,
    variables: Mapping[str, str] | None = None,
    libraries: Sequence[str] | None = None,
) -> None:
    """Add one process of a training job, with a GPU and every NIC."""
    base = f"/proc/{pid}"
    tree.add(f"{base}/comm", "python3\n")
    tree.add(f"{base}/cmdline", b"/usr/bin/python3\0-u\0/home/alice/llm/train.py\0--config\0llama.yaml\0")
    job = f"/slurm/uid_{_UID}/job_{_SLURM_JOB}/step_0/task_{gpu}"
    tree.add(f"{base}/cgroup", f"4:memory:{job}\n2:cpuset:{job}\n0::/system.slice/slurmd.service\n")
    tree.add(f"{base}/status", "Name:\tpython3\nState:\tR (running)\n"
             f"Uid:\t{_UID}\t{_UID}\t{_UID}\t{_UID}\nVmRSS:\t{_RESIDENT_KB} kB\n"
             f"CapEff:\t0000000000000000\nCpus_allowed_list:\t{_cpus_near(tree, gpu)}\n")  # fmt: skip
    tree.add(f"{base}/stat", lambda seconds: f"{pid} (python3) {_times(seconds)}\n")
    tree.add(f"{base}/limits", limits())
    given = {"CUDA_VISIBLE_DEVICES": "0", **compute_nics(tree), **(variables or {})}
    tree.add(f"{base}/environ", "".join(f"{name}={value}\0" for name, value in given.items()).encode())
    verbs = [f"uverbs{number}" for number in range(len(tree.nics))]
    files = [f"/dev/nvidia{gpu}", "/dev/nvidiactl", "/dev/nvidia-uvm"]
    for number, file in enumerate([*files, *(f"/dev/infiniband/{name}" for name in verbs)], 3):
        tree.link(f"{base}/fd/{number}", file)
    for name in (*verbs, "rdma_cm"):
        tree.add(f"{base}/root/dev/infiniband/{name}", "")
    mapped = default_libraries(tree) if libraries is None else libraries
    tree.add(f"{base}/maps", "".join(
        f"7f{number:02x}00000000-7f{number:02x}00100000 r-xp 00000000 08:01 {number} {path}\n"
        for number, path in enumerate(mapped)
    ))  # fmt: skip


def _cpus_near(tree: Tree, gpu: int) -> str:
    """The CPUs of a GPU's NUMA node, to which the launcher binds its rank."""
    nodes = tree.description.numa
    numa = tree.gpus[gpu].numa if gpu < len(tree.gpus) else 0
    return nodes[numa].cpus if numa < len(nodes) else ""


def _times(seconds: float) -> str:
    """Fields 3 to 22 of /proc/PID/stat: a training process keeps about two CPUs busy."""
    return f"R 1 {'0 ' * 9}{round(seconds * 170)} {round(seconds * 30)} 0 0 20 0 64 0 0"


def library_directory(tree: Tree) -> str:
    """Return the directory of the shared libraries."""
    return f"/usr/lib/{tree.description.architecture}-linux-gnu"


def default_libraries(tree: Tree, nccl: str = NCCL_VERSION) -> list[str]:
    """Return the libraries that a rank maps."""
    directory = library_directory(tree)
    return [
        f"{directory}/libnccl.so.{nccl}",
        f"{directory}/libibverbs.so.1.14.39.0",
        f"{directory}/libmlx5.so.1.24.39.0",
        f"{directory}/libcuda.so.{tree.description.driver.version}",
    ]


def compute_nics(tree: Tree) -> dict[str, str]:
    """Return NCCL_IB_HCA with the exact names of all compute NICs."""
    names = [nic.name for nic in tree.nics if nic.kind is tree.description.nic.get("compute")]
    return {"NCCL_IB_HCA": f"={','.join(names)}"} if names else {}


def limits(soft: str = "unlimited", hard: str = "unlimited") -> str:
    """Return a /proc/PID/limits file with this limit of locked memory, in bytes."""
    return (
        "Limit                     Soft Limit           Hard Limit           Units     \n"
        f"Max locked memory         {soft:<20} {hard:<20} bytes     \n"
    )
