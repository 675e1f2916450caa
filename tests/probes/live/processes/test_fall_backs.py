"""Why an engine uses TCP: each sign that gdrtop can read, and what only resembles it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from probes.base.unknown import Reason, Unknown
from probes.facts.jobs.process_files import parse_maps
from probes.live.processes.fall_backs import Situation, asks_for_host, asks_for_tcp, causes, fall_backs, steps
from tests.support.live_samples import a_process

UCX = ("libplugin_UCX.so", "libucp-b39b3ed9.so.0.0.0", "libuct_ib.so", "libuct_cuda.so", "libuct_cma.so")
NODES = ("rdma_cm", "uverbs0")


def situation(
    environment: str = "",
    libraries: tuple[str, ...] = UCX,
    nodes: Any = NODES,
    options: str = "",
    **parts: Any,
) -> Situation:
    """An engine with NVLink and RDMA NICs, alone on its node, that lacks nothing."""
    maps = b"".join(b"7f00-7f01 r-xp 00000000 00:00 1 /usr/lib/%s\n" % name.encode() for name in libraries)
    process = replace(
        a_process(0).process,
        libraries=parse_maps(maps),
        environment=dict(word.split("=", 1) for word in environment.split()),
        rdma_nodes=nodes,
        serving_options=dict(word.split("=", 1) for word in options.split()),
    )
    is_ucx = "libplugin_UCX.so" in libraries
    return Situation(process, is_ucx, True, 18, False, False)._replace(**parts)


def found(about: Situation) -> list[str]:
    return [name for name, _ in fall_backs(about)]


NOT_THERE = Unknown(Reason.NOT_THERE, "/proc/42/root/dev/infiniband")
MOONCAKE = ("mooncake/engine.so",)
EXPANDABLE = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
SIGNS = {
    "mooncake-forced-to-tcp": situation("MC_FORCE_TCP=1", MOONCAKE),
    "ucx-excludes-rdma": situation("UCX_TLS=^ib"),
    "ucx-net-devices": situation("UCX_NET_DEVICES=eth0,eth1"),
    "no-device-files": situation(nodes=NOT_THERE),
    "ucx-without-verbs": situation(libraries=(*UCX[:2], "libuct_cuda.so")),
    "ucx-without-cuda": situation(libraries=(*UCX[:2], "libuct_ib.so")),
    "pid-namespaces": situation(has_neighbor=True, has_other_pids=True),
    "no-nvlink": situation(has_neighbor=True, nvlinks=0),
    "expandable-segments": situation(EXPANDABLE, has_neighbor=True),
    "nixl-plugin-dir": situation("NIXL_PLUGIN_DIR=/opt/nixl"),
}


def test_every_cause_has_a_sign_and_texts() -> None:
    assert set(SIGNS) == {name for name, row in causes().items() if row.cause} | {"nixl-plugin-dir"}
    for row in causes().values():
        assert row.cause.endswith(".") or not row.cause
        assert row.cure
        assert not row.cure.endswith(".")
        assert row.source


@pytest.mark.parametrize("name", SIGNS)
def test_the_sign_of_a_cause(name: str) -> None:
    assert found(SIGNS[name]) == [name]
    ((_, evidence),) = fall_backs(SIGNS[name])
    assert evidence.source
    assert evidence.value


@pytest.mark.parametrize(
    "about",
    [
        situation(),
        situation("MC_FORCE_TCP=1"),  # only Mooncake reads it
        situation("UCX_TLS=rc,cuda"),
        situation("UCX_TLS=^cuda_ipc"),
        situation("UCX_NET_DEVICES=mlx5_0:1,eth0"),
        situation("UCX_NET_DEVICES=all"),
        situation("UCX_NET_DEVICES=^eth0"),
        situation("UCX_NET_DEVICES=eth0", MOONCAKE),
        situation("UCX_TLS=^ib", MOONCAKE),
        situation(nodes=Unknown(Reason.NEEDS_ROOT, "x")),
        situation(libraries=UCX[:2]),  # UCX has loaded no module yet
        situation(nvlinks=0),  # no other engine here: nothing goes over NVLink
        situation("UCX_CUDA_IPC_ENABLE_GET_ZCOPY=on", has_neighbor=True, nvlinks=0),
        situation(has_neighbor=True, nvlinks=Unknown(Reason.NOT_RECORDED, "NVML")),
        situation(has_neighbor=True),
        situation(EXPANDABLE),
        situation("PYTORCH_CUDA_ALLOC_CONF=expandable_segments:False", has_neighbor=True),
    ],
)
def test_what_is_no_sign(about: Situation) -> None:
    assert found(about) == []


def test_mooncake_asks_only_whether_the_variable_is_set() -> None:
    assert found(situation("MC_FORCE_TCP=", MOONCAKE)) == ["mooncake-forced-to-tcp"]


@pytest.mark.parametrize(
    ("about", "setting"),
    [
        (situation("UCX_TLS=tcp,cuda_copy"), "UCX_TLS=tcp,cuda_copy"),
        (situation("UCX_TLS=tcp,rc,cuda"), ""),
        (situation("UCX_TLS=^ib"), ""),  # excludes RDMA, and asks for nothing
        (situation("UCX_TLS=tcp", MOONCAKE), ""),
        (situation("UCCL_P2P_TRANSPORT=tcp", ("libplugin_UCCL.so",)), "UCCL_P2P_TRANSPORT=tcp"),
        (situation(has_nics=False), "no RDMA NIC on this node"),
        (situation(options="kv_buffer_device=cpu"), "kv_buffer_device=cpu"),
        (situation(options="kv_buffer_device=cuda"), ""),
    ],
)
def test_a_setting_that_asks_for_tcp_is_no_fall_back(about: Situation, setting: str) -> None:
    assert asks_for_tcp(about) == setting
    assert asks_for_host(about.process) == (setting if setting.startswith("kv_") else "")


def test_steps_come_in_their_order_and_those_of_ucx_only_where_it_chooses() -> None:
    assert steps({"no-nvlink", "ucx-net-devices"}, True) == ("ucx-net-devices", "no-nvlink", "ucx-emulation")
    assert steps({"mooncake-forced-to-tcp"}, False) == ("mooncake-forced-to-tcp",)
    assert steps({"nixl-plugin-dir"}, True) == ("ucx-unseen", "nixl-plugin-dir", "ucx-emulation")
    assert steps((), True) == ("ucx-unseen", "ucx-emulation")
    assert steps((), False) == ("other-unseen",)
