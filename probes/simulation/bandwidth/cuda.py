"""What a CUDA program finds on a simulated node: its devices, or the error of cuInit."""

from __future__ import annotations

from collections.abc import Mapping

from probes.base.frozen import frozen
from probes.facts.kernel.release import SMMU_SVA_OPTION
from probes.messages.catalogue import codes
from probes.messages.message import Code
from probes.plans.packages import FABRIC_MANAGER
from probes.simulation.node.model.tree import Tree
from probes.simulation.node.system.services import fabric_state, has_switches
from probes.simulation.node.system.software import library_mismatch

_NOT_INITIALIZED, _NO_DEVICE, _NOT_READY, _MISMATCH, _UNKNOWN = 3, 100, 802, 803, 999
WITHOUT_SVA = f"# {SMMU_SVA_OPTION} is not set"


@frozen
class CudaDevice:
    """One GPU as the program numbers it."""

    index: int
    bdf: str
    name: str


def devices(tree: Tree, environment: Mapping[str, str]) -> tuple[CudaDevice, ...] | int:
    """Return the devices in PCI order, those that CUDA_VISIBLE_DEVICES names; or the CUresult of cuInit."""
    node = tree.description
    if "nvidia" not in tree.live_modules or tree.unstarted:
        return _NO_DEVICE
    if node.nvml.refusal or library_mismatch(tree):
        return _MISMATCH
    if "nvidia_uvm" not in tree.live_modules:
        return _UNKNOWN
    if WITHOUT_SVA in tree.text(f"/boot/config-{node.kernel}"):
        return _NOT_INITIALIZED
    is_managed = tree.units.get(FABRIC_MANAGER) == "active" and fabric_state(tree) != "in progress"
    if has_switches(tree) and node.gpu.nvlinks and not is_managed:
        return _NOT_READY
    gone = node.nvml.lost | node.nvml.unlisted
    files = {number: f"/dev/nvidia{number}" for number in range(len(tree.gpus)) if number not in gone}
    numbers = [number for number, file in files.items() if file in tree.files and file not in tree.denied]
    visible = _visible(environment.get("CUDA_VISIBLE_DEVICES"), numbers)
    found = (CudaDevice(i, tree.gpus[number].bdf, node.gpu.name) for i, number in enumerate(visible))
    return tuple(found) or _NO_DEVICE


def error_of(result: int) -> Code:
    """Return the text of a CUresult, as its name, and its name in cuda.h, first in `also`."""
    return codes()["cuda"][str(result)]


def _visible(wanted: str | None, numbers: list[int]) -> list[int]:
    """Return the visible numbers: a word that names no device ends the list (CUDA C programming guide)."""
    if wanted is None:
        return numbers
    visible: list[int] = []
    for word in wanted.split(","):
        if not word.strip().isdecimal() or int(word.strip()[:6]) >= len(numbers):
            break
        visible.append(numbers[int(word.strip()[:6])])
    return visible
