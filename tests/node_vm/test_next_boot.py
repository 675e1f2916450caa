"""Boots that are broken on purpose: the node after each of them is what gdrtop has forecast."""

from collections.abc import Iterator

import pytest

from tests.node_vm.guest import Guest
from tests.node_vm.machine import Machine
from tests.node_vm.next_boot import reboot_as_forecast

CONFIG, RULES = "/etc/modules-load.d/gdrtop.conf", "/etc/modprobe.d/test-broken.conf"
STUBS = "/lib/modules/$(uname -r)/updates/stubs"
# Its first entry of this name (struct modversion_info, 8 and 56 bytes) gets another version.
OTHER_VERSION = f"""cd {STUBS} && python3 - <<'END'
file = "nvidia-peermem.ko"
content = bytearray(open(file, "rb").read())
content[content.index(b"ib_register_peer_memory_client".ljust(56, b"\\0")) - 8] ^= 1
open(file, "wb").write(content)
END"""
LOADS = (
    f"printf '%s\\n' mlx5_core mlx5_ib nvidia nvidia_uvm nvidia_peermem > {CONFIG};"
    " load-drivers || true; /etc/init.d/kmod start"
)
# How the boot is broken, and the state of the node after it.
BOOTS = {
    "only loaded by hand": (f"rm {CONFIG}", "BROKEN"),
    "forbidden": (f"echo 'install nvidia_peermem /bin/false' > {RULES}", "BROKEN"),
    "not there": (f"rm {STUBS}/nvidia-peermem.ko && depmod", "BROKEN"),
    "cut": (f"truncate -s 3000 {STUBS}/nvidia-uvm.ko", "DEGRADED"),
    "for another OFED": (OTHER_VERSION, "BROKEN"),
}


@pytest.fixture(scope="module")
def loaded(rebooting: Machine) -> Iterator[Guest]:
    """The node with all that the path needs loaded, now and at boot."""
    rebooting.guest.run("reset-node")
    rebooting.guest.shell(f"mkdir -p {CONFIG.rpartition('/')[0]}; {LOADS}")
    yield rebooting.guest
    rebooting.guest.run("reset-node")


@pytest.mark.parametrize("boot", BOOTS)
def test_a_broken_boot_is_forecast(loaded: Guest, rebooting: Machine, boot: str) -> None:
    breaks, state = BOOTS[boot]
    loaded.shell(breaks)
    try:
        assert reboot_as_forecast(rebooting).state == state
    finally:
        loaded.shell(f"rm -f {RULES}; cp -p /usr/share/stubs/* {STUBS}; depmod; {LOADS}")
