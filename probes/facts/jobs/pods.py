"""The pods of this node by name, and the devices that the kubelet gave them; mostly readable by root alone.

Sources: Kubernetes 1.34, pkg/kubelet/kuberuntime/helpers.go (BuildPodLogsDirectory), pkg/kubelet/cm/
devicemanager/checkpoint/checkpoint.go, pkg/kubelet/cm/dra/state/checkpoint/ and state.go; kubernetes.io,
Local Files And Paths Used By The Kubelet. A device plugin or driver may have any name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from probes.base.frozen import frozen
from probes.base.text import join_limited, parse_json, printable
from probes.base.unknown import Maybe, Reason, Unknown, first_unread, known, map_known
from probes.host.protocol import Host

LOGS = "/var/log/pods"
PLUGINS = "/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint"
CLAIMS = "/var/lib/kubelet/dra_manager_state"
_STATE_BYTES = 8 << 20
_MOST_ENTRIES = 4096
_TEXT = 253
# Of a pod, "pod" and the first eight digits of its UID are its job (process_files.parse_job).
_DIRECTORY = re.compile(r"([a-z0-9-]{1,63})_([a-z0-9.-]{1,253})_([0-9a-f]{8})[0-9a-f-]{0,40}")
_UID = re.compile(r"([0-9a-f]{8})[0-9a-f-]{0,40}")


@frozen
class GivenDevices:
    """Devices of one resource or claim."""

    source: str  # "rdma/hca_shared_devices_a"; "claim team/pair, dra.net"
    devices: tuple[str, ...]  # as the plugin or driver calls them

    @property
    def text(self) -> str:
        """The devices as a phrase."""
        return f"{self.source}: {join_limited(self.devices) or 'none'}"


def pod_names(host: Host) -> dict[str, str]:
    """Return namespace and name by job: "pod 1b2c3d4e" is "ml/llama-0"."""
    matches = map(_DIRECTORY.fullmatch, known(host.names(LOGS), ()))
    return {f"pod {match[3]}": f"{match[1]}/{match[2]}" for match in matches if match}


def given_devices(host: Host) -> Maybe[dict[str, tuple[GivenDevices, ...]]]:
    """Return the devices of each pod by job; NOT_THERE: this node has no kubelet."""
    states = {path: host.read(path, _STATE_BYTES) for path in (PLUGINS, CLAIMS)}
    unread = first_unread(states.values())
    if unread is not None:
        return unread
    if all(isinstance(text, Unknown) for text in states.values()):
        return Unknown(Reason.NOT_THERE, PLUGINS, "no kubelet")
    found: dict[str, list[GivenDevices]] = {}
    for parse, path in ((_of_plugins, PLUGINS), (_of_claims, CLAIMS)):
        for job, given in parse(known(map_known(states[path], parse_json), None)):
            found.setdefault(job, []).append(given)
    return {job: tuple(given) for job, given in found.items()}


def _of_plugins(state: object) -> Iterator[tuple[str, GivenDevices]]:
    for entry in _list(_at(state, "Data", "PodDeviceEntries")):
        by_numa = _at(entry, "DeviceIDs")  # by NUMA node since Kubernetes 1.20
        lists = by_numa.values() if isinstance(by_numa, dict) else (by_numa,)
        devices = tuple(_text(device) for each in lists for device in _list(each))
        for job in _jobs([_at(entry, "PodUID")]):
            yield job, GivenDevices(_text(_at(entry, "ResourceName")), devices)


def _of_claims(state: object) -> Iterator[tuple[str, GivenDevices]]:
    data = _at(state, "Data")
    for entry in _list(_at(parse_json(data) if isinstance(data, str) else data, "Entries")):
        claim = f"claim {_text(_at(entry, 'Namespace'))}/{_text(_at(entry, 'ClaimName'))}"
        drivers, pods = _at(entry, "DriverState"), _at(entry, "PodUIDs")
        for driver, given in (drivers if isinstance(drivers, dict) else {}).items():
            devices = tuple(_text(_at(device, "DeviceName")) for device in _list(_at(given, "Devices")))
            for job in _jobs(list(pods) if isinstance(pods, dict) else []):
                yield job, GivenDevices(f"{claim}, {_text(driver)}", devices)


def _jobs(uids: list[Any]) -> list[str]:
    matches = (_UID.fullmatch(uid) for uid in uids[:_MOST_ENTRIES] if isinstance(uid, str))
    return [f"pod {match[1]}" for match in matches if match]


def _at(value: Any, *keys: str) -> Any:
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _list(value: Any) -> list[Any]:
    return value[:_MOST_ENTRIES] if isinstance(value, list) else []


def _text(value: Any) -> str:
    return printable(value, _TEXT) if isinstance(value, str) else "?"
