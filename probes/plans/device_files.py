"""Restoring device files that the kernel's devtmpfs or NVIDIA's tools made and something removed.

drivers/base/devtmpfs.c makes a file when its device is registered, and not again; udev gives owner and mode
to files that are there and makes none (systemd, src/udev/udev-node.c). nvidia-modprobe.c: -c names the files
to make, minor 255 is nvidiactl, and -u -c 0 makes those of unified memory; without -c it makes none.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from probes.checks.module_facts import is_present, module_of
from probes.checks.wording import several
from probes.examination import Examination
from probes.plan import Plan, Step, instruction
from probes.plans.loading import load_plan
from probes.plans.obstacles import bar_of
from probes.rdma import RdmaDevice
from probes.unknown import Unknown

INFINIBAND = "/dev/infiniband"
CONTROL, UNIFIED = "/dev/nvidiactl", "/dev/nvidia-uvm"
_UVERBS = "ib_uverbs"
_CONTROL_MINOR = 255
_OTHERS = instruction(
    "where rdma_cm or umad files are needed too, mknod them the same way with the numbers in "
    "/sys/class/misc/rdma_cm/dev and /sys/class/infiniband_mad/umad*/dev"
)
_WHOSE = instruction(
    "find out what removed them, or it happens again: a script that cleans /dev, or a file system other than "
    "devtmpfs mounted there (findmnt /dev)"
)


def verbs_files(examination: Examination, devices: Sequence[RdmaDevice], has_directory: bool) -> Plan:
    """Make the uverbs files of these devices: by loading ib_uverbs, or with the numbers in sysfs."""
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
                f"makes the file of {device.name}, with the number and mode that the kernel gives it",
                ("mknod", "-m", "0666", path, "c", str(major), str(minor)),
                undo=("rm", path),
                group="device files",
            )
        )
    if steps and not has_directory:
        steps.insert(0, Step("makes the directory", ("mkdir", "-m", "0755", INFINIBAND)))
    if steps:
        rules = ("udevadm", "trigger", "--subsystem-match=infiniband_verbs")
        steps.append(Step("has udev set owner and mode where its rules differ", rules))
    if unknown:
        steps.append(instruction(f"sysfs has no number of {several(unknown)}: drain the node and reboot it"))
    if not has_directory:
        steps.append(_OTHERS)
    return Plan(
        "Make the device files again",
        (*steps, _WHOSE),
        note="the kernel makes them only when it registers the devices; reloading mlx5_ib would do so too, "
        "but takes the devices from running jobs",
    )


def _without_verbs(examination: Examination) -> Plan:
    """Handle that ib_uverbs has no device: it is not loaded, or it made none."""
    module, obstacle = module_of(examination, _UVERBS), bar_of(examination, _UVERBS)
    if not isinstance(module, Unknown) and not is_present(module) and obstacle is None:
        return load_plan(examination, _UVERBS)
    why = (
        "ib_uverbs is loaded but has made no device: see the kernel log"
        if not isinstance(module, Unknown) and is_present(module)
        else f"ib_uverbs cannot be loaded: {obstacle}"
    )
    return Plan("Find out why there are no verbs devices", (instruction(why),))


def nvidia_files(gone: Collection[str], minors: Sequence[int]) -> Plan:
    """Make the missing files: of GPUs with these minors, of the driver, of unified memory."""
    wanted = [minor for minor in minors if f"/dev/nvidia{minor}" in gone]
    wanted += [_CONTROL_MINOR] if CONTROL in gone else []
    steps: list[Step] = []
    if wanted:
        words = [word for minor in wanted for word in ("-c", str(minor))]
        steps.append(
            Step("makes the files with these minors (255 is nvidiactl)", ("nvidia-modprobe", *words))
        )
    if UNIFIED in gone:
        steps.append(
            Step(
                "loads nvidia_uvm if needed, and makes its two files",
                ("nvidia-modprobe", "-u", "-c", "0"),
            )
        )
    return Plan(
        "Make the device files",
        tuple(steps),
        note="where the driver was loaded with NVreg_ModifyDeviceFiles=0 (/proc/driver/nvidia/params), "
        "nvidia-modprobe makes no file of a GPU but still exits with 0",
    )
