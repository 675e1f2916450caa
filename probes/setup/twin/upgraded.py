"""A copy of a node on whose disk packages were upgraded: what an upgrade installs, before any boot.

The package manager says which packages change, not which files. The new files are those of the node with
other versions: a new kernel has the modules of the present one, without those that are not built for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from probes.base.frozen import frozen
from probes.base.unknown import Maybe, Reason, Unknown, known
from probes.facts.kernel import module_files
from probes.facts.kernel.boot import MODULES_DIRECTORY, BootFacts
from probes.facts.kernel.depmod import FILE_LIMIT_BYTES, DepmodEntry, origin_of
from probes.facts.kernel.installed_modules import InstalledModules, read_installed
from probes.facts.kernel.module_files import ModuleFile
from probes.facts.kernel.release import CONFIG_LIMIT_BYTES
from probes.facts.pci.nic_families import CONNECTX, CONNECTX_3
from probes.facts.system import tools
from probes.facts.system.tools import OF_DRIVER
from probes.host.protocol import CommandOutput, Host
from probes.setup.twin.build import MANAGER_VERSION, fields_of, make_tree
from probes.setup.twin.host import TwinHost
from probes.setup.twin.next_start import NAMES
from probes.setup.twin.tree import TwinTree
from probes.simulation.node.modules.modules import Modinfo
from probes.snapshot.examination import Examination

# Modules that the kernel itself has too, and their directories below kernel/drivers.
_OWN = {
    **dict.fromkeys(("ib_core", "ib_uverbs", "ib_umad", "rdma_cm", "rdma_ucm"), "infiniband/core"),
    **dict(zip(CONNECTX_3.modules, ("net/ethernet/mellanox/mlx4", "infiniband/hw/mlx4"), strict=True)),
    **dict(zip(CONNECTX.modules, ("net/ethernet/mellanox/mlx5/core", "infiniband/hw/mlx5"), strict=True)),
}
_OWN_SIGNER = "the distribution's kernel key"
_PEER_SYMBOLS = b"peer_memory_client"


@frozen
class UpgradedFiles:
    """What an upgrade does to the files of one kernel."""

    release: str
    source: str  # the kernel whose files these are: another one, if this one is new
    absent: frozenset[str] = frozenset()  # modules of the source that it will not have
    own: frozenset[str] = frozenset()  # modules of which it has the kernel's own instead
    driver_version: str = ""  # of the GPU's modules; "": as now
    license: str = ""  # of the GPU's modules; "": as now
    has_headers: bool = True
    builds: bool = False  # DKMS builds for it what it has built for the source
    drops_peermem_symbols: bool = False  # nvidia_peermem cannot use the RDMA stack that will be there


class UpgradedTwin(TwinHost):
    """A node after an upgrade, still running."""

    def __init__(
        self, tree: TwinTree, files: Mapping[str, Modinfo], manager: str, builds_modules: bool
    ) -> None:
        """`builds_modules`: of the GPU driver or OFED, so their symbol versions are not those of now."""
        super().__init__(tree, {}, {})
        self._builds_modules = builds_modules
        self._files = files
        self._manager = manager

    def run(self, argv: Sequence[str], seconds: float = 2.0) -> Maybe[CommandOutput]:
        """Return what modinfo and Fabric Manager print then; other commands as now."""
        if tuple(argv[:2]) == ("modinfo", "-k") and argv[2] in self._files:
            printed = self._files[argv[2]](tuple(argv), seconds)
            return CommandOutput(tuple(argv), 0, str(printed), "")
        if argv[0] == "modprobe" and self._builds_modules:
            return Unknown(Reason.NOT_YET, "modprobe", "the upgrade builds the modules")
        answer = super().run(argv, seconds)
        if tuple(argv) == MANAGER_VERSION and self._manager and not isinstance(answer, Unknown):
            return CommandOutput(MANAGER_VERSION, 0, f"Fabric Manager version is : {self._manager}\n", "")
        return answer


def make_upgraded(
    host: Host,
    examination: Examination,
    boot: Maybe[BootFacts],
    files: Sequence[UpgradedFiles],
    library_version: str = "",
    manager_version: str = "",
    builds_modules: bool = False,
) -> UpgradedTwin:
    """Make a copy of a node with these files on its disk; "": libraries and Fabric Manager as now.

    `builds_modules`: the upgrade has modules of the GPU driver or OFED.
    """
    tree = make_tree(host, examination)
    modinfo = {part.release: _write_kernel(host, tree, boot, part) for part in files}
    if library_version:
        for name in OF_DRIVER:
            file = f"{name.removesuffix('.1')}.{library_version}"
            for directory in tools.LIBRARY_DIRECTORIES:
                if not isinstance(host.resolve(f"{directory}/{name}"), Unknown):
                    tree.add(f"{directory}/{file}", "")
                    tree.link(f"{directory}/{name}", file)
    return UpgradedTwin(tree, modinfo, manager_version, builds_modules)


def _write_kernel(host: Host, tree: TwinTree, boot: Maybe[BootFacts], part: UpgradedFiles) -> Modinfo:
    """Write the index of depmod, the kernel's files in /boot if it is new; return what modinfo prints."""
    modules = read_installed(host, part.source, NAMES)
    base, old = f"{MODULES_DIRECTORY}/{part.release}", f"{MODULES_DIRECTORY}/{part.source}"
    entries = {name: entry for name, entry in modules.entries.items() if not isinstance(entry, Unknown)}
    places = {name: _place(name, entry, part) for name, entry in entries.items() if name not in part.absent}
    peermem = "nvidia_peermem"
    lines = []
    for name, place in places.items():
        needs = [need for need in reversed(entries[name].depends) if need in places]
        if name == peermem and part.drops_peermem_symbols:
            needs = [need for need in needs if not need.startswith("ib_")]
        lines.append(f"{place}: {' '.join(places[need] for need in needs)}".rstrip())
    tree.add(f"{base}/modules.dep", "".join(f"{line}\n" for line in lines))
    for name in ("modules.builtin", "modules.symbols"):
        content = known(host.read_bytes(f"{old}/{name}", FILE_LIMIT_BYTES), b"")
        if part.own and name == "modules.symbols":
            kept = (line for line in content.split(b"\n") if _PEER_SYMBOLS not in line)
            content = b"\n".join(kept)
        tree.add(f"{base}/{name}", content.decode("utf-8", "replace"))
    if part.release != part.source:
        _write_boot(host, tree, boot, part)
    if part.builds:
        _write_builds(host, tree, part)
    found = known(modules.files, {})
    return Modinfo({name: _fields(found[name], places[name], base, part) for name in places if name in found})


def _place(name: str, entry: DepmodEntry, part: UpgradedFiles) -> str:
    return f"kernel/drivers/{_OWN[name]}/{name}.ko" if name in part.own else entry.relative


def _fields(file: ModuleFile, place: str, base: str, part: UpgradedFiles) -> dict[str, str]:
    """Return what modinfo prints of a file after the upgrade."""
    kernel = part.release if part.release != part.source else known(file.kernel, "")
    depends = file.depends
    arm = " aarch64" * (file.architecture == "aarch64")
    fields = fields_of(file) | {"filename": f"{base}/{place}", "vermagic": f"{kernel} SMP{arm}"}
    if file.name.startswith("nvidia") and part.driver_version:
        # Its firmware comes with the same packages.
        fields |= {"version": part.driver_version, "srcversion": "", "firmware": ""}
    if file.name.startswith("nvidia") and part.license:
        fields["license"] = part.license
    if file.name in part.own:
        fields |= {"version": "", "srcversion": "", "signer": _OWN_SIGNER}
    if file.name == "nvidia_peermem" and part.drops_peermem_symbols:
        depends = tuple(name for name in depends if not name.startswith("ib_"))
    kept = {key: value for key, value in fields.items() if value}
    return {**kept, "depends": ",".join(depends)}


def _write_boot(host: Host, tree: TwinTree, boot: Maybe[BootFacts], part: UpgradedFiles) -> None:
    """Write the new kernel, its boot image, its configuration, and where its headers are."""
    kernels = () if isinstance(boot, Unknown) else known(boot.kernels, ())
    source = next((kernel for kernel in kernels if kernel.release == part.source), None)
    images = () if source is None else (known(source.image, ""), known(source.initramfs, ""))
    for image in filter(None, images):
        tree.add(image.replace(part.source, part.release), "")
    for directory in ("/boot/config-{}", f"{MODULES_DIRECTORY}/{{}}/config"):
        config = host.read_bytes(directory.format(part.source), CONFIG_LIMIT_BYTES)
        if not isinstance(config, Unknown):
            tree.add(directory.format(part.release), config.decode("utf-8", "replace"))
    if part.has_headers:
        tree.directory(f"{MODULES_DIRECTORY}/{part.release}/build")


def _write_builds(host: Host, tree: TwinTree, part: UpgradedFiles) -> None:
    """Write what DKMS leaves of a build: for a new kernel, what it left for the present one."""
    for package in known(host.names(module_files.DIRECTORY), ()):
        directory = f"{module_files.DIRECTORY}/{package}"
        for entry in known(host.names(directory), ()):
            architecture = entry.removeprefix(f"kernel-{part.source}-")
            target = known(host.link(f"{directory}/{entry}"), "")
            if architecture == entry or part.source not in target:
                continue
            place = target.replace(part.source, part.release)
            tree.link(f"{directory}/kernel-{part.release}-{architecture}", place)
            below = "/".join(place.split("/")[-3:])
            tree.add(f"{directory}/{below}/module/{package}.ko", "")


def out_of_tree(modules: InstalledModules) -> frozenset[str]:
    """Return the modules that did not come with the kernel; GPU drivers never do."""
    known_ones = {name: entry for name, entry in modules.entries.items() if not isinstance(entry, Unknown)}
    return frozenset(
        name
        for name, entry in known_ones.items()
        if origin_of(entry.relative) != "kernel" or name.startswith("nvidia")
    )


def own_modules(names: frozenset[str]) -> frozenset[str]:
    """Return those of these modules that every kernel has too."""
    return names & _OWN.keys()
