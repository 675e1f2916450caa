"""How the kernel of a simulated node takes a module in and lets it go, and why it refuses."""

from __future__ import annotations

import re
from collections.abc import Mapping

from probes.facts.kernel.modprobe_config import parse_cmdline
from probes.simulation.node.kernel_log import say
from probes.simulation.node.module_effects import appear, disappear
from probes.simulation.node.module_files import fields_of
from probes.simulation.node.modules import PEERMEM, PEERMEM_PARAMETERS, show_module
from probes.simulation.node.tree import Refusal, Tree

_MODULES_DISABLED = "/proc/sys/kernel/modules_disabled"
_SIG_ENFORCE = "/sys/module/module/parameters/sig_enforce"
_LOCKDOWN = "/sys/kernel/security/lockdown"
NOT_PERMITTED = Refusal("Operation not permitted")
INVALID = Refusal("Invalid argument")
_ERROR, _WARNING, _NOTICE = 3, 4, 5
_PARAMETER = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_NAME_TAKEN = "nvidia-peermem nv_mem_client_init:674 ERROR nv_mem_client_init -- error while registering "
_OLD_NAME_TAKEN = "nv_mem_client_init:382: nv_mem_client_init -- error while registering client"


def take_in(tree: Tree, name: str, parameters: Mapping[str, str], seconds: float) -> Refusal | None:
    """Inserts one module, whose needs are met; None: it is live."""
    refusal = _refusal(tree, name, parameters)
    for level, line in refusal.says if refusal else ():
        say(tree, line, seconds, level)
    if refusal is not None:
        return refusal
    fields = fields_of(tree, name)
    taken = {}
    for parameter, value in parameters.items():
        # Of other modules the simulated node does not know which parameters they have.
        if parameter in PEERMEM_PARAMETERS if name == PEERMEM else _PARAMETER.fullmatch(parameter):
            taken[parameter] = value
        else:  # unknown ones are passed over (kernel/module/main.c, unknown_module_param_cb)
            say(tree, f"{name}: unknown parameter '{parameter}' ignored", seconds)
    tree.live_modules.append(name)
    show_module(tree, name, fields.get("version", ""), fields.get("srcversion", ""), taken)
    appear(tree, name)
    return None


def take_out(tree: Tree, *names: str) -> None:
    """Removes modules, whatever uses them; those that use others have to be named before."""
    for name in names:
        if name in tree.live_modules:
            tree.live_modules.remove(name)
            tree.remove(f"/sys/module/{name}")
            disappear(tree, name)
        for key in [key for key in tree.holds if key[0] == name]:
            del tree.holds[key]


def refuse(tree: Tree, name: str, refusal: Refusal, at_seconds: float) -> None:
    """From now on the kernel refuses a module, as it did at boot."""
    take_out(tree, name)
    tree.refusals[name] = refusal
    for level, line in refusal.says:
        say(tree, line, at_seconds, level)


def may_not_unload(tree: Tree) -> bool:
    """Whether no module can be removed until a reboot."""
    return tree.text(_MODULES_DISABLED).strip() == "1"


def _refusal(tree: Tree, name: str, parameters: Mapping[str, str]) -> Refusal | None:
    """The reasons in the kernel's order: may it, whose is it, for which kernel, its symbols, its own word."""
    fields = fields_of(tree, name)
    if may_not_unload(tree):
        return NOT_PERMITTED
    if "signer" not in fields:
        if tree.text(_SIG_ENFORCE).strip() == "Y":
            said = ((_NOTICE, "Loading of unsigned module is rejected"),)
            return Refusal("Key was rejected by service", said)
        if "[none]" not in (tree.text(_LOCKDOWN) or "[none]"):
            said = (
                (
                    _NOTICE,
                    "Lockdown: modprobe: unsigned module loading is restricted; see man kernel_lockdown.7",
                ),
            )
            return Refusal(NOT_PERMITTED.error, said)
    if name in parse_cmdline(tree.text("/proc/cmdline")).kernel:
        return Refusal(NOT_PERMITTED.error, ((_ERROR, f"Module {name} is blacklisted"),))
    if name in tree.refusals:
        return tree.refusals[name]
    return _misfit(tree, name, fields) or _own_refusal(tree, name, fields, parameters)


def _misfit(tree: Tree, name: str, fields: Mapping[str, str]) -> Refusal | None:
    """A file of another kernel, or of another driver than the one that is loaded."""
    built_for = fields.get("vermagic", "")
    release = tree.description.kernel
    if built_for and built_for.split(" ", 1)[0] != release:
        magic = f"{release} SMP preempt mod_unload modversions"
        said = f"{name}: version magic '{built_for}' should be '{magic}'"
        return Refusal("Exec format error", ((_ERROR, said),))
    loaded = tree.text("/sys/module/nvidia/version").strip()
    version = fields.get("version", "")
    if name.startswith("nvidia_") and "nvidia" in fields.get("depends", "").split(",") and version != loaded:
        symbol = {
            PEERMEM: "nvidia_p2p_dma_map_pages",
            "nvidia_uvm": "nvUvmInterfaceRegisterUvmCallbacks",
        }.get(name, "nvidia_p2p_get_pages")
        return Refusal(
            INVALID.error,
            (
                (_WARNING, f"{name}: disagrees about version of symbol {symbol}"),
                (_WARNING, f"{name}: Unknown symbol {symbol} (err -22)"),
            ),
        )
    return None


def _own_refusal(
    tree: Tree, name: str, fields: Mapping[str, str], parameters: Mapping[str, str]
) -> Refusal | None:
    """What the module's own start says."""
    if name == "nv_peer_mem" and PEERMEM in tree.live_modules:
        return Refusal(INVALID.error, ((_ERROR, _OLD_NAME_TAKEN),))
    if name != PEERMEM:
        return None
    if not any(need.startswith("ib_") for need in fields.get("depends", "").split(",")):
        return INVALID  # built without peer-memory symbols: it says nothing
    for parameter in PEERMEM_PARAMETERS:
        value = parameters.get(parameter, "0")
        if not value.lstrip("-").isdecimal():
            said = f"{name}: `{value}' invalid for parameter `{parameter}'"
            return Refusal(INVALID.error, ((_ERROR, said),))
        if value not in ("0", "1"):
            said = f"nvidia-peermem nv_mem_param_conf_check:617 ERROR invalid {parameter} param value {value}"
            return Refusal(INVALID.error, ((_ERROR, said),))
    if "nv_peer_mem" in tree.live_modules:
        client = "nc client" if parameters.get("persistent_api_support", "1") == "1" else "traditional client"
        return Refusal(INVALID.error, ((_ERROR, f"{_NAME_TAKEN}{client}"),))
    return None
