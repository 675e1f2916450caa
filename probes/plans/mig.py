"""What to know before turning MIG off: an instruction, never a command that gdrtop runs.

Turning it off deletes the node's partitions, and a node with MIG mostly has it on purpose. NVML,
nvmlDeviceSetMigMode: where a program uses the GPU, the new mode is pending until a reset.
"""

from __future__ import annotations

from collections.abc import Sequence

from probes.base.plan import Plan, instruction
from probes.facts.gpu.gpus import Gpu
from probes.queries.evidence_list import join_limited


def mig_off(gpus: Sequence[Gpu]) -> Plan:
    """Say how MIG is turned off where these GPUs are meant for training over several GPUs."""
    first = gpus[0].bdf
    named = join_limited(f"GPU{gpu.index}" for gpu in gpus)
    return Plan(
        "Turn MIG off, only if these GPUs are meant for training over several GPUs",
        (
            instruction(
                "Keep MIG where it is on purpose. On Kubernetes, mig-manager would turn it on again."
            ),
            instruction(f"Drain the node. Turning MIG off deletes the instances of {named}."),
            instruction(
                f"Run nvidia-smi -i {first} -mig 0, and the same for each GPU. On A100 a GPU reset follows. "
                "nvidia-smi -q -d MIG shows the current mode."
            ),
        ),
        reversible=False,
        disturbs="every job in an instance of these GPUs",
    )
