"""What a fleet gets: every manifest of every simulated node, read back and checked key by key."""

import json
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from probes.base.unknown import Maybe, Reason, Unknown
from probes.facts.gpu.driver_package import DriverOrigin, DriverPackage
from probes.facts.gpudirect import GdrPath
from probes.facts.rdma.nic_driver import NicDriver, NicStack
from probes.facts.system.distribution import Distribution, Family
from probes.facts.system.driver_container import DriverContainerFacts
from probes.facts.system.kubernetes import GpuOperator, KubernetesFacts, NetworkOperator
from probes.setup.manifests.catalogue import WRITERS
from probes.setup.manifests.modules_load import openibd_drop_in
from probes.setup.manifests.request import DriverOwner, Refused, driver_owner, make_request
from probes.setup.path_choice import choose_path
from probes.setup.situation import Situation
from probes.simulation.node.description import simulated_names
from tests.probes.checks.changed import with_module
from tests.probes.checks.doctor import examination_of
from tests.probes.setup.manifests import schemas
from tests.probes.setup.manifests.parsed import (
    ABSENT,
    DMABUF,
    HOST,
    OPERATOR,
    PEERMEM,
    changed,
    content,
    is_shell,
    modules_in,
    parse,
    refusal_of,
    request_of,
    situation_of,
    text_of,
    valid,
)

HGX, DGX, L40S = "hgx-h100", "dgx-a100", "pcie-l40s"
PEERMEM_MODULE = "nvidia_peermem"


def operator_facts(**fields: Any) -> GpuOperator:
    values: dict[str, Any] = {"driver_enabled": True, "uses_driver_crd": False, **fields}
    names = ("state", "version", "driver_version", "module_type", "rdma_enabled", "use_host_mofed")
    unread: dict[str, Any] = dict.fromkeys((*names, "gdrcopy_enabled"), ABSENT)
    return GpuOperator(**{"name": "cluster-policy", **unread, **values})


def in_cluster(
    situation: Situation,
    gpu: Maybe[GpuOperator] = ABSENT,
    network: Maybe[NetworkOperator] = ABSENT,
) -> Situation:
    facts = KubernetesFacts(
        distribution="kubeadm",
        tool="kubectl",
        node="node",
        gpu_operator=gpu,
        network_operator=network,
        containers=ABSENT,
        labels=ABSENT,
        allocatable=ABSENT,
        ready_markers=ABSENT,
    )
    return changed(situation, kubernetes=facts)


def with_driver_container(situation: Situation) -> Situation:
    package = DriverPackage("580.95.05", True, DriverOrigin.CONTAINER, ABSENT, ABSENT, ABSENT)
    return changed(situation, gpu_driver=package)


def on(situation: Situation, family: Family, version: str = "") -> Situation:
    return changed(situation, distribution=Distribution("os", version, "An OS", family))


def with_stack(situation: Situation, stack: NicStack) -> Situation:
    return changed(situation, nic_driver=NicDriver(stack, ABSENT, ABSENT, ABSENT, ABSENT))


# All of them


def test_the_schemas_are_schemas() -> None:
    for name, schema in vars(schemas).items():
        if name.isupper() and isinstance(schema, dict):
            Draft202012Validator.check_schema(schema)


@pytest.mark.parametrize("kind", WRITERS)
@pytest.mark.parametrize("name", simulated_names())
@pytest.mark.parametrize("path", [DMABUF, PEERMEM])
@pytest.mark.parametrize("owner", [HOST, OPERATOR])
def test_a_manifest_is_valid_and_says_what_it_is_from(
    name: str, path: GdrPath, owner: DriverOwner, kind: str
) -> None:
    request = request_of(name, path, driver=owner, role="gpu", talos_version=(1, 14))
    written = WRITERS[kind](request)
    if isinstance(written, Refused):
        no_modules = kind in ("modules-load", "machineconfig") and owner is OPERATOR
        assert no_modules or (kind == "talos" and path is PEERMEM), written
        return
    assert parse(kind, written)
    assert f"SIMULATED node {name}" in written
    assert f"Path:       {path.value}" in written
    assert ("chosen with --path" in written) == (path is not choose_path(examination_of(name)).recommended)
    assert all(len(line) <= 110 or line.startswith("#   ") for line in written.splitlines())


def test_what_the_node_does_not_meet_is_noted() -> None:
    text = text_of("helm", request_of(L40S, PEERMEM))
    assert "# Note: not met on this node: built with peer-memory symbols" in text
    assert "not met" not in text_of("helm", request_of(L40S))


def test_without_a_usable_path_one_has_to_be_chosen() -> None:
    situation = situation_of(HGX)
    unread = Unknown(Reason.TIMED_OUT, "gpudirect")
    node = replace(situation.examination.node, gpudirect=unread)
    blind = changed(situation, examination=replace(situation.examination, node=node))
    refused = make_request(blind)
    assert isinstance(refused, Refused)
    assert "--path" in refused.reason
    assert parse("helm", text_of("helm", request_of(blind, DMABUF)))


def test_an_old_configuration_that_loads_peermem_is_noted_on_a_dmabuf_node() -> None:
    examination = with_module(examination_of(HGX), PEERMEM_MODULE, persistent="/etc/modules-load.d/old.conf")
    choice = choose_path(examination)
    assert choice.recommended is DMABUF
    assert [old.source for old in choice.old_peermem] == ["/etc/modules-load.d/old.conf"]
    situation = changed(situation_of(HGX), examination=examination)
    note = "an old configuration still loads nvidia_peermem"
    assert note in text_of("modules-load", request_of(situation)).replace("\n#       ", " ")
    assert note not in text_of("modules-load", request_of(situation, PEERMEM))
    assert choose_path(with_module(examination, PEERMEM_MODULE, persistent=None)).old_peermem == ()


def test_in_a_cluster_with_both_operators_no_boot_file_is_written() -> None:
    for kind in WRITERS:
        request = request_of(f"{HGX}+k8s-operators", PEERMEM)
        if kind in ("modules-load", "machineconfig", "talos"):
            assert refusal_of(kind, request)
        else:
            assert parse(kind, text_of(kind, request))
    values = parse("helm", text_of("helm", request_of(f"{HGX}+k8s-operators", PEERMEM)))
    assert values["driver"]["rdma"] == {"enabled": True, "useHostMofed": False}


# GPU Operator


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
    assert values["driver"]["version"] == "570.124.06"


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


def test_nvidiadriver_objects_get_a_patch_of_their_own() -> None:
    situation = in_cluster(situation_of(HGX), operator_facts(uses_driver_crd=True))
    text = text_of("clusterpolicy", request_of(situation, PEERMEM, driver=OPERATOR))
    assert set(parse("clusterpolicy", text)["spec"]) == {"devicePlugin", "dcgmExporter"}
    (command,) = (line for line in text.splitlines() if "kubectl patch nvidiadriver" in line)
    patch = valid(
        schemas.NVIDIA_DRIVER_PATCH, json.loads(command.partition("--patch '")[2].removesuffix("'"))
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
    network = NetworkOperator("nic-cluster-policy", "ready", "doca3.2.0-25.10-1.2.8.0-2", True)
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


# OpenShift and Talos


def test_a_machine_config_loads_the_modules_of_the_path() -> None:
    (machine,) = parse("machineconfig", text_of("machineconfig", request_of(HGX, PEERMEM)))
    assert modules_in(machine) == ["mlx5_core", "mlx5_ib", "nvidia", "nvidia_uvm", PEERMEM_MODULE]
    assert machine["spec"]["config"]["storage"]["files"][0]["mode"] == 0o644
    (other,) = parse("machineconfig", text_of("machineconfig", request_of(HGX, DMABUF)))
    assert PEERMEM_MODULE not in modules_in(other)
    assert "mode: 420\n" in text_of("machineconfig", request_of(HGX))


def test_a_role_of_its_own_comes_with_its_pool() -> None:
    pool, machine = parse("machineconfig", text_of("machineconfig", request_of(HGX, role="gpu")))
    assert machine["metadata"]["labels"] == {schemas.ROLE_LABEL: "gpu"}
    (expression,) = pool["spec"]["machineConfigSelector"]["matchExpressions"]
    assert expression["values"] == ["worker", "gpu"]
    assert pool["spec"]["nodeSelector"] == {"matchLabels": {"node-role.kubernetes.io/gpu": ""}}


def test_with_a_translating_iommu_the_pool_boots_with_passthrough() -> None:
    situation = situation_of(f"{HGX}+iommu-translated")
    for owner, has_files in ((HOST, True), (OPERATOR, False)):
        request = request_of(situation, DMABUF, driver=owner)
        (machine,) = parse("machineconfig", text_of("machineconfig", request))
        assert machine["spec"]["kernelArguments"] == ["iommu=pt"]
        assert ("storage" in machine["spec"]["config"]) == has_files


@pytest.mark.parametrize("kind", ["modules-load", "machineconfig"])
def test_no_boot_file_names_modules_that_are_in_the_operators_container(kind: str) -> None:
    for situation in (with_driver_container(situation_of(HGX)), on_coreos()):
        reason = refusal_of(kind, request_of(situation, PEERMEM))
        assert reason.startswith("the GPU Operator installs the driver")


def on_coreos() -> Situation:
    return on(changed(situation_of(HGX), gpu_driver=ABSENT), Family.COREOS, "4.18")


def test_talos_has_one_form_until_1_13_and_another_from_1_14_on() -> None:
    modules = ["nvidia", "nvidia_uvm", "nvidia_drm", "nvidia_modeset", "mlx5_core", "mlx5_ib", "ib_uverbs"]
    old = parse("talos", text_of("talos", request_of(HGX, talos_version=(1, 13))))
    assert [module["name"] for module in old["machine"]["kernel"]["modules"]] == modules
    *new, sysctl = parse("talos", text_of("talos", request_of(HGX, talos_version=(1, 14))))
    assert [document["name"] for document in new] == modules
    assert sysctl["params"] == old["machine"]["sysctls"] == {"net.core.bpf_jit_harden": "1"}
    assert "ib_umad" in text_of("talos", request_of("gb200", talos_version=(1, 14)))


def test_talos_takes_its_version_from_the_node_or_asks_for_it() -> None:
    assert "--talos-version" in refusal_of("talos", request_of(HGX))
    assert isinstance(parse("talos", text_of("talos", request_of(on_talos("v1.9.2")))), dict)
    assert isinstance(parse("talos", text_of("talos", request_of(on_talos("v1.14.0")))), list)


def on_talos(version: str) -> Situation:
    return on(situation_of("gb200"), Family.TALOS, version)


def test_peermem_is_refused_for_talos() -> None:
    assert "no OFED" in refusal_of("talos", request_of(HGX, PEERMEM, talos_version=(1, 14)))
    refused = make_request(on_talos("v1.14.0"), PEERMEM)
    assert isinstance(refused, Refused)


# Boot files


def test_modules_load_lists_peermem_for_its_path_only() -> None:
    assert parse("modules-load", text_of("modules-load", request_of(DGX)))[-1] == PEERMEM_MODULE
    assert PEERMEM_MODULE not in parse("modules-load", text_of("modules-load", request_of(HGX)))


def test_a_module_that_is_not_on_disk_is_noted() -> None:
    assert "not on disk here: nvidia_peermem" in text_of("modules-load", request_of("gb200", PEERMEM))
    assert "not on disk" not in text_of("modules-load", request_of("gb200", DMABUF))


def test_openibd_gets_a_drop_in_where_it_is_installed() -> None:
    text = openibd_drop_in(request_of(HGX, PEERMEM))
    assert isinstance(text, str)
    (start,) = (line for line in content(text) if line.startswith("ExecStartPost=-/bin/sh -c '"))
    assert is_shell(start.partition("=-")[2])
    assert "--drop-in" in text_of("modules-load", request_of(HGX, PEERMEM))
    for request in (request_of(L40S, PEERMEM), request_of(HGX, DMABUF)):
        assert isinstance(openibd_drop_in(request), Refused)
        assert "--drop-in" not in text_of("modules-load", request)


# Slurm


@pytest.mark.parametrize(
    ("check", "on_critical", "status", "logged"),
    [
        ("exit 0", "log", 0, ""),
        ("echo head; echo verdict-line; exit 1", "fail", 0, "warning: verdict-line"),
        ("echo head; echo verdict-line; exit 2", "log", 0, "critical: verdict-line"),
        ("echo head; echo verdict-line; exit 2", "fail", 1, "critical: verdict-line"),
        ("exit 3", "fail", 0, "has no result (exit status 3)"),
        ("sleep 30", "fail", 0, "did not finish within 0.2 s"),
        (None, "fail", 0, "gdrtop is not installed"),
    ],
)
def test_the_prolog_stops_a_job_only_if_asked_to(
    tmp_path: Path, check: str | None, on_critical: str, status: int, logged: str
) -> None:
    script = text_of("slurm-prolog", request_of(HGX))
    for old, new in (
        ("PATH=/usr/sbin:/usr/bin:/sbin:/bin:/usr/local/bin", f"PATH={tmp_path}"),
        ("ON_CRITICAL=log", f"ON_CRITICAL={on_critical}"),
        ("LIMIT_SECONDS=20", "LIMIT_SECONDS=0.2"),
    ):
        assert script.count(old) == 1
        script = script.replace(old, new)
    for tool in ("sh", "sed", "timeout", "sleep"):
        (tmp_path / tool).symlink_to(shutil.which(tool) or tool)
    programs = {"logger": f'echo "$@" >> {tmp_path}/log', **({} if check is None else {"gdrtop": check})}
    for name, body in programs.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / name).chmod(0o755)
    ended = subprocess.run(["/bin/sh", "-c", script], capture_output=True, env={"SLURM_JOB_ID": "7"})
    assert (ended.returncode, ended.stdout, ended.stderr) == (status, b"", b"")
    log = tmp_path / "log"
    assert logged in (log.read_text() if log.exists() else "")
    assert log.exists() == bool(logged)


def test_the_prolog_loads_peermem_where_the_host_owns_the_driver() -> None:
    assert "modprobe nvidia_peermem" in text_of("slurm-prolog", request_of(HGX, PEERMEM))
    assert "modprobe" not in text_of("slurm-prolog", request_of(HGX, DMABUF))
    assert "modprobe" not in text_of("slurm-prolog", request_of(HGX, PEERMEM, driver=OPERATOR))


def test_containers_run_with_locked_memory_and_the_nics() -> None:
    text = text_of("container", request_of(HGX))
    for tool in ("docker run --gpus all", "podman run --device nvidia.com/gpu=all"):
        (line,) = (line for line in text.splitlines() if tool in line)
        for option in (
            "--ulimit memlock=-1:-1",
            "--cap-add IPC_LOCK",
            "--device /dev/infiniband",
            "/dev/gdrdrv",
        ):
            assert option in line
    situation = situation_of(HGX)
    without = replace(situation.examination, device_nodes=ABSENT)
    assert "/dev/gdrdrv" not in text_of("container", request_of(changed(situation, examination=without)))


def test_yaml_is_read_the_same_by_readers_of_1_2() -> None:
    """A version or a Boolean that is a string is quoted."""
    text = text_of("nicclusterpolicy", request_of(L40S, PEERMEM))
    assert 'value: "true"' in text
    assert 'version: "570.124.06"' in text_of("helm", request_of(HGX, driver=OPERATOR))
    assert yaml.safe_load(text)["spec"]["ofedDriver"]["env"][0]["value"] == "true"
