"""Checks of the device files of NICs and GPUs, on the node and in containers, and their restoration."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from probes.base.evidence import Evidence, Severity, first_distinct
from probes.base.plan import Plan, Step, instruction, make_plan, user_plan
from probes.base.text import join_limited
from probes.base.unknown import Maybe, Reason, Unknown, is_there, known, map_known
from probes.facts.rdma.cxi import has_verbs
from probes.facts.rdma.devices import RdmaDevice, RdmaFacts
from probes.facts.system.device_nodes import INFINIBAND, DeviceNode
from probes.facts.system.platform import in_container
from probes.plans.load_modules import blocker_of, load_plan
from probes.queries.finding import RDMA_DEVICES, Area, Outcome, Scope, found, need, passed, unknown
from probes.queries.jobs import (
    RESTARTS,
    conclude,
    gpus_of,
    jobs_of,
    maps,
    needs_environment,
    sees_no_verbs_file,
)
from probes.queries.modules import is_present, module_of
from probes.queries.ports import need_devices
from probes.queries.usable_here import nearer_nic
from probes.snapshot.examination import Examination

AREA = Area("environment", __package__)
NO_RDMA = Evidence("/sys/class/infiniband", "no RDMA device")
_INTO_CONTAINER = (
    instruction("Docker: add --device=/dev/infiniband", needs_root=False),
    instruction("Pod: add “rdma/NAME: 1” to resources.limits", needs_root=False),
    instruction("Restart the container", needs_root=False),
)
_NOT_USABLE = "not readable and writable by this user"


def _expected(examination: Examination) -> tuple[str, ...]:
    """Return the uverbs files that the kernel has created, according to /sys/class/infiniband_verbs."""
    files = [device.uverbs for device in need_devices(examination)]
    expected = tuple(file for file in files if not isinstance(file, Unknown))
    unread = (file for file in files if isinstance(file, Unknown) and file.reason is not Reason.NOT_THERE)
    return expected or need(next(unread, ()), "/sys/class/infiniband_verbs")


def _rdma_files(examination: Examination) -> tuple[DeviceNode, ...] | None:
    """Return the files in /dev/infiniband, None without that directory, or end the check as unknown."""
    files = map_known(examination.device_nodes, lambda nodes: nodes.rdma)
    return None if is_there(files) is False else need(files, "/dev")


def _need_rdma(examination: Examination) -> RdmaFacts:
    """Return the RDMA devices; without any, end the check."""
    return need(examination.node.rdma, RDMA_DEVICES, absent=NO_RDMA)


@AREA.critical("dev-infiniband-missing", scope=Scope.NODE)
def dev_infiniband_missing(examination: Examination) -> Outcome:
    """Look for /dev/infiniband/uverbsN if sysfs shows RDMA devices; critical if GPUs need them."""
    devices = [device for device in _need_rdma(examination).devices if has_verbs(device)]
    if not devices:
        return passed(NO_RDMA)
    files = _rdma_files(examination)
    verbs = [file for file in files or () if "uverbs" in file.path]
    if verbs:
        return passed(Evidence(INFINIBAND, f"{len(verbs)} uverbs files"))
    inside = in_container(examination.node.platform)
    made = [device for device in devices if not isinstance(device.uverbs, Unknown)]
    return found(
        "sysfs shows the devices, but their files were not passed into this container."
        if inside
        else "The kernel has the devices, but the files were removed or /dev is not a devtmpfs."
        if made
        else "sysfs shows the devices, but ib_uverbs, which creates the files, has registered none.",
        Evidence(INFINIBAND, "no uverbs file"),
        Evidence("/sys/class/infiniband", f"{len(devices)} devices"),
        fix=Plan("Pass the files into the container", _INTO_CONTAINER)
        if inside
        else _verbs_files(examination, made or devices, files is not None),
        severity=None if examination.topology.gpus else Severity.WARNING,
        devices=tuple(device.name for device in made) or ("ib_uverbs",),
        takes=examination.usability.gpus,
    )


@AREA.warning("dev-infiniband-incomplete", data_path=True)
def dev_infiniband_incomplete(examination: Examination) -> Outcome:
    """Look for each file that /sys/class/infiniband_verbs names."""
    expected = _expected(examination)
    files = _rdma_files(examination)
    if files is None:  # dev-infiniband-missing reports that
        return passed(Evidence(INFINIBAND, "not found"))
    here = {file.path for file in files}
    missing = [path for path in expected if path not in here]
    if not missing or not here.intersection(expected):
        return passed(Evidence(INFINIBAND, f"{len(here.intersection(expected))} of {len(expected)}"))
    without = [device for device in need_devices(examination) if device.uverbs in missing]
    return found(
        "sysfs shows these NICs, but their device files are missing.",
        *first_distinct(Evidence(path, "not found") for path in missing),
        fix=Plan("Pass the files into the container", _INTO_CONTAINER)
        if in_container(examination.node.platform)
        else _verbs_files(examination, without, has_directory=True),
        devices=tuple(device.name for device in without),
        # A container has the devices that it was given.
        severity=Severity.NOTE if in_container(examination.node.platform) else None,
    )


@AREA.critical("dev-infiniband-refused", scope=Scope.NODE)
def dev_infiniband_refused(examination: Examination) -> Outcome:
    """Find a session that can open no device; some may be another container's."""
    expected = _expected(examination)
    files = [file for file in _rdma_files(examination) or () if file.path in expected]
    refused = [file for file in files if file.is_refused]
    if not refused or len(refused) < len(files):
        shown = f"{len(refused)} of {len(files)} uverbs files refused (EPERM)"
        return passed(Evidence(INFINIBAND, shown if files else "not found"))
    inside = in_container(examination.node.platform)
    return found(
        "The files were mounted into the container without the right to open them, as a hostPath volume does."
        if inside
        else "The device control group of this session, such as systemd's DevicePolicy, excludes them.",
        *first_distinct(Evidence(file.path, "open: Operation not permitted (EPERM)") for file in refused),
        fix=Plan("Pass the devices into the container", _INTO_CONTAINER)
        if inside
        else make_plan("Allow the devices", "Allow /dev/infiniband in what starts this session"),
        severity=None if examination.topology.gpus else Severity.WARNING,
        devices=tuple(device.name for device in need_devices(examination)),
        takes=examination.usability.gpus,
    )


@AREA.warning("dev-infiniband-denied", data_path=True)
def dev_infiniband_denied(examination: Examination) -> Outcome:
    """Read the modes of /dev/infiniband/uverbsN, which are usually 0666."""
    files = _rdma_files(examination)
    if files is None:
        return passed(Evidence(INFINIBAND, "not found"))
    verbs = [file for file in files if "uverbs" in file.path]
    denied = [file for file in verbs if not isinstance(file.usable, Unknown) and not file.usable]
    if denied:
        path = "/etc/udev/rules.d/90-rdma-mode.rules"
        paths = [file.path for file in denied]
        rule = 'SUBSYSTEM=="infiniband_verbs", MODE="0666"'
        return found(
            "The file mode denies this user access. rdma-core's udev rules set 0666.",
            *first_distinct(Evidence(file.path, _NOT_USABLE) for file in denied),
            fix=make_plan(
                "Let all users open the files",
                Step("Change the mode until the next boot", ("chmod", "0666", *paths)),
                f"To make this permanent, write {rule} to {path}",
                note="To keep the files to a group, add the user to that group instead.",
            ),
        )
    refused = [file for file in verbs if file.is_refused]  # dev-infiniband-refused reports that
    for file in verbs:
        if file not in refused:
            need(file.usable, f"the mode of {file.path}")
    return passed(Evidence(INFINIBAND, f"{len(verbs) - len(refused)} uverbs files are usable"))


@AREA.warning("dev-infiniband-not-in-container", data_path=True)
def dev_infiniband_not_in_container(examination: Examination) -> Outcome:
    """Look for /dev/infiniband from the point of view of each job; a note if the job does not map NCCL."""
    jobs = jobs_of(examination)
    expected = _expected(examination)
    without = [] if not expected else [process for process in jobs.processes if sees_no_verbs_file(process)]
    if not without:
        for process in jobs.processes:
            nodes = process.rdma_nodes
            if isinstance(nodes, Unknown) and nodes.reason is not Reason.NOT_THERE:
                return unknown(needs_environment(process, nodes))
    return conclude(
        jobs,
        [Evidence(f"/proc/{process.pid}/root{INFINIBAND}", "no uverbs file") for process in without],
        "The host has the files, but the container does not. Single-node jobs are not affected.",
        fix=Plan("Pass the files into the container", _INTO_CONTAINER, disturbs=RESTARTS),
        part_of=("dev-infiniband-missing",),
        severity=None if any(maps(process, "libnccl") for process in without) else Severity.NOTE,
    )


@AREA.warning("dev-infiniband-near-nic-missing", data_path=True)
def dev_infiniband_near_nic_missing(examination: Examination) -> Outcome:
    """Compare the files in the job's container with the NICs nearest to its GPUs."""
    jobs, topology = jobs_of(examination), examination.topology
    rdma = _need_rdma(examination)
    # The topology has no name for a device in another network namespace, only its function.
    devices = {device.name: device for device in rdma.devices}
    devices |= {known(device.bdf, device.name): device for device in rdma.in_pods}
    names = {
        nic: device.uverbs.rpartition("/")[2]
        for nic, device in devices.items()
        if not isinstance(device.uverbs, Unknown)
    }
    evidence = []
    for process in jobs.processes:
        nodes = process.rdma_nodes
        if isinstance(nodes, Unknown) or sees_no_verbs_file(process):
            continue
        for gpu in sorted(gpus_of(examination, process)):
            here = [nic for nic, name in names.items() if name in nodes]
            if near := nearer_nic(topology, gpu, here, names):
                shown = f"no {names[near]} ({near}, nearest to {gpu})"
                evidence.append(Evidence(f"/proc/{process.pid}/root{INFINIBAND}", shown))
    return conclude(
        jobs,
        evidence,
        "The container has device files of more distant NICs only.",
        fix=Plan("Pass the nearest NIC into the container", _INTO_CONTAINER, disturbs=RESTARTS),
    )


@AREA.warning("dev-nvidia-missing")
def dev_nvidia_missing(examination: Examination) -> Outcome:
    """Look for /dev/nvidiaN of each GPU with the NVIDIA driver, /dev/nvidiactl, /dev/nvidia-uvm."""
    gpus = need(examination.node.gpus, "the GPUs")
    nodes = need(examination.device_nodes, "/dev")
    bound = [gpu for gpu in gpus.gpus if gpu.driver == "nvidia"]
    if not bound:
        return passed(Evidence("/sys/bus/pci/devices", "no GPU with the NVIDIA driver"))
    here = {node.path for node in need(nodes.gpu, "/dev")}
    minors = [gpu.minor for gpu in bound if not isinstance(gpu.minor, Unknown)]
    wanted = [*(f"/dev/nvidia{minor}" for minor in minors), _CONTROL, _UNIFIED]
    missing = [path for path in wanted if path not in here]
    if not missing:
        return passed(Evidence("/dev", f"{len(wanted)} files, all present"))
    inside = in_container(examination.node.platform)
    return found(
        "These GPUs were not passed into this container."
        if inside
        else "nvidia-modprobe creates the files when a GPU is first used. These were not created, or were"
        " removed.",
        *first_distinct(Evidence(path, "not found") for path in missing),
        fix=user_plan(
            "Pass the GPUs into the container", "Docker: add --gpus all", "Pod: request nvidia.com/gpu"
        )
        if inside
        else _nvidia_files(missing, minors, gpus.driver.parameters),
        devices=tuple(gpu.bdf for gpu in bound if f"/dev/nvidia{gpu.minor}" in missing),
    )


# Restore device files that devtmpfs or NVIDIA's tools created and something removed.
#
# drivers/base/devtmpfs.c creates a file when its device is registered, and not again. udev sets owner and
# mode of existing files and creates none (systemd, src/udev/udev-node.c). nvidia-modprobe.c: -c names the
# minors to create, minor 255 is nvidiactl, and -u -c 0 creates those of unified memory; without -c it creates
# none.

_CONTROL, _UNIFIED = "/dev/nvidiactl", "/dev/nvidia-uvm"
_UVERBS = "ib_uverbs"
_MODIFIES = "ModifyDeviceFiles"  # in /proc/driver/nvidia/params
_CONTROL_MINOR = 255
_OTHER_FILES = instruction(
    "Create the files of rdma_cm and umad the same way with the numbers in "
    "/sys/class/misc/rdma_cm/dev and /sys/class/infiniband_mad/umad*/dev."
)
_FIND_CAUSE = instruction(
    "Find out what removed the files: a script that cleans /dev, or a file system other than devtmpfs on "
    "/dev (findmnt /dev)."
)


def _verbs_files(examination: Examination, devices: Sequence[RdmaDevice], has_directory: bool) -> Plan:
    """Create the uverbs files of these devices: load ib_uverbs, or use the numbers in sysfs."""
    if all(isinstance(device.uverbs, Unknown) for device in devices):
        return _without_verbs(examination)
    steps: list[Step] = []
    unnumbered: list[str] = []
    for device in devices:
        path, number = device.uverbs, device.uverbs_number
        if isinstance(path, Unknown) or isinstance(number, Unknown):
            unnumbered.append(device.name)
            continue
        major, minor = number
        steps.append(
            Step(
                f"Create the device file of {device.name} with the kernel's number and mode",
                ("mknod", "-m", "0666", path, "c", str(major), str(minor)),
                undo=("rm", path),
                group="device files",
            )
        )
    if steps and not has_directory:
        steps.insert(0, Step("Create the directory", ("mkdir", "-m", "0755", INFINIBAND)))
    if steps:
        rules = ("udevadm", "trigger", "--subsystem-match=infiniband_verbs")
        steps.append(Step("Apply the udev rules for owner and mode", rules))
    if unnumbered:
        left = join_limited(unnumbered)
        steps.append(instruction(f"Drain and reboot the node: sysfs has no device number for {left}."))
    if not has_directory:
        steps.append(_OTHER_FILES)
    return make_plan(
        "Re-create the device files",
        *steps,
        _FIND_CAUSE,
        note="The kernel creates the files only when it registers the devices. Reloading mlx5_ib would also "
        "create them, but running jobs would lose the devices.",
    )


def _without_verbs(examination: Examination) -> Plan:
    """Load ib_uverbs, or say where to look if it is loaded and has created no device."""
    module, blocker = module_of(examination, _UVERBS), blocker_of(examination, _UVERBS)
    if not isinstance(module, Unknown) and not is_present(module) and blocker is None:
        return load_plan(examination, _UVERBS)
    why = (
        "Search the kernel log for the cause: ib_uverbs is loaded but has created no device."
        if not isinstance(module, Unknown) and is_present(module)
        else f"Fix what keeps ib_uverbs from loading: {blocker}"
    )
    return make_plan("Find out why there are no verbs devices", why)


def _nvidia_files(gone: Collection[str], minors: Sequence[int], parameters: Maybe[dict[str, str]]) -> Plan:
    """Create the missing files of GPUs with these minors, of the driver and of unified memory.

    `parameters`: of the driver, by which nvidia-modprobe may create no file and still exit with 0.
    """
    wanted = [minor for minor in minors if f"/dev/nvidia{minor}" in gone]
    wanted += [_CONTROL_MINOR] if _CONTROL in gone else []
    steps: list[Step] = []
    if wanted:
        argv = ("nvidia-modprobe", *(word for minor in wanted for word in ("-c", str(minor))))
        steps.append(Step("Create the files with these minors (255 is nvidiactl)", argv))
    if _UNIFIED in gone:
        argv = ("nvidia-modprobe", "-u", "-c", "0")
        steps.append(Step("Load nvidia_uvm if needed, and create its two files", argv))
    return Plan(
        "Create the device files",
        tuple(steps),
        note=_why_not_created(map_known(parameters, lambda values: values.get(_MODIFIES, "1"))),
    )


def _why_not_created(modifies: Maybe[str]) -> str:
    option = "NVreg_ModifyDeviceFiles=0"
    if isinstance(modifies, Unknown):
        return f"Whether the driver has {option} is unknown. With it, nvidia-modprobe creates no GPU file."
    creates_none = "nvidia-modprobe creates no GPU file but still exits with 0. Reload the driver without it."
    return f"The driver was loaded with {option}: {creates_none}" if modifies == "0" else ""
