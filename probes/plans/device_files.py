"""Bringing back device files that the kernel's devtmpfs or NVIDIA's tools have made and somebody took away.

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
    "where rdma_cm or umad files are wanted too: mknod them likewise, with the numbers in "
    "/sys/class/misc/rdma_cm/dev and /sys/class/infiniband_mad/umad*/dev"
)
_WHOSE = instruction(
    "find out what took them away, or they go again: a script that cleans /dev, or another file system than "
    "devtmpfs mounted there (findmnt /dev)"
)


def verbs_files(examination: Examination, devices: Sequence[RdmaDevice], has_directory: bool) -> Plan:
    """Makes the uverbs files of these devices: by loading ib_uverbs, or with the numbers that sysfs names."""
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
                f"makes the file of {device.name}, with the kernel's number for it and the kernel's own mode",
                ("mknod", "-m", "0666", path, "c", str(major), str(minor)),
                undo=("rm", path),
            )
        )
    if steps and not has_directory:
        steps.insert(0, Step("makes the directory", ("mkdir", "-m", "0755", INFINIBAND)))
    if steps:
        rules = ("udevadm", "trigger", "--subsystem-match=infiniband_verbs")
        steps.append(Step("has udev give them owner and mode where its rules name others", rules))
    if unknown:
        steps.append(
            instruction(f"of {several(unknown)} sysfs names no number: drain the node and reboot it")
        )
    if not has_directory:
        steps.append(_OTHERS)
    return Plan(
        "Make the device files again",
        (*steps, _WHOSE),
        note="the kernel itself makes them only when it registers the devices: loading mlx5_ib anew would do "
        "so too, and takes the devices away from jobs that run",
    )


def _without_verbs(examination: Examination) -> Plan:
    """No device of ib_uverbs at all: it is not loaded, or it made none."""
    module, obstacle = module_of(examination, _UVERBS), bar_of(examination, _UVERBS)
    if not isinstance(module, Unknown) and not is_present(module) and obstacle is None:
        return load_plan(examination, _UVERBS)
    why = (
        "ib_uverbs is loaded and has made no device: read what the kernel's log says of it"
        if not isinstance(module, Unknown) and is_present(module)
        else f"ib_uverbs cannot be loaded: {obstacle}"
    )
    return Plan("Find out why there are no verbs devices", (instruction(why),))


def nvidia_files(gone: Collection[str], minors: Sequence[int]) -> Plan:
    """Makes the files that are gone: those of GPUs with these minors, of the driver, of unified memory."""
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
                "loads nvidia_uvm if need be, and makes its two files",
                ("nvidia-modprobe", "-u", "-c", "0"),
            )
        )
    return Plan(
        "Make the device files",
        tuple(steps),
        note="where the driver was loaded with NVreg_ModifyDeviceFiles=0 (/proc/driver/nvidia/params), "
        "nvidia-modprobe makes no file of a GPU and ends with 0 all the same",
    )
