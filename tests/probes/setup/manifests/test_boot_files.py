"""What nodes load at boot: OpenShift, Talos, modules-load.d and openibd."""

import pytest

from probes.facts.system.packages import Family
from probes.setup.manifests.immutable_hosts import openibd_drop_in
from probes.setup.manifests.manifest_text import Refused, make_request
from probes.setup.situation import Situation
from tests.probes.setup.manifests.clusters import on, with_driver_container
from tests.support import manifest_schemas
from tests.support.parsed_manifests import (
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
)

HGX, DGX, L40S = "hgx-h100", "dgx-a100", "pcie-l40s"
PEERMEM_MODULE = "nvidia_peermem"


def test_a_machine_config_loads_the_modules_of_the_path() -> None:
    (machine,) = parse("machineconfig", text_of("machineconfig", request_of(HGX, PEERMEM)))
    assert modules_in(machine) == ["mlx5_core", "mlx5_ib", "nvidia", "nvidia_uvm", PEERMEM_MODULE]
    assert machine["spec"]["config"]["storage"]["files"][0]["mode"] == 0o644
    (other,) = parse("machineconfig", text_of("machineconfig", request_of(HGX, DMABUF)))
    assert PEERMEM_MODULE not in modules_in(other)
    assert "mode: 420\n" in text_of("machineconfig", request_of(HGX))


def test_a_role_of_its_own_comes_with_its_pool() -> None:
    pool, machine = parse("machineconfig", text_of("machineconfig", request_of(HGX, role="gpu")))
    assert machine["metadata"]["labels"] == {manifest_schemas.ROLE_LABEL: "gpu"}
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


# modules-load.d


def test_modules_load_lists_peermem_for_its_path_only() -> None:
    assert parse("modules-load", text_of("modules-load", request_of(DGX)))[-1] == PEERMEM_MODULE
    assert PEERMEM_MODULE not in parse("modules-load", text_of("modules-load", request_of(HGX)))


def test_slingshots_second_module_has_a_loader() -> None:
    assert "loads cxi_user" in text_of("modules-load", request_of("slingshot"))


def test_a_module_that_is_not_on_disk_is_noted() -> None:
    assert "not on disk here: nvidia_peermem" in text_of("modules-load", request_of("gb200", PEERMEM))
    assert "not on disk" not in text_of("modules-load", request_of("gb200", DMABUF))


def test_openibd_gets_a_drop_in_where_it_is_installed() -> None:
    text = openibd_drop_in(request_of(HGX, PEERMEM))
    assert isinstance(text, str)
    (start,) = (line for line in content(text) if line.startswith("ExecStartPost=-/bin/sh -c '"))
    assert is_shell(start.partition("=-")[2])
    assert content(text) == ["[Service]", start]  # systemd before 245 refuses Restart= in a oneshot unit
    assert "--drop-in" in text_of("modules-load", request_of(HGX, PEERMEM))
    for request in (request_of(L40S, PEERMEM), request_of(HGX, DMABUF)):
        assert isinstance(openibd_drop_in(request), Refused)
        assert "--drop-in" not in text_of("modules-load", request)
