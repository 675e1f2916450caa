"""`gdrtop metrics --listen`: answers from the last finished check, to anyone who asks at any time."""

import argparse
import http.client
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from probes.metrics.metric_list import Family, Metric, family
from probes.simulation.host import SimulatedHost
from tests.support.command_line import ROOT
from tests.support.observed_metrics import reader_of
from tests.support.pilot import SteppedClock
from tui.commands.metrics import server as module
from tui.commands.metrics.metrics import address
from tui.commands.metrics.server import LatestCheck, MetricsServer, serve

COUNT = Metric("gdrtop_count", "How often the node was read.")
OPEN_METRICS = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"


class Node:
    """Reads that are counted; they hang while `is_stuck`."""

    def __init__(self) -> None:
        self.reads = 0
        self.goes_on = threading.Event()
        self.goes_on.set()
        self.error: Exception | None = None

    def read(self) -> Sequence[Family]:
        self.reads += 1
        self.goes_on.wait(30)
        if self.error:
            raise self.error
        return [family(COUNT, [({}, self.reads)])]


@contextmanager
def served(latest: LatestCheck) -> Iterator[int]:
    server = MetricsServer(("127.0.0.1", 0), latest)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield server.server_address[1]
    server.shutdown()
    server.server_close()


def get(port: int, path: str = "/metrics", accept: str = "", method: str = "GET") -> tuple[int, str, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        connection.request(method, path, headers={"Accept": accept})
        answer = connection.getresponse()
        return answer.status, answer.getheader("Content-Type", ""), answer.read().decode()
    finally:
        connection.close()


def test_a_client_gets_the_format_that_it_accepts() -> None:
    latest = LatestCheck(Node().read)
    latest.renew()
    with served(latest) as port:
        status, kind, text = get(port)
        assert (status, kind) == (200, "text/plain; version=0.0.4; charset=utf-8")
        assert [family.name for family in parse_text(text)] == ["gdrtop_count"]
        status, kind, text = get(port, accept=OPEN_METRICS)
        assert kind.startswith("application/openmetrics-text; version=1.0.0")
        assert [family.name for family in parse_openmetrics(text)] == ["gdrtop_count"]


def test_probes_and_balancers_may_ask_for_the_head_and_the_start_page() -> None:
    latest = LatestCheck(Node().read)
    with served(latest) as port:
        assert get(port, method="HEAD")[0] == get(port)[0] == 503
        latest.renew()
        for path, expected in (("/metrics", 200), ("/", 200), ("/other", 404)):
            status, kind, text = get(port, path)
            assert (status, path == "/metrics" or "/metrics" in text) == (expected, True)
            assert get(port, path, method="HEAD") == (status, kind, "")


def test_scrapes_do_not_read_the_node_and_many_may_come_at_once() -> None:
    node = Node()
    latest = LatestCheck(node.read)
    latest.renew()
    answers = []
    with served(latest) as port:
        clients = [threading.Thread(target=lambda: answers.append(get(port))) for _ in range(8)]
        for client in clients:
            client.start()
        for client in clients:
            client.join()
    assert [status for status, _, _ in answers] == [200] * 8
    assert node.reads == 1


def test_a_hung_node_does_not_delay_a_scrape() -> None:
    node = Node()
    latest = LatestCheck(node.read)
    with served(latest) as port:
        assert get(port)[0] == 503
        latest.renew()
        node.goes_on.clear()
        stuck = threading.Thread(target=latest.renew, daemon=True)
        stuck.start()
        status, _, text = get(port)
        assert status == 200
        assert "gdrtop_count 1.0\n" in text
        node.goes_on.set()
        stuck.join()
        assert "gdrtop_count 2.0\n" in get(port)[2]


def test_a_check_that_fails_leaves_the_last_metrics(capsys: pytest.CaptureFixture[str]) -> None:
    node, waits = Node(), []
    latest = LatestCheck(node.read)

    def wait(seconds: float) -> None:
        waits.append(seconds)
        node.error = ValueError("bad\x1b[31m node")
        if len(waits) == 2:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        latest.renew_forever(60.0, wait)
    assert b"gdrtop_count 1.0\n" in next(iter(latest.content.values()))
    assert "the check failed: ValueError: bad" in (printed := capsys.readouterr().err)
    assert "\x1b" not in printed
    assert all(59 < seconds <= 60 for seconds in waits)


def test_clients_that_send_nothing_do_not_keep_others_out() -> None:
    latest = LatestCheck(Node().read)
    latest.renew()
    with served(latest) as port:
        silent = [socket.create_connection(("127.0.0.1", port), timeout=20) for _ in range(40)]
        assert get(port)[0] == 200
        assert silent[0].recv(1) == b""  # the oldest was ended
        for connection in silent:
            connection.close()


@pytest.mark.parametrize("request_line", [b"\x00\xff\r\n\r\n", b"GET\r\n\r\n", b"A" * 70_000])
def test_what_is_not_http_ends_only_its_own_connection(
    request_line: bytes, capfd: pytest.CaptureFixture[str]
) -> None:
    latest = LatestCheck(Node().read)
    latest.renew()
    with served(latest) as port:
        with socket.create_connection(("127.0.0.1", port), timeout=20) as client:
            client.sendall(request_line)
            client.shutdown(socket.SHUT_WR)
            try:
                while client.recv(4096):
                    pass
            except ConnectionResetError:
                pass
        assert get(port)[0] == 200
    assert capfd.readouterr().err == ""


def test_a_port_alone_is_on_loopback() -> None:
    assert address("9477") == ("127.0.0.1", 9477)
    assert address("0.0.0.0:9477") == ("0.0.0.0", 9477)
    assert address("[::1]:9477") == ("::1", 9477)
    for wrong in ("", "9477:", "[::1]", "1.2.3.4:x", "[1.2.3.4]:5", "-1", "http://a:1"):
        with pytest.raises(argparse.ArgumentTypeError):
            address(wrong)


def test_a_port_in_use_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert serve(SimulatedHost("hgx-h100"), ("127.0.0.1", port), 60.0, False) == module.EXIT_WRONG_USAGE
    assert capsys.readouterr().err == f"gdrtop: cannot listen on 127.0.0.1:{port}: Address already in use\n"


@pytest.mark.slow
def test_from_the_second_check_on_it_compares_with_the_one_before() -> None:
    clock = SteppedClock()
    reader = reader_of(SimulatedHost("oci-h100+congestion", clock=clock), clock)
    reader.read()
    clock.now += 60
    families = {family.metric.name: family for family in reader.read()}
    assert clock.now < 1062  # only the first reading takes a second
    ratios = [sample.value for sample in families["gdrtop_port_transmit_wait_ratio"].samples]
    assert max(ratios) > 0


@pytest.mark.slow
def test_sigterm_ends_it_cleanly() -> None:
    argv = [sys.executable, "-m", "tui", "metrics", "--demo", "--listen", "0"]
    with subprocess.Popen(
        argv, cwd=ROOT, stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)}
    ) as program:
        assert program.stderr is not None
        begun = program.stderr.readline()
        assert re.search(r"metrics at http://127\.0\.0\.1:\d+/metrics, a check every 60 s$", begun)
        program.send_signal(signal.SIGTERM)
        assert program.wait(30) == 0
        assert program.stderr.read() == ""
