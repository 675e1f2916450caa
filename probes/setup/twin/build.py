"""Build a twin from the examination of a node."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from probes.base.unknown import Maybe, Reason, Unknown, known, map_known
from probes.facts.gpu.gpus import DRIVER_PARAMETERS, Flavor, parse_fields
from probes.facts.gpudirect import MEMORY_PEERS
from probes.facts.gpudirect_probe import TOPOLOGY_CHECK
from probes.facts.kernel.boot import BootFacts, words_that_matter
from probes.facts.kernel.depmod import find_with_dependencies, read_tree
from probes.facts.kernel.installed_modules import DAMAGED
from probes.facts.kernel.log import LogKind
from probes.facts.kernel.modprobe_config import read_rules
from probes.facts.kernel.module_files import PEER_MEMORY_SYMBOL, ModuleFile, parse_modinfo
from probes.facts.kernel.modules import LADDER, PEERMEM, PROC_MODULES_LIMIT_BYTES
from probes.facts.kernel.symbol_versions import SymbolVersions
from probes.facts.pci.nic_families import LADDER_FAMILIES
from probes.facts.system.services import ServiceFacts
from probes.host.protocol import Host
from probes.host.values import PROC_MODULES
from probes.queries.modules import (
    gpu_functions,
    is_about_version,
    is_present,
    is_refused_now,
    module_messages,
    nics_of,
)
from probes.setup.twin.booted import BootedTwin
from probes.setup.twin.host import TwinHost
from probes.setup.twin.next_start import read_kernel_files
from probes.setup.twin.tree import TwinTree
from probes.simulation.node.model.description import (
    DriverDescription,
    GpuDescription,
    GpuDirectDescription,
    ModulesDescription,
    NicDescription,
    NodeDescription,
    NvmlDescription,
    SwitchDescription,
    SystemDescription,
)
from probes.simulation.node.model.tree import PlacedGpu, PlacedNic, Refusal, log
from probes.simulation.node.modules.loading import SIG_ENFORCE
from probes.simulation.node.modules.modules import Modinfo, modinfo_fields, version_table
from probes.simulation.node.system.services import show_units
from probes.snapshot.examination import Examination

_SECONDS = 3.0
_REFUSALS = (LogKind.UNKNOWN_SYMBOL, LogKind.SYMBOL_VERSION, LogKind.SIGNATURE_REJECTED)
_INVALID = "Invalid argument"
_MANAGER_VERSION = ("nv-fabricmanager", "--version")


def make_twin(host: Host, examination: Examination) -> TwinHost:
    """Make a twin that answers as `host` does; nothing of the node is copied before it is asked for."""
    tree = _tree(host, examination, host, _description(host, examination))
    tree.commands["modinfo"] = Modinfo(_files(host, examination.node.kernel_release))
    tree.commands["dmesg"] = lambda argv, seconds: _output(host, ("dmesg", *argv[1:]))
    refused = is_refused_now(examination)
    versions = examination.symbol_versions
    if not isinstance(refused, Unknown) and not isinstance(versions, Unknown):
        _write_versions(tree, versions)
    return TwinHost(tree, _refused(examination, refused is not False), _devices(examination))


def start_twin(
    host: Host, examination: Examination, boot: Maybe[BootFacts], release: str, disk: Host | None = None
) -> BootedTwin:
    """Make a twin as it is after the next start with the kernel `release`.

    `disk`: the files of an image, which then starts on the hardware of `host`.
    """
    is_image = disk is not None
    disk = host if disk is None else disk
    files = read_kernel_files(disk, examination, boot, release, is_image)
    driver = files.modules.file("nvidia")
    description = _description(host, examination)
    if not isinstance(driver, Unknown):
        is_open = "GPL" in known(driver.license, "")
        flavor: Literal["open", "proprietary"] = "open" if is_open else "proprietary"
        version = known(driver.version, description.driver.version)
        description = replace(description, driver=DriverDescription(version, flavor, ""))
    description = replace(description, kernel=release, cmdline=known(files.start.cmdline, ""))
    tree = _tree(host, examination, disk, description)
    loadable = {name: _fields_of(file) for name, file in known(files.modules.files, {}).items()}
    arm = " aarch64" * (known(files.modules.architecture, description.architecture) == "aarch64")
    for name, why in files.modules.unread.items():
        entry = files.modules.entry(name)
        if entry is not None and why.detail != DAMAGED and why.reason is not Reason.NOT_THERE:
            loadable[name] = {"filename": entry.path, "name": name, "vermagic": f"{release} SMP{arm}"}
    tree.commands["modinfo"] = Modinfo(
        {name: fields for name, fields in loadable.items() if fields["filename"]}
    )
    tree.commands["dmesg"] = lambda argv, seconds: "".join(tree.kernel_log)
    tree.commands["systemctl"] = lambda argv, seconds: show_units(tree, argv)
    tree.add("/proc/sys/kernel/osrelease", f"{release}\n")
    tree.add("/proc/cmdline", f"{known(files.start.cmdline, '')}\n")
    tree.add(SIG_ENFORCE, "Y\n" if files.enforces_signatures else "N\n")
    log(tree, f"Linux version {release}", 0.0, 5)
    _write_versions(tree, files.versions)
    if is_image:
        tree.hidden.update(("/run", "/var/run"))
    keeps_kernel = not is_image and examination.node.kernel_release == release
    if keeps_kernel:
        absent, differ = _absent(examination), files.versions.differ
        # With versions that are known, the twin decides and not the log.
        by_log = isinstance(differ, Unknown)
        refused = {name: text for name, text in _refused(examination, by_log).items() if name in absent}
        tree.refusals.update({name: Refusal(_INVALID, ((4, text),)) for name, text in refused.items()})
    tree.refusals.update(dict.fromkeys(files.start.later, Refusal(_INVALID)))
    tree.refusals.update(files.rejected)
    twin = BootedTwin(tree, _devices(examination), files.start)
    if keeps_kernel and not files.start.changed and files.start.driver is None:
        _log_symbols(twin, examination)
        now = map_known(examination.node.kernel, lambda kernel: kernel.cmdline)
        lines = [words_that_matter(known(line, "")) for line in (now, files.start.cmdline)]
        if lines[0] == lines[1]:  # the command line may set ACS
            _log_topology(twin, examination)
    return twin


def with_disk(node: TwinHost, examination: Examination, image: Host) -> TwinHost:
    """Make a twin on which a container with the files of `image` runs."""
    tree = TwinTree(node, _description(node, examination), image)
    tree.add("/.dockerenv", "")
    return TwinHost(tree, {}, {})


def _tree(host: Host, examination: Examination, disk: Host, description: NodeDescription) -> TwinTree:
    tree = TwinTree(host, description, disk)
    _place_devices(tree, examination)
    loaded = known(host.read(PROC_MODULES, PROC_MODULES_LIMIT_BYTES), "").split("\n")
    tree.live_modules = [line.split(" ", 1)[0] for line in reversed(loaded) if line]  # the oldest first
    tree.commands["nv-fabricmanager"] = lambda argv, seconds: _output(disk, _MANAGER_VERSION)
    services = examination.services
    if isinstance(services, ServiceFacts):
        for name, service in services.services.items():
            if not isinstance(service.state, Unknown):
                tree.units[name] = service.state.value
    gpus = examination.node.gpus
    for gpu in () if isinstance(gpus, Unknown) else gpus.gpus:
        if not isinstance(gpu.nvml, Unknown) and gpu.nvml.persistence is True:
            tree.persistent.add(gpu.index)
    return tree


def _absent(examination: Examination) -> frozenset[str]:
    """Return the modules of the ladder that are not loaded now."""
    facts = examination.node.modules
    modules = {} if isinstance(facts, Unknown) else facts.modules
    return frozenset(name for name, module in modules.items() if not is_present(module))


def _output(host: Host, argv: tuple[str, ...]) -> str | Unknown:
    answer = host.run(argv, _SECONDS)
    return answer if isinstance(answer, Unknown) else answer.stdout


def _files(host: Host, release: Maybe[str]) -> dict[str, dict[str, str]]:
    """Return the modinfo fields of the ladder's modules, and of those that they need."""
    tree = read_tree(host, release, read_rules(host, "").file_names(LADDER))
    names = find_with_dependencies(tree, (*LADDER, "rdma_ucm"))
    answer = host.run(("modinfo", *(tree.file_names.get(name, name) for name in names)), _SECONDS)
    files = {} if isinstance(answer, Unknown) else parse_modinfo(answer.stdout)
    return {name: _fields_of(file) for name, file in files.items() if file.path.startswith("/")}


def _fields_of(file: ModuleFile) -> dict[str, str]:
    """Return what modinfo prints of a file."""
    kernel = known(file.kernel, "")
    fields = {
        "filename": file.path,
        "version": known(file.version, ""),
        "license": known(file.license, ""),
        "srcversion": known(file.srcversion, ""),
        "depends": ",".join(file.depends),
        "name": file.name,
        "vermagic": f"{kernel} SMP{' aarch64' * (file.architecture == 'aarch64')}" if kernel else "",
        "firmware": "\n".join(file.firmware),
        "signer": known(file.signer, ""),
    }
    return {key: value for key, value in fields.items() if value or key == "depends"}


def _log_symbols(twin: BootedTwin, examination: Examination) -> None:
    """Log again which symbols had no version when a module was loaded, if its file is still the same."""
    facts = examination.node.modules
    for message in known(module_messages(examination, (LogKind.NO_SYMBOL_VERSION,)), ()):
        name = message.module or ""
        module = None if isinstance(facts, Unknown) else facts.modules.get(name)
        loaded = "" if module is None else known(module.srcversion, "")
        file = modinfo_fields(twin.tree, name)
        if file and loaded in ("", file.get("srcversion", loaded)):
            log(twin.tree, message.text)


def _log_topology(twin: BootedTwin, examination: Examination) -> None:
    """Log again which topology the GPU driver has refused: it refuses it at each attempt."""
    gpus = examination.node.gpus
    now = {} if isinstance(gpus, Unknown) else known(gpus.driver.parameters, {})
    then = parse_fields(known(twin.read(DRIVER_PARAMETERS), ""))
    if then.get(TOPOLOGY_CHECK, "0") != now.get(TOPOLOGY_CHECK, "0"):
        return
    for message in known(module_messages(examination, (LogKind.P2P_REFUSED,)), ()):
        log(twin.tree, message.text)


def _write_versions(tree: TwinTree, versions: SymbolVersions) -> None:
    """Write the versions of the peer-memory symbol, which the twin's kernel compares."""
    table = version_table(tree)
    for files, path, version in (
        (table.needed, versions.importer_path, versions.expected),
        (table.exported, versions.exporter_path, versions.exported),
    ):
        if not isinstance(version, Unknown):
            files[path] = {PEER_MEMORY_SYMBOL: version}
    tree.symbol_versions.update(table.exported.get(versions.exporter_path, {}))


def _refused(examination: Examination, by_version: bool) -> dict[str, str]:
    """Return the modules that the kernel has refused since its boot, with its words.

    `by_version`: also nvidia_peermem for its version of the peer-memory symbol.
    """
    messages = known(module_messages(examination, _REFUSALS), ())
    found = [message for message in messages if by_version or not is_about_version(message)]
    refused = {message.module: message.text[:160] for message in found if message.module}
    rejected = [message for message in found if message.kind is LogKind.SIGNATURE_REJECTED]
    if rejected:
        # The message does not name the module, so it may be any that is not loaded.
        refused = {**dict.fromkeys(_absent(examination), rejected[-1].text[:160]), **refused}
    return refused


def _devices(examination: Examination) -> dict[str, tuple[str, ...]]:
    """Return the directories of the PCI functions that each driver serves."""
    pci = examination.node.pci
    served = {
        "nvidia": gpu_functions(examination),
        **{family.pci_drivers[0]: nics_of(examination, family) for family in LADDER_FAMILIES},
    }
    functions = {} if isinstance(pci, Unknown) else pci.functions
    return {
        driver: tuple(functions[bdf].sysfs_path for bdf in known(bdfs, ())) for driver, bdfs in served.items()
    }


def _place_devices(tree: TwinTree, examination: Examination) -> None:
    node = examination.node
    gpus, rdma, pci = node.gpus, node.rdma, node.pci
    for gpu in () if isinstance(gpus, Unknown) else gpus.gpus:
        tree.gpus.append(PlacedGpu(gpu.bdf, known(gpu.numa_node, -1)))
    for nic in () if isinstance(rdma, Unknown) else rdma.devices:
        function = None if isinstance(pci, Unknown) else pci.functions.get(known(nic.bdf, ""))
        if function is None or not nic.ports:
            continue
        ids = f"{known(function.vendor_id, 0):04x}:{known(function.device_id, 0):04x}"
        layer = known(nic.ports[0].link_layer, "")
        kind = NicDescription(ids, rate="", layer=layer, link=(0, 0), gbps=0.0)
        placed = PlacedNic(function.bdf, nic.name, kind, known(nic.numa_node, -1), function.sysfs_path)
        tree.nics.append(placed)
    for nic in () if isinstance(rdma, Unknown) else rdma.management:
        bridge = None if isinstance(pci, Unknown) else pci.functions.get(known(nic.bdf, ""))
        if bridge is not None:
            numa = known(nic.numa_node, -1)
            kind = NicDescription("", rate="", layer="InfiniBand", link=(0, 0), gbps=0.0)
            tree.bridges.append(PlacedNic(bridge.bdf, nic.name, kind, numa, bridge.sysfs_path))
    if not isinstance(pci, Unknown):
        switches = (bdf for bdf, function in pci.functions.items() if function.kind.value == "NVSwitch")
        tree.nvswitches.extend(switches)


def _description(host: Host, examination: Examination) -> NodeDescription:
    """Describe the node as far as the commands of the simulation ask for it."""
    node = examination.node
    gpus, platform = node.gpus, node.platform
    driver = None if isinstance(gpus, Unknown) else gpus.driver
    first = None if isinstance(gpus, Unknown) or not gpus.gpus else gpus.gpus[0]
    flavor: Literal["open", "proprietary"] = "proprietary"
    if driver is not None and driver.flavor is Flavor.OPEN:
        flavor = "open"
    refusal = "" if driver is None or driver.nvml is None else driver.nvml
    # nvidia_peermem built with OFED depends on the RDMA core.
    depends = known(map_known(node.modules, lambda facts: facts.modules[PEERMEM].depends), ())
    return NodeDescription(
        name="twin",
        title="twin",
        hostname=known(map_known(platform, lambda facts: facts.hostname), "this node"),
        product=("", ""),
        distribution=known(map_known(platform, lambda facts: facts.distribution), ""),
        kernel=known(node.kernel_release, "0"),
        architecture=known(map_known(platform, lambda facts: facts.cpu_architecture), "x86_64"),
        cmdline=known(map_known(node.kernel, lambda facts: facts.cmdline), ""),
        driver=DriverDescription("" if driver is None else known(driver.version, ""), flavor, ""),
        gpu=GpuDescription(
            name="" if first is None else first.name,
            id="",
            memory_gib=0,
            bar1_gib=0,
            capability=(0, 0) if first is None else known(first.compute_capability, (0, 0)),
            link=(0, 0),
            nvlinks=0,
            watts=(0, 0),
        ),
        nic={},
        switch=SwitchDescription(),
        numa=(),
        root=(),
        modules=ModulesDescription((), (), any(name.startswith("ib_") for name in depends)),
        gpudirect=GpuDirectDescription(
            dmabuf=False, memory_peers=not isinstance(host.names(MEMORY_PEERS), Unknown)
        ),
        system=SystemDescription("", ""),
        nvml=NvmlDescription(refusal=refusal if "mismatch" in refusal else ""),
    )
