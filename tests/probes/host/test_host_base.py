"""What a host cannot answer is unknown, with its reason; a recording host passes on everything."""

from __future__ import annotations

import inspect
from collections.abc import Mapping

import pytest

from probes.base.origin import Origin, Source
from probes.base.unknown import Reason, Unknown
from probes.host.protocol import Host, HostBase
from probes.recording.recording_host import RecordingHost

ARGUMENTS = {
    "path": "/sys/x",
    "paths": ["/sys/x"],
    "offset": 0,
    "limit": 1,
    "argv": ["true"],
    "devices": ["mlx5_0"],
    "pids": [1],
    "pid": 1,
    "names": ["eth0"],
    "address": "127.0.0.1:28028",
    "command": "STATUS",
    "name": "HOME",
    "user": 1000,
    "seconds": 1.0,
}
OF_CALLER = {"is_root", "monotonic", "wall_clock"}
QUESTIONS = sorted(name for name in vars(Host) if not name.startswith("_"))


class Silent(HostBase):
    """A host that knows nothing."""

    UNANSWERED = (Reason.NOT_RECORDED, "nobody asked")
    origin = Origin(Source.TREE, "nothing")

    def is_root(self) -> bool:
        return False

    def monotonic(self) -> float:
        return 0.0

    def wall_clock(self) -> float:
        return 0.0


def ask(host: Host, question: str) -> object:
    method = getattr(host, question)
    rows = inspect.signature(method).parameters.values()
    needed = [row.name for row in rows if row.default is inspect.Parameter.empty]
    return method(*(ARGUMENTS[name] for name in needed))


@pytest.mark.parametrize("question", [name for name in QUESTIONS if name not in OF_CALLER])
def test_a_host_that_knows_nothing_says_so(question: str) -> None:
    answer = ask(Silent(), question)
    for each in answer.values() if isinstance(answer, Mapping) else (answer,):
        assert isinstance(each, Unknown)
        assert (each.reason, each.detail) == (Reason.NOT_RECORDED, "nobody asked")
        assert each.source


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_recording_host_passes_on_every_question(question: str) -> None:
    assert question in vars(RecordingHost)
    assert not issubclass(RecordingHost, HostBase)
