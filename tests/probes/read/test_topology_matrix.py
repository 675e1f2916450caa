"""nvidia-smi topo -m and -p2p, as people paste them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.messages.message import Weight
from tests.support.machines import machine_files
from tests.support.read_texts import found_in, kinds_of, read, serious_in

NEAR = """\
        GPU0    GPU1    GPU2    GPU3    NIC0    NIC1    NIC2    CPU Affinity    NUMA Affinity   GPU NUMA ID
GPU0     X      NV18    NV18    NV18    PIX     SYS     SYS     0-47            0               N/A
GPU1    NV18     X      NV18    NV18    SYS     SYS     SYS     0-47            0               N/A
GPU2    NV18    NV18     X      NV18    SYS     PXB     SYS     48-95           1               N/A
GPU3    NV18    NV18    NV18     X      SYS     NODE    SYS     48-95           1               N/A
NIC0    PIX     SYS     SYS     SYS      X      SYS     SYS
NIC1    SYS     SYS     PXB     NODE    SYS      X      SYS
NIC2    SYS     SYS     SYS     SYS     SYS     SYS      X

Legend:

  X    = Self
  PIX  = Connection traversing at most a single PCIe bridge

NIC Legend:

  NIC0: mlx5_0
  NIC1: mlx5_4
  NIC2: bnxt_re0
"""


def wrapped_at(text: str, width: int) -> str:
    lines = (
        line[start : start + width] for line in text.splitlines() for start in range(0, len(line) or 1, width)
    )
    return "\n".join(lines)


def test_the_first_sentence_says_how_many_gpus_have_a_near_nic() -> None:
    reading = read(NEAR)
    assert reading.shown == ("2 of 4 GPUs have a NIC below their PCIe switch (PIX, PXB).",)
    assert reading.proven.path == "unknown"
    assert reading.unread == 0


@pytest.mark.parametrize(
    "text",
    [
        NEAR,
        re.sub(r"[ \t]+", " ", NEAR),  # collapsed blanks
        re.sub(r" {2,}", "\t", NEAR),
        wrapped_at(NEAR, 88),  # between columns
        NEAR.replace("NIC0 ", "mlx5_0 ").replace("NIC1 ", "mlx5_4 ").replace("NIC2 ", "bnxt_re0 "),  # old
        "".join(f"> {line}\n" for line in NEAR.splitlines()),
    ],
)
def test_gpus_without_a_near_nic_are_named(text: str) -> None:
    found = found_in(text)
    assert "GPU1" in found["gpu-nic-cross-socket"].cause
    assert "GPU0" not in found["gpu-nic-cross-socket"].cause
    assert "GPU3" in found["gpu-without-near-nic"].cause
    assert "PXN" in found["gpu-without-near-nic"].cause
    assert "GPU2: mlx5_4 (PXB)" in found["nearest-nics"].cause
    assert found["nic-near-no-gpu"].cause.startswith("bnxt_re0")


def test_tables_of_two_nodes_are_read_one_by_one() -> None:
    good = matrix(4, {})
    lost = matrix(4, {(0, 2): "SYS", (1, 2): "SYS", (2, 3): "SYS"})
    statement = found_in(f"{good}\n{lost}")["nvlink-down"]
    assert statement.place is not None
    assert statement.place.line == 7
    assert found_in(f"{lost}\n{good}")["nvlink-down"].place is not None


def test_of_a_cut_table_no_nearest_nic_is_concluded() -> None:
    cut = "\n".join(line[:46] for line in NEAR.splitlines()[:5])  # without NIC1 and NIC2
    assert set(found_in(cut)) <= {"nearest-nics", "topo-without-legend"}
    narrow = re.sub(r" +", " ", NEAR).replace("NIC1 NIC2 CPU Affinity NUMA Affinity GPU NUMA ID", "")
    assert "gpu-nic-cross-socket" not in found_in(narrow)
    assert "nic-near-no-gpu" not in found_in(narrow)
    assert "The table is cut: of GPU1, GPU2, GPU3" in read(narrow).shown[0]


def test_a_nic_that_is_only_the_second_nearest_is_near_a_gpu() -> None:
    text = "GPU0 GPU1 NIC0 NIC1 CPU Affinity\nGPU0 X NV4 PIX PXB 0-7\nGPU1 NV4 X PIX PXB 0-7\n"
    assert "nic-near-no-gpu" not in found_in(text)


def test_without_a_legend_the_devices_are_said_to_be_unknown() -> None:
    without = NEAR[: NEAR.index("NIC Legend")]
    assert "topo-without-legend" in found_in(without)
    assert "topo-without-legend" not in found_in(NEAR)


def test_shifted_columns_are_refused() -> None:
    shifted = NEAR.replace("GPU1    NV18     X ", "GPU1    NV18    ")
    assert found_in(shifted) == {}
    assert "cannot be read" in read(shifted).shown[0]


def test_where_no_gpu_has_a_near_nic_it_is_a_note() -> None:
    text = "\tGPU0\tGPU1\tNIC0\tCPU Affinity\nGPU0\t X \tPHB\tPHB\t0-7\nGPU1\tPHB\t X \tNODE\t0-7\n"
    assert read(text).shown == ("No GPU has a NIC below its PCIe switch: the nearest NICs are at PHB, NODE.",)
    assert found_in(text)["gpu-nic-through-cpu"].weight is Weight.NOTE
    assert serious_in(text) == set()


def test_three_gpus_that_share_a_nic_are_named() -> None:
    rows = "".join(
        f"GPU{row} {' '.join('X' if row == column else 'PIX' for column in range(3))} PIX\n"
        for row in range(3)
    )
    found = found_in(f"GPU0 GPU1 GPU2 NIC0 CPU Affinity\n{rows}")
    assert found["gpu-nic-shared"].cause.startswith("GPU0, GPU1, GPU2 share NIC0")


def matrix(count: int, words: dict[tuple[int, int], str]) -> str:
    def cell(row: int, column: int) -> str:
        pair = min(row, column), max(row, column)
        return "X" if row == column else words.get(pair, "NV12")

    head = " ".join(f"GPU{number}" for number in range(count))
    rows = (
        f"GPU{row} {' '.join(cell(row, column) for column in range(count))} 0-7 0" for row in range(count)
    )
    return "\n".join((f"{head} CPU Affinity NUMA Affinity", *rows, ""))


def test_a_gpu_without_nvlink_beside_others_is_found() -> None:
    lost = {(0, 2): "SYS", (1, 2): "SYS", (2, 3): "SYS"}
    assert "GPU2 has no NVLink" in found_in(matrix(4, lost))["nvlink-down"].cause
    fewer = {(0, 2): "NV10", (1, 2): "NV10", (2, 3): "NV10"}
    assert "GPU2 has NV10" in found_in(matrix(4, fewer))["nvlink-down"].cause
    assert read(matrix(4, {})).shown == ("NVLink connects all 4 GPUs (NV12). The table lists no NIC.",)


def test_pairs_that_differ_by_design_are_no_fault() -> None:
    station = {(0, 1): "NV1", (0, 2): "NV1", (0, 3): "NV2", (1, 2): "NV2", (1, 3): "NV1", (2, 3): "NV1"}
    bridges = {(0, 2): "SYS", (0, 3): "SYS", (1, 2): "SYS", (1, 3): "SYS"}
    assert serious_in(matrix(4, station)) == serious_in(matrix(4, bridges)) == set()


def test_peers_that_are_refused_are_named_with_the_reason() -> None:
    legend = "Legend:\n\n  X    = Self\n  OK   = Status Ok\n"
    text = f"   GPU0 GPU1 GPU2\n GPU0 X OK CNS\n GPU1 OK X OK\n GPU2 CNS OK X\n\n{legend}"
    found = found_in(text)
    assert "GPU0 and GPU2 (CNS: the chipset" in found["gpu-peers-refused"].cause
    assert read(text).shown == ("2 of 3 pairs of GPUs support peer-to-peer access.",)
    assert serious_in(f"$ nvidia-smi topo -p2p n\n{text}") == set()


@pytest.mark.parametrize("path", machine_files("topo_m", "*.txt"), ids=lambda path: path.name)
def test_real_tables_are_read(path: Path) -> None:
    reading = read(path.read_bytes())
    assert [kind.name for kind in reading.kinds] == ["nvidia-smi topo"]
    assert reading.shown
    assert "cannot" not in reading.shown[0]
    assert reading.unread <= 1


@given(st.text(alphabet="GPU0123NIC XSYPHBOK_mlx5\n\t", max_size=400))
def test_any_cells_are_read_without_a_crash(text: str) -> None:
    read(f"GPU0 GPU1 NIC0 CPU Affinity\n{text}")
    kinds_of(text)
