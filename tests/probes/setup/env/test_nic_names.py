"""Names of NICs and interfaces in lists: the wrong kind, and what a list leaves out."""

from __future__ import annotations

import pytest

from probes.setup.env.assignments import FileKind
from probes.simulation.node.model.tree import Tree
from tests.probes.setup.env.test_lint import NOTE, WARNING, has, judged, said
from tests.support.env_nodes import changed

HALF = "shares its port with roceP2p1s0f1, which the list leaves out"


def test_one_function_of_a_port_of_dgx_spark_is_half_of_it() -> None:
    report = judged("export NCCL_IB_HCA=rocep1s0f1", node="dgx-spark")
    assert has(report, 1, WARNING, HALF)
    assert "List both: rocep1s0f1,roceP2p1s0f1" in [problem.fix for problem in report.problems]
    both = judged("export NCCL_IB_HCA=rocep1s0f1,roceP2p1s0f1", node="dgx-spark")
    assert not has(both, 1, WARNING, "shares its port")


def test_dgx_spark_is_known_by_its_names_on_any_node() -> None:
    assert has(judged("export NCCL_IB_HCA=rocep1s0f1"), 1, WARNING, f"On a DGX Spark, rocep1s0f1 {HALF}")


def test_the_halves_of_one_card_share_its_port() -> None:
    """The PCIe links of a Socket Direct card have the same function number and image GUID."""

    def join(tree: Tree) -> None:
        for name in ("mlx5_0", "mlx5_1"):
            directory = tree.real(f"/sys/class/infiniband/{name}")
            tree.add(f"{directory}/sys_image_guid", "51a0:1a7e:0000:0000")

    node = changed("hgx-h100", join)
    half = judged("export NCCL_IB_HCA=^mlx5_1,mlx5_4,mlx5_9", node=node)
    assert has(half, 1, WARNING, "mlx5_0 shares its port with mlx5_1, which the list leaves out")


def test_a_list_of_few_nics_says_how_many_it_leaves_out() -> None:
    assert has(judged("export NCCL_IB_HCA=mlx5_0"), 1, NOTE, "selects 1 of 8 compute NICs")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("NCCL_IB_HCA=^mlx5_4,^mlx5_9", "“^” counts only at the start of NCCL_IB_HCA"),
        ("NCCL_IB_HCA=ib0", "ib0 is a network interface, and NCCL_IB_HCA takes RDMA devices"),
        ("NCCL_IB_HCA=enp1s0f0np0", "enp1s0f0np0 is a network interface"),
        ("NCCL_SOCKET_IFNAME=mlx5_0", "mlx5_0 is an RDMA device, and NCCL_SOCKET_IFNAME takes network"),
        ("NCCL_SOCKET_IFNAME=rocep1s0f1", "rocep1s0f1 is an RDMA device"),
        ("NCCL_SOCKET_IFNAME=rdma0,rdma1", "NCCL_SOCKET_IFNAME selects no interface of this node"),
        ("UCX_NET_DEVICES=mlx5_0", "UCX names an RDMA device with its port"),
        ("UCX_NET_DEVICES=rdma0,mlx5_0:1", "rdma0 is neither an interface nor a port of this node"),
    ],
)
def test_names_of_the_wrong_kind(line: str, words: str) -> None:
    assert has(judged(f"export {line}"), 1, WARNING, words), said(judged(f"export {line}"))


@pytest.mark.parametrize(
    "line",
    [
        *("NCCL_SOCKET_IFNAME=eno1", "NCCL_SOCKET_IFNAME=^docker0,lo", "NCCL_SOCKET_IFNAME=en"),
        *("UCX_NET_DEVICES=mlx5_0:1,eno1", "UCX_NET_DEVICES=eno1", "NCCL_IB_HCA=^mlx5_4,mlx5_9"),
    ],
)
def test_right_names(line: str) -> None:
    assert said(judged(f"export {line}")) == []


def test_a_pod_has_interfaces_of_its_own() -> None:
    text = "env:\n- {name: NCCL_SOCKET_IFNAME, value: eth0}\n"
    assert said(judged(text, FileKind.POD)) == []
    assert said(judged(text.replace("NCCL_SOCKET_IFNAME", "UCX_NET_DEVICES"), FileKind.POD)) == []
