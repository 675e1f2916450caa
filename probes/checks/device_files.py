"""Device files of RDMA and GPUs, as this program and jobs in containers have them."""

from __future__ import annotations

from probes.checks.finding import Area, Evidence, Outcome, Severity, found, passed, unsure
from probes.checks.jobs import gpus_of, jobs_of, maps, name_of, settle
from probes.checks.wording import few
from probes.examination import Examination
from probes.nccl_paths import ORDER
from probes.plan import Plan, Step, instruction
from probes.plans.device_files import CONTROL, INFINIBAND, UNIFIED, nvidia_files, verbs_files
from probes.platform import in_container
from probes.processes import Process
from probes.unknown import Maybe, Reason, Unknown

AREA = Area("environment")
_VERBS = "Linux Documentation/infiniband/user_verbs.rst"
_INTO_CONTAINER = (
    instruction("Docker: --device=/dev/infiniband; pod: resources.limits rdma/NAME: 1", needs_root=False),
    instruction("start the container anew", needs_root=False),
)


def _expected(examination: Examination) -> Maybe[tuple[str, ...]]:
    """The uverbs files that the kernel has made, as /sys/class/infiniband_verbs names them."""
    rdma = examination.node.rdma
    if isinstance(rdma, Unknown):
        return () if rdma.reason is Reason.NOT_THERE else rdma
    return tuple(device.uverbs for device in rdma.devices if not isinstance(device.uverbs, Unknown))


@AREA.check(
    "dev-infiniband-missing",
    Severity.CRITICAL,
    "there are no RDMA device files: no program here can use a NIC",
    _VERBS,
)
def dev_infiniband_missing(examination: Examination) -> Outcome:
    """/dev/infiniband/uverbsN, where sysfs shows RDMA devices."""
    rdma, nodes = examination.node.rdma, examination.device_nodes
    if isinstance(rdma, Unknown):
        if rdma.reason is Reason.NOT_THERE:
            return passed(Evidence("/sys/class/infiniband", "no RDMA device here"))
        return unsure(f"the RDMA devices: {rdma}")
    if not rdma.devices:
        return passed(Evidence("/sys/class/infiniband", "no RDMA device here"))
    files = nodes if isinstance(nodes, Unknown) else nodes.rdma
    if isinstance(files, Unknown) and files.reason is not Reason.NOT_THERE:
        return unsure(f"{files.reason.value}: {INFINIBAND}")
    verbs = [] if isinstance(files, Unknown) else [file for file in files if "uverbs" in file.path]
    if verbs:
        return passed(Evidence(INFINIBAND, f"{len(verbs)} uverbs files"))
    inside = in_container(examination.node.platform)
    made = [device for device in rdma.devices if not isinstance(device.uverbs, Unknown)]
    return found(
        "the devices are seen in sysfs, but were not passed into this container"
        if inside
        else "the kernel has made the devices and somebody has removed their files, or /dev is no devtmpfs"
        if made
        else "the devices are in sysfs, but ib_uverbs, which makes the files, has none of them",
        Evidence(INFINIBAND, "no uverbs file"),
        Evidence("/sys/class/infiniband", f"{len(rdma.devices)} devices"),
        fix=Plan("Pass the files into the container", _INTO_CONTAINER)
        if inside
        else verbs_files(examination, made or rdma.devices, not isinstance(files, Unknown)),
        devices=tuple(device.name for device in made) or ("ib_uverbs",),
    )


@AREA.check(
    "dev-infiniband-incomplete",
    Severity.WARNING,
    "some RDMA devices have no device file here",
    _VERBS,
)
def dev_infiniband_incomplete(examination: Examination) -> Outcome:
    """Each file that /sys/class/infiniband_verbs names."""
    nodes, rdma, expected = examination.device_nodes, examination.node.rdma, _expected(examination)
    files = nodes if isinstance(nodes, Unknown) else nodes.rdma
    if isinstance(expected, Unknown):
        return unsure(f"the RDMA devices: {expected}")
    if isinstance(files, Unknown):
        if files.reason is Reason.NOT_THERE:  # dev-infiniband-missing says so
            return passed(Evidence(INFINIBAND, "not there at all"))
        return unsure(f"{files.reason.value}: {INFINIBAND}")
    here = {file.path for file in files}
    gone = [path for path in expected if path not in here]
    if not gone or not here.intersection(expected):
        return passed(Evidence(INFINIBAND, f"{len(here.intersection(expected))} of {len(expected)}"))
    devices = () if isinstance(rdma, Unknown) else rdma.devices
    without = [device for device in devices if device.uverbs in gone]
    return found(
        "programs do not see these NICs, though sysfs shows them",
        *few(Evidence(path, "not there") for path in gone),
        fix=Plan("Pass the files into the container", _INTO_CONTAINER)
        if in_container(examination.node.platform)
        else verbs_files(examination, without, has_directory=True),
        devices=tuple(device.name for device in without),
    )


@AREA.check(
    "dev-infiniband-denied",
    Severity.WARNING,
    "this user may not open the RDMA device files",
    _VERBS,
)
def dev_infiniband_denied(examination: Examination) -> Outcome:
    """The modes of /dev/infiniband/uverbsN; usually everybody may read and write them."""
    nodes = examination.device_nodes
    files = nodes if isinstance(nodes, Unknown) else nodes.rdma
    if isinstance(files, Unknown):
        if files.reason is Reason.NOT_THERE:
            return passed(Evidence(INFINIBAND, "not there"))
        return unsure(f"{files.reason.value}: {INFINIBAND}")
    verbs = [file for file in files if "uverbs" in file.path]
    denied = [file for file in verbs if not isinstance(file.usable, Unknown) and not file.usable]
    if denied:
        path = "/etc/udev/rules.d/90-rdma-mode.rules"
        rule = 'SUBSYSTEM=="infiniband_verbs", MODE="0666"'
        return found(
            "jobs of ordinary users fail in ibv_open_device and fall back to TCP",
            *few(Evidence(file.path, "not to be read and written by this user") for file in denied),
            fix=Plan(
                "Let everybody use the files",
                (
                    Step("at once, until the next boot", ("chmod", "0666", *(file.path for file in denied))),
                    instruction(f"for good: write {rule} to {path}; rdma-core's own rules say the same"),
                ),
                note="where only a group may use them, add the user to the group instead",
            ),
        )
    odd = [file for file in verbs if isinstance(file.usable, Unknown)]
    if odd:
        return unsure(f"whether {odd[0].path} may be opened: {odd[0].usable}")
    return passed(Evidence(INFINIBAND, f"{len(verbs)} uverbs files, all usable"))


@AREA.check(
    "dev-infiniband-not-in-container",
    Severity.WARNING,
    "a job has no RDMA device files: NCCL finds no device and uses TCP to other nodes",
    "https://github.com/NVIDIA/nccl/issues/451",
)
def dev_infiniband_not_in_container(examination: Examination) -> Outcome:
    """/dev/infiniband as each process with a GPU sees it; a note where it does not map NCCL."""
    jobs = jobs_of(examination)
    expected = _expected(examination)
    if isinstance(expected, Unknown):
        return unsure(f"the RDMA devices: {expected}")
    without = [] if not expected else [process for process in jobs.processes if _no_verbs(process)]
    if not without:
        closed = [one for one in jobs.processes if _closed(one)]
        if closed:
            return unsure(f"needs root: /proc/{closed[0].pid}/root{INFINIBAND}")
    return settle(
        jobs,
        [
            Evidence(f"/proc/{one.pid}/root{INFINIBAND}", f"no uverbs file, of {name_of(one)}")
            for one in without
        ],
        "the host has the files and the job's container does not; a job on this node alone does not feel it",
        fix=Plan(
            "Pass the files into the container", _INTO_CONTAINER, disturbs="the job has to be restarted"
        ),
        severity=None if any(maps(one, "libnccl") for one in without) else Severity.NOTE,
    )


def _no_verbs(process: Process) -> bool:
    nodes = process.rdma_nodes
    if isinstance(nodes, Unknown):
        return nodes.reason is Reason.NOT_THERE
    return not any(name.startswith("uverbs") for name in nodes)


def _closed(process: Process) -> bool:
    return isinstance(process.rdma_nodes, Unknown) and process.rdma_nodes.reason is not Reason.NOT_THERE


@AREA.check(
    "dev-infiniband-near-nic-missing",
    Severity.WARNING,
    "a job has RDMA device files, but not that of the NIC nearest to its GPU",
    "NVIDIA GPUDirect RDMA manual, https://docs.nvidia.com/cuda/gpudirect-rdma/#supported-systems",
)
def dev_infiniband_near_nic_missing(examination: Examination) -> Outcome:
    """The files in the job's container, against the NICs nearest to its GPUs."""
    jobs, rdma, topology = jobs_of(examination), examination.node.rdma, examination.topology
    if isinstance(rdma, Unknown):
        if rdma.reason is not Reason.NOT_THERE:
            return unsure(f"the RDMA devices: {rdma}")
        return passed(Evidence("/sys/class/infiniband", "no RDMA device here"))
    names = {
        device.name: device.uverbs.rpartition("/")[2]
        for device in rdma.devices
        if not isinstance(device.uverbs, Unknown)
    }
    evidence = []
    for process in jobs.processes:
        nodes = process.rdma_nodes
        if isinstance(nodes, Unknown) or _no_verbs(process):
            continue
        for gpu in sorted(gpus_of(examination, process)):
            ranks: dict[str, int] = {}
            for nic in topology.best_nics.get(gpu, ()):
                word = topology.paths[gpu, nic].nccl_pcie
                if nic in names and not isinstance(word, Unknown):
                    ranks[nic] = ORDER[word]
            here = [rank for nic, rank in ranks.items() if names[nic] in nodes]
            if ranks and (not here or min(here) > min(ranks.values())):
                near = min(ranks, key=lambda nic: ranks[nic])
                told = f"no {names[near]} ({near}, nearest to {gpu})"
                evidence.append(Evidence(f"/proc/{process.pid}/root{INFINIBAND}", told))
    return settle(
        jobs,
        evidence,
        "the job goes by a NIC that is farther away, or does without GPUDirect RDMA",
        fix=Plan(
            "Pass the near NIC into the container", _INTO_CONTAINER, disturbs="the job has to be restarted"
        ),
    )


@AREA.check(
    "dev-nvidia-missing",
    Severity.WARNING,
    "device files of GPUs are missing: CUDA does not see all GPUs here",
    "nvidia-modprobe(1), https://github.com/NVIDIA/nvidia-modprobe",
)
def dev_nvidia_missing(examination: Examination) -> Outcome:
    """/dev/nvidiaN of each GPU with the NVIDIA driver, /dev/nvidiactl, /dev/nvidia-uvm."""
    gpus, nodes = examination.node.gpus, examination.device_nodes
    if isinstance(gpus, Unknown) or isinstance(nodes, Unknown):
        return unsure(f"GPUs and device files: {gpus if isinstance(gpus, Unknown) else nodes}")
    bound = [gpu for gpu in gpus.gpus if gpu.driver == "nvidia"]
    if not bound:
        return passed(Evidence("/sys/bus/pci/devices", "no GPU with the NVIDIA driver"))
    if isinstance(nodes.gpu, Unknown):
        return unsure(f"{nodes.gpu.reason.value}: /dev")
    here = {node.path for node in nodes.gpu}
    minors = [gpu.minor for gpu in bound if not isinstance(gpu.minor, Unknown)]
    wanted = [*(f"/dev/nvidia{minor}" for minor in minors), CONTROL, UNIFIED]
    gone = [path for path in wanted if path not in here]
    if not gone:
        return passed(Evidence("/dev", f"{len(wanted)} files, all there"))
    inside = in_container(examination.node.platform)
    return found(
        "these GPUs were not passed into this container"
        if inside
        else "the driver's tools make them when a GPU is first used; these were not made, or were removed",
        *few(Evidence(path, "not there") for path in gone),
        fix=Plan(
            "Pass the GPUs into the container", (instruction("Docker: --gpus all; pod: nvidia.com/gpu"),)
        )
        if inside
        else nvidia_files(gone, minors),
    )
