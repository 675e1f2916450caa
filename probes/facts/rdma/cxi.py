"""HPE Slingshot NICs, from /sys/class/cxi: RDMA devices without verbs, used through libfabric.

Source: HewlettPackard/shs-cxi-driver, drivers/net/ethernet/hpe/ss1. Each NIC has a netdev hsnN; its state and
speed are those of the link. Counters are files of telemetry/ (docs/ABI/testing/sysfs-class-cxi).
"""

from __future__ import annotations

import re
from dataclasses import replace

from probes.base.text import printable
from probes.base.unknown import Maybe, Reason, Unknown, first_unread, known, map_known, not_found, parse_known
from probes.facts.network.routes import NET
from probes.facts.pci.functions import PciFacts
from probes.facts.pci.nic_families import SLINGSHOT, cards_of
from probes.facts.rdma.devices import RdmaDevice, RdmaFacts, RdmaPort, natural, pci_function
from probes.facts.rdma.port_health import Place, sampled
from probes.host.protocol import Host
from probes.host.values import read_numa_node

LINK_LAYER = "Slingshot"
SENT_OCTETS, RECEIVED_OCTETS = "hni_sts_tx_ok_octets", "hni_sts_rx_ok_octets"
_CLASS = "/sys/class/cxi"
_MAX_DEVICES = 64
_MBPS = re.compile(r"[1-9][0-9]{0,7}", re.ASCII)


def has_verbs(device: RdmaDevice) -> bool:
    """Return whether programs use a device through verbs; Slingshot NICs have none."""
    return not device.sysfs_path.startswith(f"{_CLASS}/")


def telemetry_file(device: str, name: str) -> str:
    """Return the file of a counter; `device`: the NIC's path in sysfs."""
    return f"{device}/{Place.TELEMETRY.value}/{name}"


def add_slingshot(host: Host, facts: Maybe[RdmaFacts], pci: Maybe[PciFacts]) -> Maybe[RdmaFacts]:
    """Return the RDMA devices with the Slingshot NICs behind them; `facts` as it is if there are none."""
    names = host.names(_CLASS)
    if isinstance(names, Unknown):
        may_be_here = isinstance(pci, Unknown) or cards_of(pci, SLINGSHOT) or names.reason is Reason.NOT_YET
        return names if may_be_here and names.reason is not Reason.NOT_THERE else facts
    found = tuple(_device(host, name) for name in sorted(names, key=natural)[:_MAX_DEVICES])
    unread = first_unread(device.bdf for device in found)
    if unread is not None:
        return unread
    nics = tuple(device for device in found if not isinstance(device.bdf, Unknown))
    if not nics:
        return facts
    if isinstance(facts, Unknown):
        return RdmaFacts(nics) if facts.reason is Reason.NOT_THERE else facts
    return replace(facts, devices=(*facts.devices, *nics))


def link_state(host: Host, netdev: Maybe[str]) -> Maybe[str]:
    """Return the state of a NIC's link in the words of an RDMA port: "ACTIVE", "DOWN"."""
    state = map_known(netdev, lambda name: host.read(f"{NET}/{name}/operstate", 64))
    return map_known(state, lambda word: {"up": "ACTIVE", "down": "DOWN"}.get(word, printable(word, 40)))


def _device(host: Host, name: str) -> RdmaDevice:
    path = f"{_CLASS}/{name}"
    resolved = host.resolve(f"{path}/device")
    function = None if isinstance(resolved, Unknown) else pci_function(resolved)
    no_function = not_found((resolved,), f"{path}/device", "not on a PCI function")
    below = function or f"{path}/device"
    no_verbs = Unknown(Reason.NOT_THERE, path, "Slingshot NICs have no verbs")
    return RdmaDevice(
        name=printable(name, 64),
        sysfs_path=path,
        bdf=no_function if function is None else function.rpartition("/")[2],
        driver=map_known(host.link(f"{below}/driver"), lambda link: printable(link.rpartition("/")[2], 64)),
        node_type=no_verbs,
        firmware=no_verbs,
        hca_type=no_verbs,
        board_id=no_verbs,
        node_guid=no_verbs,
        system_image_guid=no_verbs,
        numa_node=read_numa_node(host, f"{below}/numa_node"),
        is_virtual_function=not isinstance(host.link(f"{below}/physfn"), Unknown),
        uverbs=no_verbs,
        uverbs_number=no_verbs,
        ports=(_port(host, below, no_verbs, _telemetry(host, path)),),
    )


def _telemetry(host: Host, device: str) -> Maybe[tuple[str, ...]]:
    """Return the counters that gdrtop reads; a NIC has some thousand."""
    wanted = {SENT_OCTETS, RECEIVED_OCTETS, *sampled(Place.TELEMETRY)}
    names = host.names(f"{device}/{Place.TELEMETRY.value}")
    return map_known(names, lambda found: tuple(name for name in found if name in wanted))


def _port(host: Host, below: str, no_verbs: Unknown, telemetry: Maybe[tuple[str, ...]]) -> RdmaPort:
    no_netdev = Unknown(Reason.NOT_THERE, f"{below}/net", "no netdev")
    names = host.names(f"{below}/net")
    netdev = map_known(names, lambda found: printable(found[0], 64) if found else no_netdev)
    # A link that is down has no speed, or -1.
    speed = map_known(netdev, lambda name: host.read(f"{NET}/{name}/speed", 64))
    file = f"{NET}/{known(netdev, '')}/speed"
    rate = parse_known(
        speed, lambda text: int(text) / 1000 if _MBPS.fullmatch(text) else None, file, Reason.NOT_THERE
    )
    return RdmaPort(
        number=1,
        state=link_state(host, netdev),
        physical_state=no_verbs,
        rate_gbps=rate,
        rate_text="" if not isinstance(rate, Unknown) else rate,
        link_layer=LINK_LAYER,
        lid=no_verbs,
        netdev=netdev,
        gids=no_verbs,
        counters=no_verbs,
        hw_counters=no_verbs,
        telemetry=telemetry,
    )
