"""nvidia-smi's outputs: what the checks of GPUs find in them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.messages.message import Weight
from tests.support.machines import machine_files
from tests.support.read_texts import found_in, kinds_of, read, serious_in

TABLE = """\
+-----------------------------------------------------------------------------------------+
| NVIDIA-SMI 590.48.01              Driver Version: 590.48.01      CUDA Version: 13.1     |
+-----------------------------------------+------------------------+----------------------+
| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |
| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |
|                                         |                        |               MIG M. |
|=========================================+========================+======================|
|   0  NVIDIA H100 80GB HBM3          On  |   00000000:19:00.0 Off |                    0 |
| N/A   41C    P0             69W /  700W |       0MiB /  81559MiB |      0%      Default |
|                                         |                        |             Disabled |
+-----------------------------------------+------------------------+----------------------+
|   1  NVIDIA H100 80GB HBM3         Off  |   00000000:3B:00.0 Off |                    3 |
| N/A   41C    P0             69W /  700W |       0MiB /  81559MiB |      0%      Default |
|                                         |                        |              Enabled |
+-----------------------------------------+------------------------+----------------------+
"""


def query(**values: str) -> str:
    """Return nvidia-smi -q of two GPUs; values of the second one by name."""

    def gpu(bus: str, values: dict[str, str]) -> str:
        value = values.get
        return f"""\
GPU 00000000:{bus}:00.0
    Product Name                          : {value("name", "NVIDIA H100 80GB HBM3")}
    Persistence Mode                      : Enabled
    MIG Mode
        Current                           : Disabled
        Pending                           : Enabled
    GPU Recovery Action                   : {value("action", "None")}
    PCI
        Device Id                         : 0x233010DE
        GPU Link Info
            PCIe Generation
                Max                       : 4
                Current                   : 1
                Device Max                : 5
                Host Max                  : {value("host", "N/A")}
            Link Width
                Max                       : 16x
                Current                   : {value("width", "16x")}
    FB Memory Usage
        Total                             : {value("memory", "81559 MiB")}
        Used                              : 4 MiB
    BAR1 Memory Usage
        Total                             : {value("bar1", "131072 MiB")}
    ECC Errors
        Volatile
            DRAM Uncorrectable            : {value("ecc", "0")}
    Remapped Rows
        Pending                           : {value("pending", "No")}
        Remapping Failure Occurred        : No
    Fabric
        State                             : {value("state", "Completed")}
        Status                            : {value("status", "Success")}
        CliqueId                          : {value("clique", "0")}
        ClusterUUID                       : 00000000-0000-0000-0000-000000000000
        Health
            Bandwidth                     : {value("bandwidth", "N/A")}
            Incorrect Configuration       : {value("configuration", "N/A")}
"""

    head = "==============NVSMI LOG==============\n\nDriver Version : 580.105.08\nCUDA Version : 13.0\n\n"
    return f"{head}Attached GPUs : 2\n{gpu('19', {})}\n{gpu('3B', values)}"


def xml_of(text: str) -> str:
    """Return the XML with the values that tests change."""
    bar = re.findall(r"BAR1 Memory Usage\n +Total +: (.*)", text)
    gpus = "".join(
        f'<gpu id="00000000:{bus}:00.0">\n\t<product_name>NVIDIA H100</product_name>\n'
        f"\t<fb_memory_usage>\n\t\t<total>81559 MiB</total>\n\t</fb_memory_usage>\n"
        f"\t<bar1_memory_usage>\n\t\t<total>{size}</total>\n\t</bar1_memory_usage>\n</gpu>\n"
        for bus, size in zip(("19", "3B"), bar, strict=True)
    )
    return f"<nvidia_smi_log>\n<driver_version>580.105.08</driver_version>\n{gpus}</nvidia_smi_log>\n"


def test_the_table_shows_driver_and_gpus() -> None:
    reading = read(TABLE)
    assert reading.shown == ("2 NVIDIA H100 80GB HBM3, driver 590.48.01, CUDA 13.1.",)
    assert reading.unread == 0
    found = found_in(TABLE)
    assert found["mig-with-gdr"].cause.startswith("GPU1")
    assert found["persistence-off"].cause.startswith("GPU1")
    assert "GPU1 had uncorrectable" in found["gpu-memory-errors"].title


def test_values_that_cannot_be_read_are_a_warning() -> None:
    first, _, second = TABLE.rpartition("69W /  700W")
    text = f"{first}ERR! /  700W{second}"
    assert found_in(text)["gpu-values-unreadable"].title == "nvidia-smi cannot read values of GPU1 (ERR!)"


def test_a_healthy_query_has_no_finding() -> None:
    reading = read(query())
    assert reading.shown == ("2 NVIDIA H100 80GB HBM3, driver 580.105.08, CUDA 13.0.",)
    assert reading.statements == ()
    assert reading.unread == 0


@pytest.mark.parametrize(
    ("values", "name", "word", "weight"),
    [
        ({"bar1": "256 MiB"}, "bar1-too-small", "", Weight.WARNING),
        ({"name": "NVIDIA GeForce RTX 4090"}, "geforce-no-gdr", "GPU1", Weight.NOTE),
        ({"name": "NVIDIA GB10"}, "c2c-grace-specifics-gb10", "", Weight.NOTE),
        ({"width": "8x"}, "pcie-link-degraded-width", "GPU1: x8 of x16", Weight.WARNING),
        ({"host": "4"}, "pcie-link-limited-by-slot", "GPU1: Gen4 instead of Gen5", Weight.NOTE),
        ({"state": "In Progress"}, "gpu-fabric-not-registered", "GPU1", Weight.CRITICAL),
        ({"status": "Unknown Error 7"}, "gpu-fabric-not-registered", "Unknown Error 7", Weight.CRITICAL),
        ({"bandwidth": "Degraded"}, "gpu-fabric-unhealthy", "reduced NVLink", Weight.WARNING),
        ({"configuration": "Wrong rack"}, "gpu-fabric-unhealthy", "Wrong rack", Weight.WARNING),
        ({"clique": "3"}, "gpu-fabric-differs", "2 cliques", Weight.WARNING),
        ({"memory": "GPU is lost"}, "xid-79-fell-off-bus", "0000:3b:00.0", Weight.CRITICAL),
        ({"action": "Reboot"}, "gpu-recovery-needed", "", Weight.CRITICAL),
        ({"pending": "Yes"}, "gpu-memory-errors", "", Weight.WARNING),
        ({"ecc": "2"}, "gpu-memory-errors", "", Weight.WARNING),
    ],
)
def test_a_fault_of_one_gpu_is_found(values: dict[str, str], name: str, word: str, weight: Weight) -> None:
    statement = found_in(query(**values))[name]
    assert word in statement.cause
    assert statement.weight is weight


def test_the_xml_says_the_same() -> None:
    assert "bar1-too-small" in found_in(xml_of(query(bar1="256 MiB")))
    assert serious_in(xml_of(query())) == set()
    assert read(xml_of(query())).shown == ("2 NVIDIA H100, driver 580.105.08.",)


def test_a_text_with_fewer_gpus_than_the_node_says_so() -> None:
    text = query().partition("GPU 00000000:3B")[0]
    assert "1 of 2 attached GPUs" in read(text).shown[0]


def test_the_table_and_the_query_of_one_node_add_up() -> None:
    text = f"{query(bar1='256 MiB')}\n{TABLE}"
    assert "bar1-too-small" in found_in(text)
    assert read(text).shown == (
        "2 NVIDIA H100 80GB HBM3, driver 580.105.08, CUDA 13.0.",
        "2 NVIDIA H100 80GB HBM3, driver 590.48.01, CUDA 13.1.",
    )


def test_outputs_of_two_nodes_are_not_mixed() -> None:
    first = f"root@n1:~# nvidia-smi -q\n{query(bar1='256 MiB')}\n"
    second = f"root@n2:~# nvidia-smi -q\n{query()}\n"
    assert "bar1-too-small" in found_in(first + second)
    assert "bar1-too-small" in found_in(second + first)


def links(model: str, *actives: tuple[bool, ...]) -> str:
    lines = []
    for number, states in enumerate(actives):
        lines.append(f"GPU {number}: {model} (UUID: GPU-00000000-0000-0000-0000-00000000000{number})")
        lines += [f"\t Link {link}: {'25 GB/s' if on else '<inactive>'}" for link, on in enumerate(states)]
    return "\n".join((*lines, ""))


def test_a_gpu_with_fewer_links_is_found() -> None:
    text = links("NVIDIA A100-SXM4-80GB", (True, True, True), (True, False, True))
    assert "GPU1: 2 links active, 1 link inactive (1)" in found_in(text)["nvlink-down"].cause
    assert read(text).shown == ("2 GPUs with 2 to 3 active NVLinks each.",)


def test_links_that_are_inactive_on_all_gpus_are_no_fault() -> None:
    assert found_in(links("NVIDIA H100 NVL", (True, False), (True, False))) == {}


def test_one_gpu_alone_with_inactive_links_is_found() -> None:
    assert "nvlink-down" in serious_in(links("Tesla V100-SXM2-32GB", (True, False, True)))
    assert "nvlink-down" not in serious_in(links("NVIDIA A100 80GB PCIe", (True, False)))


def test_errors_of_links_are_found() -> None:
    text = links("NVIDIA H100", (True, True)) + "\t Link 0: Replay Errors: 0\n\t Link 1: CRC Errors: 12\n"
    assert "CRC Errors" in found_in(text)["nvlink-errors"].cause


@pytest.mark.parametrize("path", machine_files("nvidia_smi", "*"), ids=lambda path: path.name)
def test_real_outputs_are_recognized(path: Path) -> None:
    reading = read(path.read_bytes())
    assert any(kind.name.startswith("nvidia-smi") for kind in reading.kinds)
    assert reading.shown
    assert ("lost" in path.name) == bool(serious_in(path.read_bytes()))


@given(st.text(alphabet='<>/gpuidGPU0123456789:. |MiBErTotalFabic\n\t"=', max_size=400))
def test_any_text_is_read_without_a_crash(text: str) -> None:
    for start in ("GPU 00000000:19:00.0\n", "<nvidia_smi_log>\n", TABLE, "GPU 0: H100 (UUID: GPU-1)\n"):
        kinds_of(start + text)


def test_what_grep_left_of_a_query_is_judged_as_far_as_its_sections_are_there() -> None:
    fabric = "    Fabric\n        State                  : {}\n        Status                 : {}\n"
    text = f"{fabric.format('Completed', 'Success')}--\n{fabric.format('In Progress', 'N/A')}"
    assert "GPU1: the state of the registration" in found_in(text)["gpu-fabric-not-registered"].cause
    assert read(text).shown[0].startswith("2 GPUs. A part of nvidia-smi -q")


def test_a_line_whose_section_is_cut_off_counts_no_gpu() -> None:
    gpu = (
        "    Product Name                          : NVIDIA H100 80GB HBM3\n"
        "    Persistence Mode                      : {}\n"
        "        Total                             : 81559 MiB\n"
        "        Total                             : 256 MiB\n"
    )
    text = gpu.format("Disabled") + gpu.format("Enabled")
    assert read(text).shown[0].startswith("2 NVIDIA H100 80GB HBM3.")
    assert found_in(text).keys() == {"persistence-off"}
    assert found_in(text)["persistence-off"].cause.startswith("GPU0.")
    assert "ffff:" not in str(read(text).statements)
