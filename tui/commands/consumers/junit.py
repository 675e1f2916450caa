"""JUnit's XML for CI: a test case for the verdict and for each check.

A finding is a failure, a check that could not run is skipped, and a bug of gdrtop is an error. Findings with
the cause of another one are skipped, so the failures are the verdict and the findings that it counts. There
are no times, because the time of a single check is not measured.
"""

from __future__ import annotations

from xml.etree import ElementTree

from probes.base.text import printable
from probes.checks.judgment import exit_status
from probes.checks.registry import FAILED_BY_A_BUG
from probes.queries.finding import Finding, Severity, Status
from probes.snapshot.verdict import Verdict
from tui.commands.consumers.checked_node import Answer, CheckedNode
from tui.runtime.json_values import time_json
from tui.runtime.printing import TEXT_WIDTH
from widgets.base.lines import plain
from widgets.doctor.findings import draw_details

_SKIPPED, _FAILURE, _ERROR = "skipped", "failure", "error"


def junit(node: CheckedNode) -> Answer:
    """Return the XML, in ASCII; the status is that of check."""
    judgment = node.judgment
    suite = ElementTree.Element("testsuite", name="gdrtop check", timestamp=str(time_json(node.at)))
    if node.host_name:
        suite.set("hostname", printable(node.host_name))
    properties = ElementTree.SubElement(suite, "properties")
    source = printable(f"{node.origin.source.value} {node.origin.label}".strip())
    ElementTree.SubElement(properties, "property", name="source", value=source)
    _verdict_case(suite, judgment.verdict)
    for finding in judgment.findings:
        _case(suite, finding)
    root = ElementTree.Element("testsuites", name="gdrtop")
    root.append(suite)
    totals = {"tests": len(suite.findall("testcase"))}
    totals |= {f"{tag}s": len(suite.findall(f"*/{tag}")) for tag in (_FAILURE, _ERROR)}
    totals[_SKIPPED] = len(suite.findall(f"*/{_SKIPPED}"))
    for element in (root, suite):
        for name, count in totals.items():
            element.set(name, str(count))
    ElementTree.indent(root)
    text = ElementTree.tostring(root, encoding="us-ascii", xml_declaration=True).decode("ascii")
    return Answer(text, exit_status(judgment.verdict))


def _verdict_case(suite: ElementTree.Element, verdict: Verdict) -> None:
    case = ElementTree.SubElement(suite, "testcase", classname="gdrtop", name="verdict")
    message = printable(": ".join(filter(None, (verdict.word, verdict.reason))))
    if verdict.state.is_faulty:
        ElementTree.SubElement(case, _FAILURE, message=message, type=verdict.state.value)
    elif not verdict.is_green:
        ElementTree.SubElement(case, _SKIPPED, message=message)


def _case(suite: ElementTree.Element, finding: Finding) -> None:
    case = ElementTree.SubElement(suite, "testcase", classname=f"gdrtop.{finding.area}", name=finding.id)
    if finding.status is Status.PASSED:
        return
    if finding.status is Status.UNKNOWN:
        tag = _ERROR if finding.cause == FAILED_BY_A_BUG else _SKIPPED
        ElementTree.SubElement(case, tag, message=printable(finding.cause))
        return
    details = "\n".join(plain(line) for line in draw_details(finding, TEXT_WIDTH))
    if finding.status is Status.SILENCED:
        until = "" if finding.silence is None else f" until {finding.silence.until.isoformat()}"
        ElementTree.SubElement(case, _SKIPPED, message=printable(f"silenced{until}: {finding.title}"))
    elif finding.part_of:
        message = printable(f"same cause as {finding.part_of}: {finding.title}")
        ElementTree.SubElement(case, _SKIPPED, message=message)
    elif finding.severity is not Severity.NOTE:
        message, kind = printable(finding.title), finding.severity.value
        ElementTree.SubElement(case, _FAILURE, message=message, type=kind).text = details
        return
    ElementTree.SubElement(case, "system-out").text = details
