"""Device files made again, with the numbers that the kernel names."""

from dataclasses import replace

from probes.base.evidence import Severity
from probes.base.plan import Plan
from probes.base.unknown import Maybe, Reason, Unknown
from probes.facts.kernel.modules import ModuleState
from probes.facts.system.device_nodes import DeviceNode, DeviceNodeFacts
from probes.host.protocol import refused
from probes.queries.finding import Status
from probes.snapshot.examination import Examination
from tests.support.changed_facts import said, with_devices, with_module
from tests.support.doctor import examination_of
from tests.support.plans import commands

ABSENT = Unknown(Reason.NOT_THERE, "/dev/infiniband")
NOTHING = Unknown(Reason.NOT_THERE, "/sys/class/infiniband_verbs")


def seen(rdma: Maybe[tuple[DeviceNode, ...]] = ABSENT, gpu: tuple[DeviceNode, ...] = ()) -> Examination:
    """A node that has these files."""
    return replace(examination_of("pcie-l40s"), device_nodes=DeviceNodeFacts(rdma, gpu))


def fix_of(name: str, examination: Examination) -> Plan:
    fix = said(name, examination).fix
    assert fix is not None
    return fix


def test_verbs_files_get_the_numbers_from_sysfs() -> None:
    fix = fix_of("dev-infiniband-missing", seen())
    assert commands(fix)[:2] == [
        "mkdir -m 0755 /dev/infiniband",
        "mknod -m 0666 /dev/infiniband/uverbs0 c 231 192",
    ]
    assert "udevadm trigger --subsystem-match=infiniband_verbs" in commands(fix)
    assert "running jobs would lose the devices" in fix.note


def test_only_missing_files_are_created() -> None:
    fix = fix_of("dev-infiniband-incomplete", seen((DeviceNode("/dev/infiniband/uverbs0", True),)))
    assert commands(fix)[0] == "mknod -m 0666 /dev/infiniband/uverbs1 c 231 193"


def test_without_a_device_number_the_plan_is_a_manual_reboot() -> None:
    unread = with_devices(seen(), lambda device: replace(device, uverbs_number=NOTHING))
    fix = fix_of("dev-infiniband-missing", unread)
    assert all(step.is_instruction for step in fix.steps)
    assert "sysfs has no device number" in fix.steps[0].why


def test_without_verbs_devices_ib_uverbs_is_loaded_if_absent() -> None:
    none = with_devices(seen(), lambda device: replace(device, uverbs=NOTHING, uverbs_number=NOTHING))
    old = with_module(none, "ib_uverbs", state=ModuleState.NOT_LOADED)
    assert commands(fix_of("dev-infiniband-missing", old)) == ["modprobe ib_uverbs"]
    loaded = fix_of("dev-infiniband-missing", none)
    assert "loaded but has created no device" in loaded.steps[0].why
    assert all(step.is_instruction for step in loaded.steps)


def test_nvidia_modprobe_gets_every_missing_minor() -> None:
    fix = fix_of("dev-nvidia-missing", seen(gpu=(DeviceNode("/dev/nvidia1", True),)))
    assert commands(fix) == ["nvidia-modprobe -c 0 -c 2 -c 3 -c 255", "nvidia-modprobe -u -c 0"]
    alone = seen(gpu=tuple(DeviceNode(f"/dev/nvidia{name}", True) for name in (0, 1, 2, 3, "ctl")))
    assert commands(fix_of("dev-nvidia-missing", alone)) == ["nvidia-modprobe -u -c 0"]


def test_files_that_the_kernel_refuses_are_no_matter_of_their_mode() -> None:
    paths = ("/dev/infiniband/uverbs0", "/dev/infiniband/uverbs1")
    nothing = seen(tuple(DeviceNode(path, refused(path)) for path in paths))
    finding = said("dev-infiniband-refused", nothing)
    assert finding.status is Status.FOUND
    assert finding.severity is Severity.CRITICAL
    assert "chmod" not in str(finding.fix)
    assert said("dev-infiniband-denied", nothing).status is Status.PASSED


def test_a_device_of_another_container_is_no_fault() -> None:
    own, other = "/dev/infiniband/uverbs0", "/dev/infiniband/uverbs1"
    some = seen((DeviceNode(own, True), DeviceNode(other, refused(other))))
    assert said("dev-infiniband-refused", some).status is Status.PASSED
    assert said("dev-infiniband-denied", some).status is Status.PASSED
    pod = examination_of("pcie-l40s+in-pod")
    fewer = replace(pod, device_nodes=DeviceNodeFacts((DeviceNode(own, True),), ()))
    assert said("dev-infiniband-incomplete", fewer).severity is Severity.NOTE
