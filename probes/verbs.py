"""The DMA-BUF probe that NCCL uses: does this RDMA device take dma-buf memory regions?"""

from __future__ import annotations

from probes.unknown import Maybe, Reason, Unknown


def probe_dmabuf(device: str) -> Maybe[int]:
    """The errno that `ibv_reg_dmabuf_mr(pd, 0, 0, 0, -1, 0)` gives on the device.

    EOPNOTSUPP and EPROTONOSUPPORT: kernel or driver cannot; anything else, normally EBADF: can
    (NCCL src/transport/net_ib/gdr.cc).
    """
    return Unknown(Reason.NOT_THERE, "libibverbs.so.1")
