"""Restore device files that devtmpfs or NVIDIA's tools created and something removed.

drivers/base/devtmpfs.c creates a file when its device is registered, and not again. udev sets owner and mode
of existing files and creates none (systemd, src/udev/udev-node.c). nvidia-modprobe.c: -c names the minors to
create, minor 255 is nvidiactl, and -u -c 0 creates those of unified memory; without -c it creates none.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from probes.base.plan import Plan, Step, instruction, make_plan
from probes.base.text import join_limited
from probes.base.unknown import Maybe, Unknown, map_known
from probes.facts.rdma.devices import RdmaDevice
from probes.facts.system.device_nodes import INFINIBAND
from probes.plans.load_modules import blocker_of, load_plan
from probes.queries.modules import is_present, module_of
from probes.snapshot.examination import Examination

CONTROL, UNIFIED = "/dev/nvidiactl", "/dev/nvidia-uvm"
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


def verbs_files(examination: Examination, devices: Sequence[RdmaDevice], has_directory: bool) -> Plan:
    """Create the uverbs files of these devices: load ib_uverbs, or use the numbers in sysfs."""
    if all(isinstance(device.uverbs, Unknown) for device in devices):
        return _without_verbs(examination)
    steps: list[Step] = []
    unknown: list[str] = []
    for device in devices:
        path, number = device.uverbs, device.uverbs_number
        if isinstance(path, Unknown) or isinstance(number, Unknown):
            unknown.append(device.name)
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
    if unknown:
        devices_left = join_limited(unknown)
        steps.append(
            instruction(f"Drain and reboot the node: sysfs has no device number for {devices_left}.")
        )
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


def nvidia_files(gone: Collection[str], minors: Sequence[int], parameters: Maybe[dict[str, str]]) -> Plan:
    """Create the missing files of GPUs with these minors, of the driver and of unified memory.

    `parameters`: of the driver, by which nvidia-modprobe may create no file and still exit with 0.
    """
    wanted = [minor for minor in minors if f"/dev/nvidia{minor}" in gone]
    wanted += [_CONTROL_MINOR] if CONTROL in gone else []
    steps: list[Step] = []
    if wanted:
        argv = ("nvidia-modprobe", *(word for minor in wanted for word in ("-c", str(minor))))
        steps.append(Step("Create the files with these minors (255 is nvidiactl)", argv))
    if UNIFIED in gone:
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
