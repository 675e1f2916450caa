"""The options that gdrtop passes to perftest, read back into its settings."""

from __future__ import annotations

from dataclasses import replace

from probes.bandwidth.tools.perftest_command import GpuMemory, PerftestSettings, refusal
from probes.facts.system.tools import ToolFacts, cuda_in_program
from probes.simulation.bandwidth.command_line import ParsedCommand

_NUMBERS = {
    "-i": "port",
    "-p": "tcp_port",
    "-x": "gid_index",
    "-s": "size_bytes",
    "-D": "duration_s",
    "-n": "iterations",
    "-q": "queue_pairs",
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


def read_options(
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
        elif name in (*_NUMBERS, *_WORDS) and words:
            text = words.pop(0)
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
