"""What lasts until the next boot, and what outlives it; after the soak, which has the same guest."""

from tests.node_vm.machine import Machine
from tests.node_vm.test_ladder import assert_equal_to_lsmod, lsmod

CONFIG = "/etc/modules-load.d/gdrtop.conf"


# In this order: the second leaves a node that only a reboot would mend.


def test_what_is_loaded_at_boot_is_there_after_a_reboot_until_that_is_taken_back(rebooting: Machine) -> None:
    guest = rebooting.guest
    guest.run("reset-node")
    guest.run_gdrtop("do", "persist-modules", "--yes")
    assert {"mlx5_ib", "nvidia_uvm"} <= set(guest.read(CONFIG).splitlines())
    rebooting.reboot()
    loaded = lsmod(guest)
    assert {"mlx5_ib", "nvidia", "nvidia_uvm"} <= loaded.keys()
    guest.run_gdrtop("do", "unpersist-modules", "--yes")
    assert guest.ask("test", "-e", CONFIG).status == 1


def test_signatures_enforced_and_then_all_loading_forbidden(rebooting: Machine) -> None:
    guest = rebooting.guest
    guest.run("reset-node")
    guest.write("/sys/module/module/parameters/sig_enforce", "1\n")
    assert "Key was rejected by service" in guest.ask("modprobe", "nvidia").errors
    # The distribution's own are signed; the others are not even tried.
    tried = guest.run_gdrtop("do", "load-modules", "--yes")
    assert "its file is unsigned, but this kernel accepts only signed modules" in " ".join(tried.split())
    told = assert_equal_to_lsmod(guest)
    assert told["mlx5_ib"]["state"] == "live"
    assert told["nvidia"]["explanation"] == "on disk, not loaded; this kernel accepts only signed modules"
    guest.write("/proc/sys/kernel/modules_disabled", "1\n")
    assert guest.ask("modprobe", "rdma_cm").status == 1
    rdma_cm = assert_equal_to_lsmod(guest)["rdma_cm"]
    forbidden = "kernel.modules_disabled is 1: no module can be loaded until a reboot"
    assert rdma_cm["explanation"] == forbidden
    refused = guest.gdrtop("do", "load-modules", "--yes")
    assert refused.status == 2
    assert "modules_disabled" in refused.errors
