"""Memory registered in every way that matters, by the stub RDMA device: GPU memory or host memory?

Each row holds its memory at the same time, in a process of its own (guest/usr/local/lib/regions/hold.py).
What gdrtop says of it must be right for root, and for a visitor, who cannot see who has opened a GPU.
"""

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from tests.node_vm.guest import Guest
from tests.node_vm.live_stream import LiveStream, Sample, live_stream, process_of
from tests.node_vm.machine import Machine

HOLD = "/usr/local/lib/regions/hold.py"
HOST = "host memory"
DMABUF = "likely GDR (DMA-BUF)"
NO_LENGTH = "unknown: the driver of regions0 does not report the length of a region"
NO_QUEUES = "unknown: it registers host memory only, but no listed queue pair has a peer"
NO_GPU = "unknown: it has DMA-BUF regions but no GPU"
SMALL = "unknown: all its memory regions are smaller than 1 MiB"
OTHER_PINS = "unknown: 10 MiB is pinned, but not only by RDMA"
ENDING = "unknown: its pinned memory is not readable: it is exiting"


@dataclass(frozen=True)
class Row:
    """What is seen of the process of a case: KiB in the kernel's list, VmPin in KiB, the path for root."""

    case: str
    listed: int
    pinned: int | None
    path: str
    process: int = 0  # of the case
    visitor: str = ""  # the path for the visitor, where it differs

    def __str__(self) -> str:
        return f"{self.case}-{self.process}" if self.process else self.case


ROWS = (
    Row("nothing", 0, 0, "unknown: it has no memory region"),
    Row("host", 8192, 8192, HOST),  # its buffer is unmapped
    Row("dmabuf_closed", 16384, 0, DMABUF),
    Row("dmabuf_part", 8, 0, SMALL),
    Row("dmabuf_movable", 8192, 0, DMABUF),
    Row("without_gpu", 8192, 0, NO_GPU, visitor=DMABUF),
    Row("without_length", 8192, 8192, NO_LENGTH),
    Row("both", 24576, 8192, DMABUF),
    Row("same_buffer_twice", 24576, 24576, HOST),  # and on the second device
    Row("same_dmabuf_twice", 8192, 0, DMABUF),
    Row("odd_addresses", 4496, 4900, HOST),
    Row("huge_pages", 11268, 11268, HOST),
    Row("forked", 16384, 8192, DMABUF),
    Row("forked", 4096, 4096, NO_QUEUES, process=2),  # by the inherited context
    Row("changed_user", 20480, 12288, DMABUF),
    Row("on_demand_paging", 8192, 0, DMABUF),  # only mlx5 marks it: likely is all that may be said
    Row("pid_namespace", 16384, 8192, DMABUF, process=1),
    Row("second_thread", 16384, 8192, DMABUF),
    Row("first_thread_ended", 12288, 4096, DMABUF, process=1),
    Row("queue_rings", 4224, 4352, HOST),  # of its large region; 128 KiB of DMA-BUF are hidden
    Row("pinned_by_io_uring", 8192, 10240, OTHER_PINS),
    Row("execed", 8192, 0, NO_GPU, process=1, visitor=DMABUF),  # what it pinned is charged to nobody
    Row("thread_ended", 16384, 8192, DMABUF),
    Row("child_ended", 20480, 8192, DMABUF),
    Row("zombie", 16384, None, ENDING, process=1),
)


@contextmanager
def held(guest: Guest, *cases: str) -> Iterator[dict[str, list[int]]]:
    """The pids of processes that hold memory registered."""
    output = f"/tmp/held-{cases[0]}"
    started = guest.shell(
        f"setsid python3 {HOLD} {' '.join(cases)} >{output} 2>{output}.errors </dev/null & echo $!;"
        f"until [ -s {output} ] || ! kill -0 $!; do sleep 0.2; done"
    ).strip()
    try:
        told = guest.read(output)
        assert told, guest.read(f"{output}.errors")
        yield json.loads(told)
    finally:
        guest.ask("pkill", "-KILL", "-g", started)


@dataclass(frozen=True)
class Held:
    """The node with all rows, and who looks at it."""

    guest: Guest
    pids: dict[str, list[int]]
    streams: dict[str, LiveStream]  # by user


@pytest.fixture(scope="module")
def rows(rebooting: Machine) -> Iterator[Held]:
    guest = rebooting.guest
    guest.run("reset-node")
    guest.shell("modprobe regions; modprobe nvidia")
    with ExitStack() as stack:
        stack.callback(guest.ask, "sh", "-c", "until rmmod regions nvidia; do sleep 0.5; done", seconds=30)
        pids = stack.enter_context(held(guest, *dict.fromkeys(row.case for row in ROWS)))
        streams = {
            user: stack.enter_context(live_stream(guest.as_user(user), user)) for user in ("root", "visitor")
        }
        yield Held(guest, pids, streams)


def seen(sample: Sample, pid: int) -> tuple[float | None, float | None, str] | None:
    """KiB in the kernel's list, VmPin in KiB, and the path of a process."""
    process = process_of(sample, pid)
    if process is None:
        return None
    pinned = process["pinned_bytes"]
    return process["registered_bytes"] / 1024, None if pinned is None else pinned / 1024, process["path_text"]


def are(found: tuple[Any, ...] | None, wanted: tuple[Any, ...]) -> bool:
    """Whether the numbers are the same and the path begins as wanted."""
    return found is not None and found[:2] == wanted[:2] and found[2].startswith(wanted[2])


@pytest.mark.parametrize("user", ["root", "visitor"])
@pytest.mark.parametrize("row", ROWS, ids=str)
def test_row(rows: Held, row: Row, user: str) -> None:
    path = row.visitor if row.visitor and user != "root" else row.path
    wanted = (row.listed, row.pinned, path)
    pid = rows.pids[row.case][row.process]
    found: list[object] = []

    def holds(sample: Sample) -> bool:
        found[:] = [seen(sample, pid)]
        return are(seen(sample, pid), wanted)

    try:
        rows.streams[user].until(holds)
    except AssertionError as error:
        raise AssertionError(f"{found} instead of {wanted}") from error


def test_a_child_without_regions_is_not_listed(rows: Held) -> None:
    for stream in rows.streams.values():
        sample = stream.until(lambda sample: process_of(sample, rows.pids["forked"][0]) is not None)
        assert process_of(sample, rows.pids["forked"][1]) is None


def test_sums_are_those_of_rdma_and_proc(rows: Held) -> None:
    listed = json.loads(rows.guest.run("rdma", "-j", "resource", "show", "mr"))
    for case in ("both", "same_buffer_twice", "huge_pages"):
        (pid,) = rows.pids[case]
        process = process_of(rows.streams["root"].until(lambda sample: bool(sample["processes"])), pid)
        assert process is not None
        whole_pages = sum(-(-mr["mrlen"] // 4096) * 4096 for mr in listed if mr.get("pid") == pid)
        status = rows.guest.read(f"/proc/{pid}/status")
        (pinned,) = [line.split()[1] for line in status.splitlines() if line.startswith("VmPin")]
        assert (process["registered_bytes"], process["pinned_bytes"]) == (whole_pages, int(pinned) * 1024)


def test_a_killed_process_is_gone(rows: Held) -> None:
    (pid,) = rows.pids["dmabuf_closed"]
    killed = float(rows.guest.shell(f"date +%s.%N; kill -KILL {pid}"))
    for stream in rows.streams.values():
        event, _ = stream.event(killed, "process-ended", f"pid {pid}")
        assert "ended" in event["text"]


def test_inside_a_pid_namespace_others_regions_have_no_owner(rows: Held) -> None:
    """There, nobody may be called "host memory" while regions without an owner exist."""
    inside = ("nsenter", "-t", str(rows.pids["pid_namespace"][1]), "-p", "-m")
    sample = json.loads(rows.guest.ask(*inside, "gdrtop", "live", "--json", "--seconds", "1").output)
    paths = {process["pid"]: process["path_text"] for process in sample["processes"]}
    assert 1 in paths
    assert HOST not in " ".join(paths.values())


RESOURCES = """
import json
import time
from probes.host.machine.local import LocalHost
from probes.host.machine import rdma_reader
# Under emulation, a child may take seconds to start.
rdma_reader.SECONDS, rdma_reader._NAMESPACES_SECONDS = 40.0, 30.0
host = LocalHost()
for _ in range(30):
    found = host.rdma_resources()
    if hasattr(found, "regions"):
        break
    time.sleep(1)
devices = {pair.device for pair in found.queue_pairs}
regions = [(region.pid, region.length_bytes) for region in found.regions]
print(json.dumps([found.shares_namespaces, found.hidden, sorted(devices), regions]))
"""


def resources_from_elsewhere(guest: Guest) -> list[Any]:
    """What gdrtop reads in a network namespace without devices: the stub's cannot be moved to one."""
    guest.run("rdma", "system", "set", "netns", "exclusive")
    try:
        python = ("/opt/gdrtop/bin/python3", "-c", RESOURCES)
        return list(json.loads(guest.run("unshare", "--net", "timeout", "60", *python)))
    finally:
        guest.shell("until rdma system set netns shared; do sleep 0.5; done")


def test_root_sees_the_devices_of_another_network_namespace(rows: Held) -> None:
    shares, hidden, devices, regions = resources_from_elsewhere(rows.guest)
    assert (shares, hidden) == (False, [])
    assert "regions0" in devices
    (pid,) = rows.pids["both"]
    assert sum(length for owner, length in regions if owner == pid) == 24576 << 10


def test_regions_without_an_owner_leave_nobody_host_memory(rows: Held) -> None:
    (pid,) = rows.pids["host"]
    without_owner = "on this node without a visible owner"
    with held(rows.guest, "orphaned"):
        for stream in rows.streams.values():
            stream.until(lambda sample: without_owner in (seen(sample, pid) or "???")[2])
    for stream in rows.streams.values():
        stream.until(lambda sample: (seen(sample, pid) or "???")[2] == HOST)


def test_a_visitor_of_a_hidden_proc_is_told_nothing_wrong(rows: Held) -> None:
    rows.guest.run("mount", "-o", "remount,hidepid=2", "/proc")
    try:
        (pid,) = rows.pids["host"]
        visitor = rows.streams["visitor"]
        sample = visitor.until(lambda sample: (seen(sample, pid) or (0, 0, ""))[2] != HOST)
        assert DMABUF not in str((seen(sample, pid) or ("", "", ""))[2])
    finally:
        rows.guest.run("mount", "-o", "remount,hidepid=0", "/proc")


def test_another_network_namespace_is_not_no_regions(rows: Held) -> None:
    rows.guest.run("rdma", "system", "set", "netns", "exclusive")
    try:
        visitor = ("setpriv", "--reuid=visitor", "--regid=visitor", "--clear-groups", "--reset-env")
        told = rows.guest.ask("unshare", "-n", *visitor, "gdrtop", "live", "--json", "--seconds", "1")
        limits = " ".join(json.loads(told.output)["limits"])
        assert "network namespace" in limits
    finally:
        rows.guest.run("rdma", "system", "set", "netns", "shared")
