"""Where dumps are looked for, and which are not used."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from probes.base.unknown import Maybe, Reason, Unknown, known
from probes.host.machine.local import LocalHost
from probes.host.protocol import FileRange
from probes.host.usage import ProcessUsage
from probes.live.hang.dump_files import FoundDumps, read_dumps
from probes.live.model.sample import LiveProcess
from probes.simulation.host import SimulatedHost
from tests.support.flight_recorder_dumps import dump_value, entry, pickled
from tests.support.pilot import SteppedClock
from tui.runtime.node_monitor import NodeMonitor

DUMP = pickled(dump_value([entry(5)], {"0": range(16)}))


def a_rank(pid: int, number: int, started_at: float = 0.0) -> LiveProcess:
    monitor = NodeMonitor(SimulatedHost("hgx-h100", clock=SteppedClock()))
    processes = monitor.read().processes
    assert not isinstance(processes, Unknown)
    process = processes[0]
    usage = process.process.usage
    assert isinstance(usage, ProcessUsage)
    facts = replace(process.process, pid=pid, usage=replace(usage, started_at=started_at))
    return replace(process, pid=pid, rank=number, world_size=16, process=facts)


def found(root: Path, environment: str, files: dict[str, bytes], started_at: float = 0.0) -> FoundDumps:
    process = root / "proc" / "7"
    for name, content in files.items():
        path = process / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    process.mkdir(parents=True, exist_ok=True)
    (process / "environ").write_bytes(environment.replace(" ", "\0").encode())
    return read_dumps(LocalHost(str(root)), [a_rank(7, 3, started_at)])


def test_the_variable_of_the_launcher_gives_the_name(tmp_path: Path) -> None:
    files = {"root/logs/_dump_3": DUMP, "root/tmp/nccl_trace_rank_3": b""}
    dumps = found(tmp_path, "TORCH_NCCL_DEBUG_INFO_TEMP_FILE=/logs/_dump_ A=b", files)
    assert [(dump.rank, dump.file) for dump in dumps.dumps] == [(3, "/logs/_dump_3")]


def test_ranks_of_other_nodes_are_read_beside_it(tmp_path: Path) -> None:
    files = {f"root/logs/_dump_{number}": DUMP for number in (3, 9, 12)}
    dumps = found(tmp_path, "TORCH_FR_DUMP_TEMP_FILE=/logs/_dump_", files)
    assert [dump.rank for dump in dumps.dumps] == [3, 9, 12]


def test_both_default_places_are_tried(tmp_path: Path) -> None:
    new = found(tmp_path / "a", "HOME=/home/a", {"root/home/a/.cache/torch/comm_lib_trace_rank_3": DUMP})
    old = found(tmp_path / "b", "HOME=/home/a", {"root/tmp/nccl_trace_rank_3": DUMP})
    assert len(new.dumps) == len(old.dumps) == 1


def test_a_dump_of_an_earlier_run_is_not_used(tmp_path: Path) -> None:
    dumps = found(tmp_path, "", {"root/tmp/nccl_trace_rank_3": DUMP}, started_at=1.8e9)
    assert dumps.dumps == ()
    assert "earlier run" in dumps.unread[0]


def test_what_is_no_dump_says_why_and_a_missing_one_too(tmp_path: Path) -> None:
    bad = found(tmp_path / "a", "", {"root/tmp/nccl_trace_rank_3": b"cos\nsystem\n."})
    assert "does not allow" in bad.unread[0]
    assert found(tmp_path / "b", "", {}).unread == ("rank 3: no dump",)


class Shared(LocalHost):
    """A tree in which a file belongs to another user."""

    foreign = "rank_3"

    def read_range(self, path: str, offset: int, limit: int) -> Maybe[FileRange]:
        found = super().read_range(path, offset, limit)
        owner = 2002 if path.endswith(self.foreign) else known(a_rank(7, 3).process.uid, 0)
        return found if isinstance(found, Unknown) else replace(found, owner=owner)


def test_a_dump_of_another_user_is_named_and_not_used(tmp_path: Path) -> None:
    found(tmp_path, "TORCH_FR_DUMP_TEMP_FILE=/tmp/rank_", {f"root/tmp/rank_{n}": DUMP for n in (3, 9)})
    dumps = read_dumps(Shared(str(tmp_path)), [a_rank(7, 3)])
    assert [dump.rank for dump in dumps.dumps] == [9]
    assert "belongs to user 2002, not to the job's user" in dumps.unread[0]
    beside = type("Beside", (Shared,), {"foreign": "rank_9"})(str(tmp_path))
    dumps = read_dumps(beside, [a_rank(7, 3)])
    assert [dump.rank for dump in dumps.dumps] == [3]
    assert dumps.unread[0].startswith("rank 9: not the job's: belongs to user 2002")


def test_an_environment_that_only_root_reads_is_a_reason(tmp_path: Path) -> None:
    none = read_dumps(LocalHost(str(tmp_path)), [a_rank(7, 3)])
    assert none.unread
    assert none.unread[0].startswith("rank 3: ")
    assert Reason.NOT_THERE.value in none.unread[0]
