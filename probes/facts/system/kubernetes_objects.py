"""The JSON of kubectl: only the fields that gdrtop reads, and what they say.

Field names: NVIDIA gpu-operator v26.7.0, api/nvidia/v1/clusterpolicy_types.go and v1alpha1; Mellanox
network-operator v26.7.0, api/v1alpha1/nicclusterpolicy_types.go; Kubernetes API, core/v1.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from probes.base.frozen import frozen
from probes.base.text import parse_json, printable
from probes.base.unknown import Maybe, Reason, Unknown, false_if_absent, known, map_known

_MAX_ITEMS = 16
_MAX_TEXT = 253  # the longest name of an object
_CHART, _VERSION = "helm.sh/chart", "app.kubernetes.io/version"  # labels
_STATE = {"waiting": {"reason": None}, "terminated": {"reason": None}}
_CONTAINER = {"name": None, "ready": None, "restartCount": None, "state": _STATE, "lastState": _STATE}
_DRIVER = {
    "enabled": None,
    "version": None,
    "useNvidiaDriverCRD": None,
    "rdma": {"enabled": None, "useHostMofed": None},
}
# Every field that is read, in all objects: the others, such as variables with passwords, are dropped at once.
_FIELDS: dict[str, Any] = {
    "metadata": {"name": None, "namespace": None, "labels": dict.fromkeys((_CHART, _VERSION))},
    "spec": {**_DRIVER, "driver": _DRIVER, "ofedDriver": {"version": None}},
    "status": {"state": None, "containerStatuses": [_CONTAINER], "initContainerStatuses": [_CONTAINER]},
}


@frozen
class ContainerState:
    """One container of a driver pod."""

    pod: str
    name: str  # "nvidia-peermem-ctr"
    ready: bool
    restarts: int
    reason: str  # waiting or terminated: "CrashLoopBackOff"; ""
    log: tuple[str, ...]  # last lines, cleaned; () where not read
    namespace: str = ""


@frozen
class GpuOperator:
    """The fields that decide how GPUDirect RDMA gets onto a node."""

    name: str  # "cluster-policy"
    state: Maybe[str]  # "ready", "notReady"
    version: Maybe[str]
    driver_enabled: Maybe[bool]
    driver_version: Maybe[str]
    rdma_enabled: Maybe[bool]
    use_host_mofed: Maybe[bool]
    uses_driver_crd: Maybe[bool]


@frozen
class NetworkOperator:
    """The NIC driver that the Network Operator installs."""

    name: str
    state: Maybe[str]
    ofed_version: Maybe[str]  # NOT_THERE: it installs no driver


Object = Mapping[str, Any]


def kept_fields(text: str) -> str:
    """Return the JSON of kubectl with only the fields that are read; "" for anything else."""
    found = objects(text)
    if isinstance(found, Unknown):
        return ""
    return json.dumps({"items": found}, separators=(",", ":"), sort_keys=True)


def objects(text: str) -> Maybe[tuple[Object, ...]]:
    """Parse the objects of a list, or the single object, that kubectl printed."""
    whole = parse_json(text)
    if not isinstance(whole, dict):
        return Unknown(Reason.MALFORMED, "kubectl", "the output is not a JSON object")
    items = whole.get("items", [whole])
    found = items[:_MAX_ITEMS] if isinstance(items, list) else []
    return tuple(_filtered(item, _FIELDS) for item in found if isinstance(item, dict))


def _filtered(value: Any, fields: Any) -> Any:
    """Return the part of a JSON value that `fields` names, with bounded texts and lists."""
    if isinstance(fields, dict):
        items = value if isinstance(value, dict) else {}
        return {key: _filtered(items[key], fields[key]) for key in fields if key in items}
    if isinstance(fields, list):
        listed = value if isinstance(value, list) else []
        return [_filtered(item, fields[0]) for item in listed[:_MAX_ITEMS]]
    return value if isinstance(value, bool | int) else _text(value)


def _text(value: Any) -> str | None:
    return printable(value, _MAX_TEXT) if isinstance(value, str) else None


def text_at(item: Object, *keys: str) -> Maybe[str]:
    """Return a text in an object; NOT_THERE: the object does not set it."""
    value = _at(item, keys)
    return value if isinstance(value, str) and value else _not_set(keys)


def flag_at(item: Object, *keys: str) -> Maybe[bool]:
    """Return a switch in an object; NOT_THERE: the object does not set it."""
    value = _at(item, keys)
    return value if isinstance(value, bool) else _not_set(keys)


def _at(item: Any, keys: tuple[str, ...]) -> Any:
    for key in keys:
        item = item.get(key) if isinstance(item, dict) else None
    return item


def _not_set(keys: tuple[str, ...]) -> Unknown:
    return Unknown(Reason.NOT_THERE, ".".join(keys), "not set")


def gpu_operator(policy: Object, drivers: Maybe[tuple[Object, ...]]) -> GpuOperator:
    """Read a ClusterPolicy; with useNvidiaDriverCRD its driver fields come from the NVIDIADriver object.

    Several NVIDIADriver objects share the nodes by label: then those fields are unknown.
    """
    uses_crd = flag_at(policy, "spec", "driver", "useNvidiaDriverCRD")
    driver: Maybe[Object] = {"spec": _at(policy, ("spec", "driver"))}
    if uses_crd is True:
        driver = _single(drivers)
    chart = text_at(policy, "metadata", "labels", _CHART)
    version = text_at(policy, "metadata", "labels", _VERSION)
    if isinstance(version, Unknown) and not isinstance(chart, Unknown):
        version = chart.removeprefix("gpu-operator-")
    return GpuOperator(
        name=_name(policy),
        state=text_at(policy, "status", "state"),
        version=version,
        driver_enabled=flag_at(policy, "spec", "driver", "enabled"),
        driver_version=map_known(driver, lambda item: text_at(item, "spec", "version")),
        rdma_enabled=_switch(driver, "rdma", "enabled"),
        use_host_mofed=_switch(driver, "rdma", "useHostMofed"),
        uses_driver_crd=false_if_absent(uses_crd),
    )


def _single(drivers: Maybe[tuple[Object, ...]]) -> Maybe[Object]:
    if isinstance(drivers, Unknown):
        return drivers
    if len(drivers) == 1:
        return drivers[0]
    count = f"{len(drivers)} NVIDIADriver objects" if drivers else "no NVIDIADriver object"
    reason = Reason.NOT_RECORDED if drivers else Reason.NOT_THERE
    return Unknown(reason, "nvidiadrivers.nvidia.com", count)


def _switch(driver: Maybe[Object], *keys: str) -> Maybe[bool]:
    """Return a switch of the driver, which is false by default."""
    return map_known(driver, lambda item: false_if_absent(flag_at(item, "spec", *keys)))


def network_operator(policy: Object) -> NetworkOperator:
    """Read a NicClusterPolicy."""
    return NetworkOperator(
        name=_name(policy),
        state=text_at(policy, "status", "state"),
        ofed_version=text_at(policy, "spec", "ofedDriver", "version"),
    )


def containers(pod: Object) -> tuple[ContainerState, ...]:
    """Read the containers of a pod, those that initialize it first, without their logs."""
    keys = ("initContainerStatuses", "containerStatuses")
    listed = [status for key in keys for status in _at(pod, ("status", key)) or ()]
    namespace = text_at(pod, "metadata", "namespace")
    return tuple(
        ContainerState(
            pod=_name(pod),
            name=_text_or_empty(status.get("name")),
            ready=status.get("ready") is True,
            restarts=_count(status.get("restartCount")),
            reason=_reason(status),
            log=(),
            namespace=known(namespace, ""),
        )
        for status in listed
    )


def _reason(status: Object) -> str:
    for state in ("waiting", "terminated"):
        found = _at(status, ("state", state, "reason"))
        if isinstance(found, str):
            return found
    return ""


def _count(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else 0


def _name(item: Object) -> str:
    return _text_or_empty(_at(item, ("metadata", "name")))


def _text_or_empty(value: Any) -> str:
    return value if isinstance(value, str) else ""
