"""The families of RDMA NICs, one row each: what every table of drivers comes from."""

from __future__ import annotations

from probes.base.frozen import frozen


@frozen
class NicFamily:
    """NICs that have one driver."""

    name: str
    vendor: str  # PCI vendor id
    pci_drivers: tuple[str, ...]  # that bind to its functions
    rdma_module: str  # that makes its RDMA devices
    provider: str = ""  # rdma-core's library, lib<provider>-rdmav34.so; "": it has no verbs
    dkms: tuple[str, ...] = ()  # packages of the vendor's own driver
    asks_peer_memory: bool = False  # the vendor's driver asks peer-memory clients for addresses
    shows_dmabuf_length: bool = True  # "rdma resource show mr" has the length of a DMA-BUF region
    is_plugin_only: bool = False  # NCCL uses it only through a network plugin
    no_dmabuf: tuple[str, str] | None = None  # why its driver may register no DMA-BUF, and what to do


# Peer memory: only OFED's, Broadcom's and Alibaba's own drivers ask clients for addresses (ib_umem_get_peer).
# Which erdma is loaded shows in OFED: the kernel's does not ask, and does not load beside OFED's ib_core.
# DMA-BUF, Linux drivers/infiniband/hw: bnxt_re/main.c, ionic/ionic_ibdev.c and irdma/verbs.c have
# reg_user_mr_dmabuf; erdma/erdma_main.c has not. libbnxt_re: rdma-core, pull request 1373. Alibaba's mode:
# "Use eRDMA in ACK clusters". Length: no assignment in these drivers in Linux 6.12 and 7.2.
FAMILIES = (
    NicFamily("ConnectX", "15b3", ("mlx5_core",), "mlx5_ib", "mlx5", asks_peer_memory=True),
    NicFamily("ConnectX-3", "15b3", ("mlx4_core",), "mlx4_ib", "mlx4", asks_peer_memory=True),
    NicFamily("EFA", "1d0f", ("efa",), "efa", "efa", dkms=("efa",), is_plugin_only=True),
    # HewlettPackard/shs-cxi-driver, cray-cxi-driver.spec
    NicFamily("Slingshot", "17db", ("cxi_ss1",), "cxi_user", dkms=("cray-cxi-driver",), is_plugin_only=True),
    NicFamily(
        "Broadcom",
        "14e4",
        ("bnxt_en",),
        "bnxt_re",
        "bnxt_re",
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
        "1ded",
        ("erdma",),
        "erdma",
        "erdma",
        dkms=("erdma",),
        asks_peer_memory=True,
        no_dmabuf=(
            "The loaded driver of Alibaba Cloud's eRDMA (erdma) registers no DMA-BUF memory",
            "Install Alibaba's own eRDMA driver in its OFED mode, and load nvidia_peermem, which it can use",
        ),
    ),
    NicFamily(
        "Intel",
        "8086",
        ("ice", "idpf"),
        "irdma",
        "irdma",
        dkms=("irdma", "ice"),
        shows_dmabuf_length=False,
        no_dmabuf=(
            "Intel's irdma registers DMA-BUF memory only in newer releases",
            "Update irdma with the kernel or Intel's driver, and rdma-core",
        ),
    ),
    NicFamily(
        "AMD Pensando",
        "1dd8",
        ("ionic",),
        "ionic_rdma",
        "ionic",
        dkms=("ionic_rdma", "ionic-rdma"),
        no_dmabuf=(
            "The driver of AMD Pensando NICs (ionic_rdma) that is loaded registers no DMA-BUF memory",
            "Use the ionic_rdma of a newer kernel, which does, or update AMD's driver, and rdma-core",
        ),
    ),
    NicFamily("MANA", "1414", ("mana",), "mana_ib", "mana", shows_dmabuf_length=False),
)
EFA, SLINGSHOT = FAMILIES[2], FAMILIES[3]
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
VERBS_MODULES = tuple(family.rdma_module for family in FAMILIES if family.provider)
# Of the families, and of NICs that gdrtop meets only in logs and recordings.
PROVIDERS = (
    *(family.provider for family in FAMILIES if family.provider),
    *("cxgb4", "hfi1", "hns", "ocrdma", "qedr", "rxe", "siw", "usnic"),
)
