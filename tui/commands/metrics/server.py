"""Answer Prometheus over HTTP: with the last finished check, so that a hung node never delays an answer."""

from __future__ import annotations

import gc
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from probes.base.text import printable
from probes.host.protocol import Host
from probes.metrics.metric_list import Family
from tui.command_line.arguments import EXIT_WRONG_USAGE
from tui.commands.metrics.reading import OPEN_METRICS, TEXT, MetricsReader, encode
from tui.files.version import version
from tui.runtime.memory import limit_malloc
from tui.runtime.signals import signals_stop

_MOST_CONNECTIONS = 16
_IDLE_SECONDS = 10.0  # for the next bytes of a request
_PAUSE_SECONDS = 0.25  # a signal ends the server after this time
_START_PAGE = b'<!doctype html><title>gdrtop</title>\nThe metrics are at <a href="/metrics">/metrics</a>.\n'


class LatestCheck:
    """The metrics of the last finished check, in both formats; {} before the first one."""

    def __init__(self, read: Callable[[], Sequence[Family]]) -> None:
        self._read = read
        self.content: Mapping[str, bytes] = {}  # replaced as a whole

    def renew(self) -> None:
        """Check the node once."""
        families = self._read()
        self.content = {form: encode(families, form) for form in (TEXT, OPEN_METRICS)}

    def renew_forever(self, seconds: float, wait: Callable[[float], object] = time.sleep) -> None:
        """Check the node every so many seconds; an error is printed, and the last metrics stay."""
        while True:
            began = time.monotonic()
            try:
                self.renew()
            except Exception as error:  # the node may be better at the next check
                text = printable(f"{type(error).__name__}: {error}", 400)
                print(f"gdrtop: the check failed: {text}", file=sys.stderr, flush=True)
            wait(max(1.0, began + seconds - time.monotonic()))


class _Handler(BaseHTTPRequestHandler):
    server: MetricsServer
    server_version = "gdrtop"
    sys_version = ""
    timeout = _IDLE_SECONDS

    def do_GET(self) -> None:
        """Send the metrics, in the format that the client accepts."""
        path = self.path.partition("?")[0]
        if path != "/metrics":
            self._send(200 if path == "/" else 404, "text/html; charset=utf-8", _START_PAGE)
            return
        content = self.server.latest.content
        form = OPEN_METRICS if "application/openmetrics-text" in self.headers.get("Accept", "") else TEXT
        if content:
            self._send(200, form, content[form])
        else:
            self._send(503, TEXT, b"The first check has not finished yet.\n")

    do_HEAD = do_GET

    def _send(self, status: int, form: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", form)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - http.server's name
        """Log nothing: Prometheus asks all the time."""


class MetricsServer(ThreadingHTTPServer):
    """Answers each client in a thread; a new one ends the oldest of too many."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def __init__(self, address: tuple[str, int], latest: LatestCheck) -> None:
        self.latest = latest
        self._open: deque[socket.socket] = deque()
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        super().__init__(address, _Handler)

    def process_request(self, request: object, client_address: object) -> None:
        """Start the thread of a client."""
        assert isinstance(request, socket.socket)
        self._open.append(request)
        if len(self._open) > _MOST_CONNECTIONS:
            self._end(self._open.popleft())
        super().process_request(request, client_address)

    def shutdown_request(self, request: object) -> None:
        """Close the connection of a client."""
        assert isinstance(request, socket.socket)
        if request in self._open:
            self._open.remove(request)
        super().shutdown_request(request)

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore a client that has gone away or does not speak HTTP."""

    @staticmethod
    def _end(connection: socket.socket) -> None:
        try:
            connection.shutdown(socket.SHUT_RDWR)  # its thread closes it
        except OSError:
            return


def serve(host: Host, address: tuple[str, int], seconds: float, with_bytes: bool) -> int:
    """Check the node every so many seconds and answer Prometheus until a signal; return the exit status."""
    gc.enable()
    limit_malloc()
    latest = LatestCheck(MetricsReader(host, with_bytes).read)
    try:
        server = MetricsServer(address, latest)
    except OSError as error:
        print(f"gdrtop: cannot listen on {_shown(*address)}: {error.strerror}", file=sys.stderr)
        return EXIT_WRONG_USAGE
    stops: list[str] = []
    with signals_stop(stops.append):
        for target, name, arguments in (
            (latest.renew_forever, "checks", (seconds,)),
            (server.serve_forever, "server", ()),
        ):
            threading.Thread(target=target, name=name, args=arguments, daemon=True).start()
        port = server.server_address[1]
        print(
            f"gdrtop {version()}: metrics at http://{_shown(address[0], port)}/metrics,"
            f" a check every {seconds:.0f} s",
            file=sys.stderr,
            flush=True,
        )
        while not stops:
            time.sleep(_PAUSE_SECONDS)
        server.shutdown()
        server.server_close()
    return 0


def _shown(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
