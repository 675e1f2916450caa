"""NCCL's XML, dumps of PyTorch's flight recorder and recordings, given to gdrtop read as files."""

from __future__ import annotations

import gzip
import json
import tarfile
from io import BytesIO
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.messages.message import Weight
from probes.read.reading import Reading
from probes.read.text import TextReader
from tests.support.flight_recorder_dumps import dump_value, entry, pickled
from tests.support.machines import machine_file, machine_files
from tests.support.read_texts import found_in, kinds_of, read, serious_in

RECORDING = Path(__file__).parents[2] / "recordings" / "node-vm.tar.gz"


def topology(
    gdr: str = "1", second: str = "1", nic: str = "0000:0d:00.0", gpu: str = "<gpu dev='0' rank='0'/>"
) -> str:
    return f"""\
<system version="1">
  <cpu numaid="0" affinity="ffff" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="143">
    <pci busid="0000:08:00.0" class="0x060400" vendor="0x1000" device="0xc030">
      <pci busid="0000:0b:00.0" class="0x030200" vendor="0x10de" device="0x2330">
        {gpu}
      </pci>
      <pci busid="0000:0d:00.0" class="0x020000" vendor="0x15b3" device="0x1021">
        <nic><net name="mlx5_0" dev="0" speed="400000" port="1" gdr="{gdr}"/></nic>
      </pci>
    </pci>
    <pci busid="0000:20:00.0" class="0x020000" vendor="0x15b3" device="0x1021">
      <nic><net name="mlx5_1" dev="1" speed="400000" port="1" gdr="{second}"/></nic>
    </pci>
  </cpu>
</system>
"""


def test_a_topology_shows_what_nccl_found() -> None:
    reading = read(topology())
    assert reading.shown[0].startswith("NCCL found mlx5_0, mlx5_1. ")
    assert "The GPU has a NIC below its PCIe switch (PIX)." in reading.shown[0]
    assert reading.proven.path == "unknown"
    assert reading.unread == 0


def test_nics_without_gpu_memory_prove_that_gdr_is_not_used() -> None:
    reading = read(topology("0", "0"))
    assert reading.proven.path == "no-gdr"
    assert found_in(topology("0", "0"))["topology-without-gdr"].cause.startswith("mlx5_0, mlx5_1")
    assert read(topology("1", "0")).proven.path == "unknown"
    assert "mlx5_1, of 2 NICs" in found_in(topology("1", "0"))["topology-partly-without-gdr"].cause


def test_a_file_without_gpus_is_the_input_of_nccl() -> None:
    text = topology(gpu="").replace("<nic>", "").replace("</nic>", "")
    assert read(text).shown[0].startswith("A topology file, which NCCL takes instead of what it finds.")
    assert read(text).proven.path == "unknown"


def test_a_cut_topology_says_why_it_cannot_be_read() -> None:
    assert "cannot be read: line" in read(topology()[:400]).shown[0]


def test_graphs_show_the_distance_to_the_nics() -> None:
    graph = '<graph id="0" pattern="4" nchannels="2" typeintra="NVL" typeinter="{}" samechannels="0">'
    net = '<graphs version="1">\n' + graph + '\n<channel>\n<net dev="0"/>\n</channel>\n</graph>\n</graphs>\n'
    assert read(net.format("PIX")).shown == (
        "NCCL's graphs: ring with 2 channels, NVL between GPUs, PIX to the NICs.",
    )
    assert found_in(net.format("SYS"))["graph-far-nics"].weight is Weight.NOTE
    assert found_in(net.format("PIX")) == {}


@pytest.mark.parametrize("path", machine_files("nccl_xml", "*.xml"), ids=lambda path: path.name)
def test_real_files_of_nccl_are_read(path: Path) -> None:
    reading = read(path.read_bytes())
    assert {"NCCL topology XML", "NCCL graph XML"} & {kind.name for kind in reading.kinds}
    assert reading.shown
    assert "cannot be read" not in reading.shown[0]


def read_named(files: dict[str, bytes], size: int = 1000) -> Reading:
    reader = TextReader()
    for name, content in files.items():
        reader.begin(name)
        for start in range(0, len(content), size):
            reader.feed(content[start : start + size])
        reader.end()
    return reader.reading()


def dumps(called: dict[int, int]) -> dict[str, bytes]:
    ranks = sorted(called)
    return {
        f"nccl_trace_rank_{rank}": pickled(
            dump_value([entry(number) for number in range(1, newest + 1)], {"0": ranks}, {"0": (newest, 2)})
        )
        for rank, newest in called.items()
    }


@pytest.mark.parametrize("size", [1, 100, 1 << 20])
def test_dumps_of_all_ranks_show_who_is_waited_for(size: int) -> None:
    reading = read_named(dumps({0: 3, 1: 3, 2: 2}), size)
    assert reading.shown == ("3 dumps of PyTorch's flight recorder: all others wait for rank 2.",)
    assert [kind.name for kind in reading.kinds] == ["PyTorch flight recorder"]
    assert reading.statements[0].title.startswith("Rank 2 has not called nccl:all_reduce 3")


def test_a_dump_in_json_is_read() -> None:
    content = json.dumps(dump_value([entry(1, state="completed")], {"0": [0]}, {"0": (1, 1)})).encode()
    # As PyTorch writes it: keys in order.
    content = json.dumps(json.loads(content), sort_keys=True).encode()
    assert read_named({"nccl_trace_rank_0": content}).shown == (
        "1 dump of PyTorch's flight recorder: no process group waits.",
    )


def test_a_pickle_that_is_no_dump_runs_nothing_and_says_so() -> None:
    assert "Not readable as a dump" in read_named({"x": b"\x80\x04cos\nsystem\n(S'true'\ntR."}).shown[0]


def test_a_recording_is_judged_as_its_node_was() -> None:
    reading = read_named({"node.tar": gzip.decompress(RECORDING.read_bytes())}, 1 << 20)
    assert reading.shown[0].startswith("Recording of gpunode, 2026-11-21")
    assert "driver-library-missing" in {statement.id for statement in reading.statements}
    assert reading.exit_status == 2


def test_another_archive_is_to_be_unpacked() -> None:
    content = BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("a.log"))
    assert "unpack it" in read_named({"a.tar": content.getvalue()}).shown[0]


def test_a_real_dump_that_was_printed() -> None:
    content = machine_file("live/pytorch/flight-recorder-unpickled-doc.txt").read_bytes()
    assert "PyTorch flight recorder" in kinds_of(content)
    assert serious_in(content) == set()


@given(
    st.binary(max_size=700),
    st.sampled_from([b"", b"\x80\x02", b'{"entries": ', b"<system version=", b"<graphs "]),
)
def test_any_bytes_are_read_without_a_crash(content: bytes, start: bytes) -> None:
    read(start + content)
    read(start + content, size=7)
