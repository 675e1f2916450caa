"""The platform: bare metal, virtual machine, container, pod, cloud; and whether gdrtop runs as root."""

from __future__ import annotations

import re
from enum import Enum

from probes.base.frozen import frozen
from probes.base.text import printable
from probes.base.unknown import Maybe, Reason, Unknown, first_unread, known, map_known, not_found, parse_known
from probes.host.protocol import Host

CPUINFO = "/proc/cpuinfo"
CPUINFO_LIMIT_BYTES = 8 * 1024 * 1024  # about 1.5 KB for each CPU
DMI = "/sys/class/dmi/id"
SERVICE_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"


class Environment(Enum):
    """Where gdrtop runs."""

    BARE_METAL = "bare metal"
    VIRTUAL_MACHINE = "virtual machine"
    CONTAINER = "container"
    KUBERNETES_POD = "Kubernetes pod"


@frozen
class PlatformFacts:
    """Host name, environment, machine type, and whether gdrtop runs as root."""

    hostname: Maybe[str]
    environment: Maybe[Environment]
    hypervisor: Maybe[str]  # of a virtual machine: "KVM", "Microsoft", …
    product: Maybe[str]  # DMI "Supermicro SYS-821GE-TNHR"
    distribution: Maybe[str]  # os-release PRETTY_NAME
    is_root: bool
    cpu_architecture: Maybe[str]  # "x86_64", "aarch64"
    bios: Maybe[str]  # version: "2.1", "01.02.03"


@frozen
class Processor:
    """Facts from /proc/cpuinfo."""

    architecture: Maybe[str]
    hypervisor: Maybe[bool]  # the CPUID hypervisor bit, x86 only


NOT_A_GUEST = "not a virtual machine"
_NO_GUEST = False, Unknown(Reason.NOT_THERE, "", NOT_A_GUEST)

# Words that a hypervisor writes into its guests' DMI tables ("VENDOR PRODUCT"), and the hypervisor's name
# (systemd src/basic/virt.c, and the clouds' manuals). The first match wins.
_DMI_HYPERVISORS = (
    ("VMware", ("vmware",)),
    ("Microsoft", ("microsoft corporation virtual machine",)),
    ("Amazon EC2", ("amazon ec2",)),
    ("Google", ("google compute engine",)),
    ("VirtualBox", ("virtualbox", "innotek gmbh")),
    ("Parallels", ("parallels",)),
    ("Nutanix AHV", ("nutanix ahv",)),
    ("Apple", ("apple virtualization",)),
    ("Xen", ("hvm domu",)),
    ("bhyve", ("bhyve",)),
    ("KVM", ("cloud hypervisor", "alibaba cloud ecs", "openstack", "openshift virtualization", "kubevirt")),
    ("KVM", ("rhev", "qemu", "kvm", "bochs")),
    ("Xen", ("xen",)),
)
_METAL_INSTANCE = re.compile(r"\.metal\b")  # Amazon's bare-metal types: "m7i.metal-24xl"
_PLACEHOLDER = re.compile(
    r"(?i)to be filled by o\.?e\.?m\.?|system (product name|manufacturer)|default string|"
    r"not (specified|applicable|available)|none|unknown|o\.e\.m\.|n/?a|"
)
_CGROUP_CONTAINER = re.compile(
    r"[:/](?:(?:docker|lxc|libpod|crio|cri-containerd|containerd|machine\.slice)[-/]|lxc\.payload\.)"
)


def probe(host: Host) -> PlatformFacts:
    """Read /proc, /sys/class/dmi, /etc/os-release and the session's environment."""
    vendor = _dmi(host, "sys_vendor")
    name = _dmi(host, "product_name")
    machine = f"{known(vendor, '')} {known(name, '')}".strip()
    architecture = _architecture(host)
    processor: Processor | None = None
    unread = first_unread((vendor, name))
    if isinstance(architecture, Unknown) or not machine or unread is not None:
        cpuinfo = read_cpuinfo(host)
        processor = Processor(cpuinfo, cpuinfo) if isinstance(cpuinfo, Unknown) else parse_cpuinfo(cpuinfo)
        if isinstance(architecture, Unknown):
            architecture = processor.architecture
    is_guest, hypervisor = _guest(host, machine, unread, processor)
    return PlatformFacts(
        hostname=_hostname(host),
        environment=_environment(host, is_guest),
        hypervisor=hypervisor,
        product=_product(vendor, name),
        distribution=map_known(read_os_release(host), parse_os_release),
        is_root=host.is_root(),
        cpu_architecture=architecture,
        bios=_dmi(host, "bios_version"),
    )


def in_container(platform: Maybe[PlatformFacts]) -> bool:
    """Return whether gdrtop is known to run in a container or a pod."""
    place = platform if isinstance(platform, Unknown) else platform.environment
    return place in (Environment.CONTAINER, Environment.KUBERNETES_POD)


def is_guest(platform: Maybe[PlatformFacts]) -> Maybe[bool]:
    """Return whether gdrtop runs in a virtual machine, possibly in a container there."""
    if isinstance(platform, Unknown):
        return platform
    if not isinstance(platform.hypervisor, Unknown) or platform.environment is Environment.VIRTUAL_MACHINE:
        return True
    if platform.environment is Environment.BARE_METAL or platform.hypervisor.detail == NOT_A_GUEST:
        return False
    return platform.hypervisor


def hypervisor_of(machine: str) -> str | None:
    """Return the hypervisor for a DMI vendor and product; None: not a virtual machine."""
    machine = machine.lower()
    if _METAL_INSTANCE.search(machine):
        return None
    for name, words in _DMI_HYPERVISORS:
        if any(word in machine and re.search(rf"\b{word}\b", machine) for word in words):
            return name
    return None


def read_cpuinfo(host: Host) -> Maybe[str]:
    """Return the beginning of /proc/cpuinfo, which has the first processor."""
    content = host.read_bytes(CPUINFO, CPUINFO_LIMIT_BYTES)
    return map_known(content, lambda found: found[: 64 * 1024].decode("utf-8", errors="replace"))


def first_processor(text: str) -> dict[str, str]:
    """Parse the fields of the first processor in /proc/cpuinfo."""
    rows = (line.partition(":") for line in text.lstrip("\n").partition("\n\n")[0].split("\n"))
    fields: dict[str, str] = {}
    for key, colon, value in rows:
        if colon:
            fields.setdefault(key.strip(), value.strip())
    return fields


def parse_cpuinfo(text: str) -> Processor:
    """Parse architecture and hypervisor bit of the first processor in /proc/cpuinfo."""
    fields = first_processor(text)
    flags = fields.get("flags", "").split()
    if flags and "vendor_id" in fields:
        return Processor("x86_64" if "lm" in flags else "i686", "hypervisor" in flags)
    no_bit = Unknown(Reason.NOT_THERE, "/proc/cpuinfo", "this architecture has no hypervisor bit")
    if "CPU implementer" in fields:
        eight = fields.get("CPU architecture") in ("8", "AArch64")
        return Processor("aarch64" if eight else "arm", no_bit)
    return Processor(Unknown(Reason.MALFORMED, "/proc/cpuinfo", "unknown architecture"), no_bit)


def read_os_release(host: Host) -> Maybe[str]:
    """Return the text of os-release(5): of /etc, else of /usr/lib."""
    text = host.read("/etc/os-release")
    if isinstance(text, Unknown) and text.reason is Reason.NOT_THERE:
        text = host.read("/usr/lib/os-release")
    return text


def parse_os_release_fields(text: str) -> dict[str, str]:
    """Parse the fields of an os-release(5) file, unquoted; the last line of a name counts."""
    values: dict[str, str] = {}
    for line in text.split("\n"):
        key, equals, value = line.strip().partition("=")
        if equals and re.fullmatch(r"[A-Z][A-Z0-9_]{0,31}", key):
            values[key] = _unquoted(value)
    return values


def parse_os_release(text: str) -> Maybe[str]:
    """Parse PRETTY_NAME, else NAME, from an os-release(5) file."""
    values = parse_os_release_fields(text)
    found = values.get("PRETTY_NAME") or values.get("NAME")
    return printable(found, 128) if found else Unknown(Reason.MALFORMED, "/etc/os-release", "no PRETTY_NAME")


def parse_cgroup(text: str) -> Environment | None:
    """Return the environment that the cgroup paths of process 1 show; with cgroup v2 often None."""
    if "kubepods" in text:
        return Environment.KUBERNETES_POD
    return Environment.CONTAINER if _CGROUP_CONTAINER.search(text) else None


def _unquoted(value: str) -> str:
    if len(value) > 1 and value[0] == value[-1] and value[0] in "\"'":
        value = value[1:-1]
    return re.sub(r"\\([\"'$`\\])", r"\1", value)


def _dmi(host: Host, attribute: str) -> Maybe[str]:
    path = f"{DMI}/{attribute}"
    absent = Unknown(Reason.NOT_THERE, path, "the vendor left it blank")
    text = map_known(host.read(path), lambda found: printable(found, 128))
    return map_known(text, lambda found: absent if _PLACEHOLDER.fullmatch(found) else found)


def _product(vendor: Maybe[str], name: Maybe[str]) -> Maybe[str]:
    if isinstance(name, Unknown):
        return vendor if not isinstance(vendor, Unknown) else name
    if isinstance(vendor, Unknown) or name.lower().startswith(vendor.lower()):
        return name
    return f"{vendor} {name}"


def _architecture(host: Host) -> Maybe[str]:
    path = "/proc/sys/kernel/arch"  # since Linux 6.1
    return parse_known(host.read(path), lambda text: printable(text, 32) or None, path, detail="empty")


def _guest(
    host: Host, machine: str, unread: Unknown | None, processor: Processor | None
) -> tuple[Maybe[bool], Maybe[str]]:
    """Return whether this is a virtual machine, and its hypervisor.

    Ask Xen, DMI and the CPU, in this order. /proc/cpuinfo is last because it is slow on big nodes.
    `unread`: a part of DMI that could not be read, and may name a hypervisor that the rest does not.
    """
    kind = host.read("/sys/hypervisor/type")
    if not isinstance(kind, Unknown) and kind:
        # Xen's privileged domain runs on a hypervisor too, but it owns the hardware.
        if "control_d" in known(host.read("/proc/xen/capabilities"), ""):
            return _NO_GUEST
        return True, "Xen" if kind == "xen" else printable(kind, 32)
    if machine:
        named = hypervisor_of(machine)
        if named is not None or unread is None:
            return _NO_GUEST if named is None else (True, named)
    if processor is None or isinstance(processor.hypervisor, Unknown):
        nothing = Unknown(Reason.NOT_THERE, DMI, "neither DMI nor the CPU identifies this machine")
        return nothing, nothing
    if processor.hypervisor:
        return True, Unknown(Reason.NOT_THERE, DMI, "an unidentified hypervisor")
    return _NO_GUEST


def _environment(host: Host, is_guest: Maybe[bool]) -> Maybe[Environment]:
    if not isinstance(host.environment("KUBERNETES_SERVICE_HOST"), Unknown):
        return Environment.KUBERNETES_POD
    if not isinstance(host.names(SERVICE_ACCOUNT), Unknown):
        return Environment.KUBERNETES_POD
    by_cgroup = parse_cgroup(known(host.read("/proc/1/cgroup"), ""))
    if by_cgroup is not None:
        return by_cgroup
    if known(host.environment("container"), ""):
        return Environment.CONTAINER
    traces = ("/.dockerenv", "/run/.containerenv", "/run/systemd/container")
    if any(not isinstance(host.size(path), Unknown) for path in traces):
        return Environment.CONTAINER
    if isinstance(is_guest, Unknown):
        return is_guest
    return Environment.VIRTUAL_MACHINE if is_guest else Environment.BARE_METAL


def _hostname(host: Host) -> Maybe[str]:
    text = host.read("/proc/sys/kernel/hostname")
    if isinstance(text, Unknown):
        text = host.read("/etc/hostname")
    first_line = map_known(text, lambda found: printable(found.partition("\n")[0].strip(), 253))
    return parse_known(first_line, lambda name: name or None, "/etc/hostname", detail="empty")


# The cloud that a node belongs to, from DMI.


class Provider(Enum):
    """Clouds whose GPU nodes need settings of their own."""

    AZURE = "Azure"
    AWS = "AWS"
    GOOGLE = "Google Cloud"
    ORACLE = "Oracle Cloud"


@frozen
class Cloud:
    """A cloud's node."""

    provider: Provider
    machine: str  # "p5.48xlarge"; "" where DMI does not name it


# Hyper-V on a company's own servers has the same vendor, but not this tag (cloud-init, DataSourceAzure).
AZURE_TAG = "7783-7084-3265-9085-8269-3286-77"
ORACLE_TAG = "OracleCloud.com"  # cloud-init, DataSourceOracle


def probe_cloud(host: Host) -> Maybe[Cloud]:
    """Read three DMI attributes, which everybody can read; NOT_THERE: no known cloud."""
    names = ("sys_vendor", "product_name", "chassis_asset_tag")
    vendor, product, tag = (host.read(f"{DMI}/{name}") for name in names)
    found = cloud_of(known(vendor, ""), known(product, ""), known(tag, ""))
    # A container or a tree can hide DMI: then another reason than "not there" is more honest.
    return found or not_found((vendor, product, tag), DMI, "the DMI data shows no known cloud")


def cloud_of(vendor: str, product: str, tag: str) -> Cloud | None:
    """Return the cloud that these DMI values name; None: no known cloud."""
    vendor, product, tag = vendor.strip(), product.strip(), tag.strip()
    if tag == AZURE_TAG:
        return Cloud(Provider.AZURE, "")  # its machines are all "Virtual Machine"
    if tag == ORACLE_TAG:
        return Cloud(Provider.ORACLE, "")
    if vendor == "Amazon EC2":
        return Cloud(Provider.AWS, printable(product, 64))
    if vendor == "Google" or product == "Google Compute Engine":
        return Cloud(Provider.GOOGLE, "")
    return None
