"""Apply the silences of the configuration to how checks ended. Nothing else decides what is silenced."""

from __future__ import annotations

from dataclasses import replace

from probes.base.origin import Source
from probes.base.silence import Silence, silences
from probes.base.unknown import Unknown, known
from probes.checks.registry import Outcomes
from probes.facts.system.platform import PlatformFacts
from probes.queries.finding import Check, Outcome, Status
from probes.snapshot.examination import Examination


def with_silences(outcomes: Outcomes, examination: Examination, called: str = "") -> Outcomes:
    """Return the outcomes with silenced ones marked; one whose silence has expired counts again, and says so.

    A silence with a device covers a finding only if all of its devices are covered, and one with nodes only
    findings of these.
    """
    by_id: dict[str, list[Silence]] = {}
    names = (*_names_of(examination), called) if silences() else ()
    for silence in silences():
        if silence.covers_node(names):
            by_id.setdefault(silence.id, []).append(silence)
    if not by_id:
        return outcomes
    bdfs = {}
    if not isinstance(examination.node.rdma, Unknown):
        bdfs = {device.name: known(device.bdf, "") for device in examination.node.rdma.devices}
    return tuple(
        (check, _with_silence(check, outcome, by_id.get(check.id, []), bdfs, examination.taken_at))
        for check, outcome in outcomes
    )


def _names_of(examination: Examination) -> tuple[str, ...]:
    """Return the node's own name, and the one by which it was reached."""
    node = examination.node
    name = known(node.platform.hostname, "") if isinstance(node.platform, PlatformFacts) else ""
    reached = node.origin.label if node.origin.source is Source.REMOTE else ""
    return tuple(filter(None, (name, reached)))


def _with_silence(
    check: Check, outcome: Outcome, own: list[Silence], bdfs: dict[str, str], at: float
) -> Outcome:
    if outcome.status is not Status.FOUND or not own:
        return outcome
    for is_expired, status in ((False, Status.SILENCED), (True, Status.FOUND)):
        silence = _covering([each for each in own if each.is_expired(at) is is_expired], outcome, bdfs)
        if silence is not None:
            return replace(outcome, status=status, silence=silence)
    return outcome


def _covering(own: list[Silence], outcome: Outcome, bdfs: dict[str, str]) -> Silence | None:
    """Return the silence that covers a finding, of several devices' the first to end; None: there is none."""
    for_all = [silence for silence in own if not silence.device]
    if for_all:
        return max(for_all, key=lambda silence: silence.until)
    used: list[Silence] = []
    for device in outcome.devices:
        names = {device.lower(), bdfs.get(device, device).lower()}
        names |= {name.lower() for name, bdf in bdfs.items() if bdf == device}
        matching = [silence for silence in own if silence.device.lower() in names]
        if not matching:
            return None
        used.append(max(matching, key=lambda silence: silence.until))
    return min(used, key=lambda silence: silence.until, default=None)
