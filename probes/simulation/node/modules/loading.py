"""How the kernel of a simulated node loads, removes and refuses modules.

With a module, devices, their files and the driver's /proc appear and disappear.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from probes.facts.gpu.generations import generation_of
from probes.facts.gpu.gpus import DRIVER_PROC
from probes.facts.gpudirect_probe import CXI_GPU_PARAMETER
from probes.facts.kernel.modprobe_config import parse_cmdline
from probes.facts.kernel.modules import PEERMEM
from probes.facts.pci.functions import DEVICES
from probes.facts.pci.nic_families import LADDER_DRIVERS, VERBS_MODULES
from probes.simulation.node.devices.pci import real_path
from probes.simulation.node.model.tree import Refusal, Removed, Tree, log, uuid_of
from probes.simulation.node.modules.modules import (
    PEERMEM_PARAMETERS,
    add_memory_peers,
    add_module,
    differing_symbol,
    modinfo_fields,
    version_table,
)
from probes.simulation.node.system.software import add_device_files

MODULES_DISABLED = "/proc/sys/kernel/modules_disabled"
SIG_ENFORCE = "/sys/module/module/parameters/sig_enforce"
_LOCKDOWN = "/sys/kernel/security/lockdown"
NOT_PERMITTED = Refusal("Operation not permitted")
INVALID = Refusal("Invalid argument")
_ERROR, _WARNING, _NOTICE = 3, 4, 5
KEY_REJECTED = Refusal(
    "Key was rejected by service", ((_NOTICE, "Loading of module with unavailable key is rejected"),)
)
_PARAMETER = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_NAME_TAKEN = "nvidia-peermem nv_mem_client_init:674 ERROR nv_mem_client_init -- error while registering "
_OLD_NAME_TAKEN = "nv_mem_client_init:382: nv_mem_client_init -- error while registering client"
_PATHS = {
    "nvidia": (DRIVER_PROC,),
    PEERMEM: ("/sys/kernel/mm/memory_peers/nv_mem",),
    **dict.fromkeys(VERBS_MODULES, ("/sys/class/infiniband", "/sys/class/infiniband_verbs")),
    "cxi_ss1": ("/sys/class/cxi", CXI_GPU_PARAMETER),
    "rdma_ucm": ("/dev/infiniband/rdma_cm",),
    "rdma_cm": ("/dev/infiniband/rdma_cm",),
    "gdrdrv": ("/dev/gdrdrv",),
}
_PARAMS = f"{DRIVER_PROC}/params"
_OPTIONS = {"GrdmaPciTopoCheckOverride": "0", "DmaRemapPeerMmio": "1"}  # their values without an option
# The versions of the driver from and before which it has an option (nv-reg.h; NVIDIA/aicr issue 2459).
OPTION_VERSIONS = {
    "GrdmaPciTopoCheckOverride": ((570, 86, 16), (595, 58, 0)),
    "CoherentGPUMemoryMode": ((580, 65, 6), (10_000, 0, 0)),
}
_PCI_DRIVERS = ("nvidia", *LADDER_DRIVERS)


def insert_module(tree: Tree, name: str, parameters: Mapping[str, str], seconds: float) -> Refusal | None:
    """Insert a module whose dependencies are loaded; return the kernel's refusal, if any."""
    refusal = _refusal(tree, name, parameters)
    for level, line in refusal.log_lines if refusal else ():
        log(tree, line, seconds, level)
    if refusal is not None:
        return refusal
    fields = modinfo_fields(tree, name)
    taken = {}
    for parameter, value in parameters.items():
        # Only the parameters of nvidia_peermem are known.
        if parameter in PEERMEM_PARAMETERS if name == PEERMEM else _PARAMETER.fullmatch(parameter):
            taken[parameter] = value
        else:  # the kernel ignores them (kernel/module/main.c, unknown_module_param_cb)
            log(tree, f"{name}: unknown parameter '{parameter}' ignored", seconds)
    if name == "nvidia":
        tree.unstarted = _missing_firmware(tree, fields)
        for gpu in tree.gpus if tree.unstarted else ():
            log(tree, f"NVRM: GPU {gpu.bdf}: RmInitAdapter failed! (0x62:0xffff:2477)", seconds, _ERROR)
    tree.live_modules.append(name)
    tree.symbol_versions.update(version_table(tree).exported.get(fields.get("filename", ""), {}))
    add_module(tree, name, fields.get("version", ""), fields.get("srcversion", ""), taken)
    add_effects(tree, name, taken)
    return None


def remove_modules(tree: Tree, *names: str) -> None:
    """Remove modules even if they are in use; name dependent modules first."""
    for name in names:
        if name in tree.live_modules:
            tree.live_modules.remove(name)
            remove_effects(tree, name)
            tree.remove(f"/sys/module/{name}")
        for key in [key for key in tree.references if key[0] == name]:
            del tree.references[key]


def refuse_module(tree: Tree, name: str, refusal: Refusal, at_seconds: float) -> None:
    """Make the kernel refuse a module from now on, as it did at boot."""
    remove_modules(tree, name)
    tree.refusals[name] = refusal
    for level, line in refusal.log_lines:
        log(tree, line, at_seconds, level)


def modules_are_locked(tree: Tree) -> bool:
    """Return whether modules can be neither loaded nor removed until a reboot."""
    return tree.text(MODULES_DISABLED).strip() == "1"


def _refusal(tree: Tree, name: str, parameters: Mapping[str, str]) -> Refusal | None:
    """Check in the kernel's order: permission, signature, kernel version, symbols, the module's own init."""
    fields = modinfo_fields(tree, name)
    if modules_are_locked(tree):
        return NOT_PERMITTED
    if not fields:  # the file is damaged, or was deleted after depmod ran
        return INVALID
    if ("aarch64" in fields.get("vermagic", "").split()) != (tree.description.architecture == "aarch64"):
        return Refusal("Exec format error", ((_ERROR, f"{name}: Invalid architecture in ELF header"),))
    if "signer" not in fields:
        if tree.text(SIG_ENFORCE).strip() == "Y":
            return Refusal(KEY_REJECTED.error, ((_NOTICE, "Loading of unsigned module is rejected"),))
        if "[none]" not in (tree.text(_LOCKDOWN) or "[none]"):
            text = "Lockdown: modprobe: unsigned module loading is restricted; see man kernel_lockdown.7"
            return Refusal(NOT_PERMITTED.error, ((_NOTICE, text),))
    if name in parse_cmdline(tree.text("/proc/cmdline")).kernel:
        return Refusal(NOT_PERMITTED.error, ((_ERROR, f"Module {name} is blacklisted"),))
    if name in tree.refusals:
        return tree.refusals[name]
    return _version_mismatch(tree, name, fields) or _init_failure(tree, name, fields, parameters)


def _missing_firmware(tree: Tree, fields: Mapping[str, str]) -> str:
    """Return that the open driver does not find the firmware that it names; "" if it does."""
    names = [name for name in fields.get("firmware", "").split("\n") if name]
    paths = [f"/lib/firmware/{name}{packed}" for name in names for packed in ("", ".xz", ".zst")]
    if not names or "GPL" not in fields.get("license", "") or any(map(tree.is_there, paths)):
        return ""
    return f"no GPU has started: /lib/firmware/{names[0]} is missing"


def _version_mismatch(tree: Tree, name: str, fields: Mapping[str, str]) -> Refusal | None:
    """Refuse a file built for another kernel, another driver or another OFED than the loaded one."""
    built_for = fields.get("vermagic", "")
    release = tree.description.kernel
    if built_for and built_for.split(" ", 1)[0] != release:
        magic = f"{release} SMP preempt mod_unload modversions"
        line = f"{name}: version magic '{built_for}' should be '{magic}'"
        return Refusal("Exec format error", ((_ERROR, line),))
    loaded = tree.text("/sys/module/nvidia/version").strip()
    version = fields.get("version", "")
    if name.startswith("nvidia_") and "nvidia" in fields.get("depends", "").split(",") and version != loaded:
        symbols = {PEERMEM: "nvidia_p2p_dma_map_pages", "nvidia_uvm": "nvUvmInterfaceRegisterUvmCallbacks"}
        symbol = symbols.get(name, "nvidia_p2p_get_pages")
        return symbol_mismatch(name, symbol)
    differing = differing_symbol(tree, fields.get("filename", ""))
    return symbol_mismatch(name, differing) if differing else None


def symbol_mismatch(name: str, symbol: str) -> Refusal:
    """Return the refusal of a module that was built against another version of a symbol."""
    disagrees = f"{name}: disagrees about version of symbol {symbol}"
    unknown = f"{name}: Unknown symbol {symbol} (err -22)"
    return Refusal(INVALID.error, ((_WARNING, disagrees), (_WARNING, unknown)))


def _init_failure(
    tree: Tree, name: str, fields: Mapping[str, str], parameters: Mapping[str, str]
) -> Refusal | None:
    """Return why the module's own init fails."""
    if name == "nvidia":
        return _older_than_gpus(tree, fields.get("version", ""))
    if name == "nv_peer_mem" and PEERMEM in tree.live_modules:
        return Refusal(INVALID.error, ((_ERROR, _OLD_NAME_TAKEN),))
    if name == "efa_nv_peermem" and "GPL" not in modinfo_fields(tree, "nvidia").get("license", ""):
        return Refusal(INVALID.error, ((6, "efa_nv_peermem: Nvidia proprietary is unsupported"),))
    if name != PEERMEM:
        return None
    if not any(need.startswith("ib_") for need in fields.get("depends", "").split(",")):
        return INVALID  # built without peer-memory symbols: it logs nothing
    for parameter in PEERMEM_PARAMETERS:
        value = parameters.get(parameter, "0")
        if not value.lstrip("-").isdecimal():
            line = f"{name}: `{value}' invalid for parameter `{parameter}'"
            return Refusal(INVALID.error, ((_ERROR, line),))
        if value not in ("0", "1"):
            line = f"nvidia-peermem nv_mem_param_conf_check:617 ERROR invalid {parameter} param value {value}"
            return Refusal(INVALID.error, ((_ERROR, line),))
    if "nv_peer_mem" in tree.live_modules:
        client = "nc client" if parameters.get("persistent_api_support", "1") == "1" else "traditional client"
        return Refusal(INVALID.error, ((_ERROR, f"{_NAME_TAKEN}{client}"),))
    return None


def _older_than_gpus(tree: Tree, version: str) -> Refusal | None:
    """Refuse GPUs that are newer than the driver (kernel-open/nvidia/nv.c, osapi.c)."""
    branch = version.partition(".")[0]
    generation = generation_of(tree.description.gpu.capability)
    is_known = generation is None or not branch.isdecimal() or int(branch) >= generation.first_branch
    if not tree.gpus or is_known:
        return None
    ending = ("installed in this system is not supported by the", f"NVIDIA {version} driver release.")
    lines = [line for gpu in tree.gpus for line in (f"The NVIDIA GPU {gpu.bdf}", *ending)]
    lines.append(f"The NVIDIA probe routine failed for {len(tree.gpus)} device(s).")
    return Refusal("No such device", tuple((_ERROR, f"NVRM: {line}") for line in lines))


def add_effects(tree: Tree, module: str, parameters: Mapping[str, str]) -> None:
    """Add what a module that was loaded with these parameters creates: what its removal took away, or new."""
    removed = tree.removed_with.pop(module, None)
    for part in removed or ():
        tree.restore(part)
    if module == "nvidia":
        add_driver_proc(tree, tree.text("/sys/module/nvidia/version").strip())
        _set_options(tree, parameters)
    if module == PEERMEM and tree.description.gpudirect.memory_peers:
        add_memory_peers(tree, 0)
    if removed is None or module.startswith("nvidia"):
        add_device_files(tree, (module,))


def remove_effects(tree: Tree, module: str) -> None:
    """Remove what goes with a module, and keep it, with its faults, for when the module comes back.

    The NVIDIA driver's device files are created by programs and stay.
    """
    tree.removed_with[module] = [
        tree.remove(path)
        for path in (*_PATHS.get(module, ()), *_device_paths(tree, module))
        if tree.is_there(path)
    ]
    if module in _PCI_DRIVERS:
        tree.removed_with[module] += _unbind(tree, module)


def _device_paths(tree: Tree, module: str) -> list[str]:
    kinds = {"ib_umad": "umad", **dict.fromkeys(VERBS_MODULES, "uverbs")}
    files = sorted(tree.directories.get("/dev/infiniband", set())) if module in kinds else []
    paths = [f"/dev/infiniband/{file}" for file in files if file.startswith(kinds[module])]
    if module in VERBS_MODULES:
        paths += [f"{nic.path}/infiniband" for nic in tree.cards]
    if module in LADDER_DRIVERS:
        for nic in tree.cards:
            paths += [f"/sys/class/net/{name}" for name in tree.directories.get(f"{nic.path}/net", ())]
        paths += [f"{nic.path}/{name}" for name in ("net", "driver") for nic in tree.cards]
    return paths


def _unbind(tree: Tree, driver: str) -> list[Removed]:
    """Unbind a driver from its devices; return their uevent files from before."""
    line = f"DRIVER={driver}\n"
    before: list[Removed] = []
    for bdf in (*(gpu.bdf for gpu in tree.gpus), *(nic.bdf for nic in tree.cards)):
        if f"{DEVICES}/{bdf}" not in tree.links:
            continue
        path = f"{real_path(tree, bdf)}/uevent"
        text = tree.text(path)
        if line in text:
            before.append(Removed(files={path: text}))
            tree.add(path, text.replace(line, ""))
    return before


def _set_options(tree: Tree, parameters: Mapping[str, str]) -> None:
    """Show the options that the driver was loaded with: NVreg_NAME=VALUE as "NAME: VALUE"."""
    options = {name.removeprefix("NVreg_"): value for name, value in parameters.items()}
    options = {name: value for name, value in options.items() if has_option(tree, name)}
    shown = dict(line.split(": ", 1) for line in tree.text(_PARAMS).splitlines() if ": " in line)
    usual = {name: value for name, value in _OPTIONS.items() if name in shown}
    for name, value in options.items():
        options[name] = f'"{value}"' if shown.get(name, "").startswith('"') else value
    lines = {**shown, **usual, **options}.items()
    tree.add(_PARAMS, "".join(f"{name}: {value}\n" for name, value in lines))


def has_option(tree: Tree, name: str) -> bool:
    """Return whether the driver of this node has an option; one of no known version is in all."""
    first, removed = OPTION_VERSIONS.get(name, ((0, 0, 0), (10_000, 0, 0)))
    return first <= tree.description.driver.numbers < removed


def add_driver_proc(tree: Tree, version: str) -> None:
    """Add the driver's version, parameters and GPUs to /proc; parameters and GPUs only if not there yet."""
    driver = tree.description.driver
    architecture = tree.description.architecture
    banner = (
        f"NVIDIA UNIX Open Kernel Module for {architecture}"
        if driver.flavor == "open"
        else f"NVIDIA UNIX {architecture} Kernel Module"
    )
    tree.add(f"{DRIVER_PROC}/version", f"NVRM version: {banner}  {version}  Release Build  (simulated)\n")
    if tree.is_there(_PARAMS):
        return
    options = {
        "RegistryDwords": '""',
        "GrdmaPciTopoCheckOverride": "0",
        "CoherentGPUMemoryMode": f'"{tree.description.gpu_memory_mode}"',
    }
    shown = (f"{name}: {value}\n" for name, value in options.items() if has_option(tree, name))
    tree.add(_PARAMS, "".join(shown))
    for number, gpu in enumerate(tree.gpus):
        tree.add(
            f"{DRIVER_PROC}/gpus/{gpu.bdf}/information",
            f"Model: \t\t {tree.description.gpu.name}\nGPU UUID: \t {uuid_of(number)}\n"
            "Video BIOS: \t 96.00.89.00.01\n"
            f"Bus Location: \t {gpu.bdf}\nDevice Minor: \t {number}\n",
        )
