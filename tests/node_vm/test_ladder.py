"""The module ladder through everything that happens to it, against lsmod and modprobe."""

from tests.node_vm.dashboard import Dashboard
from tests.node_vm.guest import Guest
from tests.node_vm.image import STUBS

STEPS = ("mlx5_core", "mlx5_ib", "nvidia", "nvidia_uvm", "nvidia_peermem")
RULES = "/etc/modprobe.d/test.conf"


def ladder(guest: Guest) -> dict[str, dict[str, object]]:
    return {module["name"]: module for module in guest.json("modules")["modules"]}


def lsmod(guest: Guest) -> dict[str, tuple[int, set[str]]]:
    """Refcount and users of every loaded module."""
    found = {}
    for line in guest.run("lsmod").splitlines()[1:]:
        name, _, count, *users = line.split()
        found[name] = (int(count), set(users[0].split(",")) - {""} if users else set())
    return found


def assert_equal_to_lsmod(guest: Guest) -> dict[str, dict[str, object]]:
    """The ladder, which says what lsmod says."""
    loaded, told = lsmod(guest), ladder(guest)
    for name, module in told.items():
        if name in loaded:
            assert module["state"] == "live", name
            assert (module["refcnt"], set(module["used_by"])) == loaded[name], name  # type: ignore[call-overload]
        else:
            assert module["state"] == "not loaded", name
            assert module["refcnt"] is None
    return told


def stub(guest: Guest, name: str) -> str:
    return f"/lib/modules/{guest.run('uname', '-r').strip()}/{STUBS}/{name}.ko"


def explanation(guest: Guest, name: str) -> object:
    return ladder(guest)[name]["explanation"]


def test_loading_in_order_and_unloading(node: Guest) -> None:
    node.shell("".join(f"modprobe {module};" for module in STEPS))
    told = assert_equal_to_lsmod(node)
    assert all(told[name]["state"] == "live" for name in STEPS)
    node.run("rmmod", *reversed(STEPS))
    assert_equal_to_lsmod(node)


def test_the_dashboard_follows_loading_and_unloading(node: Guest, dashboard: Dashboard) -> None:
    dashboard.until_shown("✗ nvidia_peermem", "BROKEN", "needs nvidia first")
    node.shell("modprobe mlx5_ib; modprobe nvidia_uvm; modprobe nvidia_peermem")
    dashboard.until(lambda screen: "via peermem · 8 of 8 GPUs" in screen and "✗" not in screen)
    node.run("rmmod", "nvidia_peermem")
    dashboard.until_shown("✗ nvidia_peermem", "BROKEN")


def test_the_nvidia_driver_unloaded_while_the_dashboard_runs(node: Guest, small_dashboard: Dashboard) -> None:
    node.shell("modprobe mlx5_ib; modprobe nvidia_peermem")
    small_dashboard.until_shown("8 of 8 GPUs")
    node.run("rmmod", "nvidia_peermem", "nvidia")
    small_dashboard.until_shown("BROKEN", "nvidia not loaded", "nvidia_peermem")


def test_the_wrong_order(node: Guest) -> None:
    refused = node.ask("insmod", stub(node, "nvidia-uvm"))
    assert refused.status == 1
    assert "Unknown symbol" in refused.errors
    assert explanation(node, "nvidia_uvm") == "needs nvidia first"
    node.run("modprobe", "nvidia")
    refused_before = "on disk, not loaded; the kernel refused it before: nvidia_uvm: Unknown symbol "
    assert str(explanation(node, "nvidia_uvm")).startswith(refused_before)


def test_a_module_that_is_not_on_the_disk(node: Guest) -> None:
    node.run("rm", stub(node, "nvidia-peermem"))
    node.run("depmod")
    assert "not found" in node.ask("modprobe", "nvidia_peermem").errors
    release = node.run("uname", "-r").strip()
    assert explanation(node, "nvidia_peermem") == f"no .ko for kernel {release}"


def test_blacklisted(node: Guest) -> None:
    node.write(RULES, "blacklist nvidia-peermem\n")
    node.run("modprobe", "--use-blacklist", "nvidia_peermem")  # silent, and loads nothing
    assert "nvidia_peermem" not in lsmod(node)
    assert explanation(node, "nvidia_peermem") == f"blacklisted by {RULES}:1"


def test_replaced_by_an_install_line(node: Guest) -> None:
    node.write(RULES, "# kept out\ninstall nvidia_peermem /bin/false\n")
    assert node.ask("modprobe", "nvidia_peermem").status == 1
    assert (
        explanation(node, "nvidia_peermem") == f"replaced by `install nvidia_peermem /bin/false` in {RULES}:2"
    )


def test_built_against_another_version_of_a_symbol(node: Guest) -> None:
    node.run("cp", "/usr/src/stubs/other_version/nvidia-peermem.ko", stub(node, "nvidia-peermem"))
    assert node.ask("modprobe", "nvidia_peermem").status == 1
    assert "disagrees about version of symbol nvidia_p2p_put_pages" in node.run("dmesg")
    told = assert_equal_to_lsmod(node)  # what modprobe loaded on the way is there, peermem is not
    assert told["nvidia_peermem"]["state"] == "not loaded"


def test_no_registry_of_peer_memory_clients(node: Guest) -> None:
    node.run("rm", stub(node, "ib_peer_mem"))
    node.run("depmod")
    assert node.ask("modprobe", "nvidia_peermem").status == 1
    told = explanation(node, "nvidia_peermem")
    assert told == "built without peer-memory symbols: no module exports ib_register_peer_memory_client"


def test_a_module_in_use(node: Guest) -> None:
    node.run("modprobe", "nvidia_uvm")
    node.shell(
        "hold-open /dev/nvidia-uvm >/tmp/held 2>&1 </dev/null &"
        "until grep -q held /tmp/held; do sleep 0.05; done"
    )
    assert "in use" in node.ask("rmmod", "nvidia_uvm").errors
    module = assert_equal_to_lsmod(node)["nvidia_uvm"]
    assert (module["refcnt"], module["used_by"]) == (1, [])


def test_the_rival_of_peermem(node: Guest) -> None:
    node.run("modprobe", "nv_peer_mem")
    refused = node.ask("modprobe", "nvidia_peermem")
    assert "Invalid argument" in refused.errors
    assert (
        explanation(node, "nvidia_peermem") == "nv_peer_mem is loaded, and only one of the two can be loaded"
    )
    assert "nv_peer_mem" in node.gdrtop("check").output
    assert "– nvidia_peermem" in node.gdrtop("modules").output


def test_the_memory_peers_that_the_kernel_lists(node: Guest) -> None:
    node.run("modprobe", "nvidia_peermem")
    assert node.json("modules")["memory_peers"] == node.run("ls", "/sys/kernel/mm/memory_peers").split()
