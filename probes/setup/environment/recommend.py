"""Recommend the variables that jobs on a node need, and nothing that is already the default."""

from __future__ import annotations

from collections.abc import Mapping

from probes.base.unknown import Maybe, Unknown
from probes.checks.nccl.library import versions_of
from probes.checks.nccl.network import HCA
from probes.facts.system.cloud import Cloud
from probes.nccl.variables.catalogue import CATALOGUE
from probes.nccl.variables.variable import NEWEST, Version, parse_version
from probes.queries.finding import Severity
from probes.queries.jobs import jobs_of
from probes.setup.environment.advice import ASSUMED, OF_JOBS, STATED, Advice, Note, Setting, State
from probes.setup.environment.clouds import GIB_SCRIPT, Stack, cloud_settings, stack_notes, stack_of
from probes.setup.environment.judge import conf_values, has_gpus_and_nics, judge
from probes.setup.environment.network_settings import (
    bond_notes,
    gid_settings,
    interface_settings,
    traffic_class_notes,
)
from probes.setup.environment.nics import level_settings, nic_settings, topology_settings
from probes.snapshot.examination import Examination


def version_of(examination: Examination, stated: str = "") -> tuple[Version, str]:
    """Return the NCCL whose defaults apply: the stated one, the oldest that a job maps, or the newest."""
    if stated:
        return parse_version(stated), STATED
    found = [
        version
        for process in jobs_of(examination).processes
        for _, version in versions_of(process, "libnccl")
        if version
    ]
    return (min(found), OF_JOBS) if found else (NEWEST, ASSUMED)


def recommend(examination: Examination, cloud: Maybe[Cloud], nccl: str = "") -> Advice:
    """Return what jobs on this node need; `nccl`: a version, if not that of the running jobs."""
    version, version_from = version_of(examination, nccl)
    if not has_gpus_and_nics(examination):
        unread = any(isinstance(each, Unknown) for each in (examination.node.gpus, examination.node.rdma))
        return Advice(version, version_from, nothing=_why_nothing(examination), is_unread=unread)
    if (stack := stack_of(examination, cloud)) is not None:
        script = GIB_SCRIPT if stack is Stack.GIB else ""
        from_stack = (*stack_notes(stack), *_conf_on_stack(examination, stack))
        return Advice(version, version_from, (), from_stack, stack.value, script)
    vendor, settings = cloud_settings(examination, cloud)
    nics, nic_notes = nic_settings(examination)
    named = next((setting.value[1:].split(",") for setting in nics if setting.name == HCA), [])
    parts: tuple[tuple[list[Setting], list[Note]], ...] = (
        (nics, nic_notes),
        level_settings(examination, version),
        gid_settings(examination, version, tuple(named)),
        topology_settings(examination),
        interface_settings(examination),
        ([], traffic_class_notes(examination, tuple(named))),
        ([], bond_notes(examination, tuple(named))),
    )
    conf = conf_values(examination)
    notes = [_as_in_file(note, conf) for _, of_part in parts for note in of_part]
    settings = [*settings, *(setting for of_part, _ in parts for setting in of_part)]
    settings = [setting for setting in settings if not _is_default(setting, version)]
    settings, in_file = _without_conf(examination, settings)
    settings, refused = _without_findings(examination, settings, version)
    decided = {setting.name for setting in settings}
    kept = [
        note
        for note in (*in_file, *refused, *notes)
        if note.variable not in decided or note.state is State.FIX_FIRST
    ]
    return Advice(version, version_from, tuple(settings), tuple(dict.fromkeys(kept)), vendor)


def _why_nothing(examination: Examination) -> str:
    gpus, rdma = examination.node.gpus, examination.node.rdma
    if isinstance(gpus, Unknown):
        return f"the GPUs are unknown: {gpus}"
    if not gpus.gpus:
        return "this node has no NVIDIA GPU"
    unknown = isinstance(rdma, Unknown)
    return f"the RDMA devices are unknown: {rdma}" if unknown else "this node has no RDMA device"


def _is_default(setting: Setting, version: Version) -> bool:
    variable = CATALOGUE.get(setting.name)
    return variable is not None and variable.default(version) == setting.value


def _without_conf(examination: Examination, settings: list[Setting]) -> tuple[list[Setting], list[Note]]:
    """Leave out what /etc/nccl.conf sets already; a different value there is kept and named."""
    conf = conf_values(examination)
    kept: list[Setting] = []
    notes: list[Note] = []
    for setting in settings:
        if setting.name not in conf:
            kept.append(setting)
        elif conf[setting.name] == setting.value:
            notes.append(Note(setting.name, State.IN_FILE, f"{setting.value} is already in /etc/nccl.conf"))
        else:
            text = (
                f"/etc/nccl.conf has {conf[setting.name]}; gdrtop would use {setting.value}: {setting.reason}"
            )
            notes.append(Note(setting.name, State.IN_FILE, text))
    return kept, notes


def _without_findings(
    examination: Examination, settings: list[Setting], version: Version
) -> tuple[list[Setting], list[Note]]:
    """Leave out what the doctor would object to, so that both never contradict each other."""
    values = {**conf_values(examination), **{setting.name: setting.value for setting in settings}}
    objections = {
        judgment.variable: judgment.title
        for judgment in judge(examination, values, version)
        if judgment.severity is not Severity.NOTE
    }
    notes = [
        Note(setting.name, State.FIX_FIRST, f"{setting.value} would help, but: {objections[setting.name]}")
        for setting in settings
        if setting.name in objections
    ]
    return [setting for setting in settings if setting.name not in objections], notes


def _as_in_file(note: Note, conf: Mapping[str, str]) -> Note:
    """Return the note, or what /etc/nccl.conf decides where gdrtop cannot."""
    if note.state not in (State.UNKNOWN, State.MEASURE) or note.variable not in conf:
        return note
    return Note(note.variable, State.IN_FILE, f"{conf[note.variable]} is already in /etc/nccl.conf")


def _conf_on_stack(examination: Examination, stack: Stack) -> list[Note]:
    """Name what /etc/nccl.conf stacks on a vendor's own settings."""
    return [
        Note(name, State.IN_FILE, f"/etc/nccl.conf sets {value}, on top of {stack.value}; remove the line")
        for name, value in conf_values(examination).items()
        if not name.startswith("NCCL_DEBUG")
    ]
