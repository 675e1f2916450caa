"""perftest on a simulated node: a server that waits, a client that finds it, and what each end prints.

Lines: linux-rdma/perftest src/perftest_resources.c, src/perftest_communication.c (ethernet_client_connect).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from probes.bandwidth.planning.node_settings import gid_index
from probes.bandwidth.tools.perftest_command import GpuMemory, PerftestSettings, refusal
from probes.base.unknown import Unknown, known
from probes.facts.kernel.modules import PEERMEM
from probes.facts.rdma.devices import EMPTY_GID
from probes.facts.rdma.partition_keys import DEFAULT_KEY, KeyTable, is_full
from probes.facts.rdma.port_health import RECEIVED, SENT
from probes.facts.system.tools import ToolFacts, cuda_in_program
from probes.queries.ports import key_table
from probes.simulation.bandwidth import perftest_text, speeds
from probes.simulation.bandwidth.node_pair import (
    Listener,
    ParsedCommand,
    SimulatedNode,
    is_taken,
    program_bytes,
)
from probes.simulation.bandwidth.perftest_text import (
    NOT_CONNECTED,
    PEER_GONE,
    RULE,
    Measurement,
    UsedPort,
    verb_of,
)
from probes.simulation.bandwidth.playback import Line, Script, SimulatedTest, at_once, ended, printed, spread
from probes.simulation.bandwidth.prove import has_provider, register
from probes.simulation.bandwidth.speeds import Flow, Place, stop
from probes.snapshot.examination import Examination

_PARSES, _LISTENS, _CONNECTS = 0.03, 0.12, 0.15  # seconds after its start
_HOST_MEMORY, _GPU_MEMORY = 0.08, 0.9  # seconds that it takes to register it
_NOTICES = 0.5
_STATES = {"DOWN": "Down", "INIT": "Init", "ARMED": "Armed", "ACTIVE_DEFER": "Active Defer"}
_LOCAL_PROTECTION, _REMOTE_OPERATION, _RETRIES = 4, 11, 12  # ibv_wc_status
# Options that gdrtop passes, and their settings.
_NUMBERS = {
    "-i": "port",
    "-p": "tcp_port",
    "-x": "gid_index",
    "-s": "size_bytes",
    "-D": "duration_s",
    "-n": "iterations",
    "-q": "queue_pairs",
    "--pkey_index": "pkey_index",
}
_WORDS = {"-d": "device", "-c": "connection"}
_FLAGS = {
    "-a": "all_sizes",
    "-b": "is_bidirectional",
    "--run_infinitely": "is_endless",
    "--ipv6-addr": "over_ipv6",
    "-F": "",
    "--report_gbits": "",
}
_CUDA, _BUS_ID, _DMABUF = "--use_cuda", "--use_cuda_bus_id", "--use_cuda_dmabuf"
_DATA_DIRECT = "--use_data_direct"
_REJECTED = " Parser function exited with Error"


@dataclass
class End:
    """One end of a test."""

    node: SimulatedNode
    command: ParsedCommand
    settings: PerftestSettings
    server: str | None  # None: this is the server
    examination: Examination
    port: UsedPort
    pid: int
    test: SimulatedTest
    peer: End | None = None
    listener: Listener | None = None
    rows_at: float = float("inf")
    flows: list[Flow] = field(default_factory=list)
    gpu: str | None = None

    def signalled(self, at: float) -> None:
        """Free the port when a signal has ended it, and let the peer notice."""
        if self.listener is not None:
            self.listener.until = min(self.listener.until, at)
        if self.peer is not None and at < self.peer.test.ends_at:
            is_broken_client = self.peer.server is not None and at >= self.peer.rows_at
            lines = _broken(self.peer.settings, _RETRIES) if is_broken_client else PEER_GONE
            self.peer.test.cut(at, ended(at + _NOTICES, 1, *lines))
        for end in filter(None, (self, self.peer)):
            stop(end.flows, end.node.seconds(at))

    @property
    def place(self) -> Place:
        """Where its data is."""
        settings = self.settings
        direct = settings.gpu is not None and settings.gpu.data_direct
        pairs = settings.queue_pairs
        return Place(self.examination, self.port.device, settings.port, self.gpu, pairs, direct)

    def head(self) -> tuple[str, ...]:
        """The table's head and its own address."""
        return perftest_text.head(self.settings, self.port, self.pid)


def start(node: SimulatedNode, command: ParsedCommand, at: float) -> SimulatedTest:
    """Start one end: a server waits for its client, a client looks for its server."""
    examination = node.examine()
    tools = examination.tools
    assert isinstance(tools, ToolFacts)
    options = _read_options(command, program_bytes(node.tree, command.program), tools)
    if not isinstance(options[0], PerftestSettings):
        return node.run(ended(at + _PARSES, 1, *filter(None, map(str, options))))
    settings, server = options[0], options[1]
    port = _used_port(node, examination, settings)
    if isinstance(port, tuple):
        return node.run(ended(at + _PARSES, 1, *port))
    has_peak = settings.is_latency or not settings.duration_s
    test = node.run(Script(() if has_peak else at_once(at + _PARSES, *printed("perftest", "no-peak"))))
    pid = 50_000 + node.number(f"{node.name} {command.program} {' '.join(command.words)}", at, 40_000)
    end = End(node, command, settings, server, examination, port, pid, test)
    test.on_signal.append(end.signalled)
    if server is not None:
        node.sockets.connect_at(at + _CONNECTS, lambda moment: _connect(end, server, moment))
        return test
    since, tcp_port = at + _LISTENS, settings.tcp_port
    node.sockets.advance()
    if is_taken(node.tree, tcp_port, node.seconds(since)) or _listener(node, tcp_port, since):
        test.follow(ended(since, 1, f"Couldn't listen to port {tcp_port}", *NOT_CONNECTED))
        return test
    test.follow(Script(at_once(since, *perftest_text.WAITING)))

    def accept(client: object, moment: float) -> None:
        assert isinstance(client, End)
        _pair(client, end, moment)

    end.listener = node.sockets.listen(node.name, tcp_port, since, accept)
    return test


def _listener(node: SimulatedNode, port: int, at: float) -> Listener | None:
    return next((each for each in node.sockets.listeners(node.name, at) if each.port == port), None)


def _read_options(
    command: ParsedCommand, program: bytes, tools: ToolFacts
) -> tuple[PerftestSettings, str | None] | tuple[str, ...]:
    """Return settings and server of a command; or the lines of a program of this build that rejects it.

    A GPU that is given by its PCI address has the index -1.
    """
    has_cuda, has_dmabuf = cuda_in_program(program)
    gpu_options = {_CUDA: has_cuda, _BUS_ID: has_cuda, _DMABUF: has_dmabuf, _DATA_DIRECT: has_dmabuf}
    values: dict[str, object] = {"tool": command.program}
    gpu: GpuMemory | None = None
    servers: list[str] = []
    words = list(command.words)
    while words:
        word = words.pop(0)
        name, _, value = word.partition("=")
        if not word.startswith("-"):
            servers.append(word)
        elif name in _FLAGS:
            values[_FLAGS[name]] = True
        elif name in (*_NUMBERS, *_WORDS) and (words or value):
            text = value if value and name.startswith("--") else words.pop(0) if words else ""
            if name in _NUMBERS and not (text.isascii() and text.isdecimal() and len(text) <= 10):
                return f" Invalid value for {name}", _REJECTED
            values[_WORDS.get(name) or _NUMBERS[name]] = text if name in _WORDS else int(text)
        elif gpu_options.get(name) and name == _DMABUF and gpu is not None:
            gpu = replace(gpu, dmabuf=True)
        elif gpu_options.get(name) and name == _DATA_DIRECT and gpu is not None:
            gpu = replace(gpu, data_direct=True)
        elif gpu_options.get(name) and value:
            index = int(value) if value.isdecimal() and value.isascii() and len(value) < 7 else -1
            gpu = GpuMemory(index, value.lower(), False)
        else:
            return f"{command.program}: unrecognized option '{word}'", " Invalid Command or flag.", _REJECTED
    values.pop("", None)
    settings = PerftestSettings(**{"device": "", **values})  # type: ignore[arg-type]
    if refusal(settings, tools):
        return (_REJECTED,)
    return replace(settings, gpu=gpu), servers[0] if servers else None


def _used_port(
    node: SimulatedNode, examination: Examination, settings: PerftestSettings
) -> UsedPort | tuple[str, ...]:
    """Return the port, or the lines with which perftest refuses it."""
    devices = speeds.devices_of(examination)
    not_found = " Unable to find the Infiniband/RoCE device"
    # Without the provider's library libibverbs skips every device.
    if not devices or not has_provider(node.tree):
        return "No IB devices found", not_found
    device = next((device for device in devices if device.name == settings.device), None)
    if device is None:
        return f"IB device {settings.device} not found", not_found
    file = known(device.uverbs, "")
    if file not in node.tree.files or file in node.tree.denied:
        return (" Couldn't get context for the device",)
    port = next((port for port in device.ports if port.number == settings.port), None)
    if port is None or port.is_down:
        state = known(port.state, "Unknown") if port else "Unknown"
        state = _STATES.get(state, state.capitalize())
        return f" Port number {settings.port} state is {state}", " Couldn't set the link layer"
    if port.link_layer != "Ethernet":
        table = key_table(examination, device.name, port.number)
        key = table.keys.get(settings.pkey_index or 0, 0) if isinstance(table, KeyTable) else DEFAULT_KEY
        return UsedPort(device.name, True, 4096, has_key=is_full(key))
    index = settings.gid_index if settings.gid_index is not None else known(gid_index(port), None)
    gids = {gid.index: gid.gid for gid in known(port.gids, ())}
    health = examination.port_health
    found = None if isinstance(health, Unknown) else health.ports.get((device.name, port.number))
    mtu = 1024 if found is None else known(found.roce_mtu_bytes, 1024)
    is_addressed = gids.get(-1 if index is None else index, EMPTY_GID) != EMPTY_GID
    return UsedPort(device.name, False, mtu, index or 0, is_addressed)


def _connect(client: End, name: str, at: float) -> None:
    """Connect the client over TCP."""
    if at >= client.test.ends_at:
        return
    port = client.settings.tcp_port
    far = client.node.named(name)
    if far is None:
        client.test.follow(ended(at, 1, f"Name or service not known for {name}:{port}", *NOT_CONNECTED))
    elif (listener := _listener(far, port, at)) is not None:
        listener.until = at
        listener.accept(client, at)
    elif is_taken(far.tree, port, far.seconds(at)):  # by another program, with another protocol
        client.test.follow(ended(at + _NOTICES, 1, *PEER_GONE))
    else:
        client.test.follow(ended(at, 1, f"Couldn't connect to {name}:{port}", *NOT_CONNECTED))


def _pair(client: End, server: End, at: float) -> None:
    """Let both ends register their memory, then connect them; either end may fail before."""
    client.peer, server.peer = server, client
    ends = (client, server)
    memories = [register(end.node.tree, end.examination, end.command, end.settings, end.pid) for end in ends]
    moments = [at + (_GPU_MEMORY if end.settings.gpu else _HOST_MEMORY) for end in ends]
    met = max(moments) + 0.05
    for end, memory in zip(ends, memories, strict=True):
        end.gpu = memory.gpu  # of both, before either measures
    for end, memory, moment in zip(ends, memories, moments, strict=True):
        lines = spread(at, moment - at, *memory.lines)
        if memory.has_failed:
            end.test.follow(Script(lines, moment, 1))
        elif any(other.has_failed for other in memories):
            end.test.follow(ended(met, 1, *end.head(), *PEER_GONE, before=lines))
        else:
            _hold_peermem(end, moment)
            _meet(client, server, end, lines, met)


def _hold_peermem(end: End, at: float) -> None:
    """Hold a reference of nvidia-peermem while memory is registered through it (nv_mem_acquire)."""
    if end.settings.gpu is None or end.settings.gpu.dmabuf:
        return
    holder, seconds, since = f"{end.command.program} {end.pid}", end.node.seconds, end.node.seconds(at)
    held = end.node.tree.references
    held[PEERMEM, holder] = lambda now: int(since <= now < seconds(end.test.ends_at))


def _meet(client: End, server: End, end: End, lines: tuple[Line, ...], at: float) -> None:
    """Exchange addresses, connect the queue pairs and measure."""
    is_client, peer = end is client, server if end is client else client
    met = (*end.head(), *perftest_text.addresses("remote", peer.settings, peer.pid))
    ports = (client.port, server.port)
    same_link = ports[0].is_infiniband == ports[1].is_infiniband
    if not (same_link and all(port.is_addressed for port in ports)):
        failed = (f"Failed to modify QP {end.pid} to RTR", " Unable to Connect the HCA's through the link")
        end.test.follow(ended(at + 0.05, 1, *met, *failed, before=lines))
        return
    begun = (*met, RULE, *perftest_text.columns(end.settings))
    end.rows_at = at + 0.1
    status = _completion_status(client, server)
    if status is not None:
        last = _broken(end.settings, status) if is_client else PEER_GONE
        end.test.follow(ended(end.rows_at + (0.2 if is_client else 0.5), 1, *begun, *last, before=lines))
        return
    measurement = _measurement(client, server)
    if is_client:
        _add_traffic(client, server, measurement)
    takes_part = end.settings.is_bidirectional or is_client or end.settings.is_latency
    rows = measurement.rows() if takes_part else measurement.last_row()
    ends_at = measurement.ends_at + 0.05
    parts = (lines, at_once(at, *begun), rows, (Line(ends_at, RULE),))
    end.test.follow(Script((line for part in parts for line in part), ends_at))


def _completion_status(client: End, server: End) -> int | None:
    """Return the ibv_wc_status with which the first message fails; None: messages arrive."""
    if not (client.port.has_key and server.port.has_key):
        return _RETRIES
    for end, status in ((client, _LOCAL_PROTECTION), (server, _REMOTE_OPERATION)):
        if end.gpu is not None and speeds.is_unreachable(end.examination, end.gpu, end.port.device):
            return status
    return None


def _broken(settings: PerftestSettings, status: int) -> tuple[str, ...]:
    syndrome = {4: 0x51, 11: 0x89, 12: 0x81}[status]
    kind = "lat" if settings.is_latency else "bw"
    return printed("perftest", "broken", status=status, syndrome=syndrome, kind=kind)


def _measurement(client: End, server: End) -> Measurement:
    """Return what this pair reaches: the slower of both ends."""
    settings = client.settings
    is_loopback = client.node is server.node and client.port.device == server.port.device
    is_read = verb_of(settings) == "read"
    transfers = [(client.place, not is_read), (server.place, is_read)]
    if settings.is_bidirectional:
        transfers += [(place, not reads) for place, reads in transfers]
    gbps = min(speeds.sustained(place, reads, is_loopback) for place, reads in transfers)
    for end in (client,) if is_loopback else (client, server):
        job = end.node.traffic.job_gbps(end.port.device, end.node.seconds(client.rows_at))
        device = speeds.device_of(end.examination, end.port.device)
        rates = [port.rate_gbps for port in device.ports] if device else []
        gbps = speeds.beside_job(gbps, job, max((known(rate, 0.0) for rate in rates), default=0.0))
        gbps = min(gbps, end.node.tree.most_gbps.get(end.port.device, gbps))
    latency = speeds.latency_us(client.place, server.place, is_read)
    if settings.is_bidirectional and not is_loopback:
        gbps *= 2 * 0.97
    return Measurement(settings, client.rows_at, gbps, latency, client.node.seed)


def _add_traffic(client: End, server: End, measurement: Measurement) -> None:
    """Raise the ports' counters: what one end sends the other receives."""
    settings = client.settings
    sender, receiver = (server, client) if verb_of(settings) == "read" else (client, server)
    directions = [(sender, receiver)]
    if settings.is_bidirectional or settings.is_latency:
        directions.append((receiver, sender))
    for since, until, gbps in measurement.flows():
        for source, target in directions:
            for end, name in ((source, SENT), (target, RECEIVED)):
                seconds = end.node.seconds
                flow = Flow(seconds(since), gbps / len(directions), seconds(until))
                end.node.traffic.add(end.port.device, name, flow, seconds(end.node.clock()))
                end.flows.append(flow)
