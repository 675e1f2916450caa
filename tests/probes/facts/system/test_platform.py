"""The environment of a node, and when it is unknown."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.base.unknown import Maybe, Reason, Unknown
from probes.facts.system.platform import (
    SERVICE_ACCOUNT,
    Environment,
    PlatformFacts,
    hypervisor_of,
    parse_cgroup,
    parse_cpuinfo,
    parse_os_release,
    probe,
)
from probes.host.machine.local import LocalHost

MACHINES = Path(__file__).resolve().parents[4] / "../shared/machines"
X86 = "processor\t: 0\nvendor_id\t: GenuineIntel\nflags\t\t: fpu lm {}\n\nprocessor\t: 1\nflags\t\t: x\n"


class HostWithSession(LocalHost):
    def __init__(self, root: str, session: dict[str, str]) -> None:
        super().__init__(root)
        self._session = session

    def environment(self, name: str) -> Maybe[str]:
        return self._session.get(name, Unknown(Reason.NOT_THERE, name))


def write(root: Path, path: str, text: str) -> None:
    file = root / path.lstrip("/")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def machine(root: Path, vendor: str, product: str) -> Path:
    write(root, "/sys/class/dmi/id/sys_vendor", f"{vendor}\n")
    write(root, "/sys/class/dmi/id/product_name", f"{product}\n")
    write(root, "/proc/sys/kernel/arch", "x86_64\n")
    return root


def facts_of(root: Path, **session: str) -> PlatformFacts:
    return probe(HostWithSession(str(root), session))


def test_an_empty_tree_is_unknown_and_not_bare_metal(tmp_path: Path) -> None:
    facts = facts_of(tmp_path)
    for fact in (
        facts.environment,
        facts.hostname,
        facts.hypervisor,
        facts.product,
        facts.distribution,
        facts.cpu_architecture,
    ):
        assert isinstance(fact, Unknown)
        assert fact.reason is Reason.NOT_THERE


def test_a_server_is_bare_metal_and_says_what_it_is(tmp_path: Path) -> None:
    write(machine(tmp_path, "Supermicro", "SYS-821GE-TNHR"), "/proc/sys/kernel/hostname", "h100-07\n")
    facts = facts_of(tmp_path)
    assert facts.environment is Environment.BARE_METAL
    assert isinstance(facts.hypervisor, Unknown)
    assert facts.product == "Supermicro SYS-821GE-TNHR"
    assert facts.hostname == "h100-07"
    assert facts.cpu_architecture == "x86_64"


@pytest.mark.parametrize(
    ("vendor", "product", "hypervisor"),
    [
        ("QEMU", "Standard PC (Q35 + ICH9, 2009)", "KVM"),
        ("Red Hat", "KVM", "KVM"),
        ("OpenStack Foundation", "OpenStack Nova", "KVM"),
        ("VMware, Inc.", "VMware7,1", "VMware"),
        ("Microsoft Corporation", "Virtual Machine", "Microsoft"),
        ("Amazon EC2", "p5.48xlarge", "Amazon EC2"),
        ("Google", "Google Compute Engine", "Google"),
        ("Xen", "HVM domU", "Xen"),
        ("innotek GmbH", "VirtualBox", "VirtualBox"),
    ],
)
def test_virtual_machines_are_known_by_dmi(
    tmp_path: Path, vendor: str, product: str, hypervisor: str
) -> None:
    facts = facts_of(machine(tmp_path, vendor, product))
    assert facts.environment is Environment.VIRTUAL_MACHINE
    assert facts.hypervisor == hypervisor


@pytest.mark.parametrize(
    ("vendor", "product"),
    [
        ("Amazon EC2", "i3.metal"),
        ("Amazon EC2", "m7i.metal-24xl"),
        ("Microsoft Corporation", "C2195"),
        ("NVIDIA", "DGXH100"),
        ("Xenon Systems", "NITRO"),
        ("Dell Inc.", "PowerEdge XE9680"),
    ],
)
def test_hardware_is_not_taken_for_a_guest(vendor: str, product: str) -> None:
    assert hypervisor_of(f"{vendor} {product}") is None


def test_a_guest_without_dmi_is_known_by_its_cpu(tmp_path: Path) -> None:
    write(tmp_path, "/proc/cpuinfo", X86.format("hypervisor"))
    facts = facts_of(tmp_path)
    assert facts.environment is Environment.VIRTUAL_MACHINE
    assert isinstance(facts.hypervisor, Unknown)
    assert facts.cpu_architecture == "x86_64"


def test_hardware_without_dmi_is_known_by_its_cpu(tmp_path: Path) -> None:
    write(tmp_path, "/proc/cpuinfo", X86.format("vmx"))
    assert facts_of(tmp_path).environment is Environment.BARE_METAL


def test_an_arm_cpu_does_not_show_whether_it_is_virtual(tmp_path: Path) -> None:
    write(tmp_path, "/proc/cpuinfo", "processor\t: 0\nCPU implementer\t: 0x41\nCPU architecture: 8\n")
    facts = facts_of(tmp_path)
    assert facts.cpu_architecture == "aarch64"
    assert isinstance(facts.environment, Unknown)


def test_the_processors_of_a_very_large_machine_are_read(tmp_path: Path) -> None:
    write(
        tmp_path,
        "/proc/cpuinfo",
        X86.format("hypervisor " + "flag " * 300) + ("x\t: " + "y" * 1500 + "\n\n") * 512,
    )
    assert facts_of(tmp_path).environment is Environment.VIRTUAL_MACHINE


def test_xen_guests_and_its_privileged_domain(tmp_path: Path) -> None:
    write(tmp_path, "/sys/hypervisor/type", "xen\n")
    assert facts_of(tmp_path).hypervisor == "Xen"
    write(tmp_path, "/proc/xen/capabilities", "control_d\n")
    assert facts_of(tmp_path).environment is Environment.BARE_METAL


@pytest.mark.parametrize("path", ["/.dockerenv", "/run/.containerenv", "/run/systemd/container"])
def test_a_container_leaves_a_mark(tmp_path: Path, path: str) -> None:
    write(machine(tmp_path, "QEMU", "Standard PC"), path, "")
    facts = facts_of(tmp_path)
    assert facts.environment is Environment.CONTAINER
    assert facts.hypervisor == "KVM"


def test_a_container_is_known_by_its_session(tmp_path: Path) -> None:
    assert facts_of(tmp_path, container="podman").environment is Environment.CONTAINER


def test_a_pod_is_known_by_its_session_or_its_service_account(tmp_path: Path) -> None:
    write(tmp_path, "/.dockerenv", "")
    assert facts_of(tmp_path, KUBERNETES_SERVICE_HOST="10.0.0.1").environment is Environment.KUBERNETES_POD
    write(tmp_path, f"{SERVICE_ACCOUNT}/token", "x")
    assert facts_of(tmp_path).environment is Environment.KUBERNETES_POD


@pytest.mark.parametrize(
    ("cgroup", "place"),
    [
        ("0::/init.scope", None),
        ("0::/", None),
        ("12:cpu:/docker/0123abc\n0::/docker/0123abc", Environment.CONTAINER),
        ("0::/system.slice/docker-0123.scope", Environment.CONTAINER),
        ("1:name=systemd:/lxc/web", Environment.CONTAINER),
        ("0::/lxc.payload.web", Environment.CONTAINER),
        ("11:pids:/kubepods/burstable/pod12/34", Environment.KUBERNETES_POD),
        ("0::/kubepods.slice/kubepods-pod1.slice/cri-containerd-5.scope", Environment.KUBERNETES_POD),
        ("0::/system.slice/docker.service", None),
    ],
)
def test_cgroups_betray_containers(cgroup: str, place: Environment | None) -> None:
    assert parse_cgroup(cgroup) is place


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ('NAME="Ubuntu"\nPRETTY_NAME="Ubuntu 22.04.4 LTS"\n', "Ubuntu 22.04.4 LTS"),
        ("NAME=Alpine\n", "Alpine"),
        ("PRETTY_NAME='It\\'s'\n", "It's"),
        ('PRETTY_NAME=""\nNAME=x\n', "x"),
    ],
)
def test_the_distribution_names_itself(text: str, name: str) -> None:
    assert parse_os_release(text) == name


def test_os_release_is_also_below_usr_lib(tmp_path: Path) -> None:
    write(tmp_path, "/usr/lib/os-release", "PRETTY_NAME=Rocky\n")
    write(tmp_path, "/etc/hostname", "node1\n")
    facts = facts_of(tmp_path)
    assert facts.distribution == "Rocky"
    assert facts.hostname == "node1"


def test_a_product_left_blank_by_its_maker_is_not_shown(tmp_path: Path) -> None:
    machine(tmp_path, "ASUS", "System Product Name")
    assert facts_of(tmp_path).product == "ASUS"
    machine(tmp_path, "To Be Filled By O.E.M.", "X12")
    assert facts_of(tmp_path).product == "X12"
    machine(tmp_path, "HPE", "HPE Cray XD670")
    assert facts_of(tmp_path).product == "HPE Cray XD670"


def test_escape_sequences_do_not_come_through(tmp_path: Path) -> None:
    write(machine(tmp_path, "\x1b[31mevil", "x\x07"), "/proc/sys/kernel/hostname", "a\x1b]0;b\n")
    facts = facts_of(tmp_path)
    for fact in (facts.product, facts.hostname):
        assert isinstance(fact, str)
        assert fact.isprintable()


@pytest.mark.parametrize(
    ("name", "place", "product"),
    [
        ("2pa-pcidomain32bits", Environment.VIRTUAL_MACHINE, "CloudStack KVM Hypervisor"),
        ("32amd64-4s2n4c-cgroup2", Environment.BARE_METAL, "Supermicro H8QG6"),
        ("offline-cpu0-node0", Environment.BARE_METAL, "Dell Inc. PowerEdge R630"),
    ],
)
def test_real_machines_are_told_apart(tmp_path: Path, name: str, place: Environment, product: str) -> None:
    archive = MACHINES / "hwloc_sysfs" / f"{name}.tar.bz2"
    if not archive.exists():
        pytest.skip("no recorded machines here")
    with tarfile.open(archive) as tar:
        for member in tar:
            if member.isfile() and member.name.endswith(
                ("cpuinfo", "s/dmi/id/sys_vendor", "s/dmi/id/product_name")
            ):
                content = tar.extractfile(member)
                assert content is not None
                path = "/" + member.name.partition("/")[2]
                write(tmp_path, path, content.read().decode("utf-8", errors="replace"))
    facts = facts_of(tmp_path)
    assert facts.environment is place
    assert facts.cpu_architecture == "x86_64"
    assert isinstance(facts.product, str)
    assert product in facts.product


def test_the_version_of_the_bios_is_read(tmp_path: Path) -> None:
    write(tmp_path, "/sys/class/dmi/id/bios_version", "2.1.5\n")
    assert facts_of(tmp_path).bios == "2.1.5"


@given(st.text())
def test_no_text_stops_the_parsers(text: str) -> None:
    parse_cpuinfo(text)
    parse_cgroup(text)
    hypervisor_of(text)
    name = parse_os_release(f"PRETTY_NAME={text}")
    assert isinstance(name, Unknown) or name.isprintable()


@given(
    st.lists(
        st.sampled_from(["flags", "vendor_id", "CPU implementer", ":", "\n", "\t", "lm", "hypervisor", "8"])
    )
)
def test_no_processor_stops_the_parser(words: list[str]) -> None:
    processor = parse_cpuinfo("".join(words))
    assert isinstance(processor.architecture, (str, Unknown))
    assert isinstance(processor.hypervisor, (bool, Unknown))
