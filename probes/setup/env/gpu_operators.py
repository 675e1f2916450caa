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
from probes.setup.env.assignments import Problem, problem_at
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
            yield problem_at(driver.line, "settings-beside-driver-crd")
        return
    yield from _of_driver(driver, spec, others, examination)


def _of_schema(kind: str, spec: Mapping, driver: Mapping) -> Iterator[Problem]:
    missing = [name for name in _REQUIRED if name not in spec.items] if kind == "ClusterPolicy" else []
    if missing:
        yield problem_at(spec.line, "cluster-policy-patch", missing=join_limited(missing, 3))
    for mapping in (driver, map_at(driver, "rdma"), map_at(spec, "gdrcopy"), map_at(spec, "gds")):
        for name in _FLAGS:
            value = mapping.items.get(name)
            if isinstance(value, Scalar) and value.is_text and "$" not in value.text:
                yield problem_at(value.line, "flag-is-text", name=name)


def _misspelled(mappings: Iterable[Mapping]) -> Iterator[Problem]:
    """Find fields that differ from those that decide in their case only."""
    by_case = {name.lower(): name for name in _FIELDS}
    for mapping in mappings:
        for name, value in mapping.items.items():
            right = by_case.get(name.lower().replace("_", ""), name)
            if right != name:
                yield problem_at(value.line, "field-misspelled", name=printable(name, 64), right=right)


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
            yield problem_at(line, "driver-on-host", severity=Severity.WARNING if loads else None)
        if flag_at(spec, "gdrcopy", "enabled"):
            yield problem_at(_line(spec, "gdrcopy"), "gdrcopy-without-driver")
        return
    if "useOpenKernelModules" in driver.items:
        yield problem_at(_line(driver, "useOpenKernelModules"), "open-modules-ignored")
    of_kind = _line(driver, "kernelModuleType")
    if kind and kind not in _TYPES and "$" not in kind:
        types = join_limited(_TYPES)
        yield problem_at(of_kind, "module-type-unknown", kind=printable(kind, 32), types=types)
    is_unclear = kind in ("", "auto") and version is not None and version < _FIRST_AUTO
    if is_unclear:
        yield problem_at(of_kind, "module-type-unclear", version=shown)
    if kind == "proprietary" and version is not None and version >= FIRST_OPEN_ONLY:
        yield problem_at(of_kind, "no-proprietary-modules", version=shown)
    elif kind == "proprietary" and not loads:
        yield problem_at(of_kind, "driver-without-rdma")
    if kind == "proprietary" and flag_at(spec, "gds", "enabled"):
        yield problem_at(_line(spec, "gds"), "storage-without-open-modules")
    if flag_at(driver, "usePrecompiled") and flag_at(spec, "gds", "enabled"):
        yield problem_at(_line(spec, "gds"), "storage-with-precompiled")
    if loads:
        yield from _of_peermem(line, host_ofed, others, examination)
    elif kind != "proprietary" and not is_unclear:
        without = "useHostMofed has no effect without rdma.enabled. "
        yield problem_at(line, "operator-uses-dmabuf", host_ofed=without if host_ofed else "")


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
    if not host_ofed and on_host:
        yield problem_at(line, "waits-for-container", where=where)
    elif host_ofed and (container or by_policy):
        whose = "This node has" if container else "The NicClusterPolicy in this file installs"
        yield problem_at(line, "ignores-container", where=where, whose=whose)
    elif not host_ofed and policies and not by_policy:
        yield problem_at(line, "policy-without-ofed", where=where)
    else:
        is_missing = isinstance(ofed, Unknown) and ofed.reason is Reason.NOT_THERE and host_ofed
        severity, missing = (Severity.WARNING, " This node has none.") if is_missing else (None, "")
        install = "Install DOCA-OFED on the host" if host_ofed else "Apply a NicClusterPolicy with ofedDriver"
        yield problem_at(line, "waits-for-ofed", "", severity, where=where, missing=missing, install=install)


def _line(mapping: Mapping, name: str) -> int:
    value = value_at(mapping, name)
    return mapping.line if value is None else value.line
