"""What loads a module at boot: modules-load.d, a softdep line, or a systemd unit that runs modprobe."""

from __future__ import annotations

from probes.facts.kernel.modules import KernelModule
from probes.facts.system.services import ServiceFacts
from probes.queries.finding import Evidence
from probes.queries.modules import LINE_LIMIT
from probes.snapshot.examination import Examination


def boot_loaders(examination: Examination, module: KernelModule) -> tuple[Evidence, ...]:
    """Return the files that load a module at boot, each with its line; (): none was found."""
    services = examination.services
    unit = services.modprobe.get(module.name) if isinstance(services, ServiceFacts) else None
    loaders = [Evidence(module.persistent, module.name)] if module.persistent is not None else []
    for line in (module.softdep, unit):
        if line is not None:
            file, _, text = line.partition(": ")
            loaders.append(Evidence(file, text[:LINE_LIMIT]))
    return tuple(loaders)
