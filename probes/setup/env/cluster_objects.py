"""Objects of Kubernetes in a file that decide about devices: which maps are some, and what they mean."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from probes.setup.env import device_claims, gpu_operators, network_operators
from probes.setup.env.assignments import ParsedFile, Problem
from probes.setup.env.yaml_tree import Mapping, Scalar, map_at, text_at
from probes.snapshot.examination import Examination

_MOST_OBJECTS = 64
_GROUPS = ("nvidia.com/", "mellanox.com/", "sriovnetwork.openshift.io/", "k8s.cni.cncf.io/")


def objects_of(mappings: Sequence[Mapping]) -> tuple[Mapping, ...]:
    """Return the objects of operators, plugins' ConfigMaps, values of charts, and claims and slices."""
    found: list[Mapping] = []
    inside: set[int] = set()
    for mapping in mappings:
        kind, group = text_at(mapping, "kind"), text_at(mapping, "apiVersion")
        is_object = kind in (*gpu_operators.KINDS, *network_operators.KINDS) and group.startswith(_GROUPS)
        is_config = kind == "ConfigMap" and any(
            isinstance(value, Scalar) and network_operators.is_plugin_config(value.text)
            for value in map_at(mapping, "data").items.values()
        )
        is_values = gpu_operators.is_values(mapping) or network_operators.is_values(mapping)
        if is_object or is_config or (is_values and id(mapping) not in inside):
            found.append(mapping)
            inside.add(id(map_at(mapping, "spec")))
    # Without some of a node's slices, devices would seem to be missing.
    return (*found[:_MOST_OBJECTS], *filter(device_claims.is_of_devices, mappings))


def problems_of_objects(parsed: ParsedFile, examination: Examination) -> Iterator[Problem]:
    """Judge the objects of a file, and the names by which its pods request what they offer."""
    objects = tuple(each for each in parsed.objects if not device_claims.is_of_devices(each))
    for whole in objects:
        if text_at(whole, "kind") in gpu_operators.KINDS or gpu_operators.is_values(whole):
            yield from gpu_operators.of_gpu_operator(whole, objects, examination)
        else:
            yield from network_operators.of_network_operator(whole, examination, parsed.is_template)
    yield from network_operators.of_requests(parsed.containers, objects)
    yield from device_claims.of_devices(parsed.objects[len(objects) :], examination)
