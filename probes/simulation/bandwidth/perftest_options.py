"""The options of perftest as its parser takes and refuses them (src/perftest_parameters.c, parser)."""

from __future__ import annotations

from dataclasses import dataclass

from probes.facts.system.tools import PERFTEST_PORT, cuda_in_program
from probes.simulation.bandwidth.command_line import Called

_VALUED = {
    "-d": "-d", "--ib-dev": "-d", "-i": "-i", "--ib-port": "-i", "-p": "-p", "--port": "-p",
    "-x": "-x", "--gid-index": "-x", "-s": "-s", "--size": "-s", "-D": "-D", "--duration": "-D",
    "-n": "-n", "--iters": "-n", "-q": "-q", "--qp": "-q",
}  # fmt: skip
_FLAGS = {
    "-a": "-a", "--all": "-a", "-b": "-b", "--bidirectional": "-b", "-F": "-F", "--CPU-freq": "-F",
    "--report_gbits": "--report_gbits", "--run_infinitely": "--run_infinitely",
}  # fmt: skip
_CUDA, _BUS_ID, _DMABUF = "--use_cuda", "--use_cuda_bus_id", "--use_cuda_dmabuf"
_IPV6 = "--ipv6-addr"
_FAILED = " Parser function exited with Error"
_ENDLESS_SECONDS = 5
_LARGEST_BYTES = (1 << 31) - 1
ALL_SIZES = tuple(1 << power for power in range(1, 24))


@dataclass(frozen=True)
class Options:
    """One end of a test as it was called."""

    tool: str
    device: str = ""  # "": the first there is
    port: int = 1
    gid_index: int | None = None
    tcp_port: int = PERFTEST_PORT
    size_bytes: int = 65536
    all_sizes: bool = False
    duration_s: int | None = None
    iterations: int | None = None
    is_endless: bool = False
    queue_pairs: int = 1
    is_bidirectional: bool = False
    in_gbits: bool = False
    cuda_index: int | None = None
    cuda_bus_id: str | None = None
    dmabuf: bool = False
    server: str | None = None  # None: this is the server

    @property
    def verb(self) -> str:
        """Of "write", "read", "send"."""
        return self.tool.split("_")[1]

    @property
    def is_latency(self) -> bool:
        """Whether the tool measures latency."""
        return self.tool.endswith("_lat")

    @property
    def of_gpu(self) -> bool:
        """Whether GPU memory is asked for."""
        return self.cuda_index is not None or self.cuda_bus_id is not None

    @property
    def sizes(self) -> tuple[int, ...]:
        """The sizes of the rows, in order."""
        return ALL_SIZES if self.all_sizes else (self.size_bytes,)

    @property
    def counted(self) -> int:
        """How many messages a row is made of, where their number is what counts."""
        return self.iterations or (5000 if self.tool == "ib_write_bw" else 1000)

    @property
    def buffer_bytes(self) -> int:
        """What is registered: a buffer each way for every queue pair."""
        return 2 * self.queue_pairs * max(*self.sizes, 4096)


def parse(called: Called, program: bytes) -> Options | tuple[str, ...]:
    """The options, or what a program of this build prints before it ends with status 1."""
    cuda, dmabuf = cuda_in_program(program)
    valued, flags = dict(_VALUED), dict(_FLAGS)
    if cuda:
        valued[_CUDA] = _CUDA
        if b"use_cuda_bus_id\0" in program:
            valued[_BUS_ID] = _BUS_ID
    if b"ipv6-addr\0" in program:
        flags[_IPV6] = _IPV6
    if dmabuf:
        flags[_DMABUF] = _DMABUF
    given: dict[str, str] = {}
    servers: list[str] = []
    words = list(called.words)
    while words:
        word = words.pop(0)
        name, equals, value = word.partition("=") if word.startswith("--") else (word[:2], "", word[2:])
        if not word.startswith("-"):
            servers.append(word)
        elif name in valued:
            if not equals and not value:
                if not words:
                    return _usage(called, f"option '{name.lstrip('-')}' requires an argument")
                value = words.pop(0)
            given[valued[name]] = value
        elif name in flags:
            if name == _DMABUF and not given.keys() & {_CUDA, _BUS_ID}:
                return "CUDA DMA-BUF cannot be used without CUDA", _FAILED
            given[flags[name]] = ""
        else:
            said = (
                f"unrecognized option '{word}'"
                if word.startswith("--")
                else f"invalid option -- '{word[1:2]}'"
            )
            return _usage(called, said)
    return _options(called, given, servers)


def _options(called: Called, given: dict[str, str], servers: list[str]) -> Options | tuple[str, ...]:
    numbers: dict[str, int] = {}
    for name in ("-i", "-p", "-x", "-s", "-D", "-n", "-q", _CUDA):
        text = given.get(name)
        if text is None:
            continue
        if not text.isascii() or not text.isdecimal() or len(text) > 10:
            return f" Invalid value for {name}", _FAILED
        numbers[name] = int(text)
    is_latency = called.tool.endswith("_lat")
    if "-a" in given and "-D" in given:
        return "Duration mode currently doesn't support running on all sizes.", _FAILED
    if "--run_infinitely" in given and is_latency:
        return " run_infinitely exists only in BW tests for now.", _FAILED
    if not 1 <= numbers.get("-q", 1) <= 16_384:
        return " num of Qps should be between 1 and 16384", _FAILED
    if not 1 <= numbers.get("-s", 1) <= _LARGEST_BYTES:
        return f" Message size should be between 1 and {_LARGEST_BYTES}", _FAILED
    endless = "--run_infinitely" in given
    return Options(
        tool=called.tool,
        device=given.get("-d", ""),
        port=numbers.get("-i", 1),
        gid_index=numbers.get("-x"),
        tcp_port=numbers.get("-p", PERFTEST_PORT),
        size_bytes=numbers.get("-s", 2 if is_latency else 65536),
        all_sizes="-a" in given,
        duration_s=numbers.get("-D", _ENDLESS_SECONDS if endless else 0) or None,
        iterations=numbers.get("-n"),
        is_endless=endless,
        queue_pairs=numbers.get("-q", 1),
        is_bidirectional="-b" in given,
        in_gbits="--report_gbits" in given,
        cuda_index=numbers.get(_CUDA),
        cuda_bus_id=given.get(_BUS_ID),
        dmabuf=_DMABUF in given,
        server=servers[0] if servers else None,
    )


def _usage(called: Called, said: str) -> tuple[str, ...]:
    tool = called.tool
    return (
        f"{tool}: {said}",
        " Invalid Command or flag.",
        " Please check command line and run again.",
        "",
        "Usage:",
        f"  {tool}            start a server and wait for connection",
        f"  {tool} <host>     connect to server at <host>",
        "",
        _FAILED,
    )


def unlike(a: Options, b: Options) -> tuple[str, ...]:
    """The names of what both ends of a test have to be given alike and were not."""
    names = ("tool", "sizes", "queue_pairs", "is_bidirectional", "is_endless", "duration_s", "iterations")
    return tuple(name for name in names if getattr(a, name) != getattr(b, name))
