"""nvbandwidth played: matrices as text, or one JSON document.

NVIDIA/nvbandwidth output.cpp, json_output.cpp.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

from probes.simulation.bandwidth import cuda
from probes.simulation.bandwidth import speeds as figures
from probes.simulation.bandwidth.command_line import Called
from probes.simulation.bandwidth.cuda import CudaDevice
from probes.simulation.bandwidth.node_pair import Stage
from probes.simulation.bandwidth.nvlink import gpu_to_gpu_gbps
from probes.simulation.bandwidth.playback import Line, Script, ended
from probes.snapshot.examination import Examination
from probes.topology.nccl_words import Nccl

_VERSION = "v0.8"
_TO_HOST = 0.985  # of what goes to the GPU
_BOTH_WAYS = 0.86  # of one way while the other is busy
_BY_SM = 0.97
_BEGINS = 1.2
_SECONDS_A_CELL = 0.12
# name → what the line above the matrix says, and whether rows are GPUs
_TESTS = {
    "host_to_device_memcpy_ce": "memcpy CE CPU(row) -> GPU(column) bandwidth (GB/s)",
    "device_to_host_memcpy_ce": "memcpy CE CPU(row) <- GPU(column) bandwidth (GB/s)",
    "host_to_device_bidirectional_memcpy_ce": "memcpy CE CPU(row) <-> GPU(column) bandwidth (GB/s)",
    "device_to_host_bidirectional_memcpy_ce": "memcpy CE CPU(row) <-> GPU(column) bandwidth (GB/s)",
    "device_to_device_memcpy_read_ce": "memcpy CE GPU(row) -> GPU(column) bandwidth (GB/s)",
    "device_to_device_memcpy_write_ce": "memcpy CE GPU(row) <- GPU(column) bandwidth (GB/s)",
    "host_to_device_memcpy_sm": "memcpy SM CPU(row) -> GPU(column) bandwidth (GB/s)",
    "device_to_host_memcpy_sm": "memcpy SM CPU(row) <- GPU(column) bandwidth (GB/s)",
}


@dataclass(frozen=True)
class _Case:
    name: str
    rows: tuple[tuple[str, ...], ...]  # () waived
    total: float
    seconds: float

    @property
    def description(self) -> str:
        return _TESTS[self.name]


def script(stage: Stage, called: Called, at: float) -> Script:
    """A run over the tests that are named."""
    tests, as_json = _options(called.words)
    devices = cuda.devices(stage.tree, called.environment)
    if isinstance(devices, int):
        name, text = cuda.ERRORS[devices]
        said = f"[{name}] {text} in expression cuInit(0) in main() : nvbandwidth.cpp:211"
        if as_json:
            whole = {"nvbandwidth": {"error": said, "version": _VERSION}}
            return ended(at + 0.3, 1, *json.dumps(whole, indent=4).split("\n"))
        return ended(at + 0.3, 1, said)
    unknown = next((name for name in tests if name not in _TESTS), None)
    if unknown is not None:
        return ended(at + 0.3, 1, f"ERROR: Testcase {unknown} not found!")
    examination = stage.examine()
    begun = at + _BEGINS
    cases: list[_Case] = []
    moment = begun
    for name in tests:
        case = _case(stage, examination, devices, name, moment)
        cases.append(case)
        moment += case.seconds
    if as_json:
        document = _document(stage, devices, cases)
        return ended(moment, 0, *json.dumps(document, indent=4).split("\n"))
    head = tuple(Line(begun, text) for text in _head(stage, devices))
    notes = (
        "NOTE: The reported results may not reflect the full capabilities of the platform.",
        "Performance can vary with software drivers, hardware clocks, and system topology.",
    )
    return Script(
        (*head, *_printed(cases, begun), *(Line(moment, text) for text in ("", *notes, ""))), moment
    )


def _options(words: tuple[str, ...]) -> tuple[tuple[str, ...], bool]:
    """The tests, all there are where none is named, and whether the output is JSON."""
    tests: list[str] = []
    takes_tests = False
    for word in words:
        if word.startswith("-"):
            takes_tests = word in ("-t", "--testcase")
        elif takes_tests:
            tests.append(word)
    return tuple(tests) or tuple(_TESTS), bool({"-j", "--json"} & set(words))


def _head(stage: Stage, devices: tuple[CudaDevice, ...]) -> tuple[str, ...]:
    driver = stage.tree.description.driver
    major, _, minor = driver.cuda.partition(".")
    return (
        f"nvbandwidth Version: {_VERSION}",
        f"Built from Git version: {_VERSION}",
        "",
        f"CUDA Runtime Version: {int(major) * 1000 + int(minor) * 10}",
        f"CUDA Driver Version: {int(major) * 1000 + int(minor) * 10}",
        f"Driver Version: {driver.version}",
        "",
        stage.hostname(),
        *(f"Device {one.index}: {one.name} ({one.bdf.upper().removesuffix('.0')})" for one in devices),
        "",
    )


def _case(
    stage: Stage, examination: Examination, devices: tuple[CudaDevice, ...], name: str, at: float
) -> _Case:
    between_gpus = name.startswith("device_to_device")
    if between_gpus and len(devices) < 2:
        return _Case(name, (), 0.0, 0.0)
    rows: list[tuple[str, ...]] = []
    total = 0.0
    for a in devices if between_gpus else devices[:1]:
        cells: list[str] = []
        for b in devices:
            gbps = _between(examination, a, b) if between_gpus else _with_host(examination, b, name)
            if gbps is None:
                cells.append("N/A")
                continue
            figure = figures.jittered(gbps / 8, stage.seed, f"{name} {a.bdf} {b.bdf}", at)
            total += round(figure, 2)
            cells.append(f"{figure:.2f}")
        rows.append(tuple(cells))
    return _Case(name, tuple(rows), total, _SECONDS_A_CELL * len(devices) * len(rows))


def _with_host(examination: Examination, device: CudaDevice, name: str) -> float:
    gbps = figures.to_gpu_gbps(examination, device.bdf)
    gbps *= _TO_HOST if name.startswith("device_to_host") else 1.0
    gbps *= _BOTH_WAYS if "bidirectional" in name else 1.0
    return gbps * (_BY_SM if name.endswith("_sm") else 1.0)


def _between(examination: Examination, a: CudaDevice, b: CudaDevice) -> float | None:
    """None where one GPU cannot reach the other's memory: between sockets without NVLink."""
    if a.bdf == b.bdf:
        return None
    path = examination.topology.paths.get((a.bdf, b.bdf))
    if path is None or (not path.nvlinks and path.nccl_pcie is Nccl.SYS):
        return None
    return gpu_to_gpu_gbps(examination, a.bdf, b.bdf)


def _printed(cases: list[_Case], at: float) -> Iterator[Line]:
    for case in cases:
        if not case.rows:
            yield Line(at, "Waived: ")
            continue
        yield Line(at, f"Running {case.name}.")
        at += case.seconds
        yield Line(at, case.description)
        yield Line(at, "  " + "".join(f"{column:>10}" for column in range(len(case.rows[0]))))
        for number, row in enumerate(case.rows):
            yield Line(at, f"{number:>2}" + "".join(f"{cell:>10}" for cell in row))
        yield Line(at, "")
        yield Line(at, f"SUM {case.name} {case.total:.2f}")
        yield Line(at, "")


def _document(stage: Stage, devices: tuple[CudaDevice, ...], cases: list[_Case]) -> dict[str, object]:
    driver = stage.tree.description.driver
    return {
        "nvbandwidth": {
            "CUDA Runtime Version": driver.cuda,
            "Driver Version": driver.version,
            "GPU Device list": [f"{one.index}: {one.name}" for one in devices],
            "git_version": _VERSION,
            "version": _VERSION,
            "testcases": [
                {
                    "name": case.name,
                    "status": "Passed",
                    "bandwidth_description": case.description,
                    "bandwidth_matrix": [list(row) for row in case.rows],
                    "sum": round(case.total, 2),
                }
                if case.rows
                else {"name": case.name, "status": "Waived"}
                for case in cases
            ],
        }
    }
