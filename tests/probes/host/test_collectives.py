"""Files of NCCL's inspector: torn, growing and hostile ones."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.base.unknown import Reason, Unknown
from probes.host.collectives import (
    MAX_COLLECTIVES,
    TAIL_BYTES,
    CollectiveSpeed,
    newest,
    parse,
    parse_log,
    parse_metrics,
)
from probes.host.machine.local import LocalHost
from tests.support.machines import DIRECTORY
from tests.support.trees import write

REAL = DIRECTORY / "live" / "inspector"
AVERAGE = (
    'nccl_bus_bandwidth_gbs{{version="v5.1",node="n1",gpu="GPU0",comm_name="{name}",n_nodes="2",nranks="16",'
    'collective="AllReduce",message_size="{size}",algo_proto="Ring_ll"}} {value}\n'
)


def record(sequence: int = 1, bus: object = 48.5, rank: int = 3, **perf: Any) -> dict[str, Any]:
    return {
        "header": {"id": "0x7f8c496a", "rank": rank, "n_ranks": 16, "nnodes": 2},
        "metadata": {
            "inspector_output_format_version": "v4.0",
            "dump_timestamp_us": 1_700_000_000_500_000,
            "hostname": "n1",
            "pid": 42,
        },
        "coll_perf": {
            "coll": "AllReduce",
            "coll_sn": sequence,
            "coll_msg_size_bytes": 1 << 26,
            "coll_exec_time_us": 2500,
            "coll_algobw_gbs": 26.8,
            "coll_busbw_gbs": bus,
            **perf,
        },
    }


def log(*records: object, indent: int | None = None) -> bytes:
    return "".join(f"{json.dumps(record, indent=indent)}\n" for record in records).encode()


@pytest.mark.parametrize("indent", [None, 2])
def test_a_log_gives_the_newest_collective_first(indent: int | None) -> None:
    first, second = parse_log(log(record(2), record(1), indent=indent))
    assert (first.sequence, second.sequence) == (1, 2)
    assert first == CollectiveSpeed(
        communicator="0x7f8c496a",
        collective="AllReduce",
        bus_gbps=48.5,
        algorithm_gbps=26.8,
        rank=3,
        ranks=16,
        nodes=2,
        sequence=1,
        message_bytes=1 << 26,
        microseconds=2500.0,
        at=1_700_000_000.5,
    )


def test_event_traces_and_point_to_point_lines_do_not_matter() -> None:
    traced = record(1, event_trace_sn={"kernel_events": [{"channel_id": 0, "kernel_start_sn": 3}]})
    other = record(2)
    other["p2p_perf"] = other.pop("coll_perf")
    assert [collective.sequence for collective in parse_log(log(traced, other))] == [1]


@pytest.mark.parametrize("indent", [None, 2])
def test_a_log_cut_anywhere_gives_its_complete_collectives(indent: int | None) -> None:
    content = log(record(1), record(2), record(3), indent=indent)
    ends = [content.index(b'"coll_sn": %d' % sequence) for sequence in (1, 2, 3)]
    for cut in range(0, len(content), 7):
        seen = [collective.sequence for collective in parse_log(content[:cut])]
        assert seen == sorted(seen, reverse=True)
        assert len(seen) >= sum(end + 400 < cut for end in ends)
        rest = [collective.sequence for collective in parse_log(content[cut:])]
        assert rest == [3, 2, 1][: len(rest)]


def test_only_the_newest_collectives_of_a_log_are_kept() -> None:
    found = parse_log(log(*(record(number) for number in range(500))))
    assert [collective.sequence for collective in found] == list(range(499, 499 - MAX_COLLECTIVES, -1))


@pytest.mark.parametrize("bus", ["48", None, True, -1, [], "NaN", 10**400])
def test_a_collective_without_a_bandwidth_is_left_out(bus: object) -> None:
    assert [collective.sequence for collective in parse_log(log(record(1, bus), record(2)))] == [2]


def test_not_a_number_and_deep_nesting_are_left_out() -> None:
    assert parse_log(log(record()).replace(b"48.5", b"NaN")) == ()
    assert parse_log(b'{"header":' * 5000) == ()


def test_metrics_give_averages_the_longest_messages_first() -> None:
    content = "# HELP\n" + "".join(
        AVERAGE.format(name="DP Group 0", size=size, value=value)
        for size, value in (("1-2MB", 20), ("4-5GB", 678.263), ("512-513MB", 300))
    )
    found = parse_metrics(content.encode())
    assert found is not None
    assert [(collective.message_size, collective.bus_gbps) for collective in found] == [
        ("4-5GB", 678.263),
        ("512-513MB", 300.0),
        ("1-2MB", 20.0),
    ]
    assert (found[0].communicator, found[0].nodes, found[0].ranks) == ("DP Group 0", 2, 16)
    assert newest(found) == found[:1]


@pytest.mark.parametrize("content", ["", AVERAGE.format(name="a", size="1-2MB", value=20)[:-3]])
def test_a_metrics_file_that_is_being_rewritten_is_not_used(content: str) -> None:
    assert parse_metrics(content.encode()) is None
    answer = parse("x.prom", content.encode())
    assert isinstance(answer, Unknown)
    assert answer.reason is Reason.MALFORMED


def test_labels_may_be_missing_or_more() -> None:
    content = b'nccl_bus_bandwidth_gbs{more="a\\"b}",collective="AllGather"} 5 1700000000\n'
    content += b'nccl_bus_bandwidth_gbs{nranks="many"} 5\n'
    content += b'nccl_bus_bandwidth_gbs{collective="x"} fast\nnccl_bus\n'
    found = parse_metrics(content)
    assert found == (CollectiveSpeed("?", "AllGather", 5.0),)


@given(st.binary(max_size=2000))
def test_any_bytes_are_read(content: bytes) -> None:
    for text in (
        content,
        log(record()) + content,
        content.join((b'{"header":{', b'},"coll_perf":{"coll_busbw_gbs":1}}\n')),
        b"nccl_bus_bandwidth_gbs{" + content + b"} 5\n",
        b'nccl_bus_bandwidth_gbs{collective="' + content + b'"} 5\n',
    ):
        for collective in (*parse_log(text), *(parse_metrics(text) or ())):
            assert collective.communicator.isprintable()
            assert collective.collective.isprintable()
            assert len(collective.message_size) <= 64


def test_of_a_long_log_only_the_end_is_read(tmp_path: Path) -> None:
    content = log(*(record(number) for number in range(2000)))
    assert len(content) > 4 * TAIL_BYTES
    write(tmp_path, "/d/n1-pid42.log", content.decode())
    found = LocalHost(str(tmp_path)).collectives("/d/n1-pid42.log", 0)
    assert not isinstance(found, Unknown)
    assert (found[0].sequence, len(found)) == (1999, MAX_COLLECTIVES)


def test_only_regular_files_are_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "n1-pid42.log")
    (tmp_path / "d").mkdir()
    host = LocalHost(str(tmp_path))
    for name, reason in (
        ("/n1-pid42.log", Reason.MALFORMED),
        ("/d", Reason.MALFORMED),
        ("/x", Reason.NOT_THERE),
        ("/\0", Reason.MALFORMED),
    ):
        answer = host.collectives(name, 0)
        assert isinstance(answer, Unknown)
        assert answer.reason is reason, name


@pytest.mark.skipif(not REAL.is_dir(), reason="needs the examples of NVIDIA's documentation")
def test_the_examples_of_nvidias_documentation() -> None:
    assert [collective.bus_gbps for collective in parse_log((REAL / "readme-0.json").read_bytes())] == [
        485.119099
    ]
    (speed,) = parse_log((REAL / "readme-1.json").read_bytes())
    assert (speed.collective, speed.rank, speed.microseconds) == ("ReduceScatter", 4, 41057.0)
    (average,) = parse_metrics((REAL / "readme.prom").read_bytes()) or ()
    assert (average.bus_gbps, average.message_size) == (678.263, "4-5GB")
