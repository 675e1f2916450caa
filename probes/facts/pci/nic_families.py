"""The families of RDMA NICs, one row each: what every table of drivers comes from."""

from __future__ import annotations

from probes.base.frozen import frozen
from probes.base.unknown import known
from probes.facts.pci.functions import PciFacts, is_for_guests

Octets = tuple[tuple[str, ...], tuple[str, ...]]
"""Counters whose sum is the bytes sent, and those of the bytes received."""


@frozen
class NicFamily:
    """NICs that have one driver."""

    name: str
    vendor: int  # PCI vendor ID
    pci_drivers: tuple[str, ...]  # that bind to its functions
    rdma_module: str  # that makes its RDMA devices
    provider: str = ""  # rdma-core's library, lib<provider>-rdmav34.so; "": it has no verbs
    device_ids: tuple[range, ...] = ()  # by which a card without a driver is known
    octets: tuple[Octets, ...] = ()  # by names in hw_counters
    dkms: tuple[str, ...] = ()  # packages of the vendor's own driver
    asks_peer_memory: bool = False  # the vendor's driver asks peer-memory clients for addresses
    shows_dmabuf_length: bool = True  # "rdma resource show mr" has the length of a DMA-BUF region
    is_plugin_only: bool = False  # NCCL uses it only through a network plugin
    no_dmabuf: tuple[str, str] | None = None  # why its driver may register no DMA-BUF, and what to do

    @property
    def modules(self) -> tuple[str, ...]:
        """Its modules, in load order."""
        return tuple(dict.fromkeys((*self.pci_drivers, self.rdma_module)))


# Peer memory: only OFED's, Broadcom's and Alibaba's own drivers ask clients for addresses (ib_umem_get_peer).
# Which erdma is loaded shows in OFED: the kernel's does not ask, and does not load beside OFED's ib_core.
# DMA-BUF, Linux drivers/infiniband/hw: bnxt_re/main.c, ionic/ionic_ibdev.c and irdma/verbs.c have
# reg_user_mr_dmabuf; erdma/erdma_main.c has not. libbnxt_re: rdma-core, pull request 1373. Alibaba's mode:
# "Use eRDMA in ACK clusters". Length: no assignment in these drivers in Linux 6.12 and 7.2.
# Device IDs: mlx4/main.c (ConnectX-3, and ConnectX, -2); mlx5's from Connect-IB on, mthca's between them;
# hw/efa/efa_main.c; Cassini 1 in pci.ids. Bytes: erdma_verbs.c, efa_verbs.c, irdma/verbs.c, mana/counters.c,
# hw_counters of the others. DKMS: AMD's package ionic-dkms has the name "ionic"; Intel's drivers have none.
_OCTETS: tuple[Octets, ...] = ((("tx_bytes",), ("rx_bytes",)),)
CONNECTX = NicFamily(
    "ConnectX",  # from ConnectX-4 on, Connect-IB and BlueField
    0x15B3,
    ("mlx5_core",),
    "mlx5_ib",
    "mlx5",
    (range(0x1011, 0x5A00), range(0x7000, 0x10000)),
    asks_peer_memory=True,
)
CONNECTX_8 = 0x1023  # its device ID
CONNECTX_3 = NicFamily(
    "ConnectX-3",  # and older
    0x15B3,
    ("mlx4_core",),
    "mlx4_ib",
    "mlx4",
    (range(0x1002, 0x1011), range(0x6340, 0x676F)),
    asks_peer_memory=True,
)
EFA = NicFamily(
    "EFA", 0x1D0F, ("efa",), "efa", "efa", (range(0xEFA0, 0xEFB0),), _OCTETS, ("efa",), is_plugin_only=True
)
SLINGSHOT = NicFamily(
    "Slingshot",
    0x17DB,
    ("cxi_ss1",),
    "cxi_user",
    device_ids=(range(0x0501, 0x0502),),
    dkms=("cray-cxi-driver",),  # HewlettPackard/shs-cxi-driver, cray-cxi-driver.spec
    is_plugin_only=True,
)
FAMILIES = (
    CONNECTX,
    CONNECTX_3,
    EFA,
    SLINGSHOT,
    NicFamily(
        "Broadcom",
        0x14E4,
        ("bnxt_en",),
        "bnxt_re",
        "bnxt_re",
        octets=_OCTETS,
        dkms=("bnxt-re", "bnxt_re"),
        asks_peer_memory=True,
        shows_dmabuf_length=False,
        no_dmabuf=(
            "Broadcom's bnxt_re registers DMA-BUF memory only in newer releases",
            "Update bnxt_re with the kernel or Broadcom's driver, and libbnxt_re with rdma-core",
        ),
    ),
    NicFamily(
        "eRDMA",
        0x1DED,
        ("erdma",),
        "erdma",
        "erdma",
        # The kernel's, and Alibaba's.
        octets=((("tx_bytes_cnt",), ("rx_bytes_cnt",)), (("hw_tx_bytes_cnt",), ("hw_rx_bytes_cnt",))),
        dkms=("erdma",),
        asks_peer_memory=True,
        no_dmabuf=(
            "The loaded driver of Alibaba Cloud's eRDMA (erdma) registers no DMA-BUF memory",
            "Install Alibaba's own eRDMA driver in its OFED mode, and load nvidia_peermem, which it can use",
        ),
    ),
    NicFamily(
        "Intel",
        0x8086,
        ("ice", "idpf", "i40e"),
        "irdma",
        "irdma",
        octets=((("ip4OutOctets", "ip6OutOctets"), ("ip4InOctets", "ip6InOctets")),),
        shows_dmabuf_length=False,
        no_dmabuf=(
            "Intel's irdma registers DMA-BUF memory only in newer releases",
            "Update irdma with the kernel or Intel's driver, and rdma-core",
        ),
    ),
    NicFamily(
        "AMD Pensando",
        0x1DD8,
        ("ionic",),
        "ionic_rdma",
        "ionic",
        octets=((("tx_rdma_ucast_bytes",), ("rx_rdma_ucast_bytes",)),),
        dkms=("ionic", "ionic_rdma", "ionic-rdma"),
        no_dmabuf=(
            "The driver of AMD Pensando NICs (ionic_rdma) that is loaded registers no DMA-BUF memory",
            "Use the ionic_rdma of a newer kernel, which does, or update AMD's driver, and rdma-core",
        ),
    ),
    NicFamily(
        "MANA",
        0x1414,
        ("mana",),
        "mana_ib",
        "mana",
        octets=_OCTETS,
        shows_dmabuf_length=False,
        no_dmabuf=(
            "The driver of Azure's MANA (mana_ib) that is loaded registers no DMA-BUF memory",
            "Use a newer kernel, whose mana_ib does, and a newer rdma-core",
        ),
    ),
)
MELLANOX = (CONNECTX, CONNECTX_3)
RDMA_MODULE_OF = {name: family.rdma_module for family in MELLANOX for name in family.pci_drivers}
PLUGIN_ONLY = tuple(family for family in FAMILIES if family.is_plugin_only)
PLUGIN_DRIVERS = tuple(name for family in PLUGIN_ONLY for name in family.pci_drivers)
LADDER_FAMILIES = (*MELLANOX, *PLUGIN_ONLY)
"""Whose modules gdrtop reads, loads and installs."""
LADDER_DRIVERS = tuple(name for family in LADDER_FAMILIES for name in family.pci_drivers)
PEER_DRIVERS = tuple(name for family in FAMILIES if family.asks_peer_memory for name in family.pci_drivers)
# Of vendors whose driver is no stack of its own, as OFED, EFA's and Slingshot's are.
OTHER_DKMS = tuple(name for family in FAMILIES if not family.is_plugin_only for name in family.dkms)
NO_DMABUF = {name: family.no_dmabuf for family in FAMILIES if family.no_dmabuf for name in family.pci_drivers}
NO_DMABUF_LENGTH = frozenset(
    name
    for family in FAMILIES
    if not family.shows_dmabuf_length
    for name in (*family.pci_drivers, family.rdma_module)
)
MODULE_PREFIXES = tuple(
    dict.fromkeys(name.partition("_")[0] for family in FAMILIES for name in family.modules)
)
VERBS_MODULES = tuple(family.rdma_module for family in FAMILIES if family.provider)
PROVIDER_OF = {name: family.provider for family in FAMILIES if family.provider for name in family.pci_drivers}
HARDWARE_OCTETS = tuple(dict.fromkeys(names for family in FAMILIES for names in family.octets))
DRIVERS_WITH_OCTETS = tuple(name for family in FAMILIES if family.octets for name in family.pci_drivers)
SOFTWARE = {"rdma_rxe": "rxe", "siw": "siw"}
"""The modules of software devices, and their libraries in rdma-core."""
# Of NICs that gdrtop meets only in logs and recordings.
_OTHERS = {
    **{"iw_cxgb4": "cxgb4", "hfi1": "hfi1", "hns_roce_hw_v2": "hns"},
    **{"ocrdma": "ocrdma", "qedr": "qedr", "usnic_verbs": "usnic"},
}
OTHER_VERBS_MODULES = (*_OTHERS, *SOFTWARE)
PROVIDERS = tuple(dict.fromkeys((*PROVIDER_OF.values(), *_OTHERS.values(), *SOFTWARE.values())))


def cards_of(pci: PciFacts, *families: NicFamily) -> tuple[str, ...]:
    """Return the BDFs of the NICs of these families, without those given to a virtual machine."""
    return tuple(
        nic.bdf
        for family in families
        for nic in pci.nics
        if (family.is_plugin_only and known(nic.driver, "") in family.pci_drivers)
        or (
            nic.vendor_id == family.vendor
            and any(known(nic.device_id, 0) in ids for ids in family.device_ids)
            and not is_for_guests(nic.driver)
        )
    )
