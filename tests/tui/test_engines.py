"""An inference engine has the same words on every screen and in every output, also at 80 columns."""

from __future__ import annotations

import argparse
import io
from functools import cache

import pytest

from probes.live.model.sample import LiveProcess, LiveSample, program_of
from probes.live.model.transfer import TransferWord
from probes.recording.redaction.identifiers import Identifiers
from probes.recording.replay_host import ReplayHost
from probes.simulation.host import SimulatedHost, job_nodes
from tests.support.documents import valid
from tests.support.observed_metrics import reader_of, values
from tests.support.pilot import SteppedClock
from tests.support.recordings import archive_of, moments_of, read
from tests.support.simulated_jobs import SimulatedWatch, processes
from tui.command_line.options import OutputOptions
from tui.commands.explain import write_explanation
from tui.commands.fleet import live as fleet_live
from tui.commands.live.live import LiveOptions, write_live
from tui.runtime.node_monitor import NodeMonitor, read_up_to
from widgets.base.lines import plain
from widgets.live import detail, job_lines, ranks

WORDS = {
    "kv-over-rdma": "likely RDMA, GPU memory (DMA-BUF)",
    "kv-over-nvlink": "likely NVLink",
    "kv-over-tcp": "TCP",
    "kv-over-loopback": "likely TCP inside the node",
    "kv-staged": "likely RDMA, staged through host memory",
    "nixl-ucx-without-cuda": "likely RDMA, staged through host memory",
    "ucx-without-verbs": "TCP",
}
PEERS = {"kv-over-tcp": "10.0.0.8", "ucx-without-verbs": "10.0.0.8", "kv-over-loopback": "this node"}
ROLES = {"kv-over-rdma": "prefill", "kv-over-tcp": "prefill", "ucx-without-verbs": "prefill"}
PROGRAMS = {
    "kv-over-tcp": "sglang::scheduler",
    "kv-over-nvlink": "VLLM::EngineCore",
    "kv-staged": "VLLM::Worker",
}
FAULTS = pytest.mark.parametrize("fault", WORDS)


@cache
def sample_of(fault: str) -> LiveSample:
    *_, last = SimulatedWatch(f"hgx-h100+{fault}").samples(3)
    return last


def engines_in(sample: LiveSample) -> list[LiveProcess]:
    return [process for process in processes(sample) if process.transfer is not None]


@FAULTS
def test_a_row_of_live_has_role_path_peer_and_rate_at_80_columns(fault: str) -> None:
    sample = sample_of(fault)
    head, *rows = (plain(line) for line in ranks.draw(sample, 76))
    assert len(rows) == 8
    assert head.split()[:1] == ["GPU"]
    for row, process in zip(rows, ranks.in_order(sample), strict=True):
        assert process.path_text == WORDS[fault]
        assert WORDS[fault] in row
        assert PEERS.get(fault, "") in row
        assert ROLES.get(fault, "") in row
    assert "Gb/s" in head
    assert "rank" not in head  # unknown of every worker


@FAULTS
def test_the_line_of_a_job_has_engine_path_and_rate(fault: str) -> None:
    sample = sample_of(fault)
    for job in sample.jobs:
        line = plain(job_lines.job_line(job, sample, 200))
        assert WORDS[fault] in line
        assert "SGLang, Mooncake" in line or "vLLM, NIXL over UCX" in line
        assert "b/s" in line.partition("↑")[2]
        assert "rank" not in line
        short = plain(job_lines.job_line(job, sample, 78))
        assert WORDS[fault].partition(" (")[0] in short
    overview = "\n".join(plain(line) for line in job_lines.draw_overview(sample, None, {}, 76))
    assert WORDS[fault].partition(" (")[0] in overview


@FAULTS
def test_the_process_has_engine_path_and_evidence(fault: str) -> None:
    sample = sample_of(fault)
    text = "\n".join(plain(line) for line in detail.of_process(engines_in(sample)[0], sample, 100))
    assert f"KV cache    {WORDS[fault]}\n" in text
    assert text.index("Engine  ") < text.index("KV cache") < text.index("Path   ")
    assert "sock_diag: TCP to other nodes" in text
    assert (f"Peer        {PEERS[fault]}" in text) if fault in PEERS else ("Peer  " not in text)


@FAULTS
def test_text_json_explain_and_metrics_say_the_same(fault: str) -> None:
    clock = SteppedClock()

    def wait(seconds: float) -> None:
        clock.now += seconds

    host = SimulatedHost(f"hgx-h100+{fault}", clock=clock)
    out = io.StringIO()
    write_live(host, out, LiveOptions(seconds=2), clock, wait)
    assert WORDS[fault] in " ".join(out.getvalue().split())
    out = io.StringIO()
    write_live(host, out, LiveOptions(json=True, seconds=1), clock, wait)
    document = valid("live", out.getvalue())
    moved = [process for process in document["processes"] if process["transfer"]]
    assert {process["path_text"] for process in moved} == {WORDS[fault]}
    assert all(process["serving"]["engine"] for process in moved)
    out = io.StringIO()
    write_explanation(host, out, moved[0]["pid"], "", OutputOptions(), wait)
    assert f"KV cache    {WORDS[fault]}\n" in out.getvalue()
    clock.now = 1000.0  # a burst begins
    reader = reader_of(SimulatedHost(f"hgx-h100+{fault}", clock=clock), clock)
    assert values(reader.read(), "gdrtop_engine_processes", "path") == {}  # unknown
    clock.now += 1.0
    counted = values(reader.read(), "gdrtop_engine_processes", "path")
    assert [count for count in counted.values() if count] == [8]
    clock.now += 3.5  # between two bursts, the path stays
    assert values(reader.read(), "gdrtop_engine_processes", "path") == counted
    assert counted[TransferWord(moved[0]["transfer"]["word"]).name.lower(),] == 8


def test_a_fleet_shows_prefill_and_decode_as_one() -> None:
    clock = SteppedClock()

    def wait(seconds: float) -> None:
        clock.now += seconds

    parser = argparse.ArgumentParser()
    parser.add_argument("--ascii", action="store_true")
    fleet_live.add_options(parser)
    options = parser.parse_args(["--seconds", "4"])
    for fault in ("kv-over-rdma", "kv-over-tcp"):
        demo = fleet_live.demo_hosts(f"hgx-h100+{fault}", 2)
        assert [host.origin.label for host in demo.values()] == [f"hgx-h100+{fault}"] * 2
        stepped = job_nodes("hgx-h100", 2, dict.fromkeys(range(2), fault), clock=clock)
        out = io.StringIO()
        fleet_live.run(options, dict(stepped), {}, out, clock, wait, clock)
        answer, _, head, *rows = out.getvalue().splitlines()[1:]
        assert "prefill and decode, 16 processes on 2 nodes" in answer
        assert {row.split()[0] for row in rows} == {"gpu001", "gpu002"}
        assert all(WORDS[fault] in row for row in rows)
        assert [("prefill" in row, "decode" in row) for row in rows].count((True, False)) == 8
        assert "role" in head


@pytest.mark.parametrize("fault", ["kv-over-tcp", "kv-over-nvlink", "kv-staged"])
def test_a_recording_shows_the_same_path_also_redacted(fault: str) -> None:
    clock = SteppedClock()
    moments = moments_of(SimulatedHost(f"hgx-h100+{fault}", clock=clock), clock, 3)
    for redact in (False, True):
        identifiers = Identifiers(redact=redact)
        archive = archive_of([identifiers.apply(moment) for moment in moments])
        host = ReplayHost(read(archive))
        *_, last = read_up_to(NodeMonitor(host), host, 2)
        engines = engines_in(last)
        assert {process.path_text for process in engines} == {WORDS[fault]}
        assert len(engines) == 8
        assert {program_of(job.name) for job in last.jobs} == {PROGRAMS[fault]}
        assert all(process.process.environment_pid != process.pid for process in engines)
        settings = {process.transfer.by_configuration for process in engines if process.transfer}
        assert settings == {"kv_buffer_device=cpu" if fault == "kv-staged" else ""}
        peers = {peer.address for each in engines if each.transfer for peer in each.transfer.peers}
        assert bool(peers) is (fault == "kv-over-tcp")
        assert (b"10.0.0.8" in archive or "10.0.0.8" in peers) is (not redact and bool(peers))
