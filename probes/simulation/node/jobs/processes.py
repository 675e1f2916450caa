"""Processes of a simulated node: init, gdrtop, a training job with one rank per GPU, and earlier jobs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from probes.base.frozen import frozen
from probes.base.unknown import known
from probes.facts.jobs.nccl_conf import NCCL_CONF
from probes.facts.jobs.pods import CLAIMS, PLUGINS
from probes.host.component_history import Component, ComponentHistory, JobPart, Loss, PastJob
from probes.plans.packages import FABRIC_MANAGER
from probes.simulation.node.jobs.nccl_log import JobOutput
from probes.simulation.node.jobs.programs import needs_plugin, nics_of_gpus, path_between, path_of, uses_cxi
from probes.simulation.node.jobs.rdma_resources import pinned_bytes, service_thread
from probes.simulation.node.model.tree import Content, Pool, Program, Tree, Via, uuid_of

FIRST_RANK = 41000
_OWN = 40000
_FIRST_TASK = 2_000_000  # of an inference engine
_RESIDENT_KB = 18 << 20
_STORAGE_POOL = Pool(8 << 30, (("RC", 16),))  # a storage client's cache
_OVER_IB, _OVER_TCP = "NCCL IbAsync  0", "NCCL SockS 0 0"
_THREADS = (
    *("NCCL Service  0", "NCCL Progress 0", _OVER_IB, "NCCL RAS", "pt_nccl_watchdg", "pt_nccl_heartbt"),
)
_STATES = {"R": "R (running)", "T": "T (stopped)", "D": "D (disk sleep)"}


@frozen
class Job:
    """A training job."""

    user: str
    uid: int
    slurm_job: int
    script: str


POD_UID = "1b2c3d4e-5f60-4718-9a8b-0c1d2e3f4a5b"
JOB = Job("alice", 1000, 4711, "train.py")
OTHER_JOB = Job("bob", 1001, 4712, "finetune.py")
_STARTING_JOB = Job("carol", 1002, 4713, "evaluate.py")


def add_processes(tree: Tree) -> None:
    """Add process 1, gdrtop, and a rank on every GPU if the driver is loaded."""
    tree.add("/proc/1/comm", "systemd\n")
    tree.add("/proc/1/cmdline", b"/sbin/init\0")
    tree.link("/proc/self", str(_OWN))
    tree.add(f"/proc/{_OWN}/limits", limits())
    nodes = tree.description.numa
    cpus = ",".join(node.cpus for node in nodes if node.cpus)  # it may use all of them, and all memory
    memory = ",".join(str(number) for number, node in enumerate(nodes) if node.memory_gib)
    tree.add(
        f"/proc/{_OWN}/status",
        "Name:\tgdrtop\nState:\tR (running)\nUid:\t0\t0\t0\t0\nCapEff:\t000001ffffffffff\n"
        f"Cpus_allowed_list:\t{cpus}\nMems_allowed_list:\t{memory}\n",
    )
    tree.add(f"/proc/{_OWN}/cgroup", "0::/user.slice/user-0.slice/session-1.scope\n")
    tree.add("/sys/fs/cgroup/cgroup.controllers", "cpuset cpu io memory hugetlb pids rdma misc\n")
    tree.directory("/etc/systemd/system")
    tree.add("/etc/security/limits.d/rdma.conf", "* soft memlock unlimited\n* hard memlock unlimited\n")
    jobs = (JOB, OTHER_JOB, _STARTING_JOB)
    users = "".join(f"{job.user}:x:{job.uid}:{job.uid}::/home/{job.user}:\n" for job in jobs)
    tree.add("/etc/passwd", f"root:x:0:0:root:/root:/bin/bash\n{users}")
    if "nvidia" in tree.live_modules:
        add_job(tree, FIRST_RANK, range(len(tree.gpus)), JOB)


def put_in_container(tree: Tree, pid: int, number: int = 0) -> None:
    """Move a process into a Kubernetes pod, by the pod's number."""
    uid = POD_UID.replace("3d4e", f"3d4{number + 14:x}").replace("-", "_")
    pod = f"kubepods-burstable-pod{uid}.slice"
    path = f"/kubepods.slice/kubepods-burstable.slice/{pod}/cri-containerd-{'3f' * 32}.scope"
    tree.add(f"/proc/{pid}/cgroup", f"0::{path}\n")


def add_engine_process(
    tree: Tree,
    program: Program,
    command: str,
    pod: int,
    namespace: int,
    verbs_files: int,
    libraries: Sequence[str],
    threads: Sequence[str],
) -> None:
    """Add a process of an inference engine, in the pod and the PID namespace with these numbers.

    `command`: its command line, or the title that setproctitle has written over it and over the environment,
    which is empty from then on (setproctitle 1.3.8). Its container has so many `verbs_files`.
    """
    base, pid, is_titled = f"/proc/{program.pid}", program.pid, "::" in command
    comm = command[:15] if is_titled else command.partition(" ")[0].rpartition("/")[2][:15]  # TASK_COMM_LEN
    files = [] if program.gpu is None else [f"/dev/nvidia{program.gpu}", "/dev/nvidiactl", "/dev/nvidia-uvm"]
    files += [f"/dev/infiniband/uverbs{number}" for number in range(len(program.opened))]
    tree.directory(f"{base}/root/dev")
    for number in range(verbs_files):
        tree.add(f"{base}/root/dev/infiniband/uverbs{number}", "")
    cpus = "" if program.gpu is None else _cpus_near(tree, program.gpu)
    words = command.replace(" ", "\0") + "\0" * 64 * is_titled
    _add_process(tree, program, comm, words, "", files, libraries, {"HOME": "/root"}, 0, cpus)
    if is_titled:
        tree.add(f"{base}/environ", bytes(1024))
    put_in_container(tree, pid, pod)
    tree.link(f"{base}/ns/pid", f"pid:[{namespace}]")
    for number, name in enumerate((comm, *threads)):
        task = pid if not number else _FIRST_TASK + pid * 8 + number
        tree.add(f"{base}/task/{task}/comm", f"{name}\n")


def add_given_devices(tree: Tree) -> None:
    """Let the kubelet have given the pod its GPUs by a device plugin, and its NICs by DRA."""
    gpus = [f"GPU-{number}" for number in range(len(tree.gpus))]
    entry = {"PodUID": POD_UID, "ContainerName": "main", "ResourceName": "nvidia.com/gpu"}
    plugins = {"Data": {"PodDeviceEntries": [entry | {"DeviceIDs": {"0": gpus}, "AllocResp": ""}]}}
    devices = [{"PoolName": "node", "DeviceName": nic.bdf.replace(":", "-")} for nic in tree.nics]
    claim = {"ClaimName": "pair", "Namespace": "team", "PodUIDs": {POD_UID: {}}}
    claims = {"Entries": [claim | {"DriverState": {"dra.net": {"Devices": devices}}}]}
    tree.add(PLUGINS, json.dumps(plugins))
    tree.add(CLAIMS, json.dumps({"Data": json.dumps(claims), "Checksum": 1}))


def add_rank(
    tree: Tree,
    pid: int,
    gpu: int = 0,
    variables: Mapping[str, str] | None = None,
    libraries: Sequence[str] | None = None,
    job: Job | None = None,
    program: Program | None = None,
) -> None:
    """Add one process of a training job, with a GPU and every NIC open.

    Without a program it is a job of its own that starts: it has no queue pairs before its first collective.
    """
    job = job or (_STARTING_JOB if program is None else JOB)
    base, cpus = f"/proc/{pid}", _cpus_near(tree, gpu)
    opened = tuple(nic.name for nic in tree.nics)
    program = program or Program(pid, gpu, (), opened, Via.NONE, gpu)
    command = f"/usr/bin/python3\0-u\0/home/{job.user}/llm/{job.script}\0--config\0llama.yaml\0"
    group = f"/slurm/uid_{job.uid}/job_{job.slurm_job}/step_0/task_{gpu}"
    groups = f"4:memory:{group}\n2:cpuset:{group}\n0::/system.slice/slurmd.service\n"
    given = {"CUDA_VISIBLE_DEVICES": "0", **compute_nics(tree), **tree.description.job}
    given |= variables or {}
    files = [f"/dev/nvidia{gpu}", "/dev/nvidiactl", "/dev/nvidia-uvm"]
    if uses_cxi(tree):
        files += [f"/dev/{name}" for name in opened]
    else:
        verbs = [f"uverbs{number}" for number in range(len(tree.nics))]
        files += [f"/dev/infiniband/{name}" for name in verbs]
        for name in (*verbs, "rdma_cm"):
            tree.add(f"{base}/root/dev/infiniband/{name}", "")
    mapped = default_libraries(tree) if libraries is None else libraries
    _add_process(tree, program, "python3", command, groups, files, mapped, given, job.uid, cpus)
    _add_threads(tree, program, job.uid, cpus)
    for stream in (1, 2):  # a job with an output of its own has another link
        tree.link(f"{base}/fd/{stream}", "/dev/null")
    if tree.is_there(NCCL_CONF):
        tree.link(f"{base}/root{NCCL_CONF}", NCCL_CONF)


def _add_process(
    tree: Tree,
    program: Program,
    comm: str,
    command: str,
    groups: str,
    files: Sequence[str],
    libraries: Sequence[str],
    environment: Mapping[str, str],
    uid: int,
    cpus: str,
) -> None:
    tree.programs.append(program)
    base, pid = f"/proc/{program.pid}", program.pid
    variables = "".join(f"{name}={value}\0" for name, value in environment.items())
    contents: dict[str, Content] = {
        "comm": f"{comm}\n",
        "cmdline": command.encode(),
        "cgroup": groups,
        "status": _status(tree, program, pid, uid, cpus, comm),
        "stat": lambda seconds: f"{pid} ({comm}) {_times(program, seconds)}\n",
        "limits": limits(),
        "environ": variables.encode(),
    }
    for name, content in contents.items():
        tree.add(f"{base}/{name}", content)
    for number, file in enumerate(files, 3):
        tree.link(f"{base}/fd/{number}", file)
    map_libraries(tree, pid, libraries)


def map_libraries(tree: Tree, pid: int, paths: Sequence[str]) -> None:
    """Let a process map these libraries."""
    tree.add(f"/proc/{pid}/maps", "".join(
        f"7f{number:02x}00000000-7f{number:02x}00100000 r-xp 00000000 08:01 {number} {path}\n"
        for number, path in enumerate(paths)
    ))  # fmt: skip


def add_job(
    tree: Tree, first_pid: int, gpus: Sequence[int], job: Job, via: Via | None = None, since: float = 0.0
) -> None:
    """Add a rank on each of these GPUs, connected over its nearest NICs; the job's other nodes have as many.

    `via`: the path of all ranks; None: the one that NCCL takes.
    """
    node = tree.description
    near = nics_of_gpus(tree)
    opened = tuple(nic.name for nic in tree.nics)
    programs: list[Program] = []
    output = f"/home/{job.user}/llm/slurm-{job.slurm_job}.out"
    for rank, gpu in enumerate(gpus):
        nics = near[gpu] if near else ()
        path = via or path_between(tree, gpu, nics[0]) if nics else Via.NONE
        names = tuple(nic.name for nic in nics)
        program = Program(first_pid + rank, gpu, names, opened, path, rank, since=since)
        world, first = len(gpus) * node.job_nodes, len(gpus) * node.job_node
        variables = {
            "RANK": str(first + rank),
            "WORLD_SIZE": str(world),
            "LOCAL_RANK": str(rank),
            "LOCAL_WORLD_SIZE": str(len(gpus)),
            "SLURM_JOB_ID": str(job.slurm_job),
            "SLURM_PROCID": str(first + rank),
            "SLURM_LOCALID": str(rank),
            "SLURM_NTASKS": str(world),
            "SLURM_NODEID": str(node.job_node),
            "NCCL_DEBUG": "INFO",
            "NCCL_DEBUG_SUBSYS": "INIT,NET,GRAPH,ENV",
        }
        add_rank(tree, program.pid, gpu, variables, job=job, program=program)
        programs.append(program)
        for stream in (1, 2):
            tree.link(f"/proc/{program.pid}/fd/{stream}", output)
    tree.add(output, JobOutput(tree, programs, len(gpus) * node.job_nodes).text)


def end_program(tree: Tree, pid: int) -> None:
    """End a process."""
    tree.programs[:] = [program for program in tree.programs if program.pid != pid]
    tree.remove(f"/proc/{pid}")


def add_storage_client(tree: Tree, pid: int, nics: Sequence[str]) -> None:
    """Add IBM Storage Scale's daemon, which uses RDMA from user space with a cache in host memory."""
    program = Program(pid, None, tuple(nics), tuple(nics), Via.HOST, 0, is_nccl=False, pool=_STORAGE_POOL)
    numbers = [number for number, nic in enumerate(tree.nics) if nic.name in nics]
    devices = [f"/dev/infiniband/uverbs{number}" for number in numbers]
    verbs = f"{library_directory(tree)}/{verbs_libraries(tree)['libibverbs.so.1']}"
    _add_daemon(tree, program, "/usr/lpp/mmfs/bin/mmfsd", "gpfs", devices, (verbs,))


def add_fabric_manager(tree: Tree, pid: int, since: float) -> None:
    """Add the process of Fabric Manager, which has the driver open; `since`: seconds after boot."""
    program = Program(pid, None, (), (), Via.NONE, 0, is_nccl=False, since=since)
    _add_daemon(tree, program, "/usr/bin/nv-fabricmanager", FABRIC_MANAGER, ("/dev/nvidiactl",))


def _add_daemon(
    tree: Tree,
    program: Program,
    command: str,
    service: str,
    devices: Sequence[str],
    libraries: Sequence[str] = (),
) -> None:
    """Add the process of a service of root."""
    comm, groups = command.rpartition("/")[2][:15], f"0::/system.slice/{service}.service\n"
    _add_process(tree, program, comm, f"{command}\0", groups, devices, libraries, {}, 0, "")
    tree.add(f"/proc/{program.pid}/task/{program.pid}/comm", f"{comm}\n")


def _add_threads(tree: Tree, program: Program, uid: int, cpus: str) -> None:
    """Add the threads that NCCL and PyTorch start, as of NCCL 2.27 (live names: 15 characters)."""

    def name_now(seconds: float) -> str:
        return f"{_OVER_TCP if path_of(tree, program) is Via.TCP else _OVER_IB}\n"

    threads = {program.pid: "python3"}
    if program.via is not Via.NONE:
        threads.update(enumerate(_THREADS, service_thread(program)))
    for thread, name in threads.items():
        base = f"/proc/{program.pid}/task/{thread}"
        tree.add(f"{base}/comm", name_now if name == _OVER_IB else f"{name}\n")
        if thread == service_thread(program):
            tree.add(f"{base}/status", _status(tree, program, thread, uid, cpus, name))
            # Linux answers for threads too, but /proc does not list them.
            tree.hidden_link(f"/proc/{thread}", f"{program.pid}/task/{thread}")


def _status(tree: Tree, program: Program, thread: int, uid: int, cpus: str, name: str = "python3") -> Content:
    """Return /proc/PID/status: VmPin follows the regions, State a stop."""

    def status(seconds: float) -> str:
        state = _STATES[program.state(seconds)]
        pinned = pinned_bytes(tree, program, seconds) // 1024
        return (
            f"Name:\t{name}\nState:\t{state}\nTgid:\t{program.pid}\nPid:\t{thread}\n"
            f"PPid:\t{program.parent}\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\n"
            f"VmPin:\t{pinned} kB\nVmRSS:\t{_RESIDENT_KB} kB\n"
            f"CapEff:\t0000000000000000\nCpus_allowed_list:\t{cpus}\n"
        )

    return status


def _cpus_near(tree: Tree, gpu: int) -> str:
    """The CPUs of a GPU's NUMA node, to which the launcher binds its rank."""
    nodes = tree.description.numa
    numa = tree.gpus[gpu].numa if gpu < len(tree.gpus) else 0
    return nodes[numa].cpus if numa < len(nodes) else ""


def _times(program: Program, seconds: float) -> str:
    """Fields 3 to 22 of /proc/PID/stat: a training process keeps about two CPUs busy."""
    state = program.state(seconds)
    until = seconds if program.stopped_at is None else min(seconds, program.stopped_at)
    busy = max(0.0, until - program.since)
    start = round(program.since * 100)
    return f"{state} {program.parent} {'0 ' * 9}{round(busy * 170)} {round(busy * 30)} 0 0 20 0 64 0 {start}"


def library_directory(tree: Tree) -> str:
    """Return the directory of the shared libraries."""
    return f"/usr/lib/{tree.description.architecture}-linux-gnu"


def verbs_libraries(tree: Tree) -> dict[str, str]:
    """Return the files of rdma-core's libraries by the names that programs load."""
    release = tree.description.rdma_core
    interface = 25 if release >= 54 else 24  # libmlx5.so.1.25.54.0 has mlx5dv_get_data_direct_sysfs_path
    provider = ("libmlx5.so.1", f"libmlx5.so.1.{interface}.{release}.0")
    if needs_plugin(tree):
        provider = ("libefa.so.1", "libefa.so.1.3.50.0")
    return {"libibverbs.so.1": f"libibverbs.so.1.14.{release}.0", provider[0]: provider[1]}


def default_libraries(tree: Tree, nccl: str = "") -> list[str]:
    """Return the libraries that a rank maps; `nccl`: another version than the node's."""
    directory = library_directory(tree)
    verbs = () if uses_cxi(tree) else verbs_libraries(tree).values()
    plugin = tree.description.system.plugin
    return [
        f"{directory}/libnccl.so.{nccl or tree.description.nccl}",
        *(f"{directory}/{name}" for name in verbs),
        *filter(None, [plugin]),
        f"{directory}/libcuda.so.{tree.description.driver.version}",
    ]


def compute_nics(tree: Tree) -> dict[str, str]:
    """Return NCCL_IB_HCA with the exact names of all compute NICs; a network plugin does not read it."""
    if needs_plugin(tree):
        return {}
    names = [nic.name for nic in tree.compute_nics]
    return {"NCCL_IB_HCA": f"={','.join(names)}"} if names else {}


def limits(soft: str = "unlimited", hard: str = "unlimited") -> str:
    """Return a /proc/PID/limits file with this limit of locked memory, in bytes."""
    return (
        "Limit                     Soft Limit           Hard Limit           Units     \n"
        "Max stack size            8388608              unlimited            bytes     \n"
        f"Max locked memory         {soft:<20} {hard:<20} bytes     \n"
    )


_JOBS, _NOT_SLOW_IN = 9, (1, 5)
_HOUR = 3600.0
_COMPARED_SHARE, _SLOW_SHARE = 0.8, 0.9


def component_history(tree: Tree, at: float) -> ComponentHistory:
    """Return what `gdrtop watch` would have kept of nine jobs, the last one ended an hour before `at`."""
    jobs = []
    for number in range(_JOBS):
        ended = at - _HOUR - number * 50 * _HOUR
        seconds = (6 + 7 * number % 11) * _HOUR
        name = f"{JOB.script} ({JOB.user}, Slurm job {JOB.slurm_job - 1 - number})"
        jobs.append(PastJob(name, ended - seconds, ended))
    components = []
    compared = len(tree.compute_nics) >= 3
    for nic in tree.compute_nics:
        is_slow = nic.name in tree.slow_before
        parts = []
        for number, job in enumerate(jobs):
            seconds = _COMPARED_SHARE * (job.ended - job.began) if compared else 0.0
            slow = _SLOW_SHARE * seconds if is_slow and number not in _NOT_SLOW_IN else 0.0
            parts.append(JobPart(number, seconds, slow))
        guid = known(tree.content(f"{nic.path}/infiniband/{nic.name}/node_guid", 0.0), b"").decode().strip()
        identity = f"{guid or nic.bdf}/1"
        components.append(Component(identity, nic.name, is_gpu=False, bdf=nic.bdf, parts=tuple(parts)))
    for number, gpu in enumerate(tree.gpus):
        parts = [JobPart(job) for job in range(_JOBS)]
        components.append(Component(uuid_of(number), f"GPU {number}", True, gpu.bdf, tuple(parts)))
    losses = (
        Loss("pcie-link-degraded-width", 12 * _HOUR, 12 * _HOUR, 10 * _HOUR, 10 * _HOUR, 5 * _HOUR),
        Loss("acs-redirect-enabled", 96 * _HOUR, 96 * _HOUR, 64 * _HOUR, 0.0, 0.0),
        Loss("", 108 * _HOUR, 108 * _HOUR, 74 * _HOUR, 10 * _HOUR, 5 * _HOUR),
    )
    kept = losses if tree.slow_before else ()
    return ComponentHistory(jobs[-1].began, jobs[0].ended, tuple(jobs), tuple(components), kept)
