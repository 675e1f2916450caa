"""What a fleet gets: every manifest of every simulated node, read back and checked key by key."""

from dataclasses import replace

import pytest
from jsonschema import Draft202012Validator

from probes.base.unknown import Reason, Unknown
from probes.facts.gpudirect import GdrPath
from probes.setup.manifests.catalogue import MANIFESTS
from probes.setup.manifests.manifest_text import DriverOwner, Refused, make_request
from probes.setup.situation import choose_path
from probes.simulation.node.model.description import simulated_names
from tests.support import manifest_schemas
from tests.support.changed_facts import with_module
from tests.support.doctor import examination_of
from tests.support.parsed_manifests import (
    DMABUF,
    HOST,
    OPERATOR,
    PEERMEM,
    changed,
    parse,
    refusal_of,
    request_of,
    situation_of,
    text_of,
)

HGX, L40S = "hgx-h100", "pcie-l40s"
PEERMEM_MODULE = "nvidia_peermem"


@pytest.mark.slow
def test_the_schemas_are_schemas() -> None:
    for name, schema in vars(manifest_schemas).items():
        if name.isupper() and isinstance(schema, dict):
            Draft202012Validator.check_schema(schema)


@pytest.mark.parametrize("kind", MANIFESTS)
@pytest.mark.parametrize("name", simulated_names())
@pytest.mark.parametrize("path", [DMABUF, PEERMEM])
@pytest.mark.parametrize("owner", [HOST, OPERATOR])
def test_a_manifest_is_valid_and_says_what_it_is_from(
    name: str, path: GdrPath, owner: DriverOwner, kind: str
) -> None:
    request = make_request(situation_of(name), path, owner, role="gpu", talos_version=(1, 14))
    if isinstance(request, Refused):
        assert name in ("slingshot", "dgx-spark") or (name.startswith("aws-") and path is PEERMEM), request
        return
    written = MANIFESTS[kind].write(request)
    if isinstance(written, Refused):
        no_modules = kind in ("modules-load", "machineconfig") and owner is OPERATOR
        no_modules = no_modules or (kind == "nicclusterpolicy" and name.startswith("aws-"))
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
    used = with_module(examination_of(HGX), PEERMEM_MODULE, persistent="/etc/modules-load.d/old.conf")
    assert choose_path(used).old_peermem == ()  # the job of this node registers its memory with it
    peermem = replace(used.reading.peermem, refcnt=0)
    examination = replace(used, reading=replace(used.reading, peermem=peermem))
    choice = choose_path(examination)
    assert choice.recommended is DMABUF
    assert [old.source for old in choice.old_peermem] == ["/etc/modules-load.d/old.conf"]
    situation = changed(situation_of(HGX), examination=examination)
    note = "nvidia_peermem, which DMA-BUF does not need, is still loaded by"
    assert note in text_of("modules-load", request_of(situation)).replace("\n#       ", " ")
    assert note not in text_of("modules-load", request_of(situation, PEERMEM))
    assert choose_path(with_module(examination, PEERMEM_MODULE, persistent=None)).old_peermem == ()


@pytest.mark.slow
def test_in_a_cluster_with_both_operators_no_boot_file_is_written() -> None:
    for kind in MANIFESTS:
        request = request_of(f"{HGX}+k8s-operators", PEERMEM)
        if kind in ("modules-load", "machineconfig", "talos"):
            assert refusal_of(kind, request)
        else:
            assert parse(kind, text_of(kind, request))
    values = parse("helm", text_of("helm", request_of(f"{HGX}+k8s-operators", PEERMEM)))
    assert values["driver"]["rdma"] == {"enabled": True, "useHostMofed": False}
