"""Names from a node, its cluster and its jobs cannot change what a manifest does."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from probes.base.unknown import Unknown
from probes.facts.gpu.driver_package import DriverPackage
from probes.facts.gpudirect import GdrPath
from probes.facts.rdma.nic_driver import NicDriver, NicStack
from probes.facts.system.packages import Distribution, Family
from probes.setup.manifests.catalogue import MANIFESTS
from probes.setup.manifests.immutable_hosts import openibd_drop_in
from probes.setup.manifests.manifest_text import ManifestRequest, Refused
from probes.setup.situation import Situation
from tests.probes.setup.manifests.clusters import in_cluster, operator_facts
from tests.support.parsed_manifests import (
    ABSENT,
    DMABUF,
    OPERATOR,
    PEERMEM,
    changed,
    content,
    parse,
    request_of,
    situation_of,
)
from tests.support.tiers import usual

HOSTILE = (
    "a\n- injected: true",
    "a\u2028spec: {}\u0085b\rc",
    "}{[]|>&*!%@`'\"",
    "$(reboot)`id`; rm -rf / \\",
    "x # y: z",
    "--- \n...\n%YAML 1.1",
    "\\\nRUN id",
    "0x10",
    "yes",
    "\x1b[31m[bold]",
    "é" * 5000,
)


def named(situation: Situation, word: str) -> Situation:
    """The same node with a hostile word wherever a manifest may show one."""
    examination = situation.examination
    node = examination.node
    platform, gpus, rdma = node.platform, node.gpus, node.rdma
    assert not isinstance(platform, Unknown)
    assert not isinstance(gpus, Unknown)
    assert not isinstance(rdma, Unknown)
    first = rdma.devices[0]
    port = replace(first.ports[0], netdev=word, link_layer="InfiniBand")
    devices = (replace(first, ports=(port,)), *rdma.devices[1:])
    choices: dict[str, Any] = {
        "platform": replace(platform, hostname=word, distribution=word),
        "gpus": replace(
            gpus,
            driver=replace(gpus.driver, version=word),
            gpus=tuple(replace(gpu, name=word) for gpu in gpus.gpus),
        ),
        "rdma": replace(rdma, devices=devices),
        "origin": node.origin._replace(label=word),
    }
    cluster = in_cluster(situation, operator_facts(name=word, uses_driver_crd=True)).kubernetes
    return changed(
        situation,
        examination=replace(
            examination,
            node=replace(node, **choices),
            distribution=Distribution(word, word, word, Family.DEBIAN),
        ),
        gpu_driver=DriverPackage(word, ABSENT, ABSENT, word, ABSENT, ABSENT),
        nic_driver=NicDriver(NicStack.MLNX_OFED, word, word, ABSENT, ABSENT),
        kubernetes=cluster,
    )


def request_with(word: str, path: GdrPath, **choices: Any) -> ManifestRequest:
    return request_of(named(situation_of("dgx-a100"), word), path, talos_version=(1, 14), **choices)


@pytest.mark.slow
@pytest.mark.parametrize("kind", MANIFESTS)
@pytest.mark.parametrize("path", usual([DMABUF, PEERMEM], [PEERMEM]))
@given(st.sampled_from(HOSTILE) | st.text(max_size=40))
@settings(max_examples=6)
@example("\\")
def test_a_name_cannot_leave_its_comment_or_its_string(kind: str, path: GdrPath, word: str) -> None:
    written = MANIFESTS[kind].write(request_with(word, path))
    plain = MANIFESTS[kind].write(request_with("plain", path))
    if isinstance(plain, Refused):
        assert written == plain
        return
    assert isinstance(written, str)
    assert all(character.isprintable() or character == "\n" for character in written)
    found = parse(kind, written)
    if kind != "nicclusterpolicy":
        assert found == parse(kind, plain)
        return
    names = found["spec"]["rdmaSharedDevicePlugin"]["config"]["configList"][0]["selectors"]["ifNames"]
    assert names[-1] == "ib8"  # the others are still there, and a name that is none is left out


@pytest.mark.parametrize("word", HOSTILE)
def test_a_driver_version_that_is_none_is_not_written(word: str) -> None:
    values = parse("helm", written("helm", request_with(word, PEERMEM, driver=OPERATOR)))
    assert "version" not in values["driver"]
    drop_in = openibd_drop_in(request_with(word, PEERMEM))
    plain = openibd_drop_in(request_with("plain", PEERMEM))
    assert isinstance(drop_in, str)
    assert isinstance(plain, str)
    assert content(drop_in) == content(plain)


def written(kind: str, request: ManifestRequest) -> str:
    text = MANIFESTS[kind].write(request)
    assert isinstance(text, str)
    return text
