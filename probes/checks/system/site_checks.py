"""The checks that a site has added, as checks like any other, and whether they work."""

from __future__ import annotations

from functools import partial

from probes.base.evidence import Evidence, Severity, first_n
from probes.base.plan import user_plan
from probes.base.text import join_limited
from probes.base.unknown import Reason, Unknown, known
from probes.facts.system.site_checks import DIRECTORY, STATUSES, SiteCheck
from probes.queries.finding import Area, Check, Outcome, Texts, found, need, passed, unknown
from probes.snapshot.examination import Examination

AREA = Area("site", __package__)
_OK, _WARNING, _, _UNKNOWN = STATUSES
# Beside these, a check without a result is broken. NOT_THERE: the file of a rule.
_NOT_ITS_FAULT = (Reason.NEEDS_ROOT, Reason.NOT_THERE, Reason.NOT_RECORDED)


def checks_of_site(examination: Examination) -> tuple[Check, ...]:
    """Return the checks that the site of this node has added."""
    return tuple(map(_check, known(examination.site_checks, ())))


def _check(added: SiteCheck) -> Check:
    said = added.definition
    title = said.title or f"Site check {added.id} has found a problem"
    texts = Texts(title, added.source, said.ok or f"Site check {added.id} is ok", said.impact)
    return Check(added.id, AREA.name, said.severity, partial(_judge, added), lambda: texts, said.data_path)


def _judge(check: SiteCheck, examination: Examination) -> Outcome:
    """Return what a check of the site has found, as severe as its file allows."""
    result, said = need(check.result, f"the result of {check.id}"), check.definition
    texts = result.evidence or (result.cause or result.status,)
    evidence = first_n(Evidence(check.source, text) for text in texts)
    if result.status == _OK:
        return passed(*evidence)
    if result.status == _UNKNOWN:
        return unknown(result.cause, *evidence)
    topology = examination.topology
    ends = (*topology.gpus, *topology.nics)
    named = {name: end.id for end in ends for name in (known(end.bdf, end.id), end.label, end.id)}
    devices = tuple(dict.fromkeys(named[name] for name in result.devices if name in named))
    least = Severity.WARNING if result.status == _WARNING else said.severity
    return found(
        result.cause,
        *evidence,
        fix=user_plan(f"As {check.source} says", said.fix) if said.fix else None,
        severity=max(said.severity, least, key=list(Severity).index),
        devices=devices,
        takes=devices if said.takes else (),
    )


@AREA.note("broken-site-check")
def broken_site_check(examination: Examination) -> Outcome:
    """Find checks without a result: a wrong file, a program that cannot start, hangs or fails."""
    absent = Evidence(DIRECTORY, "this site has added no checks")
    checks = need(examination.site_checks, "the checks of this site", absent=absent)
    broken = [
        (check, check.result)
        for check in checks
        if isinstance(check.result, Unknown) and check.result.reason not in _NOT_ITS_FAULT
    ]
    if not broken:
        return passed(Evidence(DIRECTORY, join_limited(check.id for check in checks) or "no checks"))
    return found(
        f"No result of {join_limited(check.id for check, _ in broken)}.",
        *first_n(Evidence(check.source, str(why)) for check, why in broken),
    )
