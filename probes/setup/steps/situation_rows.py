"""Where a node stands, as rows of a label and a value."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import Enum
from typing import TypeVar

from probes.base.text import plural
from probes.base.unknown import Maybe, Reason, Unknown, known, map_known
from probes.facts.gpu.driver_package import DriverPackage, module_flavor
from probes.facts.gpu.gpus import GpuFacts
from probes.facts.node import Node
from probes.facts.pci.functions import PciFacts, PciFunction
from probes.facts.rdma.nic_driver import NicDriver
from probes.facts.system.kubernetes import ContainerState, GpuOperator, KubernetesFacts, NetworkOperator
from probes.setup.situation import Situation
from probes.setup.steps.drivers import state_of
from probes.topology.endpoints import rdma_functions

T = TypeVar("T")
_MOST_WAITING = 3
_NO_NIC = "no RDMA NIC"  # as the verdict says it


def situation_rows(situation: Situation) -> tuple[tuple[str, str], ...]:
    """Return the label and value of each thing that is known about the node, and why not where it is not."""
    node = situation.examination.node
    secure = map_known(node.kernel, lambda kernel: kernel.secure_boot)
    where = map_known(node.platform, lambda platform: platform.environment)
    return (
        ("Distribution", _shown(situation.distribution, lambda value: value.name)),
        ("Kernel", _shown(node.kernel_release, str)),
        ("Runs on", _shown(where, _value, "unknown")),
        ("Cloud", _shown(situation.cloud, lambda value: f"{value.provider.value} {value.machine}".strip())),
        ("GPUs", _shown(node.pci, lambda pci: _models(pci.gpus, pci, _gpu_names(node.gpus)) or "none")),
        ("NICs", _nics(node)),
        ("GPU driver", _shown(situation.gpu_driver, _gpu_driver)),
        ("NIC driver", _shown(situation.nic_driver, _nic_driver)),
        ("Secure Boot", _shown(secure, lambda value: "on" if value else "off", "off (no UEFI)")),
        ("Boot loader", _shown(situation.examination.boot, lambda value: _shown(value.loader, _value))),
        ("Slurm", _shown(situation.slurm, lambda value: known(value.version, "installed"))),
        ("Kubernetes", _shown(situation.kubernetes, lambda value: known(value.distribution, "installed"))),
        *_operators(situation.kubernetes),
    )


def _operators(facts: Maybe[KubernetesFacts]) -> tuple[tuple[str, str], ...]:
    """Return the operators and their driver pods on this node; nothing where there is no Kubernetes."""
    if isinstance(facts, Unknown):
        return ()
    return (
        ("GPU Operator", _shown(facts.gpu_operator, _gpu_operator)),
        ("Network Operator", _shown(facts.network_operator, _network_operator)),
        ("Driver pods", _shown(facts.containers, _containers)),
    )


def _gpu_operator(operator: GpuOperator) -> str:
    driver = _shown(operator.driver_version, str, "") if operator.driver_enabled is True else "host's own"
    enabled = operator.rdma_enabled
    rdma = "" if isinstance(enabled, Unknown) else "rdma on" if enabled else "rdma off"
    parts = (known(operator.state, "state unknown"), f"driver {driver}".strip(), rdma)
    return ", ".join(filter(None, parts))


def _network_operator(operator: NetworkOperator) -> str:
    driver = _shown(operator.ofed_version, lambda version: f"OFED {version}", "no NIC driver")
    return f"{known(operator.state, 'state unknown')}, {driver}"


def _containers(listed: tuple[ContainerState, ...]) -> str:
    waiting = [container for container in listed if not container.ready and container.reason != "Completed"]
    if not waiting:
        return f"{plural(len(listed), 'container')}, all ready"
    return "; ".join(state_of(container) for container in waiting[:_MOST_WAITING])


def _gpu_names(gpus: Maybe[GpuFacts]) -> dict[str, str]:
    """Return the GPUs' names, which NVML knows best: an old pci.ids has no new models."""
    return {} if isinstance(gpus, Unknown) else {gpu.bdf: gpu.name for gpu in gpus.gpus if gpu.name}


def _nics(node: Node) -> str:
    """Return the RDMA NICs, which are those that the verdict counts."""
    pci = node.pci
    if isinstance(pci, Unknown):
        return f"unknown ({pci})"
    models = _models(rdma_functions(node), pci, {})
    return models or _shown(node.rdma, lambda _: _NO_NIC, _NO_NIC)


def _models(functions: Iterable[PciFunction], pci: PciFacts, names: dict[str, str]) -> str:
    """Return the models with their number: "8 × ConnectX-7, 2 × ConnectX-6 Dx"; `names`: by address."""
    models = [_model(names.get(function.bdf) or pci.names.get(function.bdf, "")) for function in functions]
    return ", ".join(f"{models.count(model)} × {model}" for model in dict.fromkeys(models))


def _model(name: str) -> str:
    """Return what stands in brackets in the name of pci.ids, else the whole name."""
    _, bracket, inside = name.partition("[")
    return inside.partition("]")[0] if bracket else name or "unknown model"


def _shown(fact: Maybe[T], show: Callable[[T], str], absent: str = "none") -> str:
    if not isinstance(fact, Unknown):
        return show(fact)
    return absent if fact.reason is Reason.NOT_THERE else f"unknown ({fact})"


def _value(fact: Enum) -> str:
    return str(fact.value)


def _gpu_driver(driver: DriverPackage) -> str:
    flavor = "" if isinstance(driver.is_open, Unknown) else module_flavor(driver.is_open)
    built = "DKMS" if driver.by_dkms is True else "prebuilt" if driver.prebuilt is True else ""
    origin = _shown(driver.origin, _value) if not isinstance(driver.origin, Unknown) else ""
    version = _shown(driver.version, str, "no module for this kernel")
    return ", ".join(filter(None, (version, flavor, origin, built)))


def _nic_driver(driver: NicDriver) -> str:
    stack, version = _shown(driver.stack, _value), known(driver.version, "")
    return ", ".join(filter(None, (stack, version, "DKMS" if driver.by_dkms is True else "")))
