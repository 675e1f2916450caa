"""The path that each library of a process takes, by its settings and what works on the node."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from probes.base.unknown import Reason, Unknown
from probes.facts.jobs.process_files import MappedLibrary
from probes.facts.jobs.processes import Process, ProcessFacts
from probes.host.machine.local import LocalHost
from probes.live.explain import NO_PATH, STAGED, TCP, UNKNOWN, LibraryPath, library_paths
from probes.simulation.host import SimulatedHost
from probes.snapshot.examination import Examination, examine
from tests.support.pilot import SteppedClock
from tests.support.trees import add_function

BOTH, PEERMEM_ONLY, DMABUF_ONLY, NONE = "hgx-h100", "dgx-a100", "cloud-vm", "hgx-h100+no-gdr-path"


@cache
def node(name: str) -> Examination:
    return examine(SimulatedHost(name, clock=SteppedClock()))


def process(*libraries: str, version: str = "", **environment: str) -> Process:
    facts = node(BOTH).processes
    assert isinstance(facts, ProcessFacts)
    known = version or Unknown(Reason.NOT_THERE)
    plugins = ("nvshmem_bootstrap_uid",) if "libnvshmem_host" in libraries else ()
    mapped = tuple(MappedLibrary(name, f"/usr/lib/{name}.so", known) for name in (*libraries, *plugins))
    return replace(facts.processes[0], libraries=mapped, environment=environment)


def paths(name: str, *libraries: str, version: str = "", **environment: str) -> list[LibraryPath]:
    found = library_paths(process(*libraries, version=version, **environment), (), node(name))
    assert not isinstance(found, Unknown)
    return list(found)


@pytest.mark.parametrize("library", ["libnccl", "libucp", "libnvshmem_host", "libnixl"])
@pytest.mark.parametrize(
    ("name", "path"),
    [(BOTH, "DMA-BUF"), (PEERMEM_ONLY, "nvidia-peermem"), (DMABUF_ONLY, "DMA-BUF"), (NONE, STAGED)],
)
def test_without_settings_a_library_takes_what_works(library: str, name: str, path: str) -> None:
    (found,) = paths(name, library)
    assert found.path == path


@pytest.mark.parametrize(
    ("library", "variable", "value", "path"),
    [
        ("libnccl", "NCCL_DMABUF_ENABLE", "0", "nvidia-peermem"),
        ("libucp", "UCX_IB_GPU_DIRECT_RDMA", "no", STAGED),
        ("libucp", "UCX_TLS", "tcp,cuda_copy", TCP),
        ("libucp", "UCX_TLS", "rc,sm,self", STAGED),
        ("libucp", "UCX_TLS", "rc_x,cuda", "DMA-BUF"),
        ("libucp", "UCX_TLS", "^ud", "DMA-BUF"),
        ("libucp", "UCX_CUDA_COPY_DMABUF", "no", "nvidia-peermem"),
        ("libnvshmem_host", "NVSHMEM_IB_DISABLE_DMABUF", "1", "nvidia-peermem"),
        ("libnvshmem_host", "NVSHMEM_REMOTE_TRANSPORT", "none", "no NIC"),
        ("libfabric", "FI_PROVIDER", "tcp", TCP),
    ],
)
def test_a_setting_changes_the_path(library: str, variable: str, value: str, path: str) -> None:
    (found,) = paths(BOTH, library, **{variable: value})
    assert found.path == path
    assert path in ("DMA-BUF",) or variable in found.why


@pytest.mark.parametrize(
    ("name", "version", "value", "path"),
    [
        (BOTH, "0.3.12", "", "nvidia-peermem"),
        (BOTH, "0.3.12", "0", "DMA-BUF"),
        (BOTH, "0.3.11", "", "DMA-BUF"),
        (DMABUF_ONLY, "0.3.5", "0", NO_PATH),
        (DMABUF_ONLY, "", "", NO_PATH),
        (PEERMEM_ONLY, "0.3.12", "0", NO_PATH),
    ],
)
def test_mooncake_takes_one_path_and_never_the_other_instead(
    name: str, version: str, value: str, path: str
) -> None:
    settings = {"WITH_NVIDIA_PEERMEM": value} if value else {}
    (found,) = paths(name, "mooncake/engine", version=version, **settings)
    assert found.path == path


@pytest.mark.parametrize(
    ("version", "path", "words"),
    [("1.13.1", "nvidia-peermem", "older than 1.14"), ("1.17.0", "DMA-BUF", ""), ("", "DMA-BUF", "unknown")],
)
def test_ucx_before_1_14_has_no_dma_buf(version: str, path: str, words: str) -> None:
    (found,) = paths(BOTH, "libucp", version=version)
    assert found.path == path
    assert words in found.why


def test_a_plugin_is_named_before_its_path_is_claimed() -> None:
    found = paths(BOTH, "libnccl", "libnccl-net-ofi")
    assert "libnccl-net-ofi.so chooses" in found[0].why


def test_what_could_not_be_read_is_unknown() -> None:
    hidden = replace(process("libnccl"), environment=Unknown(Reason.NEEDS_ROOT))
    found = library_paths(hidden, (), node(BOTH))
    assert not isinstance(found, Unknown)
    assert found[0].path == UNKNOWN
    assert "needs root" in found[0].why
    unread = replace(hidden, libraries=Unknown(Reason.NEEDS_ROOT))
    assert isinstance(library_paths(unread, (), node(BOTH)), Unknown)


def test_a_library_that_pytorch_only_links_is_left_out() -> None:
    job = process("libnvshmem_host", "libnccl")
    assert not isinstance(job.libraries, Unknown)
    linked = replace(job, libraries=tuple(each for each in job.libraries if "bootstrap" not in each.name))
    found = library_paths(linked, (), node(BOTH))
    assert not isinstance(found, Unknown)
    assert [path.library for path in found] == ["NCCL"]


def test_without_a_nic_no_library_has_a_path(tmp_path: Path) -> None:
    add_function(tmp_path, ("pci0000:00", "0000:00:06.0"), 0x10DE, 0x2335, 0x030200)
    found = library_paths(process("libnccl"), (), examine(LocalHost(str(tmp_path))))
    assert not isinstance(found, Unknown)
    assert [(path.path, path.why) for path in found] == [("no NIC", "this node has no RDMA device")]
