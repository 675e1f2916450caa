"""How to get a test that is missing, or one that can use GPU memory.

gdrcopy README.md and nvbandwidth README.md: built from source, gdrcopy with its module gdrdrv;
NVIDIA/nccl-tests README.md.
"""

from __future__ import annotations

from probes.base.unknown import known
from probes.facts.system.platform import PlatformFacts
from probes.facts.system.tool_names import GDRCOPY, NCCL_TESTS, NVBANDWIDTH, PERFTEST
from probes.facts.system.tools import PERFTEST_BUILD
from probes.snapshot.examination import Examination

_WITH_CUDA = f"DOCA-OFED has one with CUDA; from source (github.com/linux-rdma/perftest): {PERFTEST_BUILD}"


def way_to_get(examination: Examination, tool: str, is_missing: bool = True) -> str:
    """How to install a tool, or one that can use GPU memory where only that is missing; a sentence."""
    if tool in PERFTEST and not is_missing:
        return _WITH_CUDA
    if tool in PERFTEST:
        return f"{_install(examination, 'perftest')} (host memory only); {_WITH_CUDA}"
    if tool in GDRCOPY:
        return "from NVIDIA's CUDA repository (gdrcopy-tests), or from source: github.com/NVIDIA/gdrcopy"
    if tool == NVBANDWIDTH:
        return "from source: github.com/NVIDIA/nvbandwidth"
    if tool in NCCL_TESTS:
        return (
            "from source: github.com/NVIDIA/nccl-tests, make, and its build/ programs copied to"
            " /usr/local/bin; NVIDIA's PyTorch containers have them"
        )
    return ""


def _install(examination: Examination, package: str) -> str:
    platform = examination.node.platform
    name = known(platform.distribution, "").lower() if isinstance(platform, PlatformFacts) else ""
    if any(word in name for word in ("ubuntu", "debian")):
        return f"apt install {package}"
    if any(word in name for word in ("red hat", "rocky", "alma", "centos", "fedora", "oracle")):
        return f"dnf install {package}"
    if "suse" in name:
        return f"zypper install {package}"
    return f"the distribution's package {package}"


def with_way_to_get(examination: Examination, tool: str, reason: str) -> str:
    """A reason, and how to get what it says is missing."""
    if f"{tool} is not installed" in reason:
        return f"{reason}; {way_to_get(examination, tool)}"
    if "built without CUDA" in reason or "built without DMA-BUF" in reason:
        return f"{reason}; {_WITH_CUDA}"
    return reason
