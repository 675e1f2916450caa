"""Claims of Dynamic Resource Allocation: whether their GPUs and NICs are near pairs, and what nodes offer.

Sources: Kubernetes API resource.k8s.io/v1 (DeviceConstraint, ResourceSlice; in v1beta1, a device has its
attributes below "basic"); "Standard Device Attributes for Dynamic Resource Allocation" (pcieRoot since 1.34).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import partial

from probes.base.evidence import Severity
from probes.base.frozen import frozen
from probes.base.grouping import grouped
from probes.base.text import join_limited, plural, printable
from probes.base.unknown import known
from probes.queries.pcie_paths import functions_of
from probes.setup.env.assignments import Problem, problem_at
from probes.setup.env.container import MANY, is_gpu_class, is_rdma
from probes.setup.env.yaml_containers import options_of, requests_of
from probes.setup.env.yaml_tree import Mapping, count_of, map_at, maps_at, text_at, texts_at, value_at
from probes.snapshot.examination import Examination

_SLICE = "ResourceSlice"
_KINDS = ("ResourceClaim", "ResourceClaimTemplate", _SLICE)
_ROOT = "resource.kubernetes.io/pcieRoot"
_WHOLE = 8  # GPUs are those of a whole node, where its own number is not known: no NIC is left to choose


@frozen
class _Offer:
    """The PCIe roots of a node's GPUs and RDMA NICs; "": the device has none that is published."""

    node: str
    gpus: tuple[str, ...]
    nics: tuple[str, ...]

    def has(self, gpus: int, nics: int) -> bool:
        """Return whether one root has so many of both."""
        of_gpus, of_nics = Counter(self.gpus), Counter(self.nics)
        return any(of_gpus[root] >= gpus and of_nics[root] >= nics for root in of_gpus if root)


def is_of_devices(mapping: Mapping) -> bool:
    """Return whether a map is a claim, a template of one, or a slice."""
    kind, group = text_at(mapping, "kind"), text_at(mapping, "apiVersion")
    return kind in _KINDS and group.startswith("resource.k8s.io/")


def of_devices(objects: Sequence[Mapping], examination: Examination) -> Iterator[Problem]:
    """Judge the claims, with the nodes whose slices are in the file, or else with this node."""
    slices = [each for each in objects if text_at(each, "kind") == _SLICE]
    offers = list(_published(slices)) if slices else [_of_node(examination)]
    offers = [offer for offer in offers if offer.gpus and offer.nics]
    if slices:
        paired = [(sum(root in offer.nics for root in offer.gpus if root), offer) for offer in offers]
        alike = grouped(((count, plural(len(offer.gpus), "GPU")), offer.node) for count, offer in paired)
        for (count, gpus), nodes in alike.items():
            id_, line = "slices-pairs" if count else "slices-without-pairs", _line_of(slices[0])
            yield problem_at(line, id_, nodes=join_limited(nodes), paired=count, gpus=gpus, root=_ROOT)
    for claim in objects:
        if text_at(claim, "kind") != _SLICE:
            yield from _of_claim(claim, offers)


def _published(slices: Sequence[Mapping]) -> Iterator[_Offer]:
    by_node = grouped((text_at(each, "spec", "nodeName"), map_at(each, "spec")) for each in slices)
    for node, specs in by_node.items():
        devices = [(text_at(spec, "driver"), device) for spec in specs for device in maps_at(spec, "devices")]
        gpus = [_root_of(device) for driver, device in devices if is_gpu_class(driver)]
        nics = [
            _root_of(device)
            for driver, device in devices
            if is_rdma(driver) is True and text_at(_attribute(device, f"{driver}/rdma"), "bool") != "false"
        ]
        yield _Offer(printable(node, 63) or "a node", tuple(gpus), tuple(nics))


def _attribute(device: Mapping, name: str) -> Mapping:
    attributes = map_at(map_at(device, "basic") if "basic" in device.items else device, "attributes")
    return map_at(attributes, name if name in attributes.items else name.rpartition("/")[2])


def _root_of(device: Mapping) -> str:
    root = _attribute(device, _ROOT)
    return text_at(root, "string") or next(iter(texts_at(root, "strings")), "")


def _of_node(examination: Examination) -> _Offer:
    """Return what drivers would publish here: the root of a NIC itself, not of its Data Direct function."""
    roots = {bdf: function.root for bdf, function in functions_of(examination).items()}
    topology = examination.topology
    gpus = (gpu.id for gpu in topology.gpus)
    nics = (known(device.bdf, "") for device in topology.devices.values())
    return _Offer("this node", *(tuple(roots.get(bdf, "") for bdf in bdfs) for bdfs in (gpus, nics)))


def _of_claim(claim: Mapping, offers: Sequence[_Offer]) -> Iterator[Problem]:
    devices, counts = requests_of(claim), {True: 0, False: 0}  # of GPUs, and of NICs
    kinds: dict[str, bool] = {}  # requests: of GPUs, or else of NICs
    for request in maps_at(devices, "requests"):
        for option in options_of(request):
            name = text_at(option, "deviceClassName")
            is_gpu = is_gpu_class(name)
            if is_gpu or is_rdma(name) is True:
                kinds[text_at(request, "name")] = is_gpu
                number = 1 if value_at(option, "count") is None else count_of(value_at(option, "count"))
                counts[is_gpu] += MANY if text_at(option, "allocationMode") == "All" else number or 0
                break
    if not (counts[True] and counts[False]):
        return
    title = f"{text_at(claim, 'kind')} {printable(text_at(claim, 'metadata', 'name'), 63)}".strip()
    many = ("all GPUs" if counts[True] >= MANY else plural(counts[True], "GPU")), plural(counts[False], "NIC")
    problem = partial(problem_at, _line_of(claim), claim=title, root=_ROOT, wanted=" and ".join(many))
    attributes = [
        text_at(constraint, "matchAttribute")
        for constraint in maps_at(devices, "constraints")
        if len({kinds[name] for name in _requests_in(constraint, kinds) if name in kinds}) == 2
    ]
    matched = next((name for name in (_ROOT, *attributes) if name in attributes), "")
    if not matched and counts[True] < max((len(offer.gpus) for offer in offers), default=_WHOLE):
        yield problem("claim-without-match")
    elif matched not in ("", _ROOT):
        severity = Severity.WARNING if matched.endswith("/pcieRoot") else None  # in another domain by mistake
        yield problem("claim-attribute", severity=severity, attribute=printable(matched, 253))
    elif matched and offers and not any(offer.has(counts[True], counts[False]) for offer in offers):
        yield problem("claim-without-root", nodes=join_limited(offer.node for offer in offers))
    elif matched:
        yield problem("claim-near")


def _requests_in(constraint: Mapping, all_of_them: Iterable[str]) -> Iterable[str]:
    return [name.partition("/")[0] for name in texts_at(constraint, "requests")] or all_of_them


def _line_of(whole: Mapping) -> int:
    return (value_at(whole, "kind") or whole).line
