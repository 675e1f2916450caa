"""lsmod and modinfo: what is loaded, and what a list that grep cut cannot say."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.messages.message import Weight
from tests.support.machines import machine_file
from tests.support.read_texts import found_in, read, serious_in

OTHERS = "".join(f"module_{number}            16384  0\n" for number in range(30))
WHOLE = f"""\
Module                  Size  Used by
{OTHERS}mlx5_ib               450560  0
ib_uverbs             188416  2 rdma_ucm,mlx5_ib
ib_core               434176  8 rdma_cm,mlx5_ib
mlx5_core            2121728  1 mlx5_ib
mlx_compat             20480  3 ib_core,mlx5_ib,mlx5_core
nvidia_uvm           1560576  2
nvidia              56823808  9 nvidia_uvm
"""
INFO = """\
filename:       /lib/modules/5.15.0-25-generic/updates/dkms/nvidia-peermem.ko
version:        535.129.03
license:        Linux-OpenIB
srcversion:     0123456789ABCDEF0123456
depends:        nvidia,ib_core
vermagic:       5.15.0-25-generic SMP mod_unload modversions
parm:           peerdirect_support:Set level of support (int)
"""


def test_a_whole_list_shows_what_is_not_loaded() -> None:
    reading = read(WHOLE)
    assert "nvidia_peermem is not loaded." in reading.shown[0]
    assert "OFED" in reading.shown[0]
    assert found_in(WHOLE)["peermem-not-loaded"].weight is Weight.NOTE
    assert serious_in(WHOLE) == set()
    assert reading.unread == 0


def test_peermem_that_is_in_use_is_shown() -> None:
    text = f"{WHOLE}nvidia_peermem         20480  3\n"
    assert "nvidia_peermem (in use)" in read(text).shown[0]
    assert found_in(text) == {}


def test_a_user_of_a_module_is_loaded_though_it_has_no_row() -> None:
    text = "$ lsmod | grep mlx5_core\nmlx5_core            2121728  1 mlx5_ib\n"
    assert found_in(text) == {}


@pytest.mark.parametrize(
    "cut", ["lsmod | grep nvidia", "sudo lsmod | grep -i peer", "lsmod|grep -E 'nvidia|gdr'"]
)
def test_grep_shows_that_what_it_looked_for_is_absent(cut: str) -> None:
    text = f"root@n1:~# {cut}\nnvidia              56823808  9 nvidia_uvm\nroot@n1:~# \n"
    assert "nvidia_peermem is not loaded." in read(text).shown[0]
    silent = f"root@n1:~# {cut}\nroot@n1:~# date\n"
    assert read(silent).shown == ("nvidia_peermem is not loaded.",)


PROPRIETARY = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12\n"
OPEN = PROPRIETARY.replace("x86_64 Kernel", "Open Kernel")


def test_without_dmabuf_and_peer_memory_there_is_no_path() -> None:
    text = f"root@n1:~# lsmod | grep -i peer\nroot@n1:~# cat /proc/driver/nvidia/version\n{PROPRIETARY}"
    assert found_in(text)["no-gdr-path"].weight is Weight.CRITICAL
    assert read(text).proven.path == "no-gdr"
    assert "no-gdr-path" in found_in(WHOLE + PROPRIETARY)


@pytest.mark.parametrize(
    "text",
    [
        f"root@n1:~# lsmod | grep nvidia_peermem\nroot@n1:~# cat x\n{PROPRIETARY}",  # perhaps another module
        f"root@n1:~# lsmod | grep peer\nroot@n2:~# cat x\n{PROPRIETARY}",  # another node
        f"root@n1:~# lsmod | grep -v peer\nroot@n1:~# cat x\n{PROPRIETARY}",
        f"root@n1:~# lsmod | grep peer\nroot@n1:~# cat x\n{OPEN}",
        f"{WHOLE}nvidia_peermem 20480 0\n{PROPRIETARY}",
    ],
)
def test_a_path_that_may_be_there_is_not_denied(text: str) -> None:
    assert "no-gdr-path" not in found_in(text)
    assert read(text).proven.path == "unknown"


def test_options_of_grep_are_heeded() -> None:
    assert read("$ lsmod | grep -v nvidia\n$ date\n").shown == ()
    assert read("$ lsmod | grep -w nvidia\nnvidia  56823808  9 nvidia_uvm\n$ date\n").shown == (
        "Loaded: nvidia, nvidia_uvm.",
    )


def test_a_cut_list_does_not_show_that_others_are_absent() -> None:
    assert "not loaded" not in read("$ lsmod | grep mlx\nmlx5_core  2121728  1 mlx5_ib\n").shown[0]
    assert "not loaded" not in read("mlx5_core            2121728  1 mlx5_ib\n").shown[0]
    assert read("root@n1:~# lsmod | grep nvidia_peermem\n").shown == ()  # perhaps cut there
    assert read("$ lsmod | grep nvidia_peermem\n$ modprobe nvidia_peermem\n").shown == ()  # instructions


def test_an_ellipsis_shows_that_a_list_is_cut() -> None:
    assert "not loaded" not in read(WHOLE.replace("nvidia_uvm ", "...\nnvidia_uvm ")).shown[0]


def test_tables_of_rdma_devices_are_no_modules() -> None:
    assert read("mlx5_0            65536  1000\nbnxt_re0          65536  1000\n").kinds == ()


def test_two_peer_memory_modules_are_a_conflict() -> None:
    text = f"{WHOLE}nv_peer_mem         16384  0\nnvidia_peermem         16384  0\n"
    assert "nv-peer-mem-conflict-twice" in serious_in(text)


def test_a_module_that_mlx5_needs_is_missed_in_a_whole_list() -> None:
    text = WHOLE.replace("mlx5_ib               450560  0\n", "").replace("mlx5_ib", "other")
    assert "mlx5-ib-not-loaded" in serious_in(text)
    assert "gpu-without-driver-nouveau" in serious_in("nouveau              2289664  4\n")


def test_modinfo_shows_version_kernel_and_origin() -> None:
    expected = "nvidia_peermem 535.129.03 is installed for kernel 5.15.0-25-generic (by DKMS)."
    assert read(INFO).shown == (expected,)
    assert found_in(INFO) == {}
    assert read(INFO).unread == 0
    nvidia = INFO.replace("nvidia-peermem", "nvidia").replace("Linux-OpenIB", "Dual MIT/GPL")
    assert "open modules" in read(nvidia).shown[0]
    assert "proprietary" in read(nvidia.replace("Dual MIT/GPL", "NVIDIA")).shown[0]


def test_a_module_for_another_kernel_is_found() -> None:
    assert "module-wrong-vermagic" in serious_in(
        INFO.replace("vermagic:       5.15.0-25", "vermagic: 5.15.0-30")
    )


def test_peermem_without_symbols_is_found_only_where_the_text_shows_it() -> None:
    without = INFO.replace("nvidia,ib_core", "nvidia")
    assert "peermem-built-without-symbols" in serious_in(without)
    assert found_in(INFO.replace("depends:        nvidia,ib_core\n", "")) == {}


def test_a_real_list_that_grep_cut() -> None:
    text = machine_file("modules/stelline-lsmod-2.txt").read_text()
    assert "nvidia_peermem" in read(text).shown[1]
    assert found_in(text) == {}


@given(st.text(alphabet="nvidia_peermem mlx5ib0123456789,[]-:/.\n\t|$", max_size=400))
def test_any_lines_are_read_without_a_crash(text: str) -> None:
    read(f"$ lsmod | grep {text}")
    read(WHOLE + text)
    read(f"filename: /lib/{text}")
