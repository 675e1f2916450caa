"""perftest played: a server that waits, a client that finds it, and what each end prints until it ends."""

from __future__ import annotations

from dataclasses import dataclass, field

from probes.simulation.bandwidth import perftest_options, perftest_text
from probes.simulation.bandwidth import speeds as figures
from probes.simulation.bandwidth.command_line import Called, program_of
from probes.simulation.bandwidth.node_pair import Stage
from probes.simulation.bandwidth.perftest_card import card_of, is_addressed
from probes.simulation.bandwidth.perftest_options import Options
from probes.simulation.bandwidth.perftest_rows import Measurement
from probes.simulation.bandwidth.perftest_text import NOT_CONNECTED, PEER_GONE, Card, Numbers
from probes.simulation.bandwidth.playback import Line, Script, SimulatedTest, ended, spaced
from probes.simulation.bandwidth.registration import Registered, register
from probes.simulation.bandwidth.sockets import Listener, is_taken
from probes.simulation.bandwidth.speeds import Place
from probes.simulation.bandwidth.traffic import Flow, stop
from probes.simulation.node.modules import PEERMEM
from probes.snapshot.examination import Examination

_PARSED, _LISTENS, _CONNECTS = 0.03, 0.12, 0.15  # seconds after its begin
_HOST_MEMORY, _GPU_MEMORY = 0.08, 0.9  # seconds that it takes to get it
_NOTICES = 0.5
_ENDED = "scnt=128, ccnt=0"
_LOCAL_PROTECTION, _REMOTE_INVALID, _REMOTE_ACCESS, _REMOTE_OPERATION, _RETRIES = 4, 9, 10, 11, 12


@dataclass
class Side:
    """One end of a test."""

    stage: Stage
    called: Called
    options: Options
    examination: Examination
    card: Card
    numbers: Numbers
    test: SimulatedTest
    peer: Side | None = None
    listener: Listener[Side] | None = None
    rows_at: float = float("inf")
    flows: list[Flow] = field(default_factory=list)
    gpu: str | None = None

    def ended(self, at: float) -> None:
        """It was ended from outside: its port is free, and its peer notices."""
        if self.listener is not None:
            self.listener.until = min(self.listener.until, at)
        if self.peer is not None:
            self.peer.lost(at)
        for side in (self, self.peer):
            if side is not None:
                stop(side.flows, side.stage.seconds(at))

    def lost(self, at: float) -> None:
        """The other end is gone."""
        if at >= self.test.ends_at:
            return
        lines: tuple[str, ...] = PEER_GONE
        if self.options.server is not None and at >= self.rows_at:
            lines = _broken(self.options, _RETRIES)
        self.test.cut(at, ended(at + _NOTICES, 1, *lines))

    @property
    def place(self) -> Place:
        """Where its data is."""
        return Place(self.examination, self.card.device, self.options.port, self.gpu)


def begin(stage: Stage, called: Called, at: float) -> SimulatedTest:
    """One end: a server waits for its client, a client looks for its server."""
    if called.words in (("--version",), ("-V",)):
        return stage.test(ended(at + _PARSED, 0, "Version: 6.23"))
    options = perftest_options.parse(called, program_of(stage.tree, called.tool))
    if isinstance(options, tuple):
        return stage.test(ended(at + _PARSED, 1, *options))
    examination = stage.examine()
    card = card_of(stage, examination, options)
    if isinstance(card, tuple):
        return stage.test(ended(at + _PARSED, 1, *card))
    test = stage.test(Script(_first_lines(options, at + _PARSED)))
    side = Side(stage, called, options, examination, card, _numbers(stage, called, at), test)
    test.on_end.append(side.ended)
    if options.server is not None:
        stage.sockets.connect_at(at + _CONNECTS, lambda moment: _connect(side, moment))
        return test
    since = at + _LISTENS
    stage.sockets.settle()
    if is_taken(stage.tree, options.tcp_port, stage.seconds(since)) or stage.sockets.listener(
        stage.name, options.tcp_port, since
    ):
        test.follow(ended(since, 1, f"Couldn't listen to port {options.tcp_port}", *NOT_CONNECTED))
        return test
    test.follow(Script(tuple(Line(since, text) for text in perftest_text.WAITING)))
    side.listener = stage.sockets.listen(stage.name, options.tcp_port, since, side)
    return test


def _first_lines(options: Options, at: float) -> tuple[Line, ...]:
    if options.is_latency or _has_peak(options):
        return ()
    return (Line(at, perftest_text.NO_PEAK),)


def _has_peak(options: Options) -> bool:
    return options.duration_s is None and options.counted <= 20_000


def _numbers(stage: Stage, called: Called, at: float) -> Numbers:
    def number(what: str, most: int) -> int:
        return stage.number(f"{stage.name} {called.tool} {' '.join(called.words)} {what}", at, most)

    return Numbers(
        pid=50_000 + number("pid", 40_000),
        queue_pair=0x100 + number("queue pair", 0x1000),
        sequence=number("sequence", 1 << 24),
        key=number("key", 1 << 18),
        address=0x7F0000000000 + (number("address", 1 << 18) << 21),
    )


def _connect(client: Side, at: float) -> None:
    """The client's connection by TCP (src/perftest_communication.c, ethernet_client_connect)."""
    if at >= client.test.ends_at:
        return
    name, port = client.options.server or "", client.options.tcp_port
    far = client.stage.named(name)
    if far is None:
        client.test.follow(ended(at, 1, f"Name or service not known for {name}:{port}", *NOT_CONNECTED))
        return
    listener = client.stage.sockets.listener(far.name, port, at)
    if listener is not None:
        _pair(client, listener.server, at)
    elif is_taken(far.tree, port, far.seconds(at)):  # by a stranger, who does not know this protocol
        client.test.follow(ended(at + _NOTICES, 1, *PEER_GONE))
    else:
        client.test.follow(ended(at, 1, f"Couldn't connect to {name}:{port}", *NOT_CONNECTED))


def _pair(client: Side, server: Side, at: float) -> None:
    """Both get their memory, then meet again; either may not come so far."""
    assert server.listener is not None
    server.listener.until = at
    client.peer, server.peer = server, client
    sides = (client, server)
    got = [_register(side) for side in sides]
    done = [at + (_GPU_MEMORY if side.options.of_gpu else _HOST_MEMORY) for side in sides]
    met = max(done) + 0.05
    for side, memory, moment in zip(sides, got, done, strict=True):
        side.gpu = None if memory.gpu is None else memory.gpu.bdf
        lines = spaced(at, moment - at, *memory.lines) if memory.lines else ()
        if memory.failed:
            side.test.follow(Script(lines, moment, 1))
        elif any(one.failed for one in got):
            side.test.follow(_with(lines, ended(met, 1, *_head(side), *PEER_GONE)))
        else:
            _hold_peermem(side, moment)
            _meet(client, side, lines, met)


def _hold_peermem(side: Side, at: float) -> None:
    """Memory registered through nvidia-peermem holds one reference of it (nv_mem_acquire), until the end."""
    if not side.options.of_gpu or side.options.dmabuf:
        return
    seconds, since = side.stage.seconds, side.stage.seconds(at)
    side.stage.tree.references[PEERMEM, f"{side.called.tool} {side.numbers.pid}"] = lambda now: int(
        since <= now < seconds(side.test.ends_at)
    )


def _register(side: Side) -> Registered:
    one = side
    return register(one.stage.tree, one.examination, one.called, one.options, one.card.device, one.numbers)


def _with(lines: tuple[Line, ...], script: Script) -> Script:
    return Script((*lines, *script.lines), script.ends_at, script.status)


def _head(side: Side) -> tuple[str, ...]:
    local = perftest_text.addresses("local", side.options, side.card, side.numbers)
    return (*perftest_text.head(side.options, side.card), *local)


def _meet(client: Side, side: Side, lines: tuple[Line, ...], at: float) -> None:
    """Addresses are exchanged and queue pairs connected; what ends there ends with status 1."""
    peer = side.peer
    assert peer is not None
    is_client = side is client
    unlike = perftest_options.unlike(side.options, peer.options)
    if unlike and not {"tool", "sizes"} & set(unlike):
        side.test.follow(_with(lines, ended(at + 0.2, 1, *_head(side), *PEER_GONE)))
        return
    remote = perftest_text.addresses("remote", peer.options, peer.card, peer.numbers)
    met = (*_head(side), *remote[: len(remote) if side.options.tool == peer.options.tool else 2])
    fits = side.card.infiniband == peer.card.infiniband
    if not (fits and is_addressed(side.card) and is_addressed(peer.card)):
        said = f"Failed to modify QP {side.numbers.queue_pair} to RTR"
        apart = (said, " Unable to Connect the HCA's through the link")
        side.test.follow(_with(lines, ended(at + 0.05, 1, *met, *apart)))
        return
    begun = (*met, perftest_text.RULE, perftest_text.columns(side.options))
    side.rows_at = at + 0.1
    status = _status(client, unlike)
    if status is not None:
        last = _broken(side.options, status) if is_client else PEER_GONE
        side.test.follow(_with(lines, ended(side.rows_at + 0.2 + 0.3 * (not is_client), 1, *begun, *last)))
        return
    measurement = _measurement(client)
    if is_client:
        _let_flow(client, measurement)
    prints_rows = is_client or side.options.verb == "send" or side.options.is_bidirectional
    prints_rows = prints_rows or side.options.tool == "ib_write_lat"
    rows = measurement.rows() if prints_rows else measurement.last_row()
    ends_at = measurement.ends_at + 0.05
    last = (perftest_text.RULE, *(perftest_text.cuda_ends(side.numbers) if side.gpu else ()))
    heading = tuple(Line(at, text) for text in begun)
    side.test.follow(
        Script(
            (line for part in (lines, heading, rows, (Line(ends_at, one) for one in last)) for line in part),
            ends_at,
        )
    )


def _status(client: Side, unlike: tuple[str, ...]) -> int | None:
    """The ibv_wc_status with which the first message fails; None: messages arrive."""
    server = client.peer
    assert server is not None
    if "tool" in unlike:
        return _REMOTE_INVALID
    if "sizes" in unlike:
        return _REMOTE_ACCESS
    for side, status in ((client, _LOCAL_PROTECTION), (server, _REMOTE_OPERATION)):
        if side.gpu is not None and figures.is_unreachable(side.examination, side.gpu, side.card.device):
            return status
    return None


def _broken(options: Options, status: int) -> tuple[str, ...]:
    syndrome = {4: 0x51, 9: 0x8A, 10: 0x88, 11: 0x89, 12: 0x81}[status]
    kind = "lat" if options.is_latency else "bw"
    return (
        " Completion with error at client",
        f" Failed status {status}: wr_id 0 syndrom 0x{syndrome:x}",
        _ENDED,
        f" Failed to complete run_iter_{kind} function successfully",
    )


def _measurement(client: Side) -> Measurement:
    """What this pair reaches: the lesser of both ends."""
    server = client.peer
    assert server is not None
    options = client.options
    same_node = client.stage is server.stage
    is_loopback = same_node and client.card.device == server.card.device
    is_read = options.verb == "read"
    ways = [(client.place, not is_read), (server.place, is_read)]
    if options.is_bidirectional:
        ways += [(place, not reads) for place, reads in ways]
    gbps = min(figures.sustained(place, reads, is_loopback) for place, reads in ways)
    for side in (client,) if is_loopback else (client, server):
        job = side.stage.traffic.job_gbps(side.card.device, side.stage.seconds(client.rows_at))
        device = figures.device_of(side.examination, side.card.device)
        rates = [one.rate_gbps for one in device.ports if isinstance(one.rate_gbps, float)] if device else []
        gbps = figures.beside_job(gbps, job, max(rates, default=0.0))
    latency = figures.latency_us(client.place, server.place, is_read, 0, gbps)
    if options.is_bidirectional and not is_loopback:
        gbps *= 2 * 0.97
    return Measurement(
        options, client.rows_at, gbps, latency, client.stage.seed, client.card.device, _has_peak(options)
    )


def _let_flow(client: Side, measurement: Measurement) -> None:
    """The ports' counters rise: what one end sends the other receives."""
    server, options = client.peer, client.options
    assert server is not None
    sender, receiver = (server, client) if options.verb == "read" else (client, server)
    ways = [(sender, receiver)]
    if options.is_bidirectional or (options.is_latency and options.verb != "read"):
        ways.append((receiver, sender))
    for since, until, gbps in measurement.flows():
        for a, b in ways:
            for side, name in ((a, "port_xmit_data"), (b, "port_rcv_data")):
                seconds = side.stage.seconds
                flow = Flow(seconds(since), gbps / len(ways), seconds(until))
                side.stage.traffic.add(side.card.device, name, flow, seconds(side.stage.clock()))
                side.flows.append(flow)
