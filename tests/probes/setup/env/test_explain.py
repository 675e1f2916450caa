"""What `--explain` says of values, versions and this node."""

from __future__ import annotations

import pytest

from probes.nccl.variables.catalogue import NEWEST, parse_version, variables
from probes.setup.env.explain import Explanation, explain
from tests.support.doctor import examination_of
from tests.support.env_nodes import changed
from tests.support.tiers import usual


def explained(text: str, node: str = "hgx-h100", nccl: str = "") -> Explanation:
    found = explain(text, examination_of(node), parse_version(nccl) or NEWEST)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("NCCL_NET_GDR_LEVEL=5", "5 means SYS: always"),
        ("NCCL_NET_GDR_LEVEL=0", "0 means LOC: never"),
        ("NCCL_NET_GDR_LEVEL=0x3", "0x3 means PHB"),
        ("NCCL_NET_GDR_LEVEL=PHB", "PHB: in the same NUMA node"),
        ("NCCL_NET_GDR_LEVEL=NODE", "silently ignores “NODE”"),
        ("NCCL_P2P_LEVEL=PIX", "PIX: GPUs below the same PCIe switch"),
        ("NCCL_P2P_LEVEL=P2C", "P2C: a distance between GPU and NIC only"),
        ("NCCL_P2P_LEVEL=NVB", "NVB: a distance between GPUs only"),
        ("NCCL_IB_HCA==mlx5_0,mlx5_1:2", "NICs named mlx5_0, mlx5_1:2."),
        ("NCCL_IB_HCA=mlx5_1", "NICs whose names begin with mlx5_1."),
        ("NCCL_IB_HCA=^=mlx5_4", "All but the NICs named mlx5_4."),
        ("NCCL_IB_HCA=", "The list is empty"),
        ("NCCL_IB_TIMEOUT=22", "17.2 s"),
        ("NCCL_IB_TIMEOUT=77", "77 is outside 0 to 31."),
        ("NCCL_IB_TC=106", "DSCP 26, ECN bits 2."),
        ("NCCL_IB_RETRY_CNT=010", "It is read as 8."),
        ("NCCL_IB_RETRY_CNT=x", "not a number, so the default applies"),
        ("NCCL_CROSS_NIC=0", "0: never"),
        ("NCCL_SOCKET_IFNAME=^docker", "All interfaces except those whose names begin with docker."),
        ("NCCL_SOCKET_FAMILY=ipv4", "is not one of AF_INET, AF_INET6"),
        ("NCCL_IB_QPS_PER_CONNECTION=1", "is the default of 2.32"),
    ],
)
def test_a_value_is_explained(text: str, words: str) -> None:
    assert words in " ".join(explained(text).of_value)


def test_defaults_by_version_are_listed() -> None:
    assert explained("NCCL_IB_TIMEOUT").defaults == ("14", "18 since 2.14", "20 since 2.23")
    assert explained("NCCL_IB_HCA").defaults == ()


def test_the_level_of_gpus_is_not_explained_by_nics() -> None:
    found = explained("NCCL_P2P_LEVEL=SYS", "pcie-l40s")
    assert "NIC" not in " ".join((*found.of_value, *found.on_this_node, *(text for _, text in found.values)))


def test_the_node_is_part_of_the_explanation() -> None:
    far = " ".join(explained("NCCL_NET_GDR_LEVEL=PXB", "pcie-l40s").on_this_node)
    assert "GPU2, GPU3: the nearest NIC is at distance SYS." in far
    low = " ".join(explained("NCCL_NET_GDR_LEVEL=PIX", "hgx-b200").on_this_node)
    assert "lower than the distance" in low
    assert "It selects mlx5_4, mlx5_9." in explained("NCCL_IB_HCA==mlx5_4,mlx5_9").on_this_node
    gids = " ".join(explained("NCCL_IB_GID_INDEX=3", "pcie-l40s").on_this_node)
    assert "mlx5_0: GID 3 is" in gids
    assert "RoCE v2" in gids
    conf = changed("hgx-h100", lambda tree: tree.add("/etc/nccl.conf", "NCCL_IB_TC=106\n"))
    found = explain("NCCL_IB_TC", conf, NEWEST)
    assert found is not None
    assert "/etc/nccl.conf sets NCCL_IB_TC=106" in found.on_this_node[0]


def test_an_unknown_name_is_not_explained() -> None:
    assert explain("NCCL_NOTHING=1", examination_of("hgx-h100"), NEWEST) is None


ONE_OF_EACH = {"NCCL_NET_GDR_LEVEL", "NCCL_IB_HCA", "NCCL_IB_GID_INDEX", "NCCL_SOCKET_IFNAME", "UCX_TLS"}


@pytest.mark.parametrize("name", usual(variables(), ONE_OF_EACH))
def test_every_variable_is_explained_with_hostile_values(name: str) -> None:
    for value in ("", "1", "x\x1b[2J", "9" * 400, "-1", "^=", "=,:"):
        found = explained(f"{name}={value}")
        for text in (found.value or "", *found.of_value, *found.notes, *found.on_this_node):
            assert text.isprintable()
