"""Software of a simulated node: libraries, test tools, packages and what they bring, device files, NCCL's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from probes.facts.jobs.nccl_conf import NCCL_CONF
from probes.facts.pci.nic_families import PROVIDER_OF, VERBS_MODULES
from probes.facts.system.tool_names import GDRCOPY, PERFTEST, PROGRAMS, programs_of
from probes.facts.system.tools import CUDA, NVML, OF_DRIVER
from probes.nccl.topology_file import GPU_CLASS, VERSION, Element, xml_text
from probes.plans.packages import FABRIC_MANAGER
from probes.simulation.node.jobs.processes import library_directory, verbs_libraries
from probes.simulation.node.model.description import TopologyFileDescription
from probes.simulation.node.model.tree import Tree
from probes.simulation.node.system.services import stop

# A perftest of 2025 built with CUDA: it loads libcuda.so by this name and accepts PCI addresses and IPv6.
PERFTEST_PROGRAM = (
    b"\x7fELF\0libcuda.so\0cuMemGetHandleForAddressRange\0ibv_reg_dmabuf_mr\0use_cuda\0use_cuda_bus_id\0"
    b"use_cuda_dmabuf\0use_data_direct\0ipv6-addr\0"
)
_BUILT_FROM_SOURCE = "/usr/local/bin"
_DIRECTORIES = {"gdrcopy": "/usr/bin"}  # NVIDIA's repository has a package of it, but not of the others
_PACKAGES = {f"/usr/bin/{name}": ("gdrcopy-tests", "2.5-1") for name in GDRCOPY}
_MISMATCH = "driver/library version mismatch: reload the kernel modules or reboot"
_VERBS_ABI = 34
_DPKG_DISTRIBUTIONS = ("Ubuntu", "Debian")
_SWITCH_CLASS = "0x060400"
_TOPOLOGY_CLASSES = {True: f"{GPU_CLASS}0200", False: "0x020700"}


def add_software(tree: Tree) -> None:
    """Add perftest with CUDA and DMA-BUF, other tests, some tools, and the libraries that jobs load."""
    for name in PERFTEST:
        tree.add(f"/usr/bin/{name}", PERFTEST_PROGRAM)
        tree.commands.setdefault(name, lambda argv, seconds: "Version: 6.23\n")
    for package in tree.description.tests:
        for name in programs_of(package):
            tree.add(f"{_DIRECTORIES.get(package, _BUILT_FROM_SOURCE)}/{name}", b"\x7fELF")
    add_packages(tree, _PACKAGES | tree.description.system.packages)
    tree.add("/usr/bin/nvidia-smi", b"\x7fELF")
    for name in ("numactl", "lspci", "ibv_devinfo", "ethtool"):
        tree.add(f"/usr/bin/{name}", "")
    directory = library_directory(tree)
    plugin = tree.description.system.plugin
    if plugin:
        tree.add(plugin, b"\x7fELF")
        folder, _, file = plugin.rpartition("/")
        if file != "libnccl-net.so":
            tree.link(f"{folder}/libnccl-net.so", file)
    for soname, file in (
        ("libnccl.so.2", f"libnccl.so.{tree.description.nccl}"),
        *verbs_libraries(tree).items(),
        *((("libgdrapi.so.2", "libgdrapi.so.2.5"),) if "gdrdrv" in tree.live_modules else ()),
    ):
        tree.add(f"{directory}/{file}", "")
        tree.link(f"{directory}/{soname}", file)
    providers = (PROVIDER_OF.get(nic.driver, "") for nic in tree.description.nic.values())
    for provider in filter(None, dict.fromkeys(providers)):
        tree.add(f"{directory}/libibverbs/lib{provider}-rdmav{_VERBS_ABI}.so", "")


# Libraries of the NVIDIA driver


def add_driver_libraries(tree: Tree) -> None:
    """Add NVML and CUDA of the driver's version, and the link from development packages."""
    set_library_version(tree, tree.description.driver.version)
    tree.link(f"{library_directory(tree)}/libcuda.so", "libcuda.so.1")


def set_library_version(tree: Tree, version: str) -> None:
    """Set the version of both libraries."""
    for name in OF_DRIVER:
        install_library(tree, name, f"{name.removesuffix('.1')}.{version}")


def library_mismatch(tree: Tree) -> str:
    """Return what NVML says if its library has another version than the loaded driver; "": nothing."""
    link = tree.links.get(f"{library_directory(tree)}/{NVML}", "")
    loaded, installed = tree.text("/sys/module/nvidia/version").strip(), link.rpartition(".so.")[2]
    return _MISMATCH if installed and loaded and installed != loaded else ""


def library_missing(tree: Tree) -> str:
    """Return that the driver's libraries are not installed; "": they are."""
    missing = [name for name in (NVML, CUDA) if f"{library_directory(tree)}/{name}" not in tree.links]
    return f"{missing[0]} is not installed" if missing else ""


def install_library(tree: Tree, soname: str, file: str) -> None:
    """Install a library like a package: the file, and a link with the name that programs load."""
    directory = library_directory(tree)
    tree.add(f"{directory}/{file}", b"\x7fELF")
    tree.link(f"{directory}/{soname}", file)


# Package database


def add_packages(tree: Tree, packages: Mapping[str, tuple[str, str]]) -> None:
    """Add dpkg-query or rpm, depending on the distribution; `packages` maps files to name and version."""

    def owner(path: str) -> tuple[str, str] | None:
        # The tree has no .ko files, only what modinfo prints about them.
        return packages.get(path) if tree.is_there(path) or path.endswith(".ko") else None

    def dpkg(argv: Sequence[str], seconds: float) -> str:
        if "--show" in argv:
            return "".join(f"{name} {version}\n" for name, version in sorted({*packages.values()}))
        return "".join(f"{package[0]}: {path}\n" for path in argv[2:] if (package := owner(path)))

    def rpm(argv: Sequence[str], seconds: float) -> str:
        return "".join(
            f"{package[0]} {package[1]}\n"
            if (package := owner(path))
            else f"file {path} is not owned by any package\n"
            for path in argv[4:]
        )

    if tree.description.distribution.startswith(_DPKG_DISTRIBUTIONS):
        tree.add("/usr/bin/dpkg-query", b"\x7fELF")
        tree.commands.setdefault("dpkg-query", dpkg)
    else:
        tree.add("/usr/bin/rpm", b"\x7fELF")
        tree.commands.setdefault("rpm", rpm)


# Device files


def add_device_files(tree: Tree, modules: Iterable[str]) -> None:
    """Add the files in /dev that devtmpfs (RDMA) and udev's rules (NVIDIA) create for these modules."""
    tree.add("/dev/null", "")
    for name in modules:
        for path in _device_files_of(tree, name):
            tree.add(path, "")


def _device_files_of(tree: Tree, module: str) -> list[str]:
    if module in VERBS_MODULES:
        return [f"/dev/infiniband/uverbs{number}" for number in range(len(tree.cards))]
    if module == "ib_umad":
        return [f"/dev/infiniband/umad{number}" for number in range(len(tree.cards))]
    if module == "nvidia":
        return ["/dev/nvidiactl", *(f"/dev/nvidia{number}" for number in range(len(tree.gpus)))]
    if module == "cxi_user":
        return [f"/dev/{nic.name}" for nic in tree.nics]
    return {
        "rdma_cm": ["/dev/infiniband/rdma_cm"],
        "rdma_ucm": ["/dev/infiniband/rdma_cm"],
        "nvidia_uvm": ["/dev/nvidia-uvm"],
        "gdrdrv": ["/dev/gdrdrv"],
    }.get(module, [])


# NCCL's files


def add_nccl_files(tree: Tree) -> None:
    """Add the files that the description has."""
    conf, topology = tree.description.system.nccl_conf, tree.description.topology_file
    if conf:
        tree.add(NCCL_CONF, conf)
    if topology is not None:
        gpus = frozenset(gpu.bdf for gpu in tree.gpus)
        tree.add(topology.path, xml_text(_system(topology, gpus)))


def _system(topology: TopologyFileDescription, gpus: frozenset[str]) -> Element:
    """Return the file: bridges with bus IDs that no machine has, as Azure's files have them."""
    speed, width = topology.link
    link = {"link_speed": speed, "link_width": width}
    cpus: list[Element] = []
    number = 0
    for numa, groups in enumerate(topology.numa):
        switches: list[Element] = []
        for group in groups:
            number += 1
            buses = group.split()
            below = (
                Element("pci", {"busid": bus, "class": _TOPOLOGY_CLASSES[bus in gpus], **link})
                for bus in buses
            )
            ids = {"busid": f"ffff:ff:{number:02x}.0", "class": _SWITCH_CLASS}
            switches.append(Element("pci", {**ids, **link}, tuple(below)))
        cpus.append(Element("cpu", {"numaid": str(numa)}, tuple(switches)))
    return Element("system", {"version": VERSION}, tuple(cpus))


DRIVER, SUBNET_MANAGER, IMEX, TESTS = "driver", "nvlsm", "nvidia-imex", "perftest"

# How the names of its files begin; the first that matches counts. "": no package of setup brings them.
_FILES = (
    *((name, TESTS) for name in PERFTEST),
    *(("nv-fabricmanager", FABRIC_MANAGER), (FABRIC_MANAGER, FABRIC_MANAGER), ("nvlsm", SUBNET_MANAGER)),
    *((name, DRIVER) for name in ("libcuda.so", "libnvidia-", "nvidia-smi", "nvidia-modprobe")),
    *(("nvidia-persistenced", DRIVER), ("nvidia-imex", IMEX)),
    *((name, "") for name in ("libgdrapi", "libnccl", "nvidia-dcgm", "nv-hostengine")),
    *((program.name, "") for program in PROGRAMS),
)
_SERVICES = ("nvidia-", "nv-")
_DRIVER_DIRECTORY = "/usr/share/nvidia"
_REPOSITORIES = {
    "ubuntu": "/etc/apt/sources.list.d",
    "debian": "/etc/apt/sources.list.d",
    "sles": "/etc/zypp/repos.d",
}


def remove_products(tree: Tree) -> None:
    """Stop NVIDIA's services, and remove NVIDIA's files and all benchmark tools until packages bring them."""
    tree.directory(_REPOSITORIES.get(tree.description.system.id, "/etc/yum.repos.d"))
    for service in [name for name in tree.units if name.startswith(_SERVICES)]:
        stop(tree, service)
    for path in [*tree.files, *tree.links]:
        name = path.rpartition("/")[2]
        found = (product for beginning, product in _FILES if name.startswith(beginning))
        product = DRIVER if path.startswith(_DRIVER_DIRECTORY) else next(found, None)
        if product is not None:
            removed = tree.remove(path)
            tree.not_installed.setdefault(product, []).append(removed)


def install_product(tree: Tree, product: str) -> None:
    """Bring the files that were missing; those of modules are modinfo's."""
    for removed in tree.not_installed.pop(product, ()):
        tree.restore(removed)
