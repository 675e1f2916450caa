"""How UCX and the engines that move KV caches choose between the paths to GPU memory.

Sources: openucx/ucx docs/source/faq.md; kvcache-ai/Mooncake mooncake-common/src/environ.cpp and
docs/source/getting_started/build.md.
"""

from __future__ import annotations

PEERMEM_VARIABLE = "WITH_NVIDIA_PEERMEM"
_RDMA_TRANSPORTS = ("rc", "ud", "dc", "ib", "srd", "all")
_TRUE = ("1", "true", "on", "yes")
_FIRST_AT_RUN_TIME = (0, 3, 11)  # earlier, it was an option of the build
_DMABUF_BY_DEFAULT = (0, 3, 11)  # only this one


def excludes_cuda(value: str) -> bool:
    """Say whether a value of UCX_TLS leaves out the transports for GPU memory."""
    names = [name.strip() for name in value.removeprefix("^").split(",")]
    if value.startswith("^"):
        return any(name in ("cuda", "cuda_copy") for name in names)
    has_cuda = any(name == "all" or name.lstrip("\\").startswith(("cuda", "gdr")) for name in names)
    return bool(value) and not has_cuda


def excludes_rdma(value: str) -> bool:
    """Say whether a value of UCX_TLS names transports, and none for RDMA."""
    words = value.split(",")
    is_list = bool(value) and not value.startswith("^")
    return is_list and not any(word.startswith(_RDMA_TRANSPORTS) for word in words)


def mooncake_uses_peermem(version: tuple[int, ...] | None, value: str | None) -> bool:
    """Say whether Mooncake needs nvidia_peermem; without a version, as nearly all releases do.

    `value`: of WITH_NVIDIA_PEERMEM, which is read since 0.3.11; its default is true, but for 0.3.11.
    """
    if version is not None and version < _FIRST_AT_RUN_TIME:
        return True
    if value is not None:
        return value.strip().lower() in _TRUE
    return version != _DMABUF_BY_DEFAULT
