"""What a ClusterPolicy, an NVIDIADriver or values of the GPU Operator's chart mean for GPUDirect RDMA.

Sources: NVIDIA/gpu-operator v26.7.0, api/nvidia/v1/clusterpolicy_types.go, api/nvidia/v1alpha1/
nvidiadriver_types.go, controllers/object_controls.go, deployments/gpu-operator/values.yaml; cloud-native-docs
gpu-operator-rdma.rst and release notes; gpu-driver-container, nvidia-driver.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from probes.base.evidence import Severity
from probes.base.text import join_limited, printable
from probes.base.unknown import Reason, Unknown, known
from probes.facts.gpudirect import parse_driver_version
from probes.facts.gpudirect_probe import FIRST_OPEN_ONLY
from probes.queries.modules import ofed_of
from probes.setup.env.assignments import Problem
from probes.setup.env.yaml_tree import Mapping, Scalar, flag_at, map_at, text_at, value_at
from probes.snapshot.examination import Examination

_FIRST_AUTO = (570, 86, 15)
_TYPES = ("auto", "open", "proprietary")
_REQUIRED = (
    *("daemonsets", "dcgm", "dcgmExporter", "devicePlugin", "driver", "gfd", "nodeStatusExporter"),
    *("operator", "toolkit"),
)
_FLAGS = ("enabled", "useHostMofed", "useNvidiaDriverCRD", "usePrecompiled")
_FIELDS = (*_FLAGS, "rdma", "kernelModuleType", "gdrcopy", "gds", "driver", "version")
_OPERANDS = frozenset(("devicePlugin", "toolkit", "dcgmExporter", "gdrcopy", "gds", "migManager", "gfd"))
_OF_DRIVER = frozenset(
    ("rdma", "kernelModuleType", "useOpenKernelModules", "usePrecompiled", "nvidiaDriverCRD")
)
KINDS = ("ClusterPolicy", "NVIDIADriver")


def is_values(mapping: Mapping) -> bool:
    """Return whether a map is the chart's values, or a part of them that sets the driver."""
    driver = map_at(mapping, "driver").items
    if "apiVersion" in mapping.items or not driver:
        return False
    return bool(_OF_DRIVER & set(driver)) or ("enabled" in driver and bool(_OPERANDS & set(mapping.items)))


def of_gpu_operator(whole: Mapping, others: Iterable[Mapping], examination: Examination) -> Iterator[Problem]:
    """Judge one object or the chart's values; `others`: the further objects of the file."""
    kind = text_at(whole, "kind")
    spec = map_at(whole, "spec") if kind in KINDS else whole
    driver = spec if kind == "NVIDIADriver" else map_at(spec, "driver")
    if kind:
        yield from _of_schema(kind, spec, driver)
    yield from _misspelled((spec, driver, map_at(driver, "rdma")))
    by_crd = flag_at(driver, "useNvidiaDriverCRD") or flag_at(driver, "nvidiaDriverCRD", "enabled")
    if kind == "ClusterPolicy" and by_crd:
        if {"rdma", "kernelModuleType"} & set(driver.items):
            title = "These driver settings have no effect, because useNvidiaDriverCRD is true"
            fix = "Set rdma and kernelModuleType in the NVIDIADriver object"
            detail = "NVIDIADriver objects manage the driver."
            yield Problem(driver.line, Severity.WARNING, title, detail, fix)
        return
    yield from _of_driver(driver, spec, others, examination)


def _of_schema(kind: str, spec: Mapping, driver: Mapping) -> Iterator[Problem]:
    missing = [name for name in _REQUIRED if name not in spec.items] if kind == "ClusterPolicy" else []
    if missing:
        title = f"A ClusterPolicy without {join_limited(missing, 3)} is valid as a patch only"
        fix = "Apply it with kubectl patch clusterpolicy cluster-policy --type merge --patch-file FILE"
        yield Problem(spec.line, Severity.NOTE, title, "The API server rejects it as a new object.", fix)
    for mapping in (driver, map_at(driver, "rdma"), map_at(spec, "gdrcopy"), map_at(spec, "gds")):
        for name in _FLAGS:
            value = mapping.items.get(name)
            if isinstance(value, Scalar) and value.is_text and "$" not in value.text:
                title = f"{name} is a text, so the API server rejects the object"
                fix = "Write true or false without quotation marks"
                yield Problem(value.line, Severity.CRITICAL, title, fix=fix)


def _misspelled(mappings: Iterable[Mapping]) -> Iterator[Problem]:
    """Find fields that differ from those that decide in their case only."""
    by_case = {name.lower(): name for name in _FIELDS}
    for mapping in mappings:
        for name, value in mapping.items.items():
            right = by_case.get(name.lower().replace("_", ""), name)
            if right != name:
                shown = printable(name, 64)
                title = f"{shown} is not a field, so it is silently dropped; did you mean {right}?"
                yield Problem(value.line, Severity.WARNING, title, fix=f"Write {right}")


def _of_driver(
    driver: Mapping, spec: Mapping, others: Iterable[Mapping], examination: Examination
) -> Iterator[Problem]:
    line = _line(driver, "rdma")
    loads = flag_at(driver, "rdma", "enabled") is True
    host_ofed = flag_at(driver, "rdma", "useHostMofed") is True
    kind, shown = text_at(driver, "kernelModuleType"), text_at(driver, "version")
    version = parse_driver_version(shown)
    if flag_at(driver, "enabled") is False:
        if loads or host_ofed or kind:
            title = "driver.enabled is false, so driver.rdma and driver.kernelModuleType have no effect"
            detail = (
                "The host has the driver. Where DMA-BUF does not work, it must load nvidia-peermem itself."
            )
            yield Problem(line, Severity.WARNING if loads else Severity.NOTE, title, detail)
        if flag_at(spec, "gdrcopy", "enabled"):
            title = "gdrcopy needs the driver container, which driver.enabled: false disables"
            fix = "Install gdrdrv on the host"
            yield Problem(_line(spec, "gdrcopy"), Severity.WARNING, title, "", fix)
        return
    if "useOpenKernelModules" in driver.items:
        fix = "Replace it by kernelModuleType: open (or proprietary)"
        title = "The GPU Operator ignores useOpenKernelModules since 25.3"
        yield Problem(_line(driver, "useOpenKernelModules"), Severity.WARNING, title, fix=fix)
    of_kind = _line(driver, "kernelModuleType")
    if kind and kind not in _TYPES and "$" not in kind:
        title = f"kernelModuleType “{printable(kind, 32)}” is not one of {join_limited(_TYPES)}"
        yield Problem(of_kind, Severity.CRITICAL, title, "The API server rejects the object.")
    is_unclear = kind in ("", "auto") and version is not None and version < _FIRST_AUTO
    if is_unclear:
        title = f"Driver {shown} may come with proprietary kernel modules, which have no DMA-BUF"
        detail = "kernelModuleType: auto, the default, needs driver 570.86.15 or newer."
        yield Problem(of_kind, Severity.WARNING, title, detail, "Set kernelModuleType: open")
    if kind == "proprietary" and version is not None and version >= FIRST_OPEN_ONLY:
        title = f"Driver {shown} has no proprietary kernel modules"
        yield Problem(of_kind, Severity.CRITICAL, title, fix="Set kernelModuleType: open")
    elif kind == "proprietary" and not loads:
        title = "The driver offers no GPUDirect RDMA: neither DMA-BUF nor nvidia-peermem"
        detail = "DMA-BUF needs the open kernel modules, and rdma.enabled is not true."
        fix = "Set kernelModuleType: open; for GPUs before Turing set rdma.enabled: true"
        yield Problem(of_kind, Severity.CRITICAL, title, detail, fix)
    if kind == "proprietary" and flag_at(spec, "gds", "enabled"):
        title = "GPUDirect Storage needs the open kernel modules"
        yield Problem(_line(spec, "gds"), Severity.WARNING, title, fix="Set kernelModuleType: open")
    if flag_at(driver, "usePrecompiled") and flag_at(spec, "gds", "enabled"):
        title = "Precompiled drivers have no GPUDirect Storage"
        yield Problem(_line(spec, "gds"), Severity.WARNING, title, fix="Set usePrecompiled: false")
    if loads:
        yield from _of_peermem(line, host_ofed, others, examination)
    elif kind != "proprietary" and not is_unclear:
        title = "Jobs use DMA-BUF: the operator loads no nvidia-peermem (rdma.enabled is not true)"
        detail = "DMA-BUF needs the open kernel modules and kernel 5.12 or newer, but no OFED."
        if host_ofed:
            detail = f"useHostMofed has no effect without rdma.enabled. {detail}"
        yield Problem(line, Severity.NOTE, title, detail)


def _of_peermem(
    line: int, host_ofed: bool, others: Iterable[Mapping], examination: Examination
) -> Iterator[Problem]:
    """Judge where the driver pods wait for OFED: on the host, or for the Network Operator's container."""
    ofed = ofed_of(examination)
    traces = examination.driver_container
    container = False if isinstance(traces, Unknown) else known(traces.mofed, False)
    policies = [other for other in others if text_at(other, "kind") == "NicClusterPolicy"]
    by_policy = any(map_at(policy, "spec", "ofedDriver").items for policy in policies)
    on_host = not isinstance(ofed, Unknown) and not container
    where = "on the host" if host_ofed else "in the Network Operator's container"
    title = f"The driver pods load nvidia-peermem after OFED {where}"
    if not host_ofed and on_host:
        detail = "This node has OFED on the host, so the driver pods wait for the container forever."
        yield Problem(line, Severity.WARNING, title, detail, "Set rdma.useHostMofed: true")
    elif host_ofed and (container or by_policy):
        whose = "This node has" if container else "The NicClusterPolicy in this file installs"
        detail = f"{whose} OFED in a container, which this setting ignores."
        yield Problem(line, Severity.WARNING, title, detail, "Set rdma.useHostMofed: false")
    elif not host_ofed and policies and not by_policy:
        detail = "The NicClusterPolicy in this file has no ofedDriver, so the driver pods wait forever."
        fix = "Add ofedDriver, or set rdma.useHostMofed: true if the host has OFED"
        yield Problem(line, Severity.WARNING, title, detail, fix)
    else:
        missing = isinstance(ofed, Unknown) and ofed.reason is Reason.NOT_THERE and host_ofed
        detail = "They wait for it, and forever if there is none."
        if missing:
            detail += " This node has none."
        fix = "Install DOCA-OFED on the host" if host_ofed else "Apply a NicClusterPolicy with ofedDriver"
        fix = f"{fix}; if DMA-BUF is enough, set rdma.enabled: false"
        yield Problem(line, Severity.WARNING if missing else Severity.NOTE, title, detail, fix)


def _line(mapping: Mapping, name: str) -> int:
    value = value_at(mapping, name)
    return mapping.line if value is None else value.line
