"""systemctl(1): starts, stops and enables services, and what some of them do when they start and stop."""

from __future__ import annotations

import re
from dataclasses import replace

from probes.base.unknown import Unknown
from probes.facts.kernel.modprobe_config import read_rules
from probes.facts.kernel.release import read_cmdline
from probes.facts.pci.nic_families import CONNECTX
from probes.simulation.commands.command_result import (
    CommandResult,
    Invocation,
    combine,
    done,
    failed,
    split_options,
    unsupported,
)
from probes.simulation.commands.modprobe import modprobe, rmmod
from probes.simulation.node.model.tree import Tree
from probes.simulation.node.modules.modules import add_service_references
from probes.simulation.node.system.services import UNITS, WANTS, run, start_errors, stop

_OWN_UNITS = "/etc/systemd/system"
_RUNLEVELS = ("/etc/rc3.d", "/etc/rc5.d", "/etc/rc.d/rc3.d")
_SECONDS = {"openibd": 12.0, "nvidia-fabricmanager": 4.0, "nvidia-persistenced": 2.0}
_NOT_LOADED, _NOT_ACTIVE, _UNKNOWN = 5, 3, 4
_NAME = re.compile(r"[A-Za-z0-9:_.@-]{1,255}")
MODULES_LOAD = "systemd-modules-load"
_OFED = (*CONNECTX.pci_drivers, "ib_core", "ib_uverbs", CONNECTX.rdma_module, "rdma_cm", "rdma_ucm")
_NO_DRIVER = "failed to initialize: the NVIDIA kernel module is not loaded"


def _systemctl(call: Invocation) -> CommandResult:
    options, words = split_options(call.args, valued="pt")
    if not words:
        return unsupported("systemctl without a verb")
    verb, names = words[0], [word.removesuffix(".service") for word in words[1:]]
    if verb == "daemon-reload" and not names:
        return done(seconds=0.8)
    if verb == "show" and (answer := call.tree.commands.get("systemctl")) is not None:  # probes use it too
        return done(*str(answer((call.name, *call.args), call.seconds)).splitlines())
    if verb not in _VERBS:
        return unsupported(f"systemctl {verb}")
    if not names:
        return failed("Too few arguments.")
    for name in names:
        if not _NAME.fullmatch(name):
            return failed(f"Failed to {verb} unit: Unit name {name}.service is not valid.")
    results = [_run_verb(call, verb, name) for name in names]
    follows = "--now" in options and verb in ("enable", "disable", "mask")
    if follows and not any(result.exit_status for result in results):
        results += [_run_verb(call, "start" if verb == "enable" else "stop", name) for name in names]
    return combine(results)


def _run_verb(call: Invocation, verb: str, name: str) -> CommandResult:
    error = _check_unit(call, verb, name) if verb in ("start", "stop", "restart", "reload") else None
    return error or _VERBS[verb](call, name)


def _unit_file(tree: Tree, name: str) -> str:
    """Return the path of the unit file; "" if there is none."""
    places = (f"{_OWN_UNITS}/{name}.service", f"{UNITS}/{name}.service", f"/etc/init.d/{name}")
    return next((path for path in places if tree.is_there(path)), "")


def _is_masked(tree: Tree, name: str) -> bool:
    return tree.links.get(f"{_OWN_UNITS}/{name}.service") == "/dev/null"


def _check_unit(call: Invocation, verb: str, name: str) -> CommandResult | None:
    if not _unit_file(call.tree, name):
        state = "not loaded" if verb == "stop" else "not found"
        error = f"Failed to {verb} {name}.service: Unit {name}.service {state}."
        return failed(error, exit_status=_NOT_LOADED)
    if verb != "stop" and _is_masked(call.tree, name):
        return failed(f"Failed to {verb} {name}.service: Unit {name}.service is masked.")
    return None


def _job_failed(name: str) -> CommandResult:
    return failed(
        f"Job for {name}.service failed because the control process exited with error code.",
        f'See "systemctl status {name}.service" and "journalctl -xeu {name}.service" for details.',
        seconds=_SECONDS.get(name, 1.0),
    )


def _start(call: Invocation, name: str) -> CommandResult:
    if call.tree.units.get(name) == "active":
        return done()
    return done(seconds=_SECONDS.get(name, 0.3)) if _start_service(call, name) else _job_failed(name)


def _stop(call: Invocation, name: str) -> CommandResult:
    return done(seconds=0.5) if _stop_service(call, name) else _job_failed(name)


def _restart(call: Invocation, name: str) -> CommandResult:
    return _start(call, name) if _stop_service(call, name) else _job_failed(name)


def _reload(call: Invocation, name: str) -> CommandResult:
    if "ExecReload=" in call.tree.text(_unit_file(call.tree, name)):
        return done()
    problem = f"Job type reload is not applicable for unit {name}.service."
    return failed(f"Failed to reload {name}.service: {problem}")


def _enable(call: Invocation, name: str) -> CommandResult:
    tree, path = call.tree, _unit_file(call.tree, name)
    if not path:
        return failed(f"Failed to enable unit: Unit file {name}.service does not exist.")
    if _is_masked(tree, name):
        return failed(f"Failed to enable unit: Unit file {path} is masked.")
    if path.startswith("/etc/init.d/"):
        tree.link(f"{_RUNLEVELS[0]}/S99{name}", f"../init.d/{name}")
        return done(*_redirected("enable", name))
    link = f"{WANTS}/{name}.service"
    if link in tree.links:
        return done()
    tree.link(link, path)
    return done(f"Created symlink {link} → {path}.")


def _disable(call: Invocation, name: str) -> CommandResult:
    tree, path = call.tree, _unit_file(call.tree, name)
    if not path:
        return failed(f"Failed to disable unit: Unit file {name}.service does not exist.")
    if path.startswith("/etc/init.d/"):
        for directory in _RUNLEVELS:
            for entry in sorted(tree.directories.get(directory, set())):
                if entry[:1] == "S" and entry[3:] == name:
                    tree.remove(f"{directory}/{entry}")
        return done(*_redirected("disable", name))
    link = f"{WANTS}/{name}.service"
    if link not in tree.links:
        return done()
    tree.remove(link)
    return done(f'Removed "{link}".')


def _redirected(verb: str, name: str) -> tuple[str, str]:
    script = "/usr/lib/systemd/systemd-sysv-install"
    return (
        f"{name}.service is not a native service, redirecting to systemd-sysv-install.",
        f"Executing: {script} {verb} {name}",
    )


def _mask(call: Invocation, name: str) -> CommandResult:
    path = f"{_OWN_UNITS}/{name}.service"
    if path in call.tree.files:
        return failed(f"Failed to mask unit: File '{path}' already exists.")
    if _is_masked(call.tree, name):
        return done()
    call.tree.link(path, "/dev/null")
    return done(f"Created symlink {path} → /dev/null.")


def _unmask(call: Invocation, name: str) -> CommandResult:
    if not _is_masked(call.tree, name):
        return done()
    call.tree.remove(f"{_OWN_UNITS}/{name}.service")
    return done(f'Removed "{_OWN_UNITS}/{name}.service".')


def _is_active(call: Invocation, name: str) -> CommandResult:
    state = call.tree.units.get(name, "inactive")
    if state == "active":
        return done(state)
    return failed(state, exit_status=_NOT_ACTIVE if _unit_file(call.tree, name) else _UNKNOWN)


def _is_enabled(call: Invocation, name: str) -> CommandResult:
    tree, path = call.tree, _unit_file(call.tree, name)
    if not path:
        return failed("not-found", exit_status=_UNKNOWN)
    if _is_masked(tree, name):
        return failed("masked")
    scripts = (entry for directory in _RUNLEVELS for entry in tree.directories.get(directory, set()))
    wanted = f"{WANTS}/{name}.service" in tree.links or any(entry[3:] == name for entry in scripts)
    return done("enabled") if wanted else failed("disabled")


def _reset_failed(call: Invocation, name: str) -> CommandResult:
    if call.tree.units.get(name) == "failed":
        stop(call.tree, name)
    return done()


def _start_service(call: Invocation, name: str) -> bool:
    """Start an installed service; False if it failed, and the journal says why."""
    errors = _start_errors(call, name)
    started = [] if name == MODULES_LOAD else [f"Started {name}.service."]
    call.tree.journal.setdefault(name, []).extend(errors or started)
    if errors:
        stop(call.tree, name, "failed")
        return False
    run(call.tree, name)
    add_service_references(call.tree, name)
    unit = "".join(call.tree.text(f"{directory}/{name}.service") for directory in (UNITS, _OWN_UNITS))
    if name == "nvidia-persistenced" and "--no-persistence-mode" not in unit:
        call.tree.persistent.update(range(len(call.tree.gpus)))
    return True


def _stop_service(call: Invocation, name: str) -> bool:
    """Stop a service; False if it failed."""
    tree = call.tree
    if name == "openibd":
        loaded = [module for module in reversed(_OFED) if module in tree.live_modules]
        if errors := _errors(call, "rmmod", loaded):
            tree.journal.setdefault(name, []).extend(errors)
            stop(tree, name, "failed")
            return False
    if name == "nv_peer_mem" and "nv_peer_mem" in tree.live_modules:
        _errors(call, "rmmod", ["nv_peer_mem"])
    if name == "nvidia-persistenced" and tree.units.get(name) == "active":
        tree.persistent.clear()
    stop(tree, name)
    return True


def _start_errors(call: Invocation, name: str) -> list[str]:
    tree = call.tree
    if name.startswith("nvidia-") and "nvidia" not in tree.live_modules:
        return [f"{name}: {_NO_DRIVER}"]
    if name == "nvidia-fabricmanager":
        return _fabric_manager(tree)
    if name == "openibd":
        return _errors(call, "modprobe", list(_OFED))
    if name == "nv_peer_mem":
        return _errors(call, "modprobe", ["nv_peer_mem"])
    return _load_errors(call) if name == MODULES_LOAD else []


def _load_errors(call: Invocation) -> list[str]:
    """Load the modules of modules-load.d that are not blacklisted; return what the journal says of others."""
    errors: list[str] = []
    for module in read_rules(call.host, read_cmdline(call.host)).at_boot:
        result = modprobe(replace(call, name="modprobe", args=("-b", module), stdin=""))
        if result.exit_status:
            reason = "".join(result.lines[-1:]).rpartition(": ")[2]
            errors.append(f"Failed to insert module '{module}': {reason}")
    return errors


def _fabric_manager(tree: Tree) -> list[str]:
    if not tree.is_there("/usr/bin/nv-fabricmanager"):
        return ["nv-fabricmanager: No such file or directory"]
    if errors := start_errors(tree):
        return errors
    answer = tree.commands.get("nv-fabricmanager")
    printed = "" if answer is None else answer(("nv-fabricmanager", "--version"), 0.0)
    version, loaded = str(printed).rpartition(":")[2].strip(), tree.text("/sys/module/nvidia/version").strip()
    # The files of an image run no command, and a forecast may not know what will be loaded.
    if isinstance(printed, Unknown) or not loaded or version == loaded:
        return []
    return [
        f"fabric manager NVIDIA GPU driver interface version {version} don't match with driver version "
        f"{loaded}. Please update with matching NVIDIA driver package."
    ]


def _errors(call: Invocation, command: str, modules: list[str]) -> list[str]:
    """Run modprobe or rmmod for each module; return the messages of the first failure."""
    for module in modules:
        handler = rmmod if command == "rmmod" else modprobe
        result = handler(replace(call, name=command, args=(module,), stdin=""))
        if result.exit_status:
            return list(result.lines)
    return []


_VERBS = {
    "start": _start,
    "stop": _stop,
    "restart": _restart,
    "reload": _reload,
    "enable": _enable,
    "disable": _disable,
    "mask": _mask,
    "unmask": _unmask,
    "is-active": _is_active,
    "is-enabled": _is_enabled,
    "reset-failed": _reset_failed,
}
COMMANDS = {"systemctl": _systemctl}
