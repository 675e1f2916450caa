"""The text for a ticket: all that a reader asks for, in ASCII."""

from probes.bandwidth.model.planned_series import LeftOut
from probes.bandwidth.model.samples import HOST_MEMORY
from tests.support.bandwidth_nodes import node
from tests.support.sample_results import MORNING, failed, result
from tui.bandwidth.ticket import ticket_text, versions_of


def test_it_has_node_type_commands_figure_and_judgment() -> None:
    told = ticket_text((result(186.0),), "h100-07", {"kernel": "6.8.0-45-generic"})
    assert told.isascii()
    assert "node:    h100-07" in told
    assert "machine: Supermicro, 8 x H100" in told
    assert "kernel:  6.8.0-45-generic" in told
    assert "$ ib_write_bw -d mlx5_0 127.0.0.1\n" in told
    assert "186 of 200 Gb/s, 93 %" in told
    assert "port 1 limits" in told
    assert "2026-11-18" in told
    assert "SIMULATED" not in told


def test_a_failure_has_its_raw_line() -> None:
    told = ticket_text((failed(failure="nvidia_peermem is not loaded", raw="error=14"),))
    assert "nvidia_peermem is not loaded" in told
    assert "its output: error=14" in told


def test_comparisons_and_what_was_left_out_and_what_it_means() -> None:
    now = result(100.0, taken_at=MORNING + 60)
    host = result(190.0, HOST_MEMORY)
    left = LeftOut("GPU0 > mlx5_0 nvidia-peermem", "not loaded")
    told = ticket_text((host, now), earlier=(result(192.0),), baseline=(result(195.0),), left_out=(left,))
    assert "48 % less than on 2026-11-18" in told
    assert "49 % less than the baseline" in told
    assert "skipped: GPU0 > mlx5_0 nvidia-peermem: not loaded" in told
    assert "limited by the path between mlx5_0 and GPU0" in told


def test_simulated_stands_in_capitals() -> None:
    told = ticket_text((result(origin="simulated hgx-h100"),))
    assert "SIMULATED, NOT MEASURED: SIMULATED HGX-H100" in told
    assert told.count("SIMULATED") > 2


def test_long_commands_stay_whole() -> None:
    command = "env " + " ".join(f"WORD_{number}=1" for number in range(40))
    assert f"$ {command}\n" in ticket_text((result(commands=(command,)),))


def test_versions_are_those_that_a_reader_asks_for() -> None:
    told = versions_of(node())
    assert told["kernel"].startswith("6.")
    assert told["perftest"] == "6.23, with CUDA, with DMA-BUF"
    assert told["NVIDIA driver"][0].isdigit()


def test_nothing_measured_is_a_ticket_all_the_same() -> None:
    assert "node" in ticket_text((), "h100-07")


def test_control_characters_do_not_reach_a_ticket() -> None:
    assert "\x1b" not in ticket_text((result(title="\x1b[2Jx", commands=("a\x1bb",)),), "h\x1b1")
