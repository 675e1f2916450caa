"""The client of RAS: what it sends, and what it makes of everything that may listen there."""

import socket
import threading

import pytest

from probes.base.unknown import Reason, Unknown
from probes.host.machine.local import LocalHost
from probes.host.machine.ras_client import MAX_BYTES, RasMonitor, ask
from probes.host.ras import MONITOR, STATUS, VERBOSE_STATUS, parse_addresses
from tests.probes.host.machine.ras_server import PATIENCE_SECONDS, Behavior, FakeRas, ras_server
from tests.support.machines import machine_file

SILENT = Behavior(greets=False)
SHORT = 0.05


def asked(fake: FakeRas, command: str = STATUS, **limits: float) -> str:
    answer = ask(fake.address, command, PATIENCE_SECONDS, **limits)  # type: ignore[arg-type]
    assert not isinstance(answer, Unknown), answer
    return answer


def refused(fake: FakeRas, seconds: float = PATIENCE_SECONDS, greeting: float = PATIENCE_SECONDS) -> Unknown:
    answer = ask(fake.address, STATUS, seconds, greeting, 2)
    assert isinstance(answer, Unknown), answer
    assert fake.address in answer.source
    return answer


@pytest.mark.parametrize("command", [STATUS, VERBOSE_STATUS])
def test_only_the_greeting_and_one_command_are_sent(command: str) -> None:
    with ras_server() as fake:
        assert asked(fake, command) == "report\n"
    assert fake.received == [f"CLIENT PROTOCOL 2\n{command}\n".encode()]
    assert not fake.half_closed


@pytest.mark.parametrize(
    "command", ["CONTROL PROFILER_MASK 1", "control", "JSON STATUS", "SET FORMAT json", "status", MONITOR]
)
def test_no_other_command_is_sent(command: str) -> None:
    with ras_server() as fake:
        with pytest.raises(ValueError, match="does not send"):
            ask(fake.address, command, 1.0)
        assert fake.connections == 0


def test_a_real_report_comes_through_unchanged() -> None:
    report = machine_file("live/ras/status-rank3-dead.txt").read_bytes()
    with ras_server(Behavior(report)) as fake:
        assert asked(fake).encode() == report


def test_a_stopped_process_that_shares_the_port_is_passed_over() -> None:
    with ras_server(SILENT, SILENT, Behavior(b"job B\n")) as fake:
        assert asked(fake, greeting_seconds=0.3) == "job B\n"
    assert fake.received[:2] == [b"CLIENT PROTOCOL 2\n"] * 2
    assert fake.connections >= 3


def test_two_jobs_on_a_port_answer_in_turn() -> None:
    with ras_server(Behavior(b"job A\n"), Behavior(b"job B\n")) as fake:
        assert [asked(fake), asked(fake)] == ["job A\n", "job B\n"]
    assert fake.most_at_once == 1


def test_only_silent_processes_are_a_timeout() -> None:
    with ras_server(SILENT) as fake:
        answer = refused(fake, greeting=SHORT)
    assert answer.reason is Reason.TIMED_OUT
    assert "connected 2 times" in answer.detail
    assert fake.received == [b"CLIENT PROTOCOL 2\n"] * 2


def test_a_connection_that_ends_at_once_is_tried_again() -> None:
    with ras_server(Behavior(closes_at_once=True), Behavior()) as fake:
        assert asked(fake) == "report\n"


def test_an_answer_that_does_not_end_in_time_is_a_timeout() -> None:
    with ras_server(Behavior(b"NCCL version", stays_open=True)) as fake:
        assert refused(fake, seconds=SHORT).reason is Reason.TIMED_OUT
    assert fake.connections == 1  # the job is not asked twice


def test_an_answer_that_ends_in_the_middle_is_returned() -> None:
    with ras_server(Behavior(b"NCCL version 2.29.7 com")) as fake:
        assert asked(fake) == "NCCL version 2.29.7 com"


@pytest.mark.parametrize("flood", [b"x" * 65536, b"\n" * 65536])
def test_an_endless_answer_is_cut_off(flood: bytes) -> None:
    with ras_server(Behavior(flood, is_endless=True)) as fake:
        answer = refused(fake)
    assert answer.reason is Reason.MALFORMED
    assert f"{MAX_BYTES >> 20} MiB" in answer.detail


def test_an_error_is_the_reason() -> None:
    with ras_server(Behavior(b"ERROR: Unknown command \x1b[2JSTATUS\n", stays_open=True)) as fake:
        answer = refused(fake)
    assert answer.reason is Reason.DRIVER_ERROR
    assert "ERROR: Unknown command" in answer.detail
    assert answer.detail.isprintable()


@pytest.mark.parametrize("greeting", [b"SSH-2.0-OpenSSH_9.6\r\n", b"x" * 4096, b"ERROR: Unknown command\n"])
def test_another_service_gets_no_command(greeting: bytes) -> None:
    with ras_server(Behavior(greeting=greeting)) as fake:
        assert refused(fake).reason is Reason.MALFORMED
    assert not any(STATUS.encode() in text for text in fake.received)


def test_escape_sequences_do_not_pass() -> None:
    with ras_server(Behavior(b"\x1b]0;title\x07 \xff\xfe\r\nnext\n")) as fake:
        text = asked(fake)
    assert "\x1b" not in text
    assert "\x07" not in text
    assert text.endswith("\nnext\n")


def test_an_empty_answer_has_a_reason() -> None:
    with ras_server(Behavior(b"")) as fake:
        assert refused(fake).reason is Reason.IO_ERROR


def test_nothing_that_listens_is_not_there() -> None:
    with socket.socket() as bound:  # and does not listen
        bound.bind(("127.0.0.1", 0))
        answer = ask(f"127.0.0.1:{bound.getsockname()[1]}", STATUS, 1.0)
    assert isinstance(answer, Unknown)
    assert answer.reason is Reason.NOT_THERE


@pytest.mark.parametrize(
    "address", ["10.0.0.1:28028", "example.com:28028", "", "127.0.0.1", "[::1]:0", "::1:99999"]
)
def test_other_hosts_are_never_asked(address: str) -> None:
    answer = ask(address, STATUS, 1.0)
    assert isinstance(answer, Unknown)
    assert answer.reason is Reason.MALFORMED


def test_addresses_as_nccl_writes_them() -> None:
    def texts(text: str) -> list[str]:
        return [str(address) for address in parse_addresses(text)]

    assert texts("localhost:28028") == ["[::1]:28028", "127.0.0.1:28028"]
    assert texts("0.0.0.0:5000") == ["127.0.0.1:5000"]
    assert texts("[::]:5000") == ["[::1]:5000"]
    assert texts("127.0.0.5:1") == ["127.0.0.5:1"]
    assert texts("[2001:db8::1]:28028") == []


def test_a_second_question_does_not_open_a_second_connection() -> None:
    with ras_server(Behavior(b"OK\n", stays_open=True), Behavior()) as fake:
        monitor = RasMonitor(fake.address)
        assert monitor.read() == ()
        answer = ask(fake.address, STATUS, 1.0)
        assert isinstance(answer, Unknown)
        assert "another connection" in answer.detail
        monitor.close()
        assert asked(fake) == "report\n"
    assert fake.received[0] == f"CLIENT PROTOCOL 2\n{MONITOR}\n".encode()


def test_events_come_once_and_the_connection_ends_cleanly() -> None:
    first = b"[2026-11-22 01:20:57] PEER_DEAD: Process 1 on node 127.0.0.1 managing GPU 3 \n"
    with ras_server(Behavior(b"OK\n" + first)) as fake:
        host = LocalHost()
        seen: list[str] = []
        end = None
        for _ in range(1000):
            events = host.ras_events(fake.address)
            if isinstance(events, Unknown):
                end = events
                break
            seen += events
            threading.Event().wait(0.001)
        host.ras_events(fake.address, last=True)
    assert seen == [first.decode().strip()]
    assert end is not None
    assert "closed the connection" in end.detail


def test_a_job_without_monitor_has_a_reason() -> None:
    with ras_server(Behavior(b"ERROR: Unknown command MONITOR\n", stays_open=True)) as fake:
        events = RasMonitor(fake.address).read()
    assert isinstance(events, Unknown)
    assert "no MONITOR" in events.detail


def test_a_directory_tree_has_no_ras(tmp_path: object) -> None:
    host = LocalHost(str(tmp_path))
    for answer in (host.ras_answer("127.0.0.1:28028", STATUS), host.ras_events("127.0.0.1:28028")):
        assert isinstance(answer, Unknown)
        assert answer.reason is Reason.NOT_THERE
