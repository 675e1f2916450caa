"""Containers with GPUs in YAML: pods and templates of pods of Kubernetes, and services of Compose.

Sources: Kubernetes API core/v1 (Container, Volume), resource.k8s.io/v1 (DeviceRequest); Compose
Specification, services and deploy.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from probes.base.text import join_limited, printable
from probes.facts.system.device_nodes import INFINIBAND
from probes.setup.env.container import GPU, MANY, Container, Network, Syntax, is_gpu_class
from probes.setup.env.yaml_tree import (
    List,
    Scalar,
    Value,
    count_of,
    flag_at,
    items_at,
    map_at,
    maps_at,
    text_at,
    texts_at,
    value_at,
)
from probes.setup.env.yaml_tree import Mapping as YamlMap

_SHM = "/dev/shm"
_SMALL_SHM = 64 << 20
_SIZE = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,6})?) ?([kmgt]?)i?b?", re.IGNORECASE)
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_LOCKS = frozenset(("IPC_LOCK", "CAP_IPC_LOCK", "ALL"))
_LONGEST_NAME = 253  # of an object or a resource
GKE = "networking.gke.io/interfaces"  # also brings the RDMA device of each interface
ATTACHED = ("k8s.v1.cni.cncf.io/networks", "v1.multus-cni.io/default-network", GKE)
INJECTS = "NVIDIA_MOFED"  # nvidia-container-toolkit passes in /dev/infiniband if it is "enabled"
# A container with one of these variables is meant to use RDMA.
RDMA_VARIABLE = re.compile(
    r"NCCL_IB_(?!DISABLE)|NCCL_NET(?:_GDR|$)|NVSHMEM_(?:HCA|IB)|UCX_NET_DEVICES|FI_PROVIDER"
)


def is_seen(source: str, target: str) -> bool:
    """Return whether a mount of the host's directory `source` shows /dev/infiniband at its usual place."""
    source, target = source.rstrip("/"), target.rstrip("/")
    if source == INFINIBAND or source.startswith(f"{INFINIBAND}/uverbs"):
        return target in ("", source)
    return source == target == "/dev"


def is_enough_shm(size: str) -> bool:
    """Return whether a size of /dev/shm is larger than the default; one that gdrtop cannot read counts."""
    match = _SIZE.fullmatch(size.strip())
    return match is None or float(match[1]) * _UNITS[match[2].lower()] > _SMALL_SHM


def locks_by_capability(names: Iterable[str]) -> bool:
    """Return whether capabilities lift the limit of locked memory."""
    return bool(_LOCKS & {name.upper() for name in names})


def requests_of(claim: YamlMap) -> YamlMap:
    """Return the requests and constraints of a ResourceClaim, or of a template of one."""
    spec = map_at(claim, "spec")
    inner = map_at(spec, "spec")
    return map_at(inner if inner.items else spec, "devices")


def options_of(request: YamlMap) -> list[YamlMap]:
    """Return where a request may name its device class, by version of the API."""
    return [map_at(request, "exactly"), request, *maps_at(request, "firstAvailable")]


def classes_of_claims(mappings: Iterable[YamlMap]) -> dict[str, list[tuple[str, int | None]]]:
    """Return the device classes, with the number of devices, of every ResourceClaim and its template."""
    found: dict[str, list[tuple[str, int | None]]] = {}
    for mapping in mappings:
        if text_at(mapping, "kind") not in ("ResourceClaim", "ResourceClaimTemplate"):
            continue
        for request in maps_at(requests_of(mapping), "requests"):
            for option in options_of(request):
                if name := text_at(option, "deviceClassName"):
                    count = value_at(option, "count")
                    number = 1 if count is None else count_of(count)
                    number = MANY if text_at(option, "allocationMode") == "All" else number
                    key = text_at(mapping, "metadata", "name")
                    found.setdefault(key, []).append((name[:_LONGEST_NAME], number))
    return found


def of_pod(
    mapping: YamlMap, claims: Mapping[str, list[tuple[str, int | None]]], is_partial: bool = False
) -> Iterator[Container]:
    """Yield the containers with GPUs of a pod, or of a template of pods."""
    pod = map_at(mapping, "spec")
    containers = maps_at(pod, "containers")
    annotations = map_at(mapping, "metadata", "annotations").items
    network = Network.OWN
    if flag_at(pod, "hostNetwork"):
        network = Network.HOST
    elif any(name in annotations for name in ATTACHED):
        network = Network.ATTACHED
    volumes = {text_at(volume, "name"): volume for volume in maps_at(pod, "volumes")}
    sources = {text_at(claim, "name"): claim for claim in maps_at(pod, "resourceClaims")}
    mounting: dict[int, bool] = {
        id(container): _mounts(container, volumes, INFINIBAND) for container in containers
    }
    for container in containers:
        resources = map_at(container, "resources")
        asked = {**map_at(resources, "requests").items, **map_at(resources, "limits").items}
        gpus = [count_of(value) for name, value in asked.items() if GPU.fullmatch(name)]
        names = [name for name, value in asked.items() if "/" in name and count_of(value) != 0]
        for claim in maps_at(resources, "claims"):
            source = sources.get(text_at(claim, "name"), claim)
            key = text_at(source, "resourceClaimTemplateName") or text_at(source, "resourceClaimName")
            classes = claims.get(key)
            names.extend([name for name, _ in classes] if classes else [f"claim {text_at(claim, 'name')}"])
            gpus.extend(count for name, count in classes or () if is_gpu_class(name))
        if not gpus or gpus == [0]:
            continue
        security = map_at(container, "securityContext")
        others = [text_at(each, "name") or "another" for each in containers if mounting[id(each)]]
        elsewhere = ""
        paths = (text_at(volume, "hostPath", "path") for volume in volumes.values())
        if not mounting[id(container)] and (others or any(path.startswith(INFINIBAND) for path in paths)):
            where = f"only container {join_limited(others)} mounts it" if others else "no container mounts it"
            elsewhere = f"The pod has a volume of {INFINIBAND}, but {where}."
        yield Container(
            subject=f"Container {printable(text_at(container, 'name'), 63)}",
            line=container.line,
            syntax=Syntax.KUBERNETES,
            gpus=None if None in gpus else sum(filter(None, gpus)),
            resources=tuple(
                printable(name, _LONGEST_NAME)
                for name in names
                if not (GPU.fullmatch(name) or is_gpu_class(name))
            ),
            has_devices=GKE in annotations or _variable(container, INJECTS) == "enabled",
            mounts_files=mounting[id(container)],
            is_privileged=flag_at(security, "privileged") is True,
            locks_memory=locks_by_capability(texts_at(map_at(security, "capabilities"), "add")),
            network=network,
            has_shm=flag_at(pod, "hostIPC") is True or _mounts(container, volumes, _SHM),
            elsewhere=printable(elsewhere, 256),
            is_partial=is_partial,
        )


def _mounts(container: YamlMap, volumes: Mapping[str, YamlMap], wanted: str) -> bool:
    """Return whether a container mounts /dev/infiniband of the host, or anything at /dev/shm."""
    for mount in maps_at(container, "volumeMounts"):
        target, volume = text_at(mount, "mountPath"), volumes.get(text_at(mount, "name"))
        if wanted == _SHM and target.rstrip("/") == _SHM:
            return True
        if wanted == INFINIBAND and volume is not None:
            source = text_at(volume, "hostPath", "path")
            if source and is_seen(source, target):
                return True
    return False


def _variable(container: YamlMap, name: str) -> str:
    return next(
        (text_at(entry, "value") for entry in maps_at(container, "env") if text_at(entry, "name") == name), ""
    )


def of_compose(document: Value, is_partial: bool = False) -> Iterator[Container]:
    """Yield the services with GPUs of a Compose file."""
    if not isinstance(document, YamlMap):
        return
    for name, service in map_at(document, "services").items.items():
        if isinstance(service, YamlMap) and (gpus := _gpus_of(service)) != 0:
            yield _service(name, service, gpus, is_partial)


def _service(name: str, service: YamlMap, gpus: int | None, is_partial: bool) -> Container:
    devices = texts_at(service, "devices") + [text_at(each, "source") for each in maps_at(service, "devices")]
    volumes = [volume.split(":") for volume in texts_at(service, "volumes")]
    pairs = [(parts[0], parts[1]) for parts in volumes if len(parts) > 1]
    pairs += [(text_at(each, "source"), text_at(each, "target")) for each in maps_at(service, "volumes")]
    mounts = any(is_seen(source, target) for source, target in pairs if source)
    rules = " ".join(texts_at(service, "device_cgroup_rules"))
    variables = _environment(service)
    limit = value_at(map_at(service, "ulimits"), "memlock")
    limits = [text_at(limit, "soft"), text_at(limit, "hard")] if isinstance(limit, YamlMap) else []
    limits = [limit.text] if isinstance(limit, Scalar) else limits
    locks = bool(limits) and all(each in ("-1", "unlimited") or "$" in each for each in limits)
    mode, shm = text_at(service, "network_mode"), text_at(service, "shm_size")
    by_capability = locks_by_capability(texts_at(service, "cap_add"))
    return Container(
        subject=f"Service {printable(name, 63)}",
        line=service.line,
        syntax=Syntax.COMPOSE,
        gpus=gpus,
        has_devices=any(device.startswith((INFINIBAND, "/dev:", "rdma")) for device in devices)
        or (mounts and ("a *:* " in rules or "231:" in rules))
        or variables.get(INJECTS) == "enabled",
        mounts_files=mounts,
        is_privileged=flag_at(service, "privileged") is True,
        locks_memory=locks or by_capability,
        network=network_of(mode, bool(value_at(service, "networks"))),
        has_shm=text_at(service, "ipc").startswith(("host", "container:", "service:"))
        or (bool(shm) and is_enough_shm(shm))
        or any(target.rstrip("/") == _SHM for _, target in pairs)
        or any(target.startswith(_SHM) for target in texts_at(service, "tmpfs")),
        expects_rdma=mounts or by_capability or any(RDMA_VARIABLE.match(each) for each in variables),
        is_partial=is_partial or "extends" in service.items or any("$" in device for device in devices),
    )


def network_of(mode: str, has_named: bool = False) -> Network:
    """Return the network of a container: a named one may be of a NIC (macvlan, SR-IOV)."""
    if mode == "host":
        return Network.HOST
    if has_named or mode not in ("", "bridge", "default", "none", "private", "pasta", "slirp4netns"):
        return Network.UNKNOWN
    return Network.OWN


def _environment(service: YamlMap) -> dict[str, str]:
    value = value_at(service, "environment")
    if isinstance(value, YamlMap):
        return {key: item.text if isinstance(item, Scalar) else "" for key, item in value.items.items()}
    entries = value.items if isinstance(value, List) else []
    pairs = (item.text.partition("=") for item in entries if isinstance(item, Scalar))
    return {name: text for name, _, text in pairs}


def _gpus_of(service: YamlMap) -> int | None:
    """Return the number of GPUs; None: unknown."""
    reserved = map_at(service, "deploy", "resources", "reservations")
    reserves = [
        request
        for request in maps_at(reserved, "devices")
        if "gpu" in texts_at(request, "capabilities") or text_at(request, "driver") == "nvidia"
    ]
    if requests := [*reserves, *maps_at(service, "gpus")]:
        return gpu_count(next(iter(texts_at(requests[0], "count")), ""), items_at(requests[0], "device_ids"))
    if text := text_at(service, "gpus"):
        return gpu_count(text)
    visible = _environment(service).get("NVIDIA_VISIBLE_DEVICES", "")
    return gpus_of(texts_at(service, "devices"), text_at(service, "runtime") == "nvidia", visible)


def gpus_of(devices: Iterable[str], is_nvidia: bool, visible: str) -> int | None:
    """Return the number of GPUs by CDI devices or NVIDIA's runtime; `visible`: NVIDIA_VISIBLE_DEVICES."""
    by_cdi = [device for device in devices if device.startswith("nvidia.com/gpu=")]
    if by_cdi:
        return MANY if by_cdi[0].endswith("=all") else len(by_cdi)
    return gpu_count(visible or "all") if is_nvidia and visible not in ("none", "void") else 0


def gpu_count(text: str, ids: object = None) -> int | None:
    """Return how many GPUs a request names: "all", a number, or a list; None: unknown."""
    if isinstance(ids, list) and ids:
        return len(ids)
    text = text.strip("\"' ").removeprefix("count=")
    if text in ("", "all", "-1"):
        return MANY
    if "$" in text or "{" in text:
        return None
    if re.fullmatch("[0-9]{1,4}", text):
        return int(text)
    return len(text.removeprefix("device=").strip("\"'").split(","))
