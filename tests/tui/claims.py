"""What the outputs of gdrtop claim about a node, as they print it, and which claims exclude each other.

A claim is read from the text or the document that a user gets, not from the values behind it: a drawing that
concludes on its own is seen here.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from probes.snapshot.verdict import Verdict

VERDICT = re.compile(
    r"^(?:\d\d:\d\d:\d\d +)?(?:GDRTOP \w+ - )?(?:[^\w\s]+ )?(?:SIMULATED \S+?:? )?"
    r"(ACTIVE|READY|DEGRADED|BROKEN|UNKNOWN|NOT APPLICABLE)\b"
    r"(?:.*? (\d+) of (\d+) GPUs)?",
    re.MULTILINE,
)
PATH = re.compile(r"\b(DMA-BUF|peermem|EFA|libfabric) +([✓✗–?])( not for new jobs)?")
WITHOUT_GDR = re.compile(r"Path now +(?:likely )?(?:staged|TCP)")
JOB = re.compile(r"^(?:Jobs )?([●▲✗?]) (\w[\w-]*\.py)\b(.*(?:\n  +\S.*)*)", re.MULTILINE)
WORD = re.compile(r"GDR(?: \((?:DMA-BUF|peermem)\))?|staged|TCP|no NIC in use")
SILENCE = re.compile(r"no traffic for (\d+) (s|min)")
MARK = re.compile(r"\b(GPU\d+|mlx\d_\d+|irdma\d+|rdmap\w+|efa_\d+|bnxt_re\d+|cxi\d+|roce\w+)([✗▲])")
MARKING = {"topology", "rates", "topo"}  # outputs that mark devices
WATCHING = {"head", "findings", "jobs", "gpudirect", "rates", "topology", "strips", "live", "ranks"}
JOBS = {"jobs", "strips", "live"}
# Findings that GPUDirect RDMA lacks something; others may still mark the jobs of a node that cannot do it.
_OF_GDR = ("dmabuf-", "peermem-", "no-gdr-path", "gpu-not-served", "job-staged", "job-log-staged")
GREEN = ("ACTIVE", "READY")
GDR_OF = {"DMA-BUF": "GDR (DMA-BUF)", "peermem": "GDR (peermem)"}


class Claims:
    """The claims of several outputs about one node at one moment, each with the output that makes it."""

    def __init__(self) -> None:
        self.count = 0
        self.verdicts: dict[str, tuple[str, str]] = {}  # by output: the word, "8 of 8"
        self.paths: dict[str, dict[str, str]] = defaultdict(dict)  # by path, by output: the mark
        self.jobs: dict[str, dict[str, tuple[str, frozenset[str]]]] = defaultdict(dict)  # mark, path words
        self.kept: set[str] = set()  # paths that running jobs keep, and that no new job can use
        self.silent: dict[str, int] = {}  # seconds
        self.marks: dict[str, frozenset[tuple[str, str]]] = {}  # devices of drawings, and their marks
        self.text: dict[str, str] = {}
        self.has_open_steps: bool | None = None  # of setup, besides measurements
        self.said: dict[str, dict[str, Any]] = {}  # by document: the reason, the counts, the first title
        self.found: set[str] = set()  # ids of critical findings and warnings

    def read(self, output: str, text: str) -> None:
        """Read what an output that people read claims."""
        self.text[output] = text
        if match := VERDICT.search(text):
            self._verdict(output, match[1], f"{match[2]} of {match[3]}" if match[2] else "")
        for path, mark, is_for_running_jobs in PATH.findall(text):
            self.paths[path][output] = mark
            self.count += 1
            if is_for_running_jobs:
                self.kept.add(path)
        for mark, job, rest in JOB.findall(text) if output in JOBS else ():  # elsewhere, of a finding
            self.jobs[job][output] = mark, frozenset(WORD.findall(rest))
            self.count += 1
        for number, unit in SILENCE.findall(text):
            self.silent[output] = int(number) * (60 if unit == "min" else 1)
            self.count += 1
        if output in MARKING:
            self.marks[output] = frozenset(MARK.findall(text))
            self.count += len(self.marks[output])

    def read_state(self, output: str, state: str) -> None:
        """Read the word of the verdict, as in metrics."""
        self._verdict(output, state, "")

    def read_verdict(self, output: str, verdict: Verdict) -> None:
        """Read the verdict of what is saved or sent: a fleet's summary."""
        self._verdict(output, verdict.state.value, f"{verdict.gpus_served} of {verdict.gpus}")

    def read_document(self, output: str, document: Mapping[str, Any]) -> None:
        """Read what a JSON document claims."""
        verdict, findings = document["verdict"], document.get("findings")
        self._verdict(output, verdict["state"], f"{verdict['gpus_served']} of {verdict['gpus']}")
        serious = [
            row
            for row in findings or ()
            if row["severity"] != "note" and row.get("status", "found") == "found"
        ]
        self.found |= {row["id"] for row in serious}
        roots = sorted((row for row in serious if not row.get("part_of")), key=lambda row: row["severity"])
        title = None if findings is None else roots[0]["title"] if roots else ""  # "critical", "warning"
        # Live has a status of its own for jobs without GPUDirect RDMA.
        status = None if output == "live --json" else document.get("exit_status")
        reason = re.sub(r"\d+ memory regions", "memory regions", verdict["reason"])  # they come and go
        self.said[output] = {
            **{"reason": reason, "critical": verdict["critical"], "warnings": verdict["warnings"]},
            **{"status": status, "title": title},
        }
        for path, name in (("DMA-BUF", "dmabuf"), ("peermem", "peermem")):
            usable = ((document.get("gpudirect") or {}).get(name) or {}).get("usable")
            if usable is not None:
                self.paths[path][output] = "✓" if usable else "–"
                self.count += 1

    def _verdict(self, output: str, word: str, gpus: str) -> None:
        self.verdicts[output] = word, gpus
        self.count += 1

    def contradictions(self) -> Iterator[str]:
        """Yield pairs of claims that cannot both be true, in words."""
        watching = {output: said for output, said in self.verdicts.items() if output in WATCHING}
        once = {output: said for output, said in self.verdicts.items() if output not in WATCHING}
        for verdicts in (watching, once):  # what watches a node sees more than what looks once
            counts = {gpus for _, gpus in verdicts.values() if gpus and not gpus.startswith("0")}
            if len({word for word, _ in verdicts.values()}) > 1 or len(counts) > 1:
                yield f"verdicts differ: {verdicts}"
        for part in ("reason", "critical", "warnings", "status", "title"):
            told = {output: said[part] for output, said in self.said.items() if said[part] is not None}
            if len(set(told.values())) > 1:
                yield f"the {part} differs: {told}"
        words = {word for word, _ in (watching or once).values()}
        for path, marks in self.paths.items():
            usable = {mark == "✓" for mark in marks.values() if mark != "?"}
            if len(usable) > 1:
                yield f"{path} is usable and is not: {marks}"
            if True in usable and words & {"BROKEN", "NOT APPLICABLE"}:
                yield f"{path} is usable, but {words}: {marks}"
            yield from self._used_without(path, marks, usable)
        if words <= set(GREEN) and words and self.paths and not self._has_usable_path():
            yield f"{words}, but no path is usable: {dict(self.paths)}"
        yield from self._about_jobs(words)
        missing = {name for name in self.found if name.endswith("-not-loaded")} - {"peermem-not-loaded"}
        if missing and "All modules that this node needs are loaded" in self.text.get("modules", ""):
            yield f"all modules are loaded, and {missing}"
        if self.has_open_steps is False and any(said["critical"] for said in self.said.values()):
            yield f"setup has nothing to mend, but {self.found}"
        explanation = self.text.get("explain", "")
        is_without = WITHOUT_GDR.search(explanation) and "NOT APPLICABLE" not in words
        if is_without and "finds nothing to change" in explanation:
            yield "explain finds nothing to change for a process without GPUDirect RDMA"
        for output, marks in self.marks.items():
            for device, mark in marks:
                for other in MARKING & self.text.keys():
                    if (output in WATCHING) is not (other in WATCHING):
                        continue
                    shown = re.findall(rf"\b{device}\b([✗▲]?)", self.text[other])
                    if output != other and shown and mark not in shown:
                        yield f"{output} marks {device}{mark}, {other} does not"

    def _has_usable_path(self) -> bool:
        return any("✓" in marks.values() for marks in self.paths.values())

    def _used_without(self, path: str, marks: dict[str, str], usable: set[bool]) -> Iterator[str]:
        """Yield jobs that use a path that is not usable, without a word about it."""
        if usable != {False} or path not in GDR_OF or path in self.kept:
            return
        for job, claims in self.jobs.items():
            for output, (mark, used) in claims.items():
                is_named = "contradict" in " ".join(self.text.values())
                if GDR_OF[path] in used and not is_named:
                    yield f"{output}: {mark} {job} uses {path}, which is not usable: {marks}"

    def _about_jobs(self, words: set[str]) -> Iterator[str]:
        for job, claims in self.jobs.items():
            if len({mark for mark, _ in claims.values()}) > 1:
                yield f"the marks of {job} differ: {claims}"
            for output, (mark, used) in claims.items():
                if mark == "●" and used & {"no NIC in use"} and "BROKEN" in words:
                    yield f"{output}: ● {job} without a NIC on a BROKEN node"
                if mark == "●" and used & {"staged", "TCP"} and "NOT APPLICABLE" not in words:
                    yield f"{output}: ● {job} is {used}"
                is_faultless = not self.found and not re.search(
                    r"\d (critical|warning)", " ".join(self.text.values())
                )
                if mark in "▲✗" and used <= {"staged"} and words == {"NOT APPLICABLE"} and is_faultless:
                    yield f"{output}: {mark} {job} for what the hardware cannot do otherwise"
        lacks = sorted(name for name in self.found if name.startswith(_OF_GDR))
        if lacks and words == {"NOT APPLICABLE"} and "(by design)" in self.text.get("head", ""):
            yield f"findings on what the hardware cannot do otherwise: {lacks}"
        if words & set(GREEN) and any(seconds >= 66 for seconds in self.silent.values()):
            yield f"{words}, but a job is silent: {self.silent}"
