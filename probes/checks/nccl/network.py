"""NCCL variables that choose the network: which transport, which NICs."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from functools import lru_cache, partial

from probes.base.evidence import Evidence
from probes.base.text import SHOWN, join_limited
from probes.base.unknown import Maybe, Reason, Unknown, first_unread, map_known
from probes.facts.rdma.devices import RdmaDevice, RdmaPort
from probes.facts.rdma.partition_keys import FULL_MEMBER, LAST_INDEX, KeyTable, is_full, shown
from probes.nccl.settings import (
    KEY_VARIABLES,
    HcaList,
    KeyForm,
    parse_hca_list,
    parse_key_setting,
    parse_number,
)
from probes.queries.finding import (
    NEEDS_NAMESPACE,
    RDMA_DEVICES,
    Area,
    Outcome,
    need,
    needs,
    pid_name,
    unknown,
)
from probes.queries.jobs import (
    ADAPTIVE_ROUTING,
    ONE_PATH,
    QUEUE_PAIRS,
    JobSettings,
    adaptive_routing,
    conclude,
    conclude_values,
    gpus_of,
    job_plan,
    jobs_of,
    more_paths,
    queue_pairs_per_connection,
    without_variable,
    world_size,
)
from probes.queries.modules import plugin_only_driver
from probes.queries.ports import key_table, same_cause_as_down
from probes.snapshot.examination import Examination
from probes.topology.nccl_paths import ORDER
from probes.topology.paths import Topology

AREA = Area("nccl", __package__)
HCA = "NCCL_IB_HCA"
_NO_RDMA = "NCCL will not use RDMA, so no GPUDirect RDMA. Single-node jobs are not affected."
_EXACT = "(a leading “=” makes names exact, as in NCCL_IB_HCA==mlx5_0,mlx5_1)"


@AREA.critical("nccl-ib-disabled", data_path=True)
def nccl_ib_disabled(examination: Examination) -> Outcome:
    """Find NCCL_IB_DISABLE=1, which NICs that need a network plugin do not follow."""
    is_followed = not plugin_only_driver(examination)
    return conclude_values(
        examination,
        "NCCL_IB_DISABLE",
        lambda value: "disables RDMA" if is_followed and parse_number(value) else None,
        _NO_RDMA,
    )


@AREA.critical("nccl-net-socket", data_path=True)
def nccl_net_socket(examination: Examination) -> Outcome:
    """Find NCCL_NET=Socket, in any case of letters as NCCL reads it."""
    return conclude_values(
        examination,
        "NCCL_NET",
        lambda value: "forces TCP" if value.lower() == "socket" else None,
        _NO_RDMA,
        "" if plugin_only_driver(examination) else "or set NCCL_NET=IB, which forbids TCP",
    )


def all_ports(examination: Examination) -> tuple[tuple[RdmaDevice, RdmaPort], ...]:
    """Return every RDMA port of the node with its device."""
    return tuple((device, port) for device in examination.topology.devices.values() for port in device.ports)


def _lists(examination: Examination) -> Iterator[tuple[JobSettings, HcaList]]:
    """Yield every NCCL_IB_HCA that is not empty; a network plugin does not read it."""
    if plugin_only_driver(examination):
        return
    for settings in jobs_of(examination).settings:
        value = settings.get(HCA)
        if value:
            yield settings, parse_hca_list(value)


def selected_ports(examination: Examination, hcas: HcaList) -> list[tuple[RdmaDevice, RdmaPort]]:
    """Return the ports that a list selects."""
    ports = all_ports(examination)
    places = _selected(tuple((device.name, port.number) for device, port in ports), hcas)
    return [ports[place] for place in places]


@lru_cache(maxsize=64)  # hundreds of processes have the same list
def _selected(ports: tuple[tuple[str, int], ...], hcas: HcaList) -> tuple[int, ...]:
    return tuple(place for place, port in enumerate(ports) if hcas.uses(*port))


def _conclude_lists(
    examination: Examination,
    evidence: list[Evidence],
    cause: str,
    fix: str,
    part_of: tuple[str, ...] = (),
    subjects: tuple[frozenset[str], ...] | None = None,
) -> Outcome:
    """Conclude like `conclude`, but as unknown if the NICs to compare a list with are unknown."""
    if any(True for _ in _lists(examination)) and need(examination.node.rdma, RDMA_DEVICES).devices_elsewhere:
        return unknown(NEEDS_NAMESPACE)
    plan = without_variable(HCA, fix)
    return conclude(jobs_of(examination), evidence, cause, fix=plan, part_of=part_of, subjects=subjects)


@AREA.critical("nccl-ib-hca-mismatch", data_path=True)
def nccl_ib_hca_mismatch(examination: Examination) -> Outcome:
    """Find lists that select no port at all."""
    names = join_limited(device.name for device, _ in all_ports(examination))
    evidence = [
        settings.evidence(HCA, "selects no port")
        for settings, hcas in _lists(examination)
        if not selected_ports(examination, hcas)
    ]
    return _conclude_lists(
        examination,
        evidence,
        f"This node has {names or 'no RDMA device'}. Names change when a card is moved, and a space counts as"
        " part of a name.",
        f"or list NICs on this node {_EXACT}",
    )


@AREA.warning(
    "nccl-ib-hca-entry-without-device",
    data_path=True,
    part_of=("nic-without-driver", "nic-without-rdma-device"),
)
def nccl_ib_hca_entry_without_device(examination: Examination) -> Outcome:
    """Find entries that match no port, in lists with other entries that do."""
    ports = all_ports(examination)
    evidence = []
    for settings, hcas in _lists(examination):
        missing = [
            name if number is None else f"{name}:{number}"
            for name, number in hcas.entries
            if not any(hcas.names((name, number), device.name, port.number) for device, port in ports)
        ]
        if missing and selected_ports(examination, hcas):
            evidence.append(settings.evidence(HCA, f"no such port: {', '.join(missing[:SHOWN])}"))
    cause = "NCCL silently ignores entries that match no port."
    # A name without a device may be that of any NIC without one.
    return _conclude_lists(examination, evidence, cause, f"or correct the names {_EXACT}", subjects=())


@AREA.warning("nccl-ib-hca-prefix", data_path=True)
def nccl_ib_hca_prefix(examination: Examination) -> Outcome:
    """Find names of NICs that are also a prefix of other names: mlx5_1 and mlx5_10."""
    names = list(dict.fromkeys(device.name for device, _ in all_ports(examination)))
    evidence = []
    for settings, hcas in _lists(examination):
        if hcas.exact:
            continue
        listed = {name for name, _ in hcas.entries}
        more = [
            f"{entry} also matches {name}"
            for entry in listed.intersection(names)
            for name in names
            if name.startswith(entry) and name not in listed
        ]
        if more:
            evidence.append(settings.evidence(HCA, ", ".join(sorted(more)[:SHOWN])))
    cause = "Without a leading “=”, NCCL treats each name as a prefix, so mlx5_1 also selects mlx5_10."
    return _conclude_lists(examination, evidence, cause, f"or use exact names {_EXACT}")


@AREA.warning("nccl-ib-hca-port-down", data_path=True, part_of=("spark-function-unaddressed",))
def nccl_ib_hca_port_down(examination: Examination) -> Outcome:
    """Find ports in lists that are not ACTIVE."""
    evidence = []
    down: set[str] = set()
    states: list[Maybe[str]] = []
    for settings, hcas in _lists(examination):
        if hcas.excludes:
            continue
        for device, port in selected_ports(examination, hcas):
            states.append(port.state)
            if port.is_down:
                down.add(device.name)
                evidence.append(settings.evidence(HCA, f"{device.name}:{port.number} is {port.state}"))
    if not evidence:
        need(first_unread(states), "the state of the ports")
    cause = "NCCL uses ACTIVE ports only and skips the others."
    part_of, ports = same_cause_as_down(examination, down), tuple(frozenset((name,)) for name in down)
    return _conclude_lists(examination, evidence, cause, "or bring the port up", part_of, ports)


@AREA.warning("nccl-ib-hca-mixed-layers")
def nccl_ib_hca_mixed_layers(examination: Examination) -> Outcome:
    """Find ACTIVE ports of both link layers in one list."""
    evidence = []
    for settings, hcas in _lists(examination):
        layers: dict[str, str] = {}
        for device, port in selected_ports(examination, hcas):
            if port.is_active and not isinstance(port.link_layer, Unknown):
                layers.setdefault(port.link_layer, device.name)
        if len(layers) > 1:
            shown = ", ".join(f"{name} is {layer}" for layer, name in layers.items())
            evidence.append(settings.evidence(HCA, shown))
    cause = "NCCL may pair a port of one network with a port of the other."
    return _conclude_lists(examination, evidence, cause, f"or list only the NICs of one network {_EXACT}")


@AREA.note("nccl-ib-hca-mixed-rates")
def nccl_ib_hca_mixed_rates(examination: Examination) -> Outcome:
    """Find ACTIVE ports of different rates in one list."""
    evidence, subjects = [], []
    for settings, hcas in _lists(examination):
        rates: dict[float, str] = {}
        for device, port in selected_ports(examination, hcas):
            if port.is_active and not isinstance(port.rate_gbps, Unknown):
                rates.setdefault(port.rate_gbps, device.name)
        if len(rates) > 1:
            shown = ", ".join(f"{name} {rate:g} Gb/s" for rate, name in sorted(rates.items()))
            evidence.append(settings.evidence(HCA, shown))
            job = () if settings.process is None else (pid_name(settings.process.pid),)
            subjects.append(frozenset((rates[min(rates)], *job)))
    cause, fix = "The list may contain a storage or management NIC.", f"or list only the fast NICs {_EXACT}"
    part_of = ("nccl-ib-hca-prefix", "nccl-ib-hca-mixed-layers", "roce-bond-port-down")
    return _conclude_lists(examination, evidence, cause, fix, part_of, tuple(subjects))


def _rank(topology: Topology, gpu: str, nic: str) -> int | None:
    path = topology.paths.get((gpu, nic))
    word = None if path is None else path.nccl_pcie
    return None if word is None or isinstance(word, Unknown) else ORDER[word]


def used_devices(examination: Examination, settings: JobSettings) -> frozenset[str]:
    """Return the NICs that NCCL chooses for a job's GPUs among those it may use."""
    hcas = parse_hca_list(settings.get(HCA) or "")
    chosen = {device.name for device, port in selected_ports(examination, hcas) if port.is_active}
    used: set[str] = set()
    for gpu in gpus_of(examination, settings.process):
        nics = examination.topology.nics_of_nccl(gpu, chosen)
        used |= chosen if nics is None else set(nics)
    return frozenset(used)


# How a job spreads its traffic over equal paths.

_MANY_NODES = 64  # cmax, platform_config.py: more are not below one leaf switch


def _over(examination: Examination, settings: JobSettings, layer: str) -> list[str]:
    """Return the NICs of a link layer that NCCL's own network uses for a job; none if it is on one node."""
    is_alone = 0 < world_size(settings) <= _ranks_here(examination, settings)
    is_other = settings.get("NCCL_NET") not in (None, "IB") or plugin_only_driver(examination)
    if is_alone or is_other or not settings.is_read:
        return []
    used, devices = used_devices(examination, settings), examination.topology.devices
    return sorted(name for name in used if any(port.link_layer == layer for port in devices[name].ports))


def _ranks_here(examination: Examination, settings: JobSettings) -> int:
    """Return how many processes with a GPU are of the same job."""
    job = None if settings.process is None else settings.process.job
    return sum(process.job == job for process in jobs_of(examination).processes)


@AREA.warning("nccl-adaptive-routing-off")
def nccl_adaptive_routing_off(examination: Examination) -> Outcome:
    """Find the variable at 0 in jobs on more than one node over InfiniBand, where NCCL's default is 1."""
    evidence = [
        settings.evidence(ADAPTIVE_ROUTING)
        for settings in jobs_of(examination).settings
        if settings.get(ADAPTIVE_ROUTING) is not None and not adaptive_routing(settings, "InfiniBand")
        if _over(examination, settings, "InfiniBand")
    ]
    cause = "on InfiniBand, NCCL lets large messages use adaptive routing unless this variable is 0."
    return conclude(jobs_of(examination), evidence, cause, fix=without_variable(ADAPTIVE_ROUTING))


@AREA.note(ONE_PATH)
def nccl_one_path(examination: Examination) -> Outcome:
    """Find jobs of over 64 nodes on RoCE with one queue pair per connection, without adaptive routing."""
    jobs = jobs_of(examination)
    evidence, nics = [], set[str]()
    for process, settings in () if jobs.unseen else jobs.of_processes:
        nodes = world_size(settings) // max(1, _ranks_here(examination, settings))
        is_spread = queue_pairs_per_connection(settings) > 1 or adaptive_routing(settings, "Ethernet")
        own = [] if nodes <= _MANY_NODES or is_spread else _over(examination, settings, "Ethernet")
        if own:
            nics.update(own)
            value = f"{QUEUE_PAIRS} is {settings.get(QUEUE_PAIRS) or 'not set'}, on {nodes} nodes"
            evidence.append(Evidence(f"/proc/{process.pid}/environ", value))
    cause = "each connection has one queue pair, all of whose packets take the same path."
    return conclude(jobs, evidence, cause, fix=more_paths(), devices=tuple(sorted(nics)))


def nearest_left_out(
    examination: Examination, chosen: Collection[str], gpus: Collection[str]
) -> dict[str, str]:
    """Return the GPUs to which a NIC with an ACTIVE port is nearer than all chosen NICs, each with that NIC.

    `gpus`: BDFs. A GPU without a known path to a chosen NIC is left out.
    """
    topology = examination.topology
    active = {device.name for device, port in all_ports(examination) if port.is_active}
    found: dict[str, str] = {}
    for gpu in topology.gpus:
        if gpu.id not in gpus:
            continue
        ranks = {nic: rank for nic in active if (rank := _rank(topology, gpu.id, nic)) is not None}
        near = min(ranks, key=lambda nic: (ranks[nic], nic), default=None)
        best = min((rank for nic, rank in ranks.items() if nic in chosen), default=None)
        if near is not None and best is not None and best > ranks[near]:
            found[gpu.label] = near
    return found


@AREA.warning("nccl-ib-hca-leaves-out-nearest", data_path=True)
def nccl_ib_hca_leaves_out_nearest(examination: Examination) -> Outcome:
    """Find GPUs whose nearest NIC with an ACTIVE port is not in the list, while farther NICs are."""
    evidence: list[Evidence] = []
    for settings, hcas in _lists(examination):
        chosen = {device.name for device, _ in selected_ports(examination, hcas)}
        left_out = nearest_left_out(examination, chosen, gpus_of(examination, settings.process))
        evidence.extend(settings.evidence(HCA, f"{nic} is nearest to {gpu}") for gpu, nic in left_out.items())
    cause = "For these GPUs the list selects only NICs that are farther away."
    return _conclude_lists(examination, evidence, cause, "or add the NIC that is shown")


@AREA.critical("pkey-setting-wrong")
def pkey_setting_wrong(examination: Examination) -> Outcome:
    """Compare each variable of KEY_VARIABLES with the tables of the NICs that NCCL chooses for the job."""
    evidence: list[Evidence] = []
    unread: Unknown | None = None
    names: dict[str, None] = {}
    for settings in jobs_of(examination).settings:
        for name in [name for name in KEY_VARIABLES if settings.get(name) is not None]:
            number = parse_key_setting(name, settings.get(name) or "")
            for device, table in _key_tables(examination, settings) if number is not None else ():
                remark = map_known(table, partial(wrong_key, KEY_VARIABLES[name], number or 0))
                if isinstance(remark, Unknown):
                    unread = remark
                elif remark:
                    names[name] = None
                    evidence.append(settings.evidence(name, f"{device}: {remark}"))
    if unread is not None and not evidence:
        return unknown(needs("the partition keys of the NICs", unread))
    forms = "; ".join(f"{name} takes {KEY_VARIABLES[name].value}" for name in names)
    plan = job_plan(
        f"Correct {' and '.join(names)}",
        "Compare the value with the ports: `grep -v 0x0000 /sys/class/infiniband/*/ports/*/pkeys/*`",
    )
    return conclude(jobs_of(examination), evidence, f"{forms}.", fix=plan)


def _key_tables(examination: Examination, settings: JobSettings) -> Iterator[tuple[str, Maybe[KeyTable]]]:
    used = used_devices(examination, settings)
    for device, port in all_ports(examination):
        table = key_table(examination, device.name, port.number)
        if table is not None and device.name in used:
            yield device.name, table


def wrong_key(form: KeyForm, number: int, table: KeyTable) -> Maybe[str]:
    """Return what is wrong with the index or key that a job is set to on a port; "": nothing.

    Index 0 is the default, and judged by the checks of ports.
    """
    if form is KeyForm.INDEX:
        if number > LAST_INDEX or (table.beyond is not None and number >= table.beyond):
            return f"the table has no index {number}"
        if number not in table.read:
            return Unknown(Reason.NOT_RECORDED, f"pkeys/{number}", f"entry {number} was not read")
        key = table.keys.get(number, 0)
        return "" if is_full(key) or number == 0 else f"entry {number} is {shown(key)}"
    if form is KeyForm.PARTITION and number >= FULL_MEMBER:
        return f"0x{number:x} is out of range, 0x{number % FULL_MEMBER:x} is its partition"
    if any(key % FULL_MEMBER == number % FULL_MEMBER for key in table.keys.values()):
        return ""
    whole = Unknown(Reason.NOT_RECORDED, "pkeys", "the rest of the table was not read")
    return f"0x{number:04x} is not in the table" if table.is_whole else whole
