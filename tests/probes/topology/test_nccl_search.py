"""Every path type, NVLink counted in, equals what NCCL's own search finds on the same machine."""

from pathlib import Path

import pytest

from tests.support.machines import machine_file, machine_files
from tests.support.nccl_xml import words_of_gdrtop, words_of_nccl

FILES = [path.name for path in machine_files("nccl_xml", "*.xml")] or ["absent.xml"]

# The NVLinks of an eight-GPU V100 node without switches: peer and links of each GPU.
CUBE_MESH = [
    {1: 1, 2: 1, 3: 2, 4: 2},
    {0: 1, 2: 2, 3: 1, 5: 2},
    {0: 1, 1: 2, 3: 2, 6: 1},
    {0: 2, 1: 1, 2: 2, 7: 1},
    {0: 2, 5: 1, 6: 1, 7: 2},
    {1: 2, 4: 1, 6: 2, 7: 1},
    {2: 1, 4: 1, 5: 2, 7: 2},
    {3: 1, 4: 2, 5: 1, 6: 2},
]


def compare(text: str, root: Path) -> dict[tuple[str, str], str]:
    """NCCL's words by its search; fails where ours differ."""
    words = words_of_nccl(text)
    assert words_of_gdrtop(text, root) == words
    return words


@pytest.mark.parametrize("name", FILES)
def test_real_machines(name: str, tmp_path: Path) -> None:
    text = machine_file(f"nccl_xml/{name}").read_text().strip()
    if "<system" not in text:
        pytest.skip("a file of search results, not of a topology")
    assert compare(text, tmp_path)


def cube_mesh() -> str:
    def bus(gpu: int) -> str:
        return f"0000:{0x10 + gpu:02x}:00.0"

    ids = 'vendor="0x10de" device="0x1db1" link_speed="8.0 GT/s PCIe" link_width="16"'
    lines = ['<system version="1">']
    for numa in (0, 1):
        lines.append(f'<cpu numaid="{numa}">')
        for pair in (0, 1):
            switch = numa * 2 + pair
            lines.append(f'<pci busid="0000:0{switch + 1}:00.0" class="0x060400" link_speed="8.0 GT/s PCIe">')
            for gpu in (switch * 2, switch * 2 + 1):
                lines.append(f'<pci busid="{bus(gpu)}" class="0x030200" {ids}><gpu dev="{gpu}">')
                for peer, links in CUBE_MESH[gpu].items():
                    lines.append(f'<nvlink target="{bus(peer)}" count="{links}" tclass="0x030200"/>')
                lines.append("</gpu></pci>")
            lines.append(
                f'<pci busid="0000:2{switch}:00.0" class="0x020700" link_speed="8.0 GT/s PCIe"/></pci>'
            )
        lines.append("</cpu>")
    return "\n".join([*lines, "</system>"])


def test_gpus_that_only_share_a_third_gpu(tmp_path: Path) -> None:
    words = compare(cube_mesh(), tmp_path)
    assert words["0000:10:00.0", "0000:14:00.0"] == "NVL"
    assert words["0000:10:00.0", "0000:15:00.0"] == "NVB"
    assert words["0000:10:00.0", "0000:20:00.0"] == "PIX"


def switch_chain(*subsystem_devices: str) -> str:
    """One Broadcom switch below the other, a NIC on the first and a GPU on the last."""
    opened = "".join(
        f'<pci busid="0000:0{level}:00.0" class="0x060400" vendor="0x1000" device="0xc010" '
        f'subsystem_vendor="0x1000" subsystem_device="{device}">'
        + ('<pci busid="0000:50:00.0" class="0x020700"/>' if level == 0 else "")
        for level, device in enumerate(subsystem_devices)
    )
    closed = "</pci>" * len(subsystem_devices)
    gpu = '<pci busid="0000:40:00.0" class="0x030200"/>'
    return f'<system version="1"><cpu numaid="0">{opened}{gpu}{closed}</cpu></system>'


@pytest.mark.parametrize(
    ("subsystems", "word"),
    [
        (("0xa000", "0xa000"), "PIX"),
        # A switch takes in one level only, so of three two are left.
        (("0xa000", "0xa000", "0xa000"), "PXB"),
        (("0xa000", "0xb000"), "PXB"),
    ],
)
def test_broadcom_switches_of_several_levels(subsystems: tuple[str, ...], word: str, tmp_path: Path) -> None:
    assert set(compare(switch_chain(*subsystems), tmp_path).values()) == {word}
