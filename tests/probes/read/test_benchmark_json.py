"""JSON of benchmarks: the same answers as from the text, and unknown where the JSON says less."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.messages.message import Proof, Weight
from tests.support.read_texts import found_in, kinds_of, read

# As perftest_parameters.c of linux-rdma/perftest writes it.
INFO: dict[str, Any] = {
    **{"test": "RDMA_Write_BW_Test", "Dual_port": "OFF", "Device": "mlx5_0", "Number_of_qps": 1},
    **{"Transport_type": "IB", "Connection_type": "RC", "Mtu": 4096, "Link_type": "IB", "rdma_cm_QPs": "OFF"},
}
GIGABITS = {
    "MsgSize": 65536,
    "n_iterations": 5000,
    "BW_peak": 196.61,
    "BW_average": 196.58,
    "MsgRate": 0.374951,
}
LATENCY = {
    **{"MsgSize": 2, "n_iterations": 1000, "t_min": 1.5, "t_max": 9.0, "t_typical": 1.6, "t_avg": 1.7},
    **{"t_stdev": 0.1, "percentile_99": 2.0, "percentile_99.9": 3.0},
}
# The head of an output in NVIDIA/DCGM, nvvs/plugin_src/nvbandwidth.
NVBANDWIDTH = """\
{
	"nvbandwidth" :
	{
		"CUDA Runtime Version" : 12070,
		"Driver Version" : "565.02",
		"testcases" :
		[
			{
				"average" : 12.396361291250001,
				"bandwidth_description" : "memcpy CE CPU(row) -> GPU(column) bandwidth (GB/s) ",
				"bandwidth_matrix" :
				[
					[
						"12.3964"
					]
				],
				"name" : "host_to_device_memcpy_ce",
				"status" : "Passed",
				"sum" : 12.396361291250001
			},
			{
				"name" : "device_to_device_memcpy_read_ce",
				"status" : "Waived"
			}
		]
	}
}
"""


def perftest(results: dict[str, float], **info: object) -> str:
    return json.dumps({"test_info": {**INFO, **info}, "results": results}, indent=1)


def nccl_tests(processes: int = 2, gpus: int = 8, wrong: float | None = 0.0) -> str:
    """Return what writeDeviceReport and its siblings in NVIDIA/nccl-tests src/util.cu write, one line."""
    group = {"time": 4300.0, "alg_bw": 249.1, "bus_bw": 467.1, "nwrong": wrong}
    row = {"size": 1 << 30, "count": 1 << 28, "type": "float", "redop": "sum", "root": "    -1"}
    devices = [
        {
            **{"rank": number * gpus, "group": 0, "pid": 7, "hostname": f"n{number}", "device": 0},
            **{"device_hex": "0000:1b:00", "device_info": "NVIDIA H100"},
        }
        for number in range(processes)
    ]
    content = {
        **{"version": 3, "start_time": "2026-01-01 00:00:00", "args": ["./build/all_reduce_perf"]},
        **{"env": ["TOKEN=secret"], "nccl_version": 22807},
        "config": {"nthreads": 1, "ngpus": gpus, "devices": devices},
        "results": [{**row, "out_of_place": group, "in_place": group}],
    }
    return json.dumps(content, separators=(",", ":"))


@pytest.mark.parametrize("scale", [1.0, 1e9 / 8 / (1 << 20)])
def test_a_bandwidth_of_perftest_is_read_in_its_unit(scale: float) -> None:
    text = perftest({**GIGABITS, "BW_peak": 0.0, "BW_average": 196.58 * scale})
    assert kinds_of(text) == {"perftest JSON"}
    statement = found_in(text)["perftest-result"]
    assert "RDMA_Write over mlx5_0 reaches 197 Gb/s" in statement.title
    assert "names no GPU" in statement.cause
    assert str(statement.place) == "text:2"


def test_a_gpu_in_the_json_proves_no_path() -> None:
    statement = found_in(perftest(GIGABITS, cuda_device=0))["perftest-result"]
    assert statement.proves is Proof.NOTHING
    assert "does not say whether the NIC reached the GPU's own memory" in statement.cause


def test_without_a_rate_of_messages_the_unit_is_unknown() -> None:
    text = perftest({**GIGABITS, "MsgRate": 0.0})
    assert "perftest-result" not in found_in(text)
    assert "without a figure" in read(text).shown[0]


def test_a_latency_of_perftest_is_read() -> None:
    title = found_in(perftest(LATENCY, test="RDMA_Read_Latency_Test"))["perftest-result"].title
    assert "RDMA_Read over mlx5_0 takes 1.60 µs" in title


def test_matrices_of_nvbandwidth_are_read_and_tests_without_a_result_are_named() -> None:
    statement = found_in(NVBANDWIDTH)["nvbandwidth-result"]
    assert "host_to_device_memcpy_ce reaches 12.4 GB/s" in statement.title
    assert "device_to_device_memcpy_read_ce (Waived)" in read(NVBANDWIDTH).shown[0]


def test_all_gpus_of_nccl_tests_are_counted() -> None:
    text = nccl_tests()
    assert kinds_of(text) == {"nccl-tests JSON"}
    assert "all_reduce reaches a bus bandwidth of 467 GB/s with 1 GiB on 16 GPUs of 2 nodes" in (
        found_in(text)["nccl-tests-result"].title
    )
    assert "secret" not in str(read(text))


def test_wrong_values_of_nccl_tests_are_critical() -> None:
    rows = read(nccl_tests(wrong=4.0)).statements
    assert any(row.weight is Weight.CRITICAL and "4 elements" in row.title for row in rows)
    assert "nccl-tests-result" in found_in(nccl_tests(wrong=None))


@pytest.mark.parametrize("text", [perftest(GIGABITS), NVBANDWIDTH, nccl_tests()])
def test_what_is_cut_off_is_not_judged(text: str) -> None:
    reading = read(text[: 2 * len(text) // 3])
    assert reading.statements == ()
    assert "cut off" in reading.shown[0]


def test_lines_behind_the_json_are_read_as_such() -> None:
    reading = read(f"{NVBANDWIDTH}ordinary text\n")
    assert reading.unread == 1
    peermem = "nvidia_peermem: disagrees about version of symbol ib_register_peer_memory_client"
    assert "symbol-version" in {row.id for row in read(f"{NVBANDWIDTH}{peermem}\n").statements}


_VALUES = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(_VALUES, _VALUES)
def test_any_values_are_read_without_a_crash(first: object, second: object) -> None:
    read(json.dumps({"test_info": {"test": first}, "results": second}, indent=1))
    read(json.dumps({"nvbandwidth": {"testcases": first, "error": second}}, indent=1))
    read(json.dumps({"version": 3, "start_time": first, "args": ["x"], "config": second, "results": first}))
