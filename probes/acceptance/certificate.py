"""A certificate of a node: the answers of a profile, bound to the hardware and software that gave them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence

from probes.acceptance.profile import Answered, Outcome, Profile, answered, outcome_of
from probes.bandwidth.model.result import Result
from probes.base.frozen import frozen
from probes.base.text import parse_json, printable
from probes.base.unknown import Maybe, Reason, Unknown, known, map_known
from probes.checks.judgment import Judgment
from probes.facts.node import Node
from probes.facts.pci.functions import read_serial
from probes.facts.rdma.cable_ends import read_cables
from probes.facts.rdma.optics import Module, ask_modules
from probes.facts.system.platform import DMI
from probes.host.protocol import Host
from probes.queries.pcie_paths import functions_of
from probes.snapshot.examination import Examination

_MOST_OF_A_VALUE = 120
_NOT_READ = "?"  # a part of a device
_MOST_SECONDS = 20.0  # after which the serial number of no other NIC is read
_SERIAL = " serial number"
_CABLE_END = " cable end"
# Linux drivers/firmware/dmi-id.c: serial numbers are for root only.
_FIRMWARE = ("bios_date", "product_serial", "board_serial", "chassis_serial")


class CertificateError(Exception):
    """A file holds no certificate; the text says why."""


@frozen
class HardwareFact:
    """One line of the fingerprint."""

    name: str  # "GPU0", "NIC mlx5_0", "kernel"
    value: Maybe[str]


@frozen
class Certificate:
    """The answers, and what they hold for."""

    outcome: Outcome
    profile: Profile
    criteria: tuple[Answered, ...]
    fingerprint: tuple[HardwareFact, ...]
    changes: tuple[str, ...] | None = None  # sentences, against an earlier one if there is one

    @property
    def fingerprint_sha256(self) -> str:
        """The SHA-256 of what is known of the fingerprint: with another one, node or software are others."""
        known = [[fact.name, fact.value] for fact in self.fingerprint if not isinstance(fact.value, Unknown)]
        return hashlib.sha256(json.dumps(known).encode()).hexdigest()


@frozen
class EarlierCertificate:
    """What a certificate of before said, as its JSON has it."""

    at: str
    answers: dict[str, str]  # by criterion
    fingerprint: dict[str, str]  # of what was known


def certificate_of(
    profile: Profile,
    examination: Examination,
    judgment: Judgment,
    results: Sequence[Result],
    parts: Sequence[HardwareFact] = (),
    earlier: EarlierCertificate | None = None,
) -> Certificate:
    """Return the certificate of a node; `results`: its kept measurements, oldest first; `parts`: parts_of."""
    criteria = answered(profile, examination, judgment, results)
    fingerprint = (*_facts(examination.node), *parts)
    changes = None if earlier is None else tuple(_changes(earlier, criteria, fingerprint))
    return Certificate(outcome_of(criteria), profile, criteria, fingerprint, changes)


def earlier_certificate(text: str) -> EarlierCertificate:
    """Read the JSON of `gdrtop report --certificate`; raise CertificateError."""
    content = parse_json(text)
    found = content.get("certificate") if isinstance(content, dict) else None
    if not isinstance(content, dict) or not isinstance(found, dict):
        raise CertificateError("it is no certificate: gdrtop report --certificate FILE.json writes one")
    rows = _texts(found.get("criteria"), "id", "answer"), _texts(found.get("fingerprint"), "name", "value")
    return EarlierCertificate(printable(str(content.get("time", "?")), _MOST_OF_A_VALUE), *rows)


def _texts(rows: object, key: str, value: str) -> dict[str, str]:
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise CertificateError("its lists are not those of a certificate")
    texts = [(row.get(key), row.get(value)) for row in rows]
    return {name: text for name, text in texts if isinstance(name, str) and isinstance(text, str)}


def _changes(
    earlier: EarlierCertificate, criteria: Sequence[Answered], fingerprint: Sequence[HardwareFact]
) -> Iterator[str]:
    """Yield what differs; what is unknown on one side is no difference."""
    for each in criteria:
        before = earlier.answers.get(each.id, each.answer.value)
        if before != each.answer.value:
            yield f"criterion {each.id}: {each.answer.value}, was {printable(before, _MOST_OF_A_VALUE)}"
    now = {fact.name: fact.value for fact in fingerprint}
    for name, value in now.items():
        was = earlier.fingerprint.get(name)
        if isinstance(value, Unknown) or was == value:
            continue
        if name.endswith((_SERIAL, _CABLE_END)):
            if was is not None:  # an earlier gdrtop, or one without root, has not read it
                yield _other_part(name, value, printable(was, _MOST_OF_A_VALUE), earlier.fingerprint)
        elif was is None:
            yield f"{name}: {value}, was not there or not read"
        elif _NOT_READ not in (*value.split(), *was.split()):
            yield f"{name}: {value}, was {printable(was, _MOST_OF_A_VALUE)}"
    unread = tuple(name for name, value in now.items() if isinstance(value, Unknown))
    for name in earlier.fingerprint:
        if name not in now and not name.startswith(unread) and not name.endswith((_SERIAL, _CABLE_END)):
            yield f"{printable(name, _MOST_OF_A_VALUE)}: is gone"


def _other_part(name: str, value: str, was: str, earlier: dict[str, str]) -> str:
    if name.endswith(_CABLE_END):
        return f"{name}: {value}, was {was}"
    part = name.removesuffix(_SERIAL)
    moved = next((other for other, serial in earlier.items() if serial == value and other != name), "")
    if moved.endswith(_SERIAL):
        return f"{part} is the former {printable(moved.removesuffix(_SERIAL), _MOST_OF_A_VALUE)}"
    return f"{part} was replaced: serial number {value}, was {was}"


def parts_of(
    host: Host,
    examination: Examination,
    token: Callable[[str], str] = str,
    redacted: Callable[[Maybe[str]], Maybe[str]] = lambda text: text,
) -> tuple[HardwareFact, ...]:
    """Read what only a certificate needs: serial numbers, the BIOS date and where cables end.

    It takes seconds: VPDs are slow, and each NIC's firmware is asked for its module. `token` and `redacted`
    replace a serial number, and identifiers in other text.
    """
    found: list[HardwareFact] = []
    for name in _FIRMWARE:
        value = map_known(host.read(f"{DMI}/{name}"), lambda line: line.strip() or "-")
        found.append(_fact(name.replace("_", " "), map_known(value, token if "serial" in name else redacted)))
    rdma = examination.node.rdma
    if isinstance(rdma, Unknown):
        return tuple(found)
    functions, until = functions_of(examination), host.monotonic() + _MOST_SECONDS
    late = Unknown(Reason.TIMED_OUT, "vpd", "reading the VPDs of other NICs took too long")
    bdfs = {f"NIC {device.name}": known(device.bdf, "") for device in rdma.devices}
    nics = {
        name: bdf
        for name, bdf in bdfs.items()
        if bdf in functions and functions[bdf].physical_function is None
    }
    cards = {
        name: map_known(read_serial(host, functions[bdf]) if host.monotonic() < until else late, token)
        for name, bdf in nics.items()
    }
    modules = ask_modules(host, rdma)
    cables = {
        f"{name} cable": map_known(modules[bdf], lambda module: _cable(module, token))
        for name, bdf in nics.items()
        if bdf in modules
    }
    ends = {
        f"NIC {cable.device}/{cable.netdev or cable.port}": redacted(map_known(cable.end, str))
        for cable in read_cables(host, rdma, examination.cable_ends)
    }
    of_nics = *_once("NIC", _SERIAL, cards), *_once("NIC cable", _SERIAL, cables)
    return (*found, *of_nics, *_once("NIC", _CABLE_END, ends))


def _cable(module: Module, token: Callable[[str], str]) -> Maybe[str]:
    if not module.serial:
        return Unknown(Reason.NOT_THERE, "mlxlink", "the module reports no serial number")
    return f"{token(module.serial)} {module.name}".rstrip()


def _once(kind: str, what: str, facts: dict[str, Maybe[str]]) -> tuple[HardwareFact, ...]:
    """Return a fact each; if none is known for the same reason, one for all."""
    reasons = {str(value) if isinstance(value, Unknown) else "" for value in facts.values()}
    if len(facts) > 1 and len(reasons) == 1 and "" not in reasons:
        return (HardwareFact(f"{kind}{what}s", next(iter(facts.values()))),)
    return tuple(_fact(f"{name}{what}", value) for name, value in facts.items())


def _facts(node: Node) -> Iterator[HardwareFact]:
    yield _fact("machine", map_known(node.platform, lambda platform: platform.product))
    yield _fact("BIOS", map_known(node.platform, lambda platform: platform.bios))
    yield _fact("kernel", node.kernel_release)
    yield _fact("NVIDIA driver", map_known(node.gpus, lambda gpus: gpus.driver.version))
    if isinstance(node.gpus, Unknown):
        yield HardwareFact("GPU", node.gpus)
    if isinstance(node.rdma, Unknown):
        yield HardwareFact("NIC", node.rdma)
    for gpu in node.known_gpus:
        yield _fact(f"GPU{gpu.index}", _joined(gpu.name, gpu.bdf, gpu.uuid, gpu.vbios))
    gpus = {f"GPU{gpu.index}": map_known(gpu.nvml, lambda nvml: nvml.serial) for gpu in node.known_gpus}
    yield from _once("GPU", _SERIAL, gpus)
    for device in node.rdma_devices:
        parts = (device.hca_type, device.board_id, device.bdf, device.node_guid, device.firmware)
        yield _fact(f"NIC {device.name}", _joined(*parts))


def _fact(name: str, value: Maybe[str]) -> HardwareFact:
    return HardwareFact(name, map_known(value, lambda text: printable(text, _MOST_OF_A_VALUE)))


def _joined(*parts: Maybe[str]) -> str:
    """Return what is known of a device, with a mark for what is not."""
    return " ".join(_NOT_READ if isinstance(part, Unknown) else part for part in parts)
