"""What a NicClusterPolicy, configurations of RDMA device plugins, SR-IOV policies and networks give to pods.

Sources: Mellanox/network-operator v26.7.0, api/v1alpha1/nicclusterpolicy_types.go; Mellanox/
k8s-rdma-shared-dev-plugin pkg/resources/resources_manager.go, server.go; k8snetworkplumbingwg/
sriov-network-device-plugin README, sriov-network-operator api/v1; NVIDIA doca-driver-build,
entrypoint/internal/config; k8snetworkplumbingwg/multus-cni docs/quickstart.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from probes.base.evidence import Severity
from probes.base.text import did_you_mean, join_limited, parse_json, printable
from probes.base.unknown import known
from probes.facts.rdma.roce import netdevs_of
from probes.queries.pcie_paths import functions_of
from probes.setup.env.assignments import Problem
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
        title = f"The operator ignores a NicClusterPolicy named {printable(name, 64)}"
        yield Problem(whole.line, Severity.WARNING, title, "It accepts one name only.", f"Name it {_POLICY}")
    for part, setting in spec.items.items():
        if part not in _PARTS and (near := did_you_mean(part, _PARTS, 0.85)):
            title = f"{printable(part, 64)} is not a field, so it is silently dropped{near}"
            yield Problem(setting.line, Severity.WARNING, title)
    if "ofedDriver" not in spec.items:
        title = "Without ofedDriver, the NICs keep the driver of the host"
        detail = "The kernel's own driver is enough for DMA-BUF; nvidia-peermem needs OFED."
        yield Problem(spec.line, Severity.NOTE, title, detail)
    driver = map_at(spec, "ofedDriver")
    for entry in maps_at(driver, "env"):
        variable, value = text_at(entry, "name"), value_at(entry, "value")
        if isinstance(value, Scalar) and not (value.is_text or value.is_null):
            shown = printable(variable, 64)
            title = f"The value of {shown} is not a string, so Kubernetes rejects the object"
            fix = f'Quote it: value: "{printable(value.text, 32)}"'
            yield Problem(value.line, Severity.CRITICAL, title, fix=fix)
        if variable not in _OFED_VARIABLES and (near := did_you_mean(variable, _OFED_VARIABLES, 0.8)):
            title = f"The OFED container does not read {printable(variable, 64)}{near}"
            yield Problem(entry.line, Severity.WARNING, title)
    if "nvIpam" in spec.items and "secondaryNetwork" not in spec.items:
        title = "nvIpam gives addresses to secondary networks, but secondaryNetwork is not set"
        detail = "Pods need Multus, from here or from the cluster, to attach a network of a NIC."
        yield Problem(spec.items["nvIpam"].line, Severity.NOTE, title, detail)
    for part in (_SHARED, _SRIOV):
        if part in spec.items and not text_at(spec, part, "config"):
            title = f"{part} has no config, so it offers no resource"
            yield Problem(spec.items[part].line, Severity.WARNING, title)


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
        title = "The plugin's config is not valid JSON, so the plugin does not start"
        yield Problem(config.line, Severity.CRITICAL, title, fix="Check it with jq: commas, quotation marks")
        return
    plugin, entries = _entries(config)
    if not entries:
        names = " or ".join(_LISTS)
        title = f"The plugin's config has no resource in {names}"
        yield Problem(config.line, Severity.CRITICAL, title, "The plugin offers nothing to pods.")
        return
    seen: set[str] = set()
    for entry in entries:
        name = text_at(entry, "resourcename")
        yield from _of_entry(plugin, entry, printable(name, 64))
        if name in seen:
            title = f"The resource {printable(name, 64)} is defined twice"
            yield Problem(entry.line, Severity.CRITICAL, title, "The plugin does not start.")
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
            title = f"The resource name “{name}” has characters other than letters, digits and “_”"
            yield Problem(line, Severity.CRITICAL, title, "The plugin does not start.", "Rename it")
        if not count_of(value_at(entry, "rdmahcamax")):
            title = f"rdmaHcaMax is not set for {name}, so no pod gets this resource"
            detail = "It is the number of containers that may share the NICs."
            yield Problem(line, Severity.CRITICAL, title, detail, 'Add "rdmaHcaMax": 63')
        has_selectors, has_devices = bool(map_at(entry, "selectors").items), "devices" in entry.items
        if has_selectors == has_devices:
            which = "both selectors and devices" if has_devices else "neither selectors nor devices"
            title = f"The resource {name} has {which}, so the plugin does not start"
            yield Problem(line, Severity.CRITICAL, title, fix="Use selectors only; devices is deprecated")
    selectors = _selectors_of(plugin, entry)
    if plugin == _SRIOV and not (flag_at(entry, "isrdma") or flag_at(selectors, "isrdma")):
        title = f"isRdma is not true for {name}, so pods get no RDMA device"
        detail = "They get the network interface, but no /dev/infiniband."
        yield Problem(line, Severity.WARNING, title, detail, 'Add "isRdma": true to its selectors')
    if plugin == _SRIOV and "vfio-pci" in texts_at(selectors, "drivers"):
        title = f"{name} selects functions with vfio-pci, which have no RDMA device"
        yield Problem(line, Severity.WARNING, title, fix="Select those with mlx5_core")
    if not isinstance(entry.items.get("selectors"), Mapping):
        return
    known_names = {name.lower() for name in (*_SELECTORS[plugin], "isRdma")}
    for key in selectors.items:
        if key not in known_names:
            title = f"The plugin does not know the selector {printable(key, 32)}, and ignores it"
            yield Problem(line, Severity.WARNING, title, f"It knows {', '.join(_SELECTORS[plugin])}.")
    for key in ("vendors", "deviceIDs", "devices"):
        for number in texts_at(selectors, key.lower()) if key in _SELECTORS[plugin] else ():
            if not _ID.fullmatch(number):
                title = f"The selector {key} “{printable(number, 32)}” matches no NIC"
                fix = "Write four hexadecimal digits in lower case, as lspci -n shows: 15b3"
                yield Problem(line, Severity.WARNING, title, fix=fix)


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
            title = f"The selectors of {resource} match no NIC of this node"
            yield Problem(entry.line, Severity.WARNING, title, f"This node has {join_limited(have, 8)}.")


def _of_sriov_policy(spec: Mapping) -> Iterator[Problem]:
    name = printable(text_at(spec, "resourceName"), 64)
    if flag_at(spec, "isRdma") is not True:
        title = f"isRdma is not true, so pods that request {name} get no RDMA device"
        detail = "They get the network interface, but no /dev/infiniband. The default is false."
        yield Problem(spec.line, Severity.WARNING, title, detail, "Set isRdma: true")
    elif text_at(spec, "deviceType") == "vfio-pci":
        title = "deviceType vfio-pci gives the functions to user space, so they have no RDMA device"
        yield Problem(spec.line, Severity.CRITICAL, title, fix="Set deviceType: netdevice")
    if count_of(value_at(spec, "numVfs")) == 0:
        yield Problem(spec.line, Severity.WARNING, "numVfs is 0, so there are no virtual functions to offer")


def _of_attachment(spec: Mapping, is_template: bool) -> Iterator[Problem]:
    config = value_at(spec, "config")
    if not isinstance(config, Scalar) or _PLACES.search(config.text) or not config.text.strip():
        return
    found = parse_json(config.text)
    if not isinstance(found, dict) and is_template:
        return
    if not isinstance(found, dict):
        yield Problem(config.line, Severity.CRITICAL, "The network's config is not valid JSON")
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
        title = f"The {types[0]} network has no ipam, so the interface gets no IP address"
        detail = "RoCE over routers needs the GID of an IPv4 or IPv6 address."
        fix = 'Add "ipam", such as whereabouts or nv-ipam'
        yield Problem(config.line, Severity.WARNING, title, detail, fix)
    if types[0] in ("sriov", "ib-sriov", "host-device") and "rdma" not in types:
        title = "Without the CNI plugin “rdma”, the RDMA device stays in the namespace of the host"
        detail = "Pods need it if “rdma system show” says exclusive, and do not if it says shared."
        yield Problem(config.line, Severity.NOTE, title, detail, 'Add {"type": "rdma"} to plugins')
    for plugin in plugins:
        for problem in _of_pkey(plugin, "pkey"):
            yield Problem(config.line, problem.severity, problem.title, problem.detail, problem.fix)


def _of_pkey(mapping: Mapping, key: str) -> Iterator[Problem]:
    value = value_at(mapping, key)
    if isinstance(value, Scalar) and value.text and "$" not in value.text and not _PKEY.fullmatch(value.text):
        title = f"The partition key “{printable(value.text, 32)}” is not a hexadecimal number"
        yield Problem(value.line, Severity.WARNING, title, fix='Write it as "0x8001"')


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
                title = f"{container.subject} requests {name}, which no policy in this file offers"
                detail = f"They offer {printable(join_limited(sorted(names)), 256)}."
                fix = "Use one name in both; a pod waits (Pending) for a resource that does not exist"
                yield Problem(container.line, Severity.WARNING, title, detail, fix)
