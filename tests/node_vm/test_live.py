"""What moves while the dashboard runs: refcounts, devices, ports."""

import re

from tests.node_vm.dashboard import Dashboard
from tests.node_vm.guest import Guest

HOLD = "/sys/module/nvidia_peermem/parameters/hold"


def seconds_of_clock(text: str) -> int:
    match = re.search(r"(\d\d):(\d\d):(\d\d)", text)
    assert match is not None, text
    hours, minutes, seconds = map(int, match.groups())
    return (hours * 60 + minutes) * 60 + seconds


def test_the_refcount_follows_within_one_refresh(node: Guest, dashboard: Dashboard) -> None:
    node.shell("modprobe mlx5_ib; modprobe nvidia_uvm; modprobe nvidia_peermem")
    dashboard.until_shown("nvidia_peermem live", "refcnt    0")
    for held in (3, 7, 1, 0):
        written = node.shell(f"echo {held} > {HOLD}; date +%T; cat /sys/module/nvidia_peermem/refcnt")
        assert int(written.split()[1]) == held

        def shows(screen: str, held: int = held) -> bool:
            return f"refcnt    {held} " in screen and bool(re.search(rf"nvidia_peermem.* {held}│", screen))

        def taken_later(screen: str, clock: str = written) -> bool:
            # The head's clock is the reading's: one of a later second was taken after the change. It is in
            # the second row while the first one says that the node is slow.
            head = "\n".join(screen.splitlines()[:2])
            return seconds_of_clock(head) > seconds_of_clock(clock)

        assert shows(dashboard.until(taken_later))


def test_a_held_refcount_means_active(node: Guest, small_dashboard: Dashboard) -> None:
    node.shell(f"modprobe mlx5_ib; modprobe nvidia_peermem; echo 5 > {HOLD}")
    small_dashboard.until_shown("8 of 8 GPUs", "refcnt 5 ")
    assert node.ask("rmmod", "nvidia_peermem").status == 1


def gpus_of_lspci(node: Guest) -> int:
    return len(node.run("lspci", "-d", "10de:").splitlines())


def test_a_gpu_removed_and_rescanned(node: Guest, dashboard: Dashboard) -> None:
    last = node.run("lspci", "-D", "-d", "10de:").splitlines()[-1].split()[0]
    device = node.run("readlink", "-f", f"/sys/bus/pci/devices/{last}").strip()
    try:
        dashboard.until_shown("GPU6", "GPU7", "0 of 8 GPUs")
        node.write(f"{device}/remove", "1")
        assert gpus_of_lspci(node) == 7
        screen = dashboard.until(lambda seen: "GPU7" not in seen)
        assert "GPU6" in screen
        assert "0 of 7 GPUs" in screen
        node.write(f"{device.rpartition('/')[0]}/rescan", "1")
        assert gpus_of_lspci(node) == 8
        dashboard.until_shown("GPU7", "0 of 8 GPUs")
    finally:
        node.ask("sh", "-c", f"[ -d {device} ] || echo 1 > {device.rpartition('/')[0]}/rescan")


def test_a_port_taken_down_and_up(node: Guest, dashboard: Dashboard) -> None:
    node.shell("modprobe mlx5_ib; modprobe nvidia_peermem")
    dashboard.until_shown("via peermem · 8 of 8")
    node.run("ip", "link", "set", "ens0np0", "down")
    assert "PORT_DOWN" in node.run("ibv_devinfo", "-d", "mlx5_0")
    screen = dashboard.until_shown("DOWN", "DEGRADED")
    assert re.search(r"mlx5_0.DOWN", screen)  # with a space between, or a finding's mark
    node.run("ip", "link", "set", "ens0np0", "up")
    assert "PORT_ACTIVE" in node.run("ibv_devinfo", "-d", "mlx5_0")
    dashboard.until(lambda seen: "DOWN" not in seen and "via peermem · 8 of 8" in seen)


def test_no_nic_here_takes_dma_buf(node: Guest) -> None:
    # rdma_rxe has no reg_user_mr_dmabuf in this kernel (drivers/infiniband/sw/rxe/rxe_verbs.c).
    told = node.json("topo")["gpudirect"]
    assert told["nic_dmabuf"] == {f"mlx5_{number}": False for number in range(4)}
    assert told["dmabuf"]["usable"] is False


def test_the_real_mlx5_core_refuses_the_pretended_nics(node: Guest) -> None:
    node.run("modprobe", "mlx5_core")  # no error: a driver whose devices all fail is loaded
    refused = node.run("dmesg")
    for nic in node.json("topo")["nics"]:
        assert f"mlx5_core: probe of {nic['bdf']} failed" in refused
        assert nic["driver"] is None
        assert "Kernel driver in use" not in node.run("lspci", "-k", "-s", nic["bdf"])
    module = next(module for module in node.json("modules")["modules"] if module["name"] == "mlx5_core")
    assert (module["state"], module["refcnt"]) == ("live", 0)
