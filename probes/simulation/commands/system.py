"""Commands about the node as a whole: sysctl, udevadm, depmod, journalctl, rdma system."""

from __future__ import annotations

import re
from collections.abc import Mapping

from probes.simulation.commands.command_result import (
    Obeyed,
    Order,
    Performed,
    done,
    failed,
    not_obeyed,
    split_options,
)
from probes.simulation.commands.coreutils import write
from probes.simulation.node.depmod import write_index
from probes.simulation.node.module_files import Modinfo

_ONE_WAY = "/proc/sys/kernel/modules_disabled"
_EVENTS = ("trigger", "settle", "control")


def _sysctl(order: Order) -> Performed:
    """`sysctl -w KEY=VALUE…`."""
    _, words = split_options(order.words)
    lines, bad = [], 0
    for word in words:
        key, equals, value = word.partition("=")
        path = f"/proc/sys/{key.strip().replace('.', '/')}"
        if not equals:
            bad += 1
            lines.append(f'sysctl: "{word}" must be of the form name=value')
        elif path not in order.tree.files:
            bad += 1
            lines.append(f"sysctl: cannot stat {path}: No such file or directory")
        elif path == _ONE_WAY and order.tree.text(path).strip() == "1" and value.strip() != "1":
            bad += 1
            lines.append(f'sysctl: setting key "{key.strip()}": Invalid argument')
        else:
            write(order.tree, path, f"{value.strip()}\n")
            lines.append(f"{key.strip()} = {value.strip()}")
    return Performed(tuple(lines), 1 if bad or not words else 0, 0.1)


def _udevadm(order: Order) -> Performed:
    """Events make no device file: devtmpfs does, and udev gives owner and mode to those that are there."""
    if order.words[:1] and order.words[0] in _EVENTS:
        return done(seconds=0.5)
    return not_obeyed(" ".join((order.name, *order.words)))


def _depmod(order: Order) -> Performed:
    """`depmod -a [RELEASE]`: writes modules.dep from the files that are there."""
    _, words = split_options(order.words)
    running = order.tree.description.kernel
    release = words[0] if words else running
    directory = f"/lib/modules/{release}"
    if not re.fullmatch(r"[0-9][A-Za-z0-9._+~-]*", release) or directory not in order.tree.directories:
        return failed(
            f"depmod: ERROR: could not open directory {directory}: No such file or directory",
            "depmod: FATAL: could not search modules: No such file or directory",
        )
    modinfo = order.tree.commands.get("modinfo")
    if release == running and isinstance(modinfo, Modinfo):
        write_index(order.tree, modinfo.files)
    return done(seconds=3.0)


def _journalctl(order: Order) -> Performed:
    """`journalctl -u UNIT`, `-k`: what services and the kernel said since they began here."""
    options, _ = split_options(order.words, valued="un")
    unit = (options.get("-u") or options.get("--unit") or "").removesuffix(".service")
    if unit:
        said = [
            f"{order.tree.description.hostname} {unit}: {line}" for line in order.tree.journal.get(unit, ())
        ]
    elif options.keys() & {"-k", "--dmesg"}:
        said = [line.rstrip("\n").partition(">")[2] for line in order.tree.kernel_log]
    else:
        return not_obeyed(" ".join((order.name, *order.words)))
    return done(*(said or ["-- No entries --"]), seconds=0.3)


def _rdma(order: Order) -> Performed:
    """`rdma system show`: here all namespaces share the devices."""
    if order.words not in (("system", "show"), ("system",)):
        return not_obeyed(" ".join((order.name, *order.words)))
    return done("netns shared copy-on-fork on")


COMMANDS: Mapping[str, Obeyed] = {
    "sysctl": _sysctl,
    "udevadm": _udevadm,
    "depmod": _depmod,
    "journalctl": _journalctl,
    "rdma": _rdma,
}
