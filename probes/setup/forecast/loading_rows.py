"""Forecast of loading: what forbids a module, which driver takes the GPUs, what loads nvidia_peermem."""

from __future__ import annotations

from probes.base.unknown import Unknown
from probes.facts.gpudirect import GdrPath
from probes.facts.kernel.module_blockers import loads_nothing
from probes.facts.system.services import ServiceFacts, ServiceState
from probes.queries.finding import Evidence
from probes.queries.modules import PEERMEM
from probes.setup.forecast.model import ForecastRow, RowBuilder
from probes.setup.forecast.next_start import GPU_MODULES, NOUVEAU, OLD_PEERMEM, Hardware, Start
from probes.snapshot.examination import Examination

_LOADER = "systemd-modules-load"


def loading_rows(examination: Examination, devices: Hardware, start: Start) -> list[ForecastRow]:
    """Return the rows about blacklists, nouveau, and what loads nvidia_peermem."""
    return [
        _forbidden(examination, devices, start),
        *_nouveau(start),
        *(() if devices.is_efa or devices.is_slingshot else (_peermem(examination, start),)),
    ]


def _forbidden(examination: Examination, devices: Hardware, start: Start) -> ForecastRow:
    """Judge blacklists and install lines, of modprobe.d and of the command line."""
    row = RowBuilder("forbidden-modules", "Blacklists")
    rules, needed = start.rules, (*devices.nic_modules, *GPU_MODULES)
    refused = [module for module in needed if module in rules.boot.kernel]
    if refused:
        evidence = Evidence(_line_source(start), f"module_blacklist={','.join(rules.boot.kernel)}"[:200])
        reason = f"the kernel command line blocks {', '.join(refused)}"
        return row.will_not(reason, evidence)
    for module in needed:
        line = rules.install_line(module)
        if line is not None and loads_nothing(str(line)):
            evidence = Evidence(line.where, f"install {line.pattern} {line.command}"[:200])
            return row.will_not(f"modprobe never loads {module}", evidence)
    services = examination.services
    by_units = services.modprobe if isinstance(services, ServiceFacts) else {}
    for module in needed:
        where = rules.blacklisted(module)
        if where is None or _is_dependency_at_boot(start, module) or module in by_units:
            continue
        listed = Evidence(where.partition(": ")[0], f"blacklist {module}")
        if module in GPU_MODULES or _is_enabled(examination, "openibd"):
            # nvidia-modprobe and openibd load by name, and modprobe obeys a blacklist for aliases only.
            reason = f"{module} is blacklisted, so udev does not load it; a program may load it later"
            return row.risk(reason, listed)
        return row.will_not(f"{module} is blacklisted, so udev does not load it", listed)
    if rules.unread:
        unread = ", ".join(rules.unread[:3])
        reason = f"needs root: {unread}"
        return row.unknown(reason, decides=False)
    return row.will("no module that the path needs is blocked")


def _is_dependency_at_boot(start: Start, module: str) -> bool:
    """Return whether a module of modules-load.d pulls this one in: blacklists do not cover dependencies."""
    for name in start.rules.at_boot:
        entry = start.modules.entry(name)
        if entry is not None and module in entry.depends and start.rules.blacklisted(name) is None:
            return True
    return False


def _is_enabled(examination: Examination, service: str) -> bool:
    services = examination.services
    if not isinstance(services, ServiceFacts) or service not in services.services:
        return False
    found = services.services[service]
    return found.enabled is True and not found.masked


def _line_source(start: Start) -> str:
    return "/proc/cmdline" if isinstance(start.line, Unknown) else start.line.source


def _nouveau(start: Start) -> list[ForecastRow]:
    """Return a row if nouveau may take the GPUs before the NVIDIA driver."""
    if start.modules.entry(NOUVEAU) is None or start.modules.entry("nvidia") is None:
        return []
    line = start.rules.install_line(NOUVEAU)
    if start.rules.blacklisted(NOUVEAU) is not None or (line is not None and loads_nothing(str(line))):
        return []
    reason = "nouveau is on disk and not blacklisted; it may take the GPUs before the NVIDIA driver"
    evidence = Evidence("grep -r 'blacklist nouveau' /etc/modprobe.d /usr/lib/modprobe.d", "nothing")
    return [RowBuilder("nouveau", "nouveau").risk(reason, evidence)]


def _peermem(examination: Examination, start: Start) -> ForecastRow:
    """Judge what loads nvidia_peermem at boot, and what keeps it out."""
    row = RowBuilder("peermem-loading", "Loading nvidia_peermem", GdrPath.PEERMEM)
    rules, services = start.rules, examination.services
    where, line = rules.blacklisted(PEERMEM), rules.install_line(PEERMEM)
    if line is not None and loads_nothing(str(line)):
        return row.will_not("modprobe never loads it", Evidence(line.where, str(line)[:200]))
    if _is_enabled(examination, OLD_PEERMEM) and start.modules.entry(OLD_PEERMEM) is not None:
        reason = "the service nv_peer_mem loads its predecessor at boot; only one of the two can be loaded"
        evidence = Evidence("systemctl is-enabled nv_peer_mem", "enabled")
        return row.risk(reason, evidence)
    unit = services.modprobe.get(PEERMEM) if isinstance(services, ServiceFacts) else None
    if unit is not None and PEERMEM not in rules.boot.kernel:
        source, _, command = unit.partition(": ")
        return row.will("a systemd unit loads it", Evidence(source, command[:200]))
    if where is not None:
        listed = Evidence(where.partition(": ")[0], f"blacklist {PEERMEM}")
        # systemd-modules-load obeys blacklists too (systemd src/modules-load, KMOD_PROBE_APPLY_BLACKLIST).
        return row.will_not("it is blacklisted", listed)
    file = rules.at_boot.get(PEERMEM)
    if file is not None:
        return _by_list(examination, start, file)
    softdep = rules.config.softdeps.get(PEERMEM)
    if softdep is not None:
        source, _, text = softdep.partition(": ")
        return row.will("a softdep line loads it", Evidence(source, text[:200]))
    if rules.unread:
        unread = ", ".join(rules.unread[:3])
        return row.unknown(f"needs root: {unread}")
    searched = Evidence("grep -rE 'nvidia[-_]peermem' /etc/modules-load.d /etc/modprobe.d", "nothing")
    remedy = Evidence("gdrtop do persist-modules", "loads it at boot")
    return row.will_not("nothing loads nvidia_peermem at boot", searched, remedy)


def _by_list(examination: Examination, start: Start, file: str) -> ForecastRow:
    """Judge a module that modules-load.d names: the service must be able to load it."""
    row = RowBuilder("peermem-loading", "Loading nvidia_peermem", GdrPath.PEERMEM)
    services, listed = examination.services, Evidence(file, PEERMEM)
    loader = services.services.get(_LOADER) if isinstance(services, ServiceFacts) else None
    if loader is not None and loader.masked:
        return row.will_not(f"{_LOADER} is masked", listed)
    if loader is not None and loader.state is ServiceState.FAILED and start.is_running:
        state = Evidence(f"systemctl is-failed {_LOADER}", "failed")
        reason = f"{_LOADER} failed at this boot, and may fail again"
        return row.risk(reason, listed, state)
    more = ""
    if _is_enabled(examination, "openibd"):
        more = "; a restart of openibd unloads it (a drop-in of openibd.service would load it again)"
    return row.will(f"modules-load.d loads it{more}", listed)
