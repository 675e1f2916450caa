"""What the GPU Operator and the Network Operator are given."""

import json
from dataclasses import replace
from typing import Any

import pytest
import yaml

from probes.base.unknown import Unknown
from probes.facts.gpu.driver_package import DriverOrigin, DriverPackage
from probes.facts.gpudirect import GdrPath
from probes.facts.rdma.devices import RdmaFacts
from probes.facts.rdma.nic_driver import NicStack
from probes.facts.system.kubernetes import DriverContainerFacts, NetworkOperator
from probes.setup.manifests.manifest_text import Refused, driver_owner, make_request
from probes.setup.situation import Situation
from tests.probes.setup.manifests.clusters import (
    in_cluster,
    operator_facts,
    with_driver_container,
    with_stack,
)
from tests.support import manifest_schemas
from tests.support.parsed_manifests import (
    ABSENT,
    DMABUF,
    OPERATOR,
    PEERMEM,
    changed,
    parse,
    refusal_of,
    request_of,
    situation_of,
    text_of,
    valid,
)

HGX, DGX, L40S = "hgx-h100", "dgx-a100", "pcie-l40s"


def test_pods_never_get_the_ports_that_manage_nvswitches() -> None:
    situation = situation_of("hgx-b200")
    policy = parse("nicclusterpolicy", text_of("nicclusterpolicy", request_of(situation, DMABUF)))
    (entry,) = policy["spec"]["rdmaSharedDevicePlugin"]["config"]["configList"]
    assert entry["selectors"]["ifNames"] == [f"ib{number}" for number in range(8)]
    rdma = situation.examination.node.rdma
    assert isinstance(rdma, RdmaFacts)
    nameless = tuple(
        replace(device, ports=tuple(replace(port, netdev=ABSENT) for port in device.ports))
        for device in rdma.devices
    )
    examination = situation.examination
    node = replace(examination.node, rdma=replace(rdma, devices=nameless))
    without = changed(situation, examination=replace(examination, node=node))
    assert "manage NVSwitches" in refusal_of("nicclusterpolicy", request_of(without, DMABUF))


def test_the_driver_of_the_host_stays() -> None:
    spec = parse("clusterpolicy", text_of("clusterpolicy", request_of(HGX)))["spec"]
    assert spec["driver"] == {"enabled": False}
    assert spec["gdrcopy"] == {"enabled": False}


def test_dmabuf_gets_open_modules_and_no_peermem() -> None:
    driver = parse("clusterpolicy", text_of("clusterpolicy", request_of(DGX, DMABUF, driver=OPERATOR)))
    assert driver["spec"]["driver"] == {
        "enabled": True,
        "kernelModuleType": "open",
        "rdma": {"enabled": False, "useHostMofed": True},
    }


@pytest.mark.parametrize(
    ("stack", "host_mofed"),
    [
        (NicStack.DOCA_OFED, True),
        (NicStack.MLNX_OFED, True),
        (NicStack.CONTAINER, False),
        (NicStack.INBOX, False),
    ],
)
def test_peermem_waits_for_the_ofed_that_is_there(stack: NicStack, host_mofed: bool) -> None:
    request = request_of(with_stack(situation_of(HGX), stack), PEERMEM, driver=OPERATOR)
    values = parse("helm", text_of("helm", request))
    assert values["driver"]["rdma"] == {"enabled": True, "useHostMofed": host_mofed}
    assert values["driver"]["version"] == "570.211.01"


def test_a_driver_container_on_the_node_is_the_operators() -> None:
    situation = with_driver_container(situation_of(HGX))
    assert driver_owner(situation) is OPERATOR
    assert parse("clusterpolicy", text_of("clusterpolicy", request_of(situation)))["spec"]["driver"][
        "enabled"
    ]


def test_an_unknown_driver_is_left_as_it_is() -> None:
    situation = situation_of(HGX)
    examination = replace(situation.examination, driver_container=ABSENT)
    request = request_of(changed(situation, examination=examination, gpu_driver=ABSENT))
    driver = parse("clusterpolicy", text_of("clusterpolicy", request))["spec"]["driver"]
    assert "enabled" not in driver
    assert driver["rdma"] == {"enabled": False, "useHostMofed": True}


def with_capability(situation: Situation, capability: tuple[int, int]) -> Situation:
    gpus = situation.examination.node.gpus
    assert not isinstance(gpus, Unknown)
    found = tuple(replace(gpu, compute_capability=capability) for gpu in gpus.gpus)
    node = replace(situation.examination.node, gpus=replace(gpus, gpus=found))
    return changed(situation, examination=replace(situation.examination, node=node))


def test_gpus_before_turing_keep_the_proprietary_modules_and_peermem() -> None:
    volta = with_capability(situation_of(DGX), (7, 0))
    values = parse("helm", text_of("helm", request_of(volta, PEERMEM, driver=OPERATOR)))
    assert values["driver"]["kernelModuleType"] == "proprietary"
    refused = make_request(volta, DMABUF)
    assert isinstance(refused, Refused)
    assert "7.5" in refused.reason


def test_a_driver_too_old_for_dmabuf_is_not_kept() -> None:
    package = DriverPackage("470.82.01", False, DriverOrigin.CONTAINER, ABSENT, ABSENT, ABSENT)
    situation = changed(situation_of(DGX), gpu_driver=package)
    assert "version" not in parse("helm", text_of("helm", request_of(situation, DMABUF)))["driver"]
    assert parse("helm", text_of("helm", request_of(situation, PEERMEM)))["driver"]["version"] == "470.82.01"


def test_nvidiadriver_objects_get_a_patch_of_their_own() -> None:
    situation = in_cluster(situation_of(HGX), operator_facts(uses_driver_crd=True))
    text = text_of("clusterpolicy", request_of(situation, PEERMEM, driver=OPERATOR))
    assert set(parse("clusterpolicy", text)["spec"]) == {"devicePlugin", "dcgmExporter"}
    (command,) = (line for line in text.splitlines() if "kubectl patch nvidiadriver" in line)
    patch = valid(
        manifest_schemas.NVIDIA_DRIVER_PATCH, json.loads(command.partition("--patch '")[2].removesuffix("'"))
    )
    assert patch["spec"]["rdma"] == {"enabled": True, "useHostMofed": True}


def test_the_patch_names_the_clusters_policy() -> None:
    for name, used in (("gpu-policy", "gpu-policy"), ("x; reboot", "cluster-policy")):
        situation = in_cluster(situation_of(HGX), operator_facts(name=name))
        assert f"clusterpolicy {used} --type merge" in text_of("clusterpolicy", request_of(situation))


# Network Operator


def plugin(request: Any) -> list[dict[str, Any]]:
    policy = parse("nicclusterpolicy", text_of("nicclusterpolicy", request))
    entries: list[dict[str, Any]] = policy["spec"]["rdmaSharedDevicePlugin"]["config"]["configList"]
    return entries


def test_compute_nics_are_selected_by_id_and_by_name_only_where_ids_are_shared() -> None:
    (hgx,) = plugin(request_of(HGX))
    assert hgx["selectors"] == {"vendors": ["15b3"], "deviceIDs": ["1021"]}
    (dgx,) = plugin(request_of(DGX))  # its storage NICs are of the same kind
    assert dgx["selectors"]["ifNames"] == ["ib0", "ib1", "ib2", "ib3", "ib5", "ib6", "ib7", "ib8"]
    (l40s,) = plugin(request_of(L40S))
    assert l40s["resourceName"] == "gdr_roce"


def ofed(situation: Situation, path: GdrPath) -> dict[str, Any] | None:
    text = text_of("nicclusterpolicy", request_of(situation, path))
    driver: dict[str, Any] | None = parse("nicclusterpolicy", text)["spec"].get("ofedDriver")
    return driver


def test_ofed_comes_in_a_container_only_where_it_is_needed() -> None:
    inbox = situation_of(L40S)
    assert ofed(inbox, DMABUF) is None
    assert ofed(situation_of(DGX), PEERMEM) is None  # it has OFED on the host
    driver = ofed(inbox, PEERMEM)
    assert driver is not None
    assert [entry["name"] for entry in driver["env"]] == ["RESTORE_DRIVER_ON_POD_TERMINATION"]


def test_ofed_keeps_the_clusters_version_and_unloads_storage_modules() -> None:
    traces = DriverContainerFacts(False, ABSENT, True, True, ("rpcrdma",), True)
    situation = situation_of(L40S)
    network = NetworkOperator("nic-cluster-policy", "ready", "doca3.2.0-25.10-1.2.8.0-2")
    examination = replace(situation.examination, driver_container=traces)
    driver = ofed(in_cluster(changed(situation, examination=examination), network=network), PEERMEM)
    assert driver is not None
    assert driver["version"] == "doca3.2.0-25.10-1.2.8.0-2"
    assert {"UNLOAD_STORAGE_MODULES", "ENABLE_NFSRDMA"} < {entry["name"] for entry in driver["env"]}


def test_nics_of_other_vendors_are_refused() -> None:
    situation = situation_of(L40S)
    pci = situation.examination.node.pci
    assert not isinstance(pci, Unknown)
    functions = {bdf: replace(function, vendor_id=0x14E4) for bdf, function in pci.functions.items()}
    node = replace(situation.examination.node, pci=replace(pci, functions=functions))
    broadcom = changed(situation, examination=replace(situation.examination, node=node))
    assert "15b3" in refusal_of("nicclusterpolicy", request_of(broadcom, DMABUF))


def test_yaml_is_read_the_same_by_readers_of_1_2() -> None:
    """A version or a Boolean that is a string is quoted."""
    text = text_of("nicclusterpolicy", request_of(L40S, PEERMEM))
    assert 'value: "true"' in text
    assert 'version: "570.211.01"' in text_of("helm", request_of(HGX, driver=OPERATOR))
    assert yaml.safe_load(text)["spec"]["ofedDriver"]["env"][0]["value"] == "true"
