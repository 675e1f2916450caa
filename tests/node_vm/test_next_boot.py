"""Boots that are broken on purpose: the node after each of them is what gdrtop has forecast."""

from collections.abc import Iterator

import pytest

from tests.node_vm.guest import Guest
from tests.node_vm.machine import Machine
from tests.node_vm.next_boot import reboot_as_forecast

CONFIG, BROKEN = "/etc/modules-load.d/gdrtop.conf", "/etc/modprobe.d/test-broken.conf"
STUBS = "/lib/modules/$(uname -r)/updates/stubs"


@pytest.fixture(scope="module")
def loads_at_boot(rebooting: Machine) -> Iterator[Guest]:
    """The node whose next boot would load all that the path needs."""
    guest = rebooting.guest
    guest.run("reset-node")
    guest.write(CONFIG, "mlx5_core\nmlx5_ib\nnvidia\nnvidia_uvm\nnvidia_peermem\n")
    yield guest
    guest.run("reset-node")


@pytest.mark.parametrize(
    ("breaks", "mends", "state"),
    [
        pytest.param(
            f"echo 'install nvidia_peermem /bin/false' > {BROKEN}", f"rm {BROKEN}", "BROKEN", id="forbidden"
        ),
        pytest.param(
            f"rm {STUBS}/nvidia-peermem.ko && depmod",
            f"cp -p /usr/share/stubs/* {STUBS} && depmod",
            "BROKEN",
            id="not built for this kernel",
        ),
        pytest.param(
            f"truncate -s 3000 {STUBS}/nvidia-uvm.ko", f"cp -p /usr/share/stubs/* {STUBS}", "DEGRADED", id="cut"
        ),
        pytest.param(
            f"printf 'blacklist %s\\n' nvidia mlx5_ib > {BROKEN}", f"rm {BROKEN}", "DEGRADED", id="blacklisted"
        ),
    ],
)
def test_a_broken_boot_is_forecast(
    loads_at_boot: Guest, rebooting: Machine, breaks: str, mends: str, state: str
) -> None:
    loads_at_boot.shell(breaks)
    try:
        assert reboot_as_forecast(rebooting).state == state
    finally:
        loads_at_boot.shell(mends)
