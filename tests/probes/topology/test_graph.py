"""Routes are the shortest ones, through parts of the given kinds alone."""

import networkx

from probes.topology.graph import HOST_BRIDGE, NUMA_NODE, ROOT_PORT, Parts


def test_a_route_is_the_shortest_one_through_these_parts() -> None:
    parts = Parts()
    for number in range(6):  # a ring of NUMA nodes
        parts.add(f"NUMA {number}", kind=NUMA_NODE)
        parts.add(f"pci{number}", kind=HOST_BRIDGE)
        parts.join(f"pci{number}", f"NUMA {number}")
    for number in range(6):
        parts.join(f"NUMA {number}", f"NUMA {(number + 1) % 6}")
    whole = parts.graph()
    parts.add("bridge in between", kind=ROOT_PORT)
    parts.join("pci0", "bridge in between")
    parts.join("bridge in between", "pci3")
    for a in whole:
        for b in whole:
            route = parts.shortest(a, b, (HOST_BRIDGE, NUMA_NODE))
            assert networkx.is_path(whole, route)
            assert (route[0], route[-1]) == (a, b)
            assert len(route) == networkx.shortest_path_length(whole, a, b) + 1
