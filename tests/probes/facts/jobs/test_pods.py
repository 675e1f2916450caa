"""Pods by name, and the devices that the kubelet gave them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.base.text import parse_json
from probes.base.unknown import Maybe, Reason, Unknown
from probes.facts.jobs.pods import CLAIMS, LOGS, PLUGINS, GivenDevices, given_devices, pod_names
from probes.host.machine.local import LocalHost
from probes.host.protocol import HostBase
from probes.simulation.host import SimulatedHost
from tests.support.trees import write

UID = "1b2c3d4e-5f60-4718-9a8b-0c1d2e3f4a5b"


class Kubelet(HostBase):
    """A node with these state files."""

    UNANSWERED = (Reason.NOT_THERE, "")

    def __init__(self, **states: Any) -> None:
        self.states = {{"plugins": PLUGINS, "claims": CLAIMS}[name]: value for name, value in states.items()}

    def read_bytes(self, path: str, limit: int = 0) -> Maybe[bytes]:
        value = self.states.get(path, Unknown(Reason.NOT_THERE, path))
        return value if isinstance(value, Unknown) else json.dumps(value).encode()


def entry(devices: object) -> dict[str, object]:
    return {"PodUID": UID, "ContainerName": "main", "ResourceName": "aliyun/erdma", "DeviceIDs": devices}


@pytest.mark.parametrize("devices", [["e0", "e1"], {"-1": ["e0"], "1": ["e1"]}])
def test_devices_of_a_plugin_with_any_name(devices: object) -> None:
    found = given_devices(Kubelet(plugins={"Data": {"PodDeviceEntries": [entry(devices)]}}))
    assert found == {"pod 1b2c3d4e": (GivenDevices("aliyun/erdma", ("e0", "e1")),)}


def test_devices_of_a_claim() -> None:
    claim = {
        "ClaimName": "pair",
        "Namespace": "team",
        "PodUIDs": {UID: {}},
        "DriverState": {"dra.net": {"Devices": [{"DeviceName": "net1"}]}},
    }
    state = {"Data": json.dumps({"kind": "DRACheckpoint", "Entries": [claim]}), "Checksum": 7}
    found = given_devices(Kubelet(claims=state))
    assert not isinstance(found, Unknown)
    assert [given.text for given in found["pod 1b2c3d4e"]] == ["claim team/pair, dra.net: net1"]


def test_what_cannot_be_read_is_not_nothing() -> None:
    for states, reason in (
        ({}, Reason.NOT_THERE),
        ({"plugins": Unknown(Reason.NEEDS_ROOT, PLUGINS)}, Reason.NEEDS_ROOT),
        ({"plugins": {}, "claims": Unknown(Reason.NEEDS_ROOT, CLAIMS)}, Reason.NEEDS_ROOT),
    ):
        found = given_devices(Kubelet(**states))
        assert isinstance(found, Unknown)
        assert found.reason is reason


_KEYS = ["Data", "PodDeviceEntries", "Entries", "DeviceIDs", "DriverState", "PodUIDs", UID]
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(_KEYS), inner, max_size=4),
)


@given(_JSON, _JSON)
def test_no_state_stops_the_parser(plugins: object, claims: object) -> None:
    assert isinstance(given_devices(Kubelet(plugins=plugins, claims=claims)), dict)


def test_names_of_pods(tmp_path: Path) -> None:
    for name in (
        f"ml_llama-0_{UID}",
        "kube-system_etcd_0123456789abcdef0123456789abcdef",
        "x",
        "a_b_\x1b[31m",
    ):
        write(tmp_path, f"{LOGS}/{name}/0.log", "")
    names = pod_names(LocalHost(str(tmp_path)))
    assert names == {"pod 1b2c3d4e": "ml/llama-0", "pod 01234567": "kube-system/etcd"}


def test_a_simulated_kubelet_writes_what_is_read() -> None:
    host = SimulatedHost("pcie-l40s+rdma-devices-in-pods-root")
    assert pod_names(host) == {"pod 1b2c3d4e": "team/trainer-0"}
    assert isinstance(parse_json(str(host.read(CLAIMS))), dict)
    found = given_devices(host)
    assert not isinstance(found, Unknown)
    assert len(found["pod 1b2c3d4e"]) == 2
