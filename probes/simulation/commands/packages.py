"""Package managers and downloads: apt-get, dpkg, dnf, tdnf, zypper, wget, curl.

They know the packages that gdrtop names for a new node; those of NVIDIA once its repository is there.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from probes.plans.packages import FABRIC_MANAGER
from probes.simulation.commands.command_result import (
    CommandResult,
    Handler,
    Invocation,
    done,
    failed,
    split_options,
    unsupported,
)
from probes.simulation.commands.coreutils import write
from probes.simulation.node.model.tree import Tree
from probes.simulation.node.modules.modules import add_driver_files
from probes.simulation.node.system.software import DRIVER, IMEX, SUBNET_MANAGER, TESTS, install_product

_LISTS = "/var/lib/apt/lists/developer.download.nvidia.com_Packages"
_SOURCES = "/etc/apt/sources.list.d/cuda.list"
_REPOSITORIES = ("/etc/yum.repos.d/", "/etc/zypp/repos.d/")
_DPKG = {"ubuntu", "debian"}
_PROGRAMS = {"sles": {"zypper", "curl"}, "azurelinux": {"tdnf", "curl"}}
_RED_HAT = {"dnf", "curl"}
_IMMUTABLE = {"rhcos", "talos"}
_NVIDIA = (  # names of packages in NVIDIA's repositories
    (re.compile(r"nvidia-open|cuda-open(-hwe)?|nvidia-open-driver-G06-signed-cuda-kmp-default"), DRIVER),
    (re.compile(r"nvidia-fabric-?manager(-\d+)?([=-]\d[\d.*]*)?"), FABRIC_MANAGER),
    (re.compile(r"nvlsm"), SUBNET_MANAGER),
    (re.compile(r"nvidia-imex(-\d+)?"), IMEX),
    (re.compile(r"nvidia-drivers-minimal-G06"), ""),
)
_OTHERS = re.compile(
    r"(linux-headers|kernel(-64k|-uek)?-devel)-[\w.+~-]+|https://\S+/epel-release-latest-\d+\.noarch\.rpm"
    r"|rdma-core|ibverbs-(utils|providers)|libibverbs(1|-utils)?|infiniband-diags"
)
_PREBUILT = {"sles", "azurelinux"}  # the driver's modules come compiled
_NOT_FOUND = {
    "apt-get": (100, "E: Unable to locate package {}"),
    "dnf": (1, "No match for argument: {}"),
    "tdnf": (1, "No match for argument: {}"),
    "zypper": (104, "'{}' not found in package names."),
}
_SECONDS = 60.0


def _available(tree: Tree) -> set[str]:
    """Return the package managers of the distribution."""
    system = tree.description.system
    if system.id in _IMMUTABLE:
        return set()
    return {"apt-get", "dpkg", "wget"} if system.id in _DPKG else _PROGRAMS.get(system.id, _RED_HAT)


def _on_its_distribution(handler: Handler) -> Handler:
    return lambda call: handler(call) if call.name in _available(call.tree) else unsupported(call)


def _has_repository(tree: Tree) -> bool:
    """Return whether the node knows NVIDIA's packages; apt-get needs their list, others read it."""
    if tree.description.system.id in _DPKG:
        return tree.is_there(_LISTS)
    found = (path for path in tree.files if path.startswith(_REPOSITORIES))
    return any("cuda" in path or "nvidia" in path for path in found)


def _install(call: Invocation, names: Sequence[str]) -> CommandResult:
    tree = call.tree
    products = {name: _product(tree, name) for name in names}
    unknown = [name for name, product in products.items() if product is None]
    if unknown:
        status, line = _NOT_FOUND[call.name]
        return failed(*map(line.format, unknown), exit_status=status)
    by_dkms = tree.description.system.id not in _PREBUILT
    lines = []
    for name, product in products.items():
        lines.append(f"Setting up {name} ..." if call.name == "apt-get" else f"Installing: {name}")
        if product:
            install_product(tree, product)
        if product == DRIVER:
            add_driver_files(tree, by_dkms)
        if product == DRIVER and by_dkms:
            node = tree.description
            lines.append(f"Building initial module nvidia/{node.driver.version} for {node.kernel}")
    return done(*lines, seconds=_SECONDS)


def _product(tree: Tree, name: str) -> str | None:
    """Return what a package brings, "" if that is not simulated, None if there is no such package."""
    if name == TESTS:
        return TESTS
    if _OTHERS.fullmatch(name):
        return ""
    found = (product for pattern, product in _NVIDIA if pattern.fullmatch(name))
    return next(found, None) if _has_repository(tree) else None


def _manager(call: Invocation) -> CommandResult:
    """`install NAME…`, and what each package manager does before."""
    options, words = split_options(call.args)
    if words[:1] == ["install"] and words[1:]:
        return _install(call, words[1:])
    if call.name == "apt-get" and words == ["update"]:
        if call.tree.is_there(_SOURCES):
            call.tree.add(_LISTS, "")
        return done("Reading package lists... Done", seconds=_SECONDS)
    if call.name == "zypper" and words == ["refresh"]:
        return done("All repositories have been refreshed.", seconds=_SECONDS)
    return _dnf(call, options, words) if call.name.endswith("dnf") else unsupported(call)


def _dnf(call: Invocation, options: dict[str, str], words: list[str]) -> CommandResult:
    if words == ["clean", "all"]:
        return done("0 files removed")
    if words[:2] == ["module", "enable"] and len(words) == 3:
        missing = f"Error: Problems in request: missing groups: {words[2]}"
        return done("Complete!") if _has_repository(call.tree) else failed(missing)
    if words[:1] == ["config-manager"] and "--add-repo" in options and len(words) == 2:
        name = words[1].rpartition("/")[2]
        call.tree.add(f"/etc/yum.repos.d/{name}", f"[{name.removesuffix('.repo')}]\nbaseurl={words[1]}\n")
        return done(f"Adding repo from: {words[1]}")
    return unsupported(call)


def _dpkg(call: Invocation) -> CommandResult:
    """`dpkg -i FILE`: of all packages only that of NVIDIA's repository."""
    options, words = split_options(call.args)
    if "-i" not in options or len(words) != 1:
        return unsupported(call)
    path = words[0]
    if not call.tree.is_there(path):
        missing = f"dpkg: error: cannot access archive '{path}': No such file or directory"
        return failed(missing, exit_status=2)
    if "cuda-keyring" not in path:
        return unsupported(call)
    call.tree.add(_SOURCES, f"deb {call.tree.text(path).strip()} /\n")
    return done("Setting up cuda-keyring ...", seconds=2.0)


def _download(call: Invocation) -> CommandResult:
    """`wget -O FILE URL`, `curl -fsSL -o FILE URL`: the file has the directory of the address."""
    options, words = split_options(call.args, valued="Oo")
    path = options.get("-O" if call.name == "wget" else "-o", "")
    if not path or len(words) != 1:
        return unsupported(call)
    error = write(call.tree, path, words[0].rpartition("/")[0] + "\n")
    return failed(f"{call.name}: {path}: {error}") if error else done(f"saved {path}", seconds=2.0)


_OWN: dict[str, Handler] = {
    **dict.fromkeys(("apt-get", "dnf", "tdnf", "zypper"), _manager),
    **dict.fromkeys(("curl", "wget"), _download),
    "dpkg": _dpkg,
}
COMMANDS = {name: _on_its_distribution(handler) for name, handler in _OWN.items()}
