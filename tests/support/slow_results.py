"""Saved results of a simulated node, one of which is slow."""

from probes.bandwidth.model.planned_series import Pair
from probes.bandwidth.model.result import Result
from probes.facts.node import host_name
from tests.support.doctor import examination_of
from tests.support.sample_results import result

NODE = "hgx-h100"


def measured(
    gbps: float = 121.0, number: int = 0, nic: str = "", on: str = NODE, **changed: object
) -> Result:
    """A result of a GPU of a simulated node, by default over its nearest NIC, in loopback."""
    topology = examination_of(on).topology
    gpu = topology.gpus[number]
    pair = Pair(gpu.id, gpu.label, nic or topology.best_nics[gpu.id][0], 1)
    own = {"node": str(host_name(topology.node)), "origin": f"simulated {on}", "pair": pair}
    return result(gbps, **{**own, **changed})  # type: ignore[arg-type]
