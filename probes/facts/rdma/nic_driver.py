"""The NIC driver stack: the kernel's own, MLNX_OFED, DOCA-OFED, EFA, Slingshot, and its version."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum

from probes.base.frozen import frozen
from probes.base.text import printable
from probes.base.unknown import Maybe, Reason, Unknown, is_there, known, map_known
from probes.facts.kernel.module_files import OFED_PACKAGES, DkmsFacts, ModuleFile, installed_for
from probes.facts.kernel.modules import ModuleFacts
from probes.facts.pci.nic_families import CONNECTX, EFA, OTHER_DKMS, SLINGSHOT
from probes.facts.system.kubernetes import DriverContainerFacts
from probes.facts.system.packages import owner_of_module
from probes.host.protocol import Host


class NicStack(Enum):
    """Where the RDMA modules come from."""

    INBOX = "inbox"  # the kernel's own, with rdma-core
    MLNX_OFED = "MLNX_OFED"
    DOCA_OFED = "DOCA-OFED"
    EFA = "AWS efa driver"
    SLINGSHOT = "HPE Slingshot Host Software"
    CONTAINER = "DOCA driver container"  # Network Operator: /run/mellanox/drivers
    OTHER = "vendor driver"  # Broadcom, Intel, HPE out of tree

    @property
    def is_ofed(self) -> bool:
        """Whether it is OFED, installed on the host."""
        return self in (NicStack.MLNX_OFED, NicStack.DOCA_OFED)


@frozen
class NicDriver:
    """The installed stack, loaded or not."""

    stack: Maybe[NicStack]
    version: Maybe[str]  # "MLNX_OFED_LINUX-24.10-1.1.4.0", "OFED-internal-25.07-0.9.7", EFA "2.15.3";
    #                      NOT_THERE: the kernel's own driver has no version of its own
    package: Maybe[str]
    by_dkms: Maybe[bool]
    exports_peer_memory: Maybe[bool]  # its ib_core or ib_uverbs has ib_register_peer_memory_client


_OFED_INFO = "/usr/bin/ofed_info"
_EFA_PACKAGES = "/opt/amazon/efa_installed_packages"  # written by the EFA installer
# The loaded module's: a container's files are not below the node's /lib/modules.
_LOADED_VERSION = {
    NicStack.EFA: "/sys/module/efa/version",
    NicStack.CONTAINER: "/sys/module/mlx5_core/version",
}
_FIRST_DOCA = 24  # DOCA-OFED has the numbers of OFED since 24.04; its ofed_info prints "OFED-internal-…"
_DKMS_PACKAGES = {NicStack.EFA: EFA.dkms, NicStack.SLINGSHOT: SLINGSHOT.dkms}
_SLINGSHOT_MODULE = "/sys/module/cxi_ss1/initstate"
_NVIDIA_MODULES = (*CONNECTX.modules, "ib_core", "ib_uverbs")
_OFED_RELEASE = re.compile(r"(?P<family>[A-Za-z][A-Za-z_-]{1,30})-(?P<major>[0-9]{1,3})[.-]")


@frozen
class NicTraces:
    """What other probes know of the NIC driver."""

    release: Maybe[str]  # of the running kernel
    ofed: Maybe[str]  # ofed_info -s
    files: Maybe[Mapping[str, ModuleFile]]  # modinfo, by module
    modules: Maybe[ModuleFacts]
    dkms: Maybe[DkmsFacts]
    container: Maybe[DriverContainerFacts]


def probe(host: Host, traces: NicTraces) -> Maybe[NicDriver]:
    """Combine ofed_info, modinfo, DKMS and other traces; NOT_THERE: no RDMA driver for this kernel."""
    absent = Unknown(Reason.NOT_THERE, f"modinfo {_NVIDIA_MODULES[0]}", "no RDMA driver for this kernel")
    file: Maybe[ModuleFile] = map_known(
        traces.files, lambda files: next((files[name] for name in _NVIDIA_MODULES if name in files), absent)
    )
    stack = _stack(host, traces, file)
    if isinstance(stack, Unknown):
        return stack
    package = owner_of_module(host, map_known(file, lambda found: found.path), _OFED_INFO)
    names = _DKMS_PACKAGES.get(stack, OFED_PACKAGES)
    is_built_here = stack in (NicStack.MLNX_OFED, NicStack.DOCA_OFED, *_DKMS_PACKAGES)
    return NicDriver(
        stack=stack,
        version=_version(host, stack, traces.ofed, file),
        package=map_known(package, lambda owner: owner.name),
        by_dkms=installed_for(traces.dkms, names, traces.release) if is_built_here else False,
        exports_peer_memory=map_known(traces.modules, _exports_peer_memory),
    )


def _stack(host: Host, traces: NicTraces, file: Maybe[ModuleFile]) -> Maybe[NicStack]:
    if map_known(traces.container, lambda container: container.mofed_ready) is True:
        return NicStack.CONTAINER
    if not isinstance(host.size(_EFA_PACKAGES), Unknown) or _has_dkms(traces.dkms, ("efa",)):
        return NicStack.EFA
    if is_there(file) is False and (
        _has_dkms(traces.dkms, SLINGSHOT.dkms) or not isinstance(host.size(_SLINGSHOT_MODULE), Unknown)
    ):
        return NicStack.SLINGSHOT
    if isinstance(file, Unknown):
        has_other = _has_dkms(traces.dkms, OTHER_DKMS)
        return NicStack.OTHER if has_other and file.reason is Reason.NOT_THERE else file
    if not is_inbox(file.path):
        return _ofed_stack(traces, file)
    return NicStack.OTHER if _has_dkms(traces.dkms, OTHER_DKMS) else NicStack.INBOX


def _has_dkms(dkms: Maybe[DkmsFacts], names: tuple[str, ...]) -> bool:
    return not isinstance(dkms, Unknown) and any(module.name in names for module in dkms.modules)


def _ofed_stack(traces: NicTraces, file: ModuleFile) -> NicStack:
    by_release = None if isinstance(traces.ofed, Unknown) else stack_of(traces.ofed)
    if by_release is not None:
        return by_release
    match = re.match(r"([0-9]{1,3})\.", known(file.version, ""))
    if match:
        return NicStack.DOCA_OFED if int(match[1]) >= _FIRST_DOCA else NicStack.MLNX_OFED
    return NicStack.OTHER


def is_inbox(path: str) -> bool:
    """Return whether a module's file belongs to the kernel's package.

    Others are below updates/, extra/ or weak-updates/ (depmod.d(5), dkms(8)).
    """
    return path == "(builtin)" or re.search(r"/lib/modules/[^/]+/kernel/", path) is not None


def stack_of(release: str) -> NicStack | None:
    """Return the stack whose ofed_info prints this release; None: an unknown one."""
    match = _OFED_RELEASE.match(release)
    family = match["family"].lower() if match else ""
    if family.startswith("doca"):
        return NicStack.DOCA_OFED
    if match and family == "ofed-internal":
        return NicStack.DOCA_OFED if int(match["major"]) >= _FIRST_DOCA else NicStack.MLNX_OFED
    return NicStack.MLNX_OFED if family.startswith(("mlnx_ofed", "mlnx_en", "mlnx-en")) else None


def _version(host: Host, stack: NicStack, ofed: Maybe[str], file: Maybe[ModuleFile]) -> Maybe[str]:
    if stack in _LOADED_VERSION:
        text = host.read(_LOADED_VERSION[stack])
        if isinstance(text, Unknown) and text.reason is Reason.NOT_THERE:
            return Unknown(Reason.NOT_THERE, text.source, "the loaded module has no version")
        return map_known(text, lambda version: printable(version, 64))
    if stack.is_ofed and not isinstance(ofed, Unknown):
        return ofed
    if stack is NicStack.SLINGSHOT:
        return Unknown(Reason.NOT_THERE, "/sys/module/cxi_ss1", "the loaded module has no version")
    if stack is NicStack.INBOX:
        return Unknown(Reason.NOT_THERE, "modinfo mlx5_core", "the kernel's own driver")
    return map_known(file, lambda found: found.version)


def _exports_peer_memory(modules: ModuleFacts) -> Maybe[bool]:
    symbol = modules.peer_memory
    return Unknown(Reason.NOT_RECORDED, "modules.symbols") if symbol is None else is_there(symbol.provider)
