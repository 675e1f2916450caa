"""What a NicClusterPolicy, configurations of RDMA device plugins, SR-IOV policies and networks give to pods.

Sources: Mellanox/network-operator v26.7.0, api/v1alpha1/nicclusterpolicy_types.go; Mellanox/
k8s-rdma-shared-dev-plugin pkg/resources/resources_manager.go, server.go; k8snetworkplumbingwg/
sriov-network-device-plugin README, sriov-network-operator api/v1; NVIDIA doca-driver-build,
entrypoint/internal/config; k8snetworkplumbingwg/multus-cni docs/quickstart.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from probes.base.text import did_you_mean, join_limited, parse_json, printable
from probes.base.unknown import known
from probes.facts.rdma.roce import netdevs_of
from probes.queries.pcie_paths import functions_of
from probes.setup.env.assignments import Problem, problem_at
from probes.setup.env.container import Container
from probes.setup.env.yaml_tree import (
    List,
    Mapping,
    Scalar,
    Value,
    YamlError,
    count_of,
    flag_at,
    map_at,
    maps_at,
    read_yaml,
    text_at,
    texts_at,
    value_at,
)
from probes.snapshot.examination import Examination

_POLICY = "nic-cluster-policy"
_SHARED, _SRIOV = "rdmaSharedDevicePlugin", "sriovDevicePlugin"
_LISTS = {"configList": _SHARED, "resourceList": _SRIOV}
KINDS = (
    *("NicClusterPolicy", "NicNodePolicy", "SriovNetworkNodePolicy", "NetworkAttachmentDefinition"),
    *("SriovIBNetwork", "SriovNetwork"),
)
_PARTS = (
    *("ofedDriver", _SHARED, _SRIOV, "secondaryNetwork", "nvIpam", "ibKubernetes", "nicFeatureDiscovery"),
    *("nicConfigurationOperator", "docaTelemetryService", "spectrumXOperator", "nodeAffinity", "tolerations"),
    *("deploymentNodeAffinity",),
)
_SELECTORS = {
    _SHARED: ("vendors", "deviceIDs", "drivers", "ifNames", "linkTypes"),
    _SRIOV: ("vendors", "devices", "drivers", "pfNames", "rootDevices", "linkTypes", "pciAddresses"),
}
_OFED_VARIABLES = (
    *("UNLOAD_STORAGE_MODULES", "ENABLE_NFSRDMA", "CREATE_IFNAMES_UDEV", "RESTORE_DRIVER_ON_POD_TERMINATION"),
    *("UNLOAD_THIRD_PARTY_RDMA_MODULES", "STORAGE_MODULES", "THIRD_PARTY_RDMA_MODULES", "ENTRYPOINT_DEBUG"),
    *("SKIP_PREFLIGHT_CHECKS", "NVIDIA_NIC_DRIVERS_INVENTORY_PATH", "DEBUG_SLEEP_SEC_ON_EXIT", "USE_DKMS"),
)
_SHARED_NAME = re.compile(r"[a-zA-Z0-9_]{1,63}")
_ID = re.compile(r"[0-9a-f]{4}")
_PLACES = re.compile(r"\$|\{\{|\{%")
_PKEY = re.compile(r"0x[0-9a-fA-F]{1,4}")
_MOST_ENTRIES = 64


def is_plugin_config(text: str) -> bool:
    """Return whether a text is the configuration of a device plugin for NICs."""
    return text.lstrip().startswith("{") and any(f'"{name}"' in text for name in _LISTS)


def is_values(mapping: Mapping) -> bool:
    """Return whether a map is values of the Network Operator's chart."""
    parts = [map_at(mapping, part) for part in ("ofedDriver", _SHARED, _SRIOV)]
    return "apiVersion" not in mapping.items and any("deploy" in part.items for part in parts)


def of_network_operator(
    whole: Mapping, examination: Examination, is_template: bool = False
) -> Iterator[Problem]:
    """Judge one object; of a template, JSON that does not parse may be right when it is filled in."""
    kind, spec = text_at(whole, "kind"), map_at(whole, "spec")
    if kind in ("NicClusterPolicy", "NicNodePolicy"):
        yield from _of_policy(whole, spec, kind)
    elif kind == "SriovNetworkNodePolicy":
        yield from _of_sriov_policy(spec)
    elif kind == "NetworkAttachmentDefinition":
        yield from _of_attachment(spec, is_template)
    elif kind == "SriovIBNetwork":
        yield from _of_pkey(spec, "pKey")
    elif is_values(whole):
        for part in (_SHARED, _SRIOV):
            entries = maps_at(map_at(whole, part), "resources")[:_MOST_ENTRIES]
            yield from _of_matches(part, [_folded(entry) for entry in entries], examination)
    for place in _configs(whole):
        yield from _of_config(place, examination, is_template)


def _of_policy(whole: Mapping, spec: Mapping, kind: str) -> Iterator[Problem]:
    name = text_at(whole, "metadata", "name")
    if kind == "NicClusterPolicy" and name and name != _POLICY and "$" not in name:
        yield problem_at(whole.line, "policy-name", name=printable(name, 64))
    for part, setting in spec.items.items():
        if part not in _PARTS and (near := did_you_mean(part, _PARTS, 0.85)):
            yield problem_at(setting.line, "policy-field", name=printable(part, 64), near=near)
    if "ofedDriver" not in spec.items:
        yield problem_at(spec.line, "policy-keeps-host-driver")
    driver = map_at(spec, "ofedDriver")
    for entry in maps_at(driver, "env"):
        variable, value = text_at(entry, "name"), value_at(entry, "value")
        if isinstance(value, Scalar) and not (value.is_text or value.is_null):
            shown = printable(value.text, 32)
            yield problem_at(value.line, "value-is-no-string", name=printable(variable, 64), value=shown)
        if variable not in _OFED_VARIABLES and (near := did_you_mean(variable, _OFED_VARIABLES, 0.8)):
            yield problem_at(entry.line, "ofed-variable", name=printable(variable, 64), near=near)
    if "nvIpam" in spec.items and "secondaryNetwork" not in spec.items:
        yield problem_at(spec.items["nvIpam"].line, "ipam-without-network")
    for part in (_SHARED, _SRIOV):
        if part in spec.items and not text_at(spec, part, "config"):
            yield problem_at(spec.items[part].line, "plugin-without-config", plugin=part)


def _configs(whole: Mapping) -> Iterator[Scalar]:
    """Yield the configurations of device plugins: in a policy, or in a ConfigMap."""
    spec = map_at(whole, "spec")
    places = [value_at(map_at(spec, part), "config") for part in (_SHARED, _SRIOV)]
    for value in places:
        if isinstance(value, Scalar):
            yield value
    for data in map_at(whole, "data").items.values():
        if isinstance(data, Scalar) and is_plugin_config(data.text):
            yield data


def _entries(config: Scalar) -> tuple[str, list[Mapping]]:
    """Return which plugin reads a configuration, and its resources; lines are those of the file."""
    try:
        documents: list[Value] = read_yaml(config.text)
    except YamlError:
        return "", []
    document = documents[0] if documents else None
    if not isinstance(document, Mapping):
        return "", []
    shift = config.line - ("\n" not in config.text)
    for name, plugin in _LISTS.items():
        if name in document.items:
            entries = maps_at(document, name)[:_MOST_ENTRIES]
            return plugin, [_folded(entry, shift) for entry in entries]
    return "", []


def _folded(entry: Mapping, shift: int = 0) -> Mapping:
    """Return a resource with its keys in lower case, because encoding/json of Go ignores the case."""
    folded = Mapping(entry.line + shift)
    for key, value in entry.items.items():
        inner = value.items[0] if isinstance(value, List) and value.items else value
        is_map = key.lower() == "selectors" and isinstance(inner, Mapping)
        folded.items[key.lower()] = _folded(inner, shift) if is_map and isinstance(inner, Mapping) else value
    return folded


def _of_config(config: Scalar, examination: Examination, is_template: bool) -> Iterator[Problem]:
    is_json = isinstance(parse_json(config.text), dict)
    if not config.text.strip() or _PLACES.search(config.text) or (is_template and not is_json):
        return
    if not is_json:
        yield problem_at(config.line, "config-is-no-json")
        return
    plugin, entries = _entries(config)
    if not entries:
        yield problem_at(config.line, "config-without-resource", lists=" or ".join(_LISTS))
        return
    seen: set[str] = set()
    for entry in entries:
        name = text_at(entry, "resourcename")
        yield from _of_entry(plugin, entry, printable(name, 64))
        if name in seen:
            yield problem_at(entry.line, "resource-twice", name=printable(name, 64))
        seen.add(name)
    yield from _of_matches(plugin, entries, examination)


def _selectors_of(plugin: str, entry: Mapping) -> Mapping:
    """Return the selectors; Helm values, and the deprecated `devices`, have them in the resource itself."""
    selectors = entry.items.get("selectors")
    if isinstance(selectors, Mapping):
        return selectors
    names = entry.items.get("devices") if plugin == _SHARED else None
    return entry if names is None else Mapping(entry.line, {**entry.items, "ifnames": names})


def _of_entry(plugin: str, entry: Mapping, name: str) -> Iterator[Problem]:
    line = entry.line
    if plugin == _SHARED:
        if not _SHARED_NAME.fullmatch(name):
            yield problem_at(line, "resource-name", name=name)
        if not count_of(value_at(entry, "rdmahcamax")):
            yield problem_at(line, "resource-without-count", name=name)
        has_selectors, has_devices = bool(map_at(entry, "selectors").items), "devices" in entry.items
        if has_selectors == has_devices:
            which = "both selectors and devices" if has_devices else "neither selectors nor devices"
            yield problem_at(line, "resource-selection", name=name, which=which)
    selectors = _selectors_of(plugin, entry)
    if plugin == _SRIOV and not (flag_at(entry, "isrdma") or flag_at(selectors, "isrdma")):
        yield problem_at(line, "resource-without-rdma", name=name)
    if plugin == _SRIOV and "vfio-pci" in texts_at(selectors, "drivers"):
        yield problem_at(line, "resource-of-vfio", name=name)
    if not isinstance(entry.items.get("selectors"), Mapping):
        return
    known_names = {name.lower() for name in (*_SELECTORS[plugin], "isRdma")}
    for key in selectors.items:
        if key not in known_names:
            its = ", ".join(_SELECTORS[plugin])
            yield problem_at(line, "selector-unknown", name=printable(key, 32), known=its)
    for key in ("vendors", "deviceIDs", "devices"):
        for number in texts_at(selectors, key.lower()) if key in _SELECTORS[plugin] else ():
            if not _ID.fullmatch(number):
                yield problem_at(line, "selector-is-no-id", name=key, number=printable(number, 32))


def _of_matches(plugin: str, entries: Sequence[Mapping], examination: Examination) -> Iterator[Problem]:
    """Compare selectors with the NICs of this node; for an SR-IOV plugin, with their names only."""
    functions = functions_of(examination)
    devices = examination.topology.devices.values()
    nics: list[tuple[str, str, set[str]]] = []
    for device in devices:
        function = functions.get(known(device.bdf, ""))
        if function is not None:
            ids = [f"{known(number, 0):04x}" for number in (function.vendor_id, function.device_id)]
            nics.append((ids[0], ids[1], {name for port in device.ports for name in netdevs_of(port)}))
    for entry in entries if nics else ():
        selectors = _selectors_of(plugin, entry)
        vendors, names = texts_at(selectors, "vendors"), texts_at(selectors, "ifnames")
        numbers = texts_at(selectors, "deviceids") if plugin == _SHARED else []
        if plugin == _SRIOV:
            names = [name.partition("#")[0] for name in texts_at(selectors, "pfnames")]
        chosen = [
            nic
            for nic in nics
            if (not vendors or nic[0] in vendors)
            and (not numbers or nic[1] in numbers)
            and (not names or nic[2] & set(names))
        ]
        resource = printable(text_at(entry, "resourcename") or text_at(entry, "name"), 64)
        if (vendors or numbers or names) and not chosen:
            have = sorted({f"{vendor}:{number}" for vendor, number, _ in nics})
            have += sorted(name for _, _, found in nics for name in found)
            yield problem_at(entry.line, "selectors-match-nothing", name=resource, have=join_limited(have, 8))


def _of_sriov_policy(spec: Mapping) -> Iterator[Problem]:
    if flag_at(spec, "isRdma") is not True:
        name = printable(text_at(spec, "resourceName"), 64)
        yield problem_at(spec.line, "functions-without-rdma", name=name)
    elif text_at(spec, "deviceType") == "vfio-pci":
        yield problem_at(spec.line, "functions-of-vfio")
    if count_of(value_at(spec, "numVfs")) == 0:
        yield problem_at(spec.line, "no-functions")


def _of_attachment(spec: Mapping, is_template: bool) -> Iterator[Problem]:
    config = value_at(spec, "config")
    if not isinstance(config, Scalar) or _PLACES.search(config.text) or not config.text.strip():
        return
    found = parse_json(config.text)
    if not isinstance(found, dict) and is_template:
        return
    if not isinstance(found, dict):
        yield problem_at(config.line, "network-is-no-json")
        return
    try:
        documents = read_yaml(config.text)
    except YamlError:
        return
    document = documents[0] if documents and isinstance(documents[0], Mapping) else Mapping(config.line)
    plugins = maps_at(document, "plugins") or [document]
    types = [text_at(plugin, "type") for plugin in plugins]
    has_addresses = bool(map_at(plugins[0], "ipam").items)
    if types[0] in ("sriov", "macvlan", "ipvlan", "host-device") and not has_addresses:
        yield problem_at(config.line, "network-without-addresses", kind=types[0])
    if types[0] in ("sriov", "ib-sriov", "host-device") and "rdma" not in types:
        yield problem_at(config.line, "network-without-rdma")
    for plugin in plugins:
        for problem in _of_pkey(plugin, "pkey"):
            yield replace(problem, line=config.line)


def _of_pkey(mapping: Mapping, key: str) -> Iterator[Problem]:
    value = value_at(mapping, key)
    if isinstance(value, Scalar) and value.text and "$" not in value.text and not _PKEY.fullmatch(value.text):
        yield problem_at(value.line, "partition-key", key=printable(value.text, 32))


def offered(objects: Iterable[Mapping]) -> set[str]:
    """Return the resources that the objects of a file offer, with their prefixes."""
    names: set[str] = set()
    for whole in objects:
        if text_at(whole, "kind") == "SriovNetworkNodePolicy":
            names.add(f"openshift.io/{text_at(whole, 'spec', 'resourceName')}")
        for config in _configs(whole):
            plugin, entries = _entries(config)
            prefix = "rdma" if plugin == _SHARED else "nvidia.com"
            for entry in entries:
                own = text_at(entry, "resourceprefix") or prefix
                names.add(f"{own}/{text_at(entry, 'resourcename')}")
    return names


def of_requests(containers: Iterable[Container], objects: Sequence[Mapping]) -> Iterator[Problem]:
    """Find resources that pods request under another name than the file's policies offer."""
    names = offered(objects)
    prefixes = {name.partition("/")[0] for name in names}
    for container in containers:
        for name in container.resources:
            if name.partition("/")[0] in prefixes and name not in names:
                offers = printable(join_limited(sorted(names)), 256)
                yield problem_at(
                    container.line,
                    "request-without-offer",
                    subject=container.subject,
                    name=name,
                    offered=offers,
                )
