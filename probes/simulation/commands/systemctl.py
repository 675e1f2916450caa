"""systemctl(1): starts, stops and enables services; what they do then is in service_work.py."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from probes.facts.kernel.modprobe_config import read_rules
from probes.facts.kernel.release import read_cmdline
from probes.simulation.commands.command_result import (
    Obeyed,
    Order,
    Performed,
    done,
    failed,
    not_obeyed,
    one_after_another,
    split_options,
)
from probes.simulation.commands.modprobe import modprobe, rmmod
from probes.simulation.commands.service_effects import end, start
from probes.simulation.node.services import UNITS, WANTS, run, stop
from probes.simulation.node.tree import Tree

_OWN_UNITS = "/etc/systemd/system"
_RUNLEVELS = ("/etc/rc3.d", "/etc/rc5.d", "/etc/rc.d/rc3.d")
_SECONDS = {"openibd": 12.0, "nvidia-fabricmanager": 4.0, "nvidia-persistenced": 2.0}
_NOT_LOADED, _NOT_ACTIVE, _UNKNOWN = 5, 3, 4
_NAME = re.compile(r"[A-Za-z0-9:_.@-]{1,255}")
_MODULES_LOAD = "systemd-modules-load"


def _systemctl(order: Order) -> Performed:
    options, words = split_options(order.words, valued="pt")
    if not words:
        return not_obeyed("systemctl without a verb")
    verb, names = words[0], [word.removesuffix(".service") for word in words[1:]]
    if verb == "daemon-reload" and not names:
        return done(seconds=0.8)
    if verb not in _VERBS:
        return _asked(order) or not_obeyed(f"systemctl {verb}")
    if not names:
        return failed("Too few arguments.")
    for name in names:
        if not _NAME.fullmatch(name):
            return failed(f"Failed to {verb} unit: Unit name {name}.service is not valid.")
    results = [_VERBS[verb](order, name) for name in names]
    if (
        "--now" in options
        and verb in ("enable", "disable", "mask")
        and not any(r.exit_status for r in results)
    ):
        results += [(_start if verb == "enable" else _stop)(order, name) for name in names]
    return one_after_another(results)


def _asked(order: Order) -> Performed | None:
    """`systemctl show`, which the probes ask too."""
    answer = order.tree.commands.get("systemctl")
    if answer is None or order.words[0] != "show":
        return None
    return done(*str(answer((order.name, *order.words), order.seconds)).splitlines())


def _unit_file(tree: Tree, name: str) -> str:
    """Where the unit is; empty: nowhere."""
    places = (f"{_OWN_UNITS}/{name}.service", f"{UNITS}/{name}.service", f"/etc/init.d/{name}")
    return next((path for path in places if tree.is_there(path)), "")


def _is_masked(tree: Tree, name: str) -> bool:
    return tree.links.get(f"{_OWN_UNITS}/{name}.service") == "/dev/null"


def _not_possible(order: Order, verb: str, name: str) -> Performed | None:
    if not _unit_file(order.tree, name):
        told = "not loaded" if verb == "stop" else "not found"
        return failed(
            f"Failed to {verb} {name}.service: Unit {name}.service {told}.", exit_status=_NOT_LOADED
        )
    if verb != "stop" and _is_masked(order.tree, name):
        return failed(f"Failed to {verb} {name}.service: Unit {name}.service is masked.")
    return None


def _job_failed(name: str) -> Performed:
    return failed(
        f"Job for {name}.service failed because the control process exited with error code.",
        f'See "systemctl status {name}.service" and "journalctl -xeu {name}.service" for details.',
        seconds=_SECONDS.get(name, 1.0),
    )


def _start(order: Order, name: str) -> Performed:
    refused = _not_possible(order, "start", name)
    if refused is not None:
        return refused
    if order.tree.units.get(name) == "active":
        return done()
    return _begin(order, name)


def _begin(order: Order, name: str) -> Performed:
    well = _load_modules(order) if name == _MODULES_LOAD else start(order, name, _by_kmod)
    return done(seconds=_SECONDS.get(name, 0.3)) if well else _job_failed(name)


def _stop(order: Order, name: str) -> Performed:
    refused = _not_possible(order, "stop", name)
    if refused is not None:
        return refused
    return done(seconds=0.5) if end(order, name, _by_kmod) else _job_failed(name)


def _restart(order: Order, name: str) -> Performed:
    refused = _not_possible(order, "restart", name)
    if refused is not None:
        return refused
    if not end(order, name, _by_kmod):
        return _job_failed(name)
    return _begin(order, name)


def _reload(order: Order, name: str) -> Performed:
    refused = _not_possible(order, "reload", name)
    if refused is not None:
        return refused
    if "ExecReload=" in order.tree.text(_unit_file(order.tree, name)):
        return done()
    told = f"Job type reload is not applicable for unit {name}.service."
    return failed(f"Failed to reload {name}.service: {told}")


def _enable(order: Order, name: str) -> Performed:
    tree, path = order.tree, _unit_file(order.tree, name)
    if not path:
        return failed(f"Failed to enable unit: Unit file {name}.service does not exist.")
    if _is_masked(tree, name):
        return failed(f"Failed to enable unit: Unit file {path} is masked.")
    if path.startswith("/etc/init.d/"):
        tree.link(f"{_RUNLEVELS[0]}/S99{name}", f"../init.d/{name}")
        return done(*_of_script("enable", name))
    link = f"{WANTS}/{name}.service"
    if link in tree.links:
        return done()
    tree.link(link, path)
    return done(f"Created symlink {link} → {path}.")


def _disable(order: Order, name: str) -> Performed:
    tree, path = order.tree, _unit_file(order.tree, name)
    if not path:
        return failed(f"Failed to disable unit: Unit file {name}.service does not exist.")
    if path.startswith("/etc/init.d/"):
        for directory in _RUNLEVELS:
            for entry in sorted(tree.directories.get(directory, set())):
                if entry[:1] == "S" and entry[3:] == name:
                    tree.remove(f"{directory}/{entry}")
        return done(*_of_script("disable", name))
    link = f"{WANTS}/{name}.service"
    if link not in tree.links:
        return done()
    tree.remove(link)
    return done(f'Removed "{link}".')


def _of_script(verb: str, name: str) -> tuple[str, str]:
    script = "/usr/lib/systemd/systemd-sysv-install"
    return (
        f"{name}.service is not a native service, redirecting to systemd-sysv-install.",
        f"Executing: {script} {verb} {name}",
    )


def _mask(order: Order, name: str) -> Performed:
    path = f"{_OWN_UNITS}/{name}.service"
    if path in order.tree.files:
        return failed(f"Failed to mask unit: File '{path}' already exists.")
    if _is_masked(order.tree, name):
        return done()
    order.tree.link(path, "/dev/null")
    return done(f"Created symlink {path} → /dev/null.")


def _unmask(order: Order, name: str) -> Performed:
    if not _is_masked(order.tree, name):
        return done()
    order.tree.remove(f"{_OWN_UNITS}/{name}.service")
    return done(f'Removed "{_OWN_UNITS}/{name}.service".')


def _is_active(order: Order, name: str) -> Performed:
    state = order.tree.units.get(name, "inactive")
    if state == "active":
        return done(state)
    return failed(state, exit_status=_NOT_ACTIVE if _unit_file(order.tree, name) else _UNKNOWN)


def _is_enabled(order: Order, name: str) -> Performed:
    tree, path = order.tree, _unit_file(order.tree, name)
    if not path:
        return failed("not-found", exit_status=_UNKNOWN)
    if _is_masked(tree, name):
        return failed("masked")
    scripts = (entry for directory in _RUNLEVELS for entry in tree.directories.get(directory, set()))
    wanted = f"{WANTS}/{name}.service" in tree.links or any(entry[3:] == name for entry in scripts)
    return done("enabled") if wanted else failed("disabled")


def _reset_failed(order: Order, name: str) -> Performed:
    if order.tree.units.get(name) == "failed":
        stop(order.tree, name)
    return done()


def _by_kmod(order: Order) -> Performed:
    return rmmod(order) if order.name == "rmmod" else modprobe(order)


def _load_modules(order: Order) -> bool:
    """systemd-modules-load: what modules-load.d names, unless a blacklist says otherwise."""
    said: list[str] = []
    for module in read_rules(order.host, read_cmdline(order.host)).at_boot:
        result = modprobe(replace(order, name="modprobe", words=("-b", module), given=""))
        if result.exit_status:
            reason = "".join(result.lines[-1:]).rpartition(": ")[2]
            said.append(f"Failed to insert module '{module}': {reason}")
    order.tree.journal.setdefault(_MODULES_LOAD, []).extend(said)
    if said:
        stop(order.tree, _MODULES_LOAD, "failed")
    else:
        run(order.tree, _MODULES_LOAD)
    return not said


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
COMMANDS: Mapping[str, Obeyed] = {"systemctl": _systemctl}
