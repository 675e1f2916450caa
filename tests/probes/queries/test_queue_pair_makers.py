"""Who makes queue pairs outside of verbs, and what counts their losses."""

from __future__ import annotations

from dataclasses import replace

import pytest

from probes.base.unknown import Reason, Unknown
from probes.checks.registry import findings
from probes.facts.jobs.process_files import MappedLibrary, parse_maps
from probes.facts.jobs.processes import Process
from probes.queries.finding import Status
from probes.queries.queue_pair_makers import own_queues, uncounted
from probes.simulation.host import SimulatedHost
from probes.simulation.node.jobs.processes import add_rank
from probes.snapshot.examination import examine
from tests.support.live_samples import a_process

_LIB = "/usr/lib64"
_GPU, _DEVX = "not counted for GPU-posted queues", "not counted for queues made with DEVX"
_CHECKS = ("local-ack-timeout", "out-of-sequence-rising", "receiver-not-ready-rising")
_BOOTSTRAP = f"{_LIB}/nvshmem_bootstrap_uid.so.3.0.0"
_IBGDA, _IBRC = f"{_LIB}/nvshmem_transport_ibgda.so.3.0.0", f"{_LIB}/nvshmem_transport_ibrc.so.3.0.0"
_HYBRID = "/opt/site-packages/hybrid_ep_cpp.cpython-312-x86_64-linux-gnu.so"
_NIXL = "/opt/site-packages/nixl_cu13.libs/libnixl.so"


def process_with(*paths: str, **variables: str) -> Process:
    lines = "".join(f"7f00-7f01 r-xp 00000000 08:01 42   {path}\n" for path in paths)
    return replace(a_process(0).process, libraries=parse_maps(lines.encode()), environment=variables)


@pytest.mark.parametrize(
    ("paths", "variables", "threads", "text"),
    [
        ((), {"NCCL_GIN_TYPE": "3"}, (), f"{_GPU} (NCCL's GDAKI)"),
        ((), {"NCCL_GIN_TYPE": "2"}, ("NCCL GIN Progre",), ""),  # the proxy uses verbs
        ((), {"NCCL_GIN_TYPE": "5"}, (), ""),  # EFA counts for itself
        ((), {}, ("NCCL GIN Progre",), f"possibly {_GPU} (NCCL's GDAKI)"),
        ((), {}, ("NCCL Progress 0",), ""),
        ((_IBGDA,), {}, (), f"{_GPU} (NVSHMEM IBGDA)"),
        ((_BOOTSTRAP,), {"NVSHMEM_IB_ENABLE_IBGDA": "1"}, (), f"{_GPU} (NVSHMEM IBGDA)"),
        ((_BOOTSTRAP,), {}, (), f"possibly {_GPU} (NVSHMEM IBGDA)"),
        ((_BOOTSTRAP, _IBRC), {}, (), ""),
        ((), {"NVSHMEM_IB_ENABLE_IBGDA": "1"}, (), ""),  # left over in an image
        ((f"{_LIB}/libnvshmem_host.so.3.3.9",), {}, (), ""),  # PyTorch links it
        ((f"{_LIB}/nvshmem_transport_ibdevx.so.3.0.0",), {}, (), f"{_DEVX} (NVSHMEM ibdevx)"),
        ((_HYBRID,), {}, (), f"{_GPU} (HybridEP)"),
        ((_HYBRID, _NIXL), {}, (), ""),  # USE_NIXL=1
        ((_BOOTSTRAP, _HYBRID), {}, (), f"{_GPU} (HybridEP)"),  # the surest
    ],
)
def test_what_hw_counters_do_not_count(
    paths: tuple[str, ...], variables: dict[str, str], threads: tuple[str, ...], text: str
) -> None:
    assert uncounted(own_queues(process_with(*paths, **variables), threads)) == text


@pytest.mark.parametrize(("version", "is_counted"), [("1.13.1", False), ("1.14.0", True), ("1.22.0", True)])
def test_ucx_counts_since_it_uses_the_counter_set_of_the_port(version: str, is_counted: bool) -> None:
    process = replace(process_with(), libraries=(MappedLibrary("libucp", "/opt/libucp.so.0.0.0", version),))
    assert bool(uncounted(own_queues(process))) != is_counted
    unknown = Unknown(Reason.NOT_THERE, "/opt/libucp.so.0.0.0")
    process = replace(process, libraries=(MappedLibrary("libucp", "/opt/libucp.so.0.0.0", unknown),))
    assert not uncounted(own_queues(process))


def test_a_process_that_cannot_be_read_has_none() -> None:
    refused = Unknown(Reason.NEEDS_ROOT, "maps")
    process = replace(process_with(), libraries=refused, environment=refused)
    assert own_queues(process, refused) == ()


@pytest.mark.parametrize(
    "check", ["local-ack-timeout", "out-of-sequence-rising", "receiver-not-ready-rising"]
)
def test_no_losses_are_claimed_of_gpu_posted_queues(check: str) -> None:
    host = SimulatedHost("hgx-h100", clock=lambda: 1000.0)
    add_rank(host.tree, 61000, 0, {}, (_IBGDA,))
    (silent,) = findings(examine(host), only={check})
    assert silent.status is Status.UNKNOWN
    assert f"{_GPU} (NVSHMEM IBGDA, pid 61000)" in silent.cause
    # What is counted is found all the same.
    host = SimulatedHost("hgx-h100+local-ack-timeout", clock=lambda: 1000.0)
    add_rank(host.tree, 61000, 0, {}, (_IBGDA,))
    (found,) = findings(examine(host), only={"local-ack-timeout"})
    assert found.status is Status.FOUND
    # Link errors are the port's, whoever posts.
    (link,) = findings(examine(host), only={"link-flaps"})
    assert link.status is Status.PASSED
