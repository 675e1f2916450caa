"""Actions on a real kernel: what gdrtop did is what lsmod, the config space and the log say."""

import json
import re
import time
from collections.abc import Iterator

import pytest

from tests.node_vm.dashboard import Dashboard
from tests.node_vm.guest import Answer, Guest
from tests.node_vm.image import TYPISTS_PASSWORD
from tests.node_vm.test_ladder import lsmod, stub

HOLD = "/sys/module/nvidia_peermem/parameters/hold"
ROOTS_LOG = "/var/log/gdrtop/actions.jsonl"
NEEDED = {"mlx5_core", "mlx5_ib", "nvidia", "nvidia_uvm", "nvidia_peermem"}
NODE = "gpunode"


def do(guest: Guest, *arguments: str) -> Answer:
    return guest.gdrtop("do", *arguments)


def log_of(guest: Guest, path: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in guest.read(path).splitlines()]


def test_one_key_and_yes_load_what_is_missing(node: Guest, dashboard: Dashboard) -> None:
    dashboard.until_shown("BROKEN", "✗ nvidia_peermem")
    dashboard.press("l")
    dashboard.until_shown("nothing has been run", "modprobe nvidia_uvm", "modprobe nvidia_peermem")
    assert not lsmod(node).keys() & NEEDED
    dashboard.press("y")
    dashboard.until_shown("CHECKED AGAIN", "via peermem · 8 of 8 GPUs")
    assert lsmod(node).keys() >= NEEDED
    dashboard.press("Escape")
    dashboard.until_shown("nvidia_peermem live", "via peermem · 8 of 8 GPUs")


def test_what_is_in_use_stays(node: Guest) -> None:
    node.shell(f"modprobe mlx5_ib; modprobe nvidia_peermem; echo 5 > {HOLD}")
    refused = do(node, "unload-peermem", "--yes")
    assert refused.status == 2
    assert "nvidia_peermem is in use (refcnt 5)" in refused.output
    assert f"--disturb {NODE}" in refused.errors
    tried = do(node, "unload-peermem", "--disturb", NODE)
    assert tried.status == 1
    assert "in use" in tried.output  # rmmod's own words
    assert "it can be unloaded once nothing uses it" in " ".join(tried.output.split())
    assert lsmod(node)["nvidia_peermem"][0] == 5
    node.write(HOLD, "0")
    assert do(node, "unload-peermem", "--yes").status == 0
    assert "nvidia_peermem" not in lsmod(node)


def test_an_admin_replaces_the_rival_by_sudo_and_has_a_log_of_his_own(node: Guest) -> None:
    node.run("modprobe", "nv_peer_mem")
    admin = node.as_user("admin")
    # Whose processes are others' he cannot see, so that they might feel it.
    assert "needs root" in do(admin, "replace-nv-peer-mem", "--yes").output
    done = do(admin, "replace-nv-peer-mem", "--disturb", NODE)
    assert done.status == 0, done.output
    assert "by sudo" in done.output
    assert "nv_peer_mem" not in lsmod(node)
    assert "nvidia_peermem" in lsmod(node)
    (*_, last) = log_of(admin, ".local/state/gdrtop/actions.jsonl")
    assert last["outcome"] in ("done", "steps left")  # the old package is a person's to remove


def test_a_module_of_another_build_is_explained_with_the_kernels_lines(node: Guest) -> None:
    assert "Unknown symbol" in node.ask("insmod", stub(node, "nvidia-uvm")).errors  # the wrong order
    node.run("cp", "/usr/src/stubs/other_version/nvidia-peermem.ko", stub(node, "nvidia-peermem"))
    tried = do(node, "load-modules", "--yes")
    assert tried.status == 1
    told = " ".join(tried.output.split())
    assert "The NVIDIA driver was updated after nvidia_peermem was built" in told
    of_kernel = told.partition("kernel log during this step")[2]
    assert "disagrees about version of symbol nvidia_p2p_put_pages" in of_kernel


def test_a_visitor_changes_nothing_and_learns_why(node: Guest) -> None:
    visitor = node.as_user("visitor")
    tried = do(visitor, "load-modules", "--yes")
    assert tried.status == 1
    assert "sudo" in tried.output
    assert not lsmod(node).keys() & NEEDED


def test_from_nothing_to_ready_with_one_command_and_one_password(node: Guest) -> None:
    """In a terminal, as a person has it: sudo's ticket serves the steps that follow the first."""
    assert not lsmod(node).keys() & NEEDED
    typist = node.as_user("typist")
    tmux = ("tmux", "-L", "test-password")
    command = "gdrtop do load-modules --yes; echo ENDED $?; exec sleep 600"
    typist.run(*tmux, "-f", "/dev/null", "new-session", "-d", "-x", "120", "-y", "200", command)

    def until(text: str) -> str:
        deadline = time.monotonic() + 120
        while text not in (screen := typist.run(*tmux, "capture-pane", "-p")):
            assert time.monotonic() < deadline, screen
            time.sleep(0.3)
        return screen

    until("password for typist")
    typist.run(*tmux, "send-keys", TYPISTS_PASSWORD, "Enter")
    screen = until("ENDED")
    assert "ENDED 0" in screen
    assert screen.count("password for typist") == 1
    assert TYPISTS_PASSWORD not in screen
    assert re.search(r"^ +after +. (?:READY|DEGRADED) via peermem", screen, re.M)
    assert re.search(r"^ +before +. BROKEN", screen, re.M)
    assert lsmod(node).keys() >= NEEDED
    lines = log_of(typist, ".local/state/gdrtop/actions.jsonl")
    assert lines[0]["action"] == "load-modules"
    assert lines[-1]["outcome"] == "done"
    assert ["modprobe", "nvidia_peermem"] in [line.get("argv") for line in lines]


@pytest.fixture
def slow_modprobe(node: Guest) -> Iterator[None]:
    """A modprobe that takes its time, so that the end comes in its middle."""
    node.write("/usr/sbin/modprobe.slow", '#!/bin/bash\nsleep 3\nexec -a modprobe /usr/bin/kmod "$@"\n')
    node.shell("chmod 755 /usr/sbin/modprobe.slow; mv /usr/sbin/modprobe.slow /usr/sbin/modprobe")
    yield
    node.run("ln", "-sf", "/usr/bin/kmod", "/usr/sbin/modprobe")


@pytest.mark.usefixtures("slow_modprobe")
def test_a_lost_connection_leaves_a_known_state(node: Guest) -> None:
    """The terminal goes away in the middle: the step under way is logged, nothing after it is begun."""
    tmux = ("tmux", "-L", "test-lost")
    node.run(*tmux, "-f", "/dev/null", "new-session", "-d", "gdrtop do load-modules --yes")
    before = len(log_of(node, ROOTS_LOG)) if node.ask("test", "-e", ROOTS_LOG).status == 0 else 0

    def new_lines() -> list[dict[str, object]]:
        return log_of(node, ROOTS_LOG)[before:]

    deadline = time.monotonic() + 120
    while not any(line["event"] == "step" for line in new_lines()):
        assert time.monotonic() < deadline
        time.sleep(0.2)
    node.run(*tmux, "kill-server")
    while not any(line["event"] == "end" for line in new_lines()):
        assert time.monotonic() < deadline
        time.sleep(0.2)
    (*_, last) = new_lines()
    assert last["outcome"] == "stopped"
    assert "the terminal is gone" in str(last["why"])
    assert [line["event"] for line in new_lines()].count("step") == 1
    assert "mlx5_core" in lsmod(node)  # the step under way was not killed
    assert "nvidia_peermem" not in lsmod(node)


@pytest.fixture
def redirecting(node: Guest) -> list[str]:
    """The ports of the switches, redirecting requests and completions."""
    # The kernel read their ids before they were dressed up.
    ports = [line.split()[0] for line in node.run("lspci", "-D", "-d", "104c:8233").splitlines()]
    node.shell("; ".join(f"setpci -s {port} ECAP_ACS+6.w=000c:000c" for port in ports))
    assert all(control(node, port) & 0xC for port in ports)
    return ports


def control(node: Guest, port: str) -> int:
    return int(node.run("setpci", "-s", port, "ECAP_ACS+6.w"), 16)


def test_acs_bits_go_and_come_back_in_config_space(node: Guest, redirecting: list[str]) -> None:
    node.shell("modprobe mlx5_ib; modprobe nvidia_peermem")
    before = {port: control(node, port) for port in redirecting}
    done = do(node, "acs-redirect-off", "--disturb", NODE, "--yes")
    assert done.status == 0, done.output
    assert all(control(node, port) & 0xC == 0 for port in redirecting)
    assert "ReqRedir-" in node.run("lspci", "-vvv", "-s", redirecting[0])
    back = do(node, "acs-redirect-back", "--disturb", NODE, "--yes")
    assert back.status == 0, back.output
    assert {port: control(node, port) for port in redirecting} == before
