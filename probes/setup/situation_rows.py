"""Where a node stands, as rows of a label and a value."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import TypeVar

from probes.base.unknown import Maybe, Reason, Unknown, known
from probes.facts.gpu.driver_package import DriverPackage, module_flavor
from probes.facts.rdma.nic_driver import NicDriver
from probes.setup.situation import Situation

T = TypeVar("T")


def situation_rows(situation: Situation) -> tuple[tuple[str, str], ...]:
    """Return the label and value of each thing that is known about the node, and why not where it is not."""
    node = situation.examination.node
    kernel = node.kernel
    secure = kernel if isinstance(kernel, Unknown) else kernel.secure_boot
    platform = node.platform
    where = platform if isinstance(platform, Unknown) else platform.environment
    return (
        ("Distribution", _shown(situation.distribution, lambda value: value.name)),
        ("Kernel", _shown(node.kernel_release, str)),
        ("Runs on", _shown(where, _value)),
        ("Cloud", _shown(situation.cloud, lambda value: f"{value.provider.value} {value.machine}".strip())),
        ("GPU driver", _shown(situation.gpu_driver, _gpu_driver)),
        ("NIC driver", _shown(situation.nic_driver, _nic_driver)),
        ("Secure Boot", _shown(secure, lambda value: "on" if value else "off", "off (no UEFI)")),
        ("Boot loader", _shown(situation.boot, lambda value: _shown(value.loader, _value))),
        ("Slurm", _shown(situation.slurm, lambda value: known(value.version, "installed"))),
        ("Kubernetes", _shown(situation.kubernetes, lambda value: known(value.distribution, "installed"))),
    )


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
    return ", ".join(filter(None, (_shown(driver.version, str), flavor, origin, built)))


def _nic_driver(driver: NicDriver) -> str:
    stack, version = _shown(driver.stack, _value), known(driver.version, "")
    return ", ".join(filter(None, (stack, version, "DKMS" if driver.by_dkms is True else "")))
