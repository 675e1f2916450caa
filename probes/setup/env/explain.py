"""Explain a variable or one of its values, with the differences between versions."""

from __future__ import annotations

from collections.abc import Iterator

from probes.base.frozen import frozen
from probes.base.text import join_limited, printable
from probes.base.unknown import Unknown, known
from probes.checks.nccl.gdr_settings import INDEX
from probes.checks.nccl.network import HCA
from probes.nccl.settings import parse_hca_list, parse_level, parse_number
from probes.nccl.variables.catalogue import Kind, Variable, Version, variables
from probes.queries.jobs import nearest
from probes.setup.env.judge import conf_values, has_gpus_and_nics, judge
from probes.setup.env.nics import active_ports
from probes.snapshot.examination import Examination
from probes.topology.nccl_paths import Nccl

_LEVELS = ("NCCL_NET_GDR_LEVEL", "NCCL_IB_GDR_LEVEL")
_NIC_WORDS = (Nccl.P2C.value, Nccl.PXN.value)
_BEGIN_WITH = "whose names begin with"


@frozen
class Explanation:
    """What a variable means. Every text is whole sentences."""

    variable: Variable
    value: str | None
    of_value: tuple[str, ...]  # what this value does
    defaults: tuple[str, ...]  # "PXB", "P2C since 2.29"
    values: tuple[tuple[str, str], ...]
    notes: tuple[str, ...]
    on_this_node: tuple[str, ...]


def explain(text: str, examination: Examination, version: Version) -> Explanation | None:
    """Explain "NAME=VALUE" or "NAME"; None: gdrtop does not know the variable."""
    name, equals, value = text.partition("=")
    if (variable := variables().get(name)) is None:
        return None
    shown = printable(value, 256) if equals else None
    of_value = () if shown is None else tuple(meaning_of_value(variable, shown, version))
    defaults, notes = tuple(_defaults(variable)), tuple(_notes(variable))
    on_this_node = tuple(_on_node(variable, shown, examination, version))
    return Explanation(variable, shown, of_value, defaults, variable.values, notes, on_this_node)


def meaning_of_value(variable: Variable, value: str, version: Version) -> Iterator[str]:
    """Say what a library makes of a value."""
    if variable.kind is Kind.LEVEL:
        yield _of_level(variable, value)
    elif variable.kind is Kind.NUMBER:
        yield from _of_number(variable, value)
    elif variable.kind is Kind.HCA_LIST:
        hcas = parse_hca_list(value)
        names = join_limited(name if port is None else f"{name}:{port}" for name, port in hcas.entries)
        what = f"{'All but the ' if hcas.excludes else ''}NICs {'named' if hcas.exact else _BEGIN_WITH}"
        yield f"{what} {names}." if names else "The list is empty, so NCCL uses every NIC."
    elif variable.kind is Kind.INTERFACES:
        exact = value.removeprefix("^").startswith("=")
        names = value.removeprefix("^").removeprefix("=")
        what = "All interfaces except those" if value.startswith("^") else "Interfaces"
        yield f"{what} {'named' if exact else _BEGIN_WITH} {names}."
    else:
        if text := dict(variable.values).get(value):
            yield f"{value}: {text}."
        for word in variable.unknown_words(value):
            yield f"{word} is not one of {join_limited(name for name, _ in variable.values)}."
    if variable.default(version) == value:
        yield f"This is the default of {'.'.join(map(str, version))}, so the variable is not needed."


def _of_level(variable: Variable, value: str) -> str:
    if (level := parse_level(value)) is None:
        return f"NCCL silently ignores “{value}” and uses its default."
    ends = "GPU and NIC" if level.word in _NIC_WORDS else "GPUs"
    text = dict(variable.values).get(level.word, f"a distance between {ends} only")
    return f"{level.word if level.word == value else f'{value} means {level.word}'}: {text}."


def _of_number(variable: Variable, value: str) -> Iterator[str]:
    number = parse_number(value)
    if number is None:
        yield f"“{value}” is not a number, so the default applies."
        return
    if str(number) != value.strip():
        yield f"It is read as {number}."
    if variable.limits and not variable.limits[0] <= number <= variable.limits[1]:
        yield f"{number} is outside {variable.limits[0]} to {variable.limits[1]}."
    elif text := dict(variable.values).get(str(number)):
        yield f"{number}: {text}."
    elif variable.name == "NCCL_IB_TIMEOUT" and number > 0:
        yield f"4.096 µs × 2^{number} = {4.096e-6 * 2**number:.3g} s before a packet is sent again."
    elif variable.name.endswith(("_TC", "TRAFFIC_CLASS")):
        yield f"DSCP {number >> 2}, ECN bits {number & 3}."


def _defaults(variable: Variable) -> Iterator[str]:
    for number, (since, value) in enumerate(variable.defaults):
        is_first = number == 0 and (since in ("", variable.since))
        yield value if is_first else f"{value} since {since}"


def _notes(variable: Variable) -> Iterator[str]:
    if variable.removed:
        yield f"Removed in {variable.removed}{f'; use {variable.instead}' if variable.instead else ''}."
    elif variable.since:
        yield f"Since {variable.since}."
    yield from variable.notes
    if variable.for_debugging:
        yield "NVIDIA lists it under “Debugging”: do not keep it in production unless you need it."


def _on_node(
    variable: Variable, value: str | None, examination: Examination, version: Version
) -> Iterator[str]:
    if (conf := conf_values(examination).get(variable.name)) is not None:
        yield f"/etc/nccl.conf sets {variable.name}={conf}; the job's environment overrides it."
    if not has_gpus_and_nics(examination):
        return
    if variable.name in _LEVELS:
        yield from _distances(examination)
    if variable.name == HCA:
        hcas = parse_hca_list(value or "")
        ports = active_ports(examination)
        chosen = (device.name for device, port in ports if hcas.uses(device.name, port.number))
        yield f"It selects {join_limited(chosen) or 'no active NIC'}."
    if variable.name == INDEX and value is not None:
        yield from _gids(examination, parse_number(value))
    if value is not None:
        for judgment in judge(examination, {variable.name: value}, version):
            yield f"{judgment.severity.value.capitalize()}: {judgment.title}."


def _distances(examination: Examination) -> Iterator[str]:
    topology = examination.topology
    by_word: dict[str, list[str]] = {}
    for gpu in topology.gpus:
        word = nearest(topology, gpu.id)
        by_word.setdefault("unknown" if word is None else word.value, []).append(gpu.label)
    for distance, gpus in by_word.items():
        yield f"{join_limited(gpus)}: the nearest NIC is at distance {distance}."


def _gids(examination: Examination, index: int | None) -> Iterator[str]:
    if index is None or index < 0:
        return
    for device, port in active_ports(examination):
        if port.link_layer == "Ethernet" and not isinstance(port.gids, Unknown):
            gid = next((gid for gid in port.gids if gid.index == index), None)
            text = "empty" if gid is None else f"{gid.gid}, {known(gid.type, 'of unknown type')}"
            yield f"{device.name}: GID {index} is {text}."
