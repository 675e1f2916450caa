"""Who manages the memory of GPUs that share an address space with the CPU: Linux, or the driver (CDMM)."""

from __future__ import annotations

from probes.base.plan import Plan, instruction
from probes.base.unknown import known
from probes.checks.gpu.devices import bdfs_of, need_gpus, need_nvml
from probes.facts.gpu.gpus import MEMORY_MODE_PARAMETER, MemoryMode, gpu_numa_nodes, memory_mode
from probes.plans.common import REBOOT_ENDS_JOBS
from probes.queries.evidence_list import join_limited
from probes.queries.finding import Area, Evidence, Outcome, Severity, found, need, passed
from probes.queries.jobs import has_pods
from probes.snapshot.examination import Examination

AREA = Area("gpu")
_PARAMS = "/proc/driver/nvidia/params"


@AREA.check(
    "gpu-memory-in-kubernetes",
    Severity.NOTE,
    "Linux manages the GPUs' memory on a Kubernetes node",
    "NVIDIA, Understanding Memory Management on Hardware-Coherent Platforms, "
    "https://developer.nvidia.com/blog/understanding-memory-management-on-hardware-coherent-platforms/; "
    "NVIDIA driver 580 release notes, CDMM",
    ok="The driver manages the GPUs' memory, or this is not a Kubernetes node with Grace",
    impact="GPU memory counts as memory of the node. Pods and the page cache can fill it, and GPU jobs then "
    "run out of memory.",
)
def gpu_memory_in_kubernetes(examination: Examination) -> Outcome:
    """Find NUMA nodes of GPU memory where GPUs have C2C links and kubelet runs."""
    gpus = need_gpus(examination)
    joined = [gpu for gpu in gpus if need_nvml(gpu, gpu.c2c_links)]
    if not joined:
        return passed(Evidence("NVML", "no GPU has C2C links"))
    node = examination.node
    facts = need(node.gpus, "the NVIDIA driver")
    mode = need(memory_mode(facts.driver, node.numa), "the NUMA nodes")
    parameter = known(facts.driver.parameters, {}).get(MEMORY_MODE_PARAMETER, '""')
    shown = Evidence(_PARAMS, f"{MEMORY_MODE_PARAMETER}: {parameter}")
    if mode is MemoryMode.DRIVER or not has_pods(examination):
        return passed(shown, Evidence("/sys/devices/system/node", mode.value))
    nodes = join_limited(str(number) for number in gpu_numa_nodes(node.numa))
    return found(
        "Each GPU's memory is a NUMA node without CPUs. NVIDIA's GPU Operator selects CDMM instead since "
        "driver 580.",
        shown,
        Evidence("/sys/devices/system/node", f"memory without CPUs: NUMA {nodes}"),
        fix=Plan(
            "Let the driver manage GPU memory (CDMM)",
            (
                instruction(
                    "Write `options nvidia NVreg_CoherentGPUMemoryMode=driver` to a file in /etc/modprobe.d"
                ),
                instruction("Rebuild the initramfs, and reboot"),
            ),
            needs_reboot=True,
            disturbs=REBOOT_ENDS_JOBS,
            note="Programs that allocate GPU memory as a NUMA node (numactl --membind) then need cudaMalloc.",
        ),
        devices=bdfs_of(joined),
    )
