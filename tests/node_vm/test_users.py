"""Who looks: root, an admin with sudo, and a visitor who may not read what root may."""

import json

from tests.node_vm.dashboard import Dashboard
from tests.node_vm.guest import Guest


def test_the_ladder_is_the_same_for_all(node: Guest) -> None:
    node.shell("modprobe mlx5_ib; modprobe nvidia_peermem")
    seen_by_root = ladder_of(node.json("modules"))
    assert ladder_of(node.as_user("visitor").json("modules")) == seen_by_root
    printed = node.as_user("admin").ask("sudo", "-n", "gdrtop", "modules", "--json").output
    assert ladder_of(json.loads(printed)) == seen_by_root


def ladder_of(document: dict[str, object]) -> dict[str, object]:
    """All but when it was read."""
    return {name: value for name, value in document.items() if name != "time"}


def test_what_only_root_may_read_is_said_to_need_root(node: Guest) -> None:
    node.run("modprobe", "nvidia_peermem")
    of_root = node.json("topo")["gpudirect"]
    visitor = node.as_user("visitor")
    of_visitor = visitor.json("topo")["gpudirect"]
    assert of_root["dmabuf_in_use"] is False
    assert of_visitor["dmabuf_in_use"] is None
    assert of_visitor["unknown"]["dmabuf_in_use"].startswith("needs root")
    assert visitor.ask("cat", "/sys/kernel/debug/dma_buf/bufinfo").status == 1


def test_rules_that_a_visitor_may_not_read_are_not_passed_over(node: Guest) -> None:
    node.write("/etc/modprobe.d/test.conf", "blacklist nvidia_peermem\n")
    node.run("chmod", "600", "/etc/modprobe.d/test.conf")
    visitor = node.as_user("visitor")
    peermem = next(m for m in visitor.json("modules")["modules"] if m["name"] == "nvidia_peermem")
    assert peermem["blacklisted"] is None
    assert "/etc/modprobe.d/test.conf could not be read" in visitor.gdrtop("modules").output


def test_the_dashboard_of_a_visitor(node: Guest) -> None:
    node.shell(
        "modprobe mlx5_ib; modprobe nvidia_peermem; echo 2 > /sys/module/nvidia_peermem/parameters/hold"
    )
    with Dashboard(node.as_user("visitor")) as dashboard:
        dashboard.until_shown("via peermem · 8 of 8 GPUs", "refcnt    2")
        dashboard.press("q")
        dashboard.until(lambda _: dashboard.has_ended())


def test_help_leaves_and_comes_back(small_dashboard: Dashboard) -> None:
    small_dashboard.until_shown("BROKEN")
    small_dashboard.press("?")
    small_dashboard.until_shown("Keys and manual", "BROKEN")  # the head stays
    small_dashboard.press("Escape")
    small_dashboard.until(lambda screen: "Keys and manual" not in screen and "BROKEN" in screen)
