"""nvbandwidth on a simulated node: its host-device tests, as text (NVIDIA/nvbandwidth output.cpp)."""

from __future__ import annotations

from collections.abc import Iterator

from probes.simulation.bandwidth import cuda, speeds
from probes.simulation.bandwidth.cuda import CudaDevice
from probes.simulation.bandwidth.node_pair import ParsedCommand, SimulatedNode
from probes.simulation.bandwidth.playback import Line, Script, SimulatedTest, at_once, ended, printed

_STARTS, _SECONDS_PER_GPU = 1.2, 0.12
_TESTS = {"host_to_device_memcpy_ce": ("->", 1.0), "device_to_host_memcpy_ce": ("<-", 0.985)}
"""Name → direction in the line above the matrix, and the share of the bandwidth to the GPU."""


def start(node: SimulatedNode, command: ParsedCommand, at: float) -> SimulatedTest:
    """Start the tests that `-t` names."""
    devices = cuda.devices(node.tree, command.environment)
    if isinstance(devices, int):
        error = cuda.error_of(devices)
        failure = f"[{error.also[0]}] {error.name} in expression cuInit(0) in main() : nvbandwidth.cpp:211"
        return node.run(ended(at + 0.3, 1, failure))
    tests = [word for word in command.words if not word.startswith("-")]
    unknown = next((name for name in tests if name not in _TESTS), None)
    if unknown is not None:
        return node.run(ended(at + 0.3, 1, f"ERROR: Testcase {unknown} not found!"))
    begun = at + _STARTS
    ends_at = begun + len(tests) * len(devices) * _SECONDS_PER_GPU
    head = at_once(begun, *_head(node, devices))
    return node.run(Script((*head, *_rows(node, devices, tests, begun)), ends_at))


def _head(node: SimulatedNode, devices: tuple[CudaDevice, ...]) -> tuple[str, ...]:
    driver = node.tree.description.driver
    major, _, minor = driver.cuda.partition(".")
    return printed(
        "nvbandwidth",
        "head",
        cuda=int(major) * 1000 + int(minor) * 10,
        driver=driver.version,
        host=node.hostname(),
        devices="\n".join(f"Device {gpu.index}: {gpu.name} ({gpu.bdf})" for gpu in devices),
    )


def _rows(
    node: SimulatedNode, devices: tuple[CudaDevice, ...], tests: list[str], at: float
) -> Iterator[Line]:
    examination = node.examine()
    for name in tests:
        direction, share = _TESTS[name]
        yield Line(at, f"Running {name}.")
        at += len(devices) * _SECONDS_PER_GPU
        speed = {gpu.bdf: speeds.host_to_gpu_gbps(examination, gpu.bdf) * share / 8 for gpu in devices}
        figures = [speeds.jittered(speed[bdf], node.seed, f"{name} {bdf}", at) for bdf in speed]
        yield from at_once(
            at,
            *printed(
                "nvbandwidth",
                "result",
                direction=direction,
                columns="".join(f"{gpu.index:>10}" for gpu in devices),
                figures="".join(f"{figure:>10.2f}" for figure in figures),
                name=name,
                sum=sum(round(figure, 2) for figure in figures),
            ),
        )
