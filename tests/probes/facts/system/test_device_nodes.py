"""Which device files there are, and whether they may be used."""

from __future__ import annotations

from pathlib import Path

from probes.base.unknown import Maybe, Reason, Unknown
from probes.facts.system.device_nodes import DeviceNode, probe
from probes.host.machine.local import LocalHost
from tests.support.trees import write


class Modes(LocalHost):
    """A tree where everything but uverbs1 may be used."""

    def access(self, path: str, write: bool = False) -> Maybe[bool]:
        return write and not path.endswith("uverbs1")


def test_the_files_of_gpus_and_rdma(tmp_path: Path) -> None:
    for name in ("infiniband/uverbs0", "infiniband/uverbs1", "infiniband/x", "nvidia0", "nvidiactl", "null"):
        write(tmp_path, f"/dev/{name}", "")
    facts = probe(Modes(str(tmp_path)))
    assert facts.rdma == (
        DeviceNode("/dev/infiniband/uverbs0", True),
        DeviceNode("/dev/infiniband/uverbs1", False),
    )
    assert facts.gpu == (DeviceNode("/dev/nvidia0", True), DeviceNode("/dev/nvidiactl", True))


def test_a_container_without_rdma_files(tmp_path: Path) -> None:
    write(tmp_path, "/dev/nvidia0", "")
    write(tmp_path, "/dev/null", "")
    rdma = probe(LocalHost(str(tmp_path))).rdma
    assert isinstance(rdma, Unknown)
    assert rdma.reason is Reason.NOT_THERE


def test_a_dump_without_dev_null_does_not_say_which_files_are_missing(tmp_path: Path) -> None:
    write(tmp_path, "/dev/cpuset", "")
    facts = probe(LocalHost(str(tmp_path)))
    for answer in (facts.rdma, facts.gpu):
        assert isinstance(answer, Unknown)
        assert answer.reason is Reason.NOT_RECORDED
