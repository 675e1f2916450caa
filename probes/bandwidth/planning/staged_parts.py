"""The parts of a GPU's staged path, for nodes on which NCCL cannot measure it as a whole.

Each part is measured alone: copies between GPU and host memory, and the NIC with host memory. The staged path
can reach at most what the slower part does. The parts show nothing about its latency and CPU time.
"""

from __future__ import annotations

from dataclasses import replace

from probes.bandwidth.model.planned_test import PlannedTest
from probes.bandwidth.model.request import MemoryPath, Request
from probes.bandwidth.planning.defaults import nearest_nic
from probes.bandwidth.planning.local_test import local_test
from probes.bandwidth.planning.perftest import perftest_test
from probes.bandwidth.tools.registry import tool_of
from probes.bandwidth.tools.tool import LocalTool
from probes.facts.gpu.gpus import Gpu
from probes.snapshot.examination import Examination

COPIES = "nvbandwidth"
"""gdrcopy copies by the CPU through BAR1, as nothing that stages does."""
_COPY_NOTE = "a part of the staged path: the copy between GPU and host memory alone"
_NIC_NOTE = "a part of the staged path: the NIC with host memory alone"


def staged_parts(
    examination: Examination, request: Request, gpu: Gpu, tcp_port: int
) -> list[tuple[str, PlannedTest]]:
    """Return the tests of both parts by title; [] unless both can run, since one alone says too little."""
    tool = tool_of(COPIES)
    assert isinstance(tool, LocalTool)
    copies = local_test(examination, Request(tool=COPIES, gpu=gpu.bdf), tool, (gpu,))
    nic = request.nic or nearest_nic(examination.topology, gpu.bdf)
    of_nic = Request(memory=MemoryPath.HOST, nic=nic)
    sending = perftest_test(examination, of_nic, None, nic, MemoryPath.HOST, tcp_port)
    if not isinstance(copies, PlannedTest) or not isinstance(sending, PlannedTest):
        return []
    parts = ((copies, _COPY_NOTE), (sending, _NIC_NOTE))
    return [(test.title, replace(test, notes=(note, *test.notes))) for test, note in parts]
