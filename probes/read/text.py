"""Read any text piece by piece: explain its lines, gather what belongs together, conclude."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

from probes.base.text import leading_version, printable
from probes.messages.catalogue import catalogue, explain, find_failure, shape_of
from probes.messages.form import MOST_CHARACTERS
from probes.messages.message import Found, Proof, Weight
from probes.nccl.log.facts import LogFacts, LogFile, LogVerdict, Place, State
from probes.nccl.log.messages import UNKNOWN, context_of
from probes.nccl.log.reader import LogReader
from probes.nccl.log.verdict import TCP_NETWORKS, verdict_of
from probes.read.documents import HEAD_BYTES, Document, Documents, document_of
from probes.read.findings import judged, words_about
from probes.read.kernel_log import KernelLogLines, Subject, answer_of, subject_of
from probes.read.kernel_modules import without_path
from probes.read.kinds import KINDS, LOGS, PROMPT, Kind, Signs
from probes.read.lines import FENCE, Lines
from probes.read.reading import Parsed, Proven, Reading, Section, SeenKind, Statement, statement_of
from probes.read.specifications import NAMES, Block, Specifications, shown, statements_of
from probes.snapshot.examination import Examination

_MOST_STATEMENTS = 1000  # messages that differ in more than numbers
_MOST_SECTION_SIZE = 64 << 20  # of all sections, with what Python adds to each
_BYTES_OF_A_SECTION, _BYTES_OF_A_STRING = 2000, 64
_MOST_NODES = 64  # whose tables are judged
_MOST_ASKED = 32  # lines of the kernel's log that a finding may be about
_MOST_SILENT = 1000  # sections
_MOST_UNREAD = 20  # lines that are shown
_MOST_OF_A_TEXT = 400
_MOST_SHOWN = 32  # sentences about tables
_OFTEN, _MOST_SHAPES = 20, 1 << 14
_MOST_MORE = 8  # titles with the same cause
_NEAR = 30  # lines between one that only follows and the one that it follows from
_WORD = re.compile(r"\w+")
_GB10 = "GB10"
_FAILS = re.compile(
    r"\b(?:fail\w*|errors?|cannot|can't|unable|could not|refused|denied|timed out)\b", re.IGNORECASE
)
_ANOTHER = "The line does not say why. The errors above may be the reason."
_MAY_FAIL = re.compile(
    r".*?fail|(?!\s*0 |.*\b(?:no errors?|0 errors|err(?:no|ors?)?\W{1,3}0)\b).*?"  # counters and errors of 0
    rf"(?:{_FAILS.pattern}|_err(?:\b|_)|err(?:no)?\W{{1,3}}-?\d|exceeded|flush|lost|fallen|missing|invalid"
    r"|unreachable|reset by|returned (?:null|-)|(?:rc|ret|status)\W{1,3}-?[1-9]|\bno (?:\w*gid|such|rdma)\b"
    r"|\bnot? (?:usable|valid|active|ib|infiniband|route|space|device|found|permitted|supported|available))",
    re.IGNORECASE,
)
_ORDER = (Weight.CRITICAL, Weight.WARNING, Weight.NOTE, Weight.FOLLOWS, Weight.HARMLESS)
_SERIOUS = _ORDER[:2]
_LOG_LINE = re.compile(r"\bNCCL (?:INFO|WARN|ATTN|TRACE)\b")
_SHOWS_A_FILE = re.compile(r"(?:sudo )?cat [^|<>]{1,300}$")  # what follows is that file
_NCCL_VERSION = re.compile(r"\bNCCL version (\d[\d.]{2,20})")
_CHANNEL = re.compile(r"NCCL INFO (?:Channel|CollNet|Ring) \d|NCCL INFO (?:Trees|Tree) ")


@dataclass
class _Seen:
    """A message, with its first line."""

    found: Found
    text: str
    place: Place
    unclear: int  # the last line before it that failed at something, and that no message explains
    is_guess: bool  # the line only names what failed
    count: int = 1


class TextReader:
    """Reads files one after another: `begin`, `feed` with pieces of any size, `end`; then `reading`.

    `node`: the node on which the text was written, if it is known.
    """

    def __init__(self, node: Examination | None = None) -> None:
        self._node = node
        self._specifications = Specifications()
        self._block = Block("")
        self._catalogue = catalogue()
        self._interesting = self._catalogue.words.union(LOGS)
        self._vocabulary = self._catalogue.vocabulary.union(LOGS, (_GB10,))
        self._names_gb10 = False  # people say what their node is
        self._signs = Signs(KINDS)
        self._kernel_log = KernelLogLines()
        self._documents = Documents()
        self._log = LogReader()
        self._files: list[LogFile] = []
        self._name, self._size = "", 0
        self._lines = Lines()
        self._section: tuple[Kind, list[str], Place, str] | None = None
        self._command = ""  # of the last prompt, until its output ends
        self._host = ""  # of the last prompt that names one
        self._is_session = False  # the last prompt names a host
        self._has_printed = False  # since that prompt
        self._sections: list[Section] = []
        self._section_size = 0
        self._kinds: Counter[str] = Counter()
        self._seen: dict[object, _Seen] = {}
        # Shapes of lines that say nothing, and whether in a section; then of those that never say anything.
        self._shapes: Counter[tuple[str, bool]] = Counter()
        self._plain: dict[tuple[str, bool], frozenset[str]] = {}
        self._all = self._blank = self._read = 0
        self._unread: dict[tuple[str, int], str] = {}
        self._unclear = 0

    def begin(self, name: str) -> None:
        """Begin a file; `name` is shown with line numbers."""
        self._name, self._size = printable(name, 1024), 0
        self._lines = Lines()
        self._unclear = 0
        self._block = Block(self._name)
        self._head: bytes | None = b""
        self._document: Document | None = None
        self._log.begin(name)

    def feed(self, piece: bytes) -> None:
        """Read the next piece of the file; a character may be cut in two."""
        self._size += len(piece)
        if self._head is not None:  # it may be no lines
            self._head += piece
            if len(self._head) >= HEAD_BYTES:
                self._begin_content()
        elif self._document is not None:
            self._document.feed(piece)
        else:
            self._take(self._lines.feed(piece.decode("utf-8", "replace")))

    def _begin_content(self) -> None:
        head, self._head = self._head or b"", None
        self._document = document_of(self._name, head)
        if self._document is not None:
            self._document.feed(head)
        else:
            self._take(self._lines.feed(head.decode("utf-8", "replace")))

    def end(self, error: str = "") -> None:
        """End the file."""
        if self._head is not None:
            self._begin_content()
        if self._document is not None:
            self._documents.add(self._document)
            self._document = None
        self._take(self._lines.end())
        self._log.end(error)
        self._close_section()
        self._end_block()
        self._files.append(LogFile(self._name, self._size, self._lines.number, error))

    def _take(self, lines: Iterable[str]) -> None:
        of_nccl: list[str] = []
        for line in lines:
            self._all += 1
            if _WORD.search(line) is None:  # also rulers and the frames of tables
                self._blank += 1
                of_nccl.append("")
                if line == FENCE:
                    self._close_section()
                    self._end_block()
                elif not self._in_section(line):
                    self._block.add(line, self._lines.number, False)
                continue
            is_nccl = "NCCL " in line
            # The reader of NCCL's logs counts lines: empty ones stand for those of others.
            of_nccl.append(line if is_nccl else "")
            self._read += is_nccl
            if is_nccl and _CHANNEL.search(line):
                self._kinds["NCCL log"] += 1
                continue
            self._line(line)
        if of_nccl:
            self._log.feed(("\n".join(of_nccl) + "\n").encode("utf-8", "replace"))

    def _line(self, line: str) -> None:
        shape = shape_of(line)
        key = shape, self._section is not None
        if (plain := self._plain.get(key)) is not None:
            if not self._in_section(line):
                self._take_plain(line, plain)
            return
        words = self._vocabulary.intersection(_WORD.findall(line[:MOST_CHARACTERS]))
        self._names_gb10 |= _GB10 in words
        if self._interesting.isdisjoint(words):
            words = frozenset()
        kind = self._signs.kind_of(line)
        if kind is not None and self._section is not None and self._section[0].holds == kind.name:
            self._in_section(line)
        elif kind is not None:
            self._has_printed = True
            self._begin_section(kind, line)
        elif prompt := PROMPT.match(line):
            self._close_section()
            self._note_silence()
            self._command = printable(line[prompt.end() :], _MOST_OF_A_TEXT)
            self._host = prompt["host"] or self._host
            self._is_session = prompt["host"] is not None
            self._has_printed = False
            self._read += 1
            is_comment = prompt[0] == "# "
            if _SHOWS_A_FILE.match(self._command):
                self._end_block()
            else:
                self._block.add(line if is_comment else line[prompt.end() :], self._lines.number, False)
        elif not self._has_printed and (kind := self._signs.by_command(self._command)) is not None:
            self._has_printed = True
            self._begin_section(kind, line)
        elif not self._in_section(line):
            self._has_printed = True
            if (kinds := self._explain_line(line, words)) is not None:
                self._note_shape((shape, False), kinds)
            return
        elif key[1]:
            self._note_shape(key, frozenset())
        is_document = self._section is not None and self._section[0].is_document
        if words and not is_document:
            self._explain_line(line, words, is_section=True)

    def _explain_line(
        self, line: str, words: frozenset[str], is_section: bool = False
    ) -> frozenset[str] | None:
        """Explain a line; return its kinds, or None if the next one like it may say something else."""
        found = self._catalogue.find(line, words) if words else None
        is_guess = False
        failed = find_failure(line) if found is None or found.message.is_general else None
        if failed is not None and _MAY_FAIL.match(line, 0, _MOST_OF_A_TEXT):
            is_guess = failed.message.is_general or not any(map(failed.values.get, failed.message.codes))
            found, is_guess = (found, False) if found and is_guess else (failed, is_guess)
        if found is not None:
            self._message(found, line, is_guess)
        if is_section:
            return None
        kinds = {LOGS[word] for word in words & LOGS.keys()}
        if self._kernel_log.take(line, Place(self._name, self._lines.number)):
            kinds.add("kernel log")
        if found is not None and not kinds:
            kinds.add(f"{found.message.program} output")
        self._take_plain(line, kinds)
        return frozenset(kinds) if found is None and "kernel log" not in kinds else None

    def _take_plain(self, line: str, kinds: Collection[str]) -> None:
        """Count a line of these kinds, which says nothing more."""
        for kind in sorted(kinds):
            self._kinds[kind] += 1
        if not kinds and _FAILS.search(line, 0, _MOST_OF_A_TEXT):
            self._unclear = self._lines.number
        if kinds:
            self._read += "NCCL " not in line  # which are counted, wherever they stand
        elif len(self._unread) < _MOST_UNREAD:
            self._unread[self._name, self._lines.number] = printable(line.strip(), 200)
        if not kinds or not _LOG_LINE.search(line):
            self._block.add(line, self._lines.number, not kinds)

    def _note_shape(self, key: tuple[str, bool], kinds: frozenset[str]) -> None:
        """Remember a line that says nothing, whatever its numbers, once it was seen often."""
        if len(key[0]) > MOST_CHARACTERS:
            return
        self._shapes[key] += 1
        if self._shapes[key] == _OFTEN and not self._catalogue.may_match(key[0]):
            self._plain[key] = kinds
        if len(self._shapes) >= _MOST_SHAPES:
            self._shapes.clear()
            self._plain.clear()

    def _message(self, found: Found, line: str, is_guess: bool) -> None:
        key = (found.message.id, *sorted(found.values.items()))
        seen = self._seen.get(key)
        if seen is not None:
            seen.count += 1
        elif len(self._seen) < _MOST_STATEMENTS:
            place = Place(self._name, self._lines.number)
            text = printable(line.strip(), _MOST_OF_A_TEXT)
            self._seen[key] = _Seen(found, text, place, self._unclear, is_guess)

    def _end_block(self) -> None:
        self._specifications.end(self._block)
        self._block = Block(self._name)

    # Sections

    def _begin_section(self, kind: Kind, line: str) -> None:
        if self._section is None or self._section[0] is not kind:
            self._close_section()
            self._end_block()
            self._section = kind, [], Place(self._name, self._lines.number), self._command
            self._section_size += _BYTES_OF_A_SECTION
        self._in_section(line)

    def _in_section(self, line: str) -> bool:
        if self._section is None:
            return False
        self._section_size += len(line) + _BYTES_OF_A_STRING
        if self._section_size > _MOST_SECTION_SIZE:
            self._close_section()
            return False
        self._section[1].append(line)
        return True

    def _close_section(self) -> None:
        if self._section is not None:
            kind, lines, place, command = self._section
            if lines:
                section = Section(kind.name, tuple(lines), place, command, self._node, self._host)
                self._sections.append(section)
            self._section = None
            self._command = ""

    def _note_silence(self) -> None:
        """Note that a command has printed nothing, where that says something."""
        # "$ " alone is also how instructions write what to run.
        is_silent = self._is_session and not self._has_printed
        kind = self._signs.silent(self._command) if is_silent else None
        if kind is not None and len(self._sections) < _MOST_SILENT:
            place = Place(self._name, self._lines.number - 1)
            self._sections.append(Section(kind.name, (), place, self._command, self._node, self._host))

    # What follows

    def reading(self) -> Reading:
        """Return what all files say together."""
        facts = self._log.facts()
        log = facts if facts.nccl_lines else None
        verdict = None if log is None else verdict_of(log)
        statements = [*self._problems(facts), *self._explained(facts, False)]
        tables_read: list[Parsed] = []
        nodes: dict[tuple[str, str], list[tuple[int, Parsed]]] = {}
        kinds = {kind.name: kind for kind in KINDS}
        ranks = {name: rank for rank, name in enumerate(kinds)}
        for section in self._sections:
            read = kinds[section.kind].read
            parsed = Parsed() if read is None else replace(read(section), place=section.place)
            self._kinds[section.kind] += max(1, parsed.lines)
            statements += parsed.statements
            tables_read.append(parsed)
            # Of one node, as far as the text tells.
            nodes.setdefault((section.place.file, section.host), []).append((ranks[section.kind], parsed))
        for kind, parsed in self._documents.parsed():
            self._kinds[kind] += parsed.lines
            statements += parsed.statements
            tables_read.append(parsed)
        found = judged([self._kernel_log.parsed()])
        for tables in list(nodes.values())[:_MOST_NODES]:
            of_node = [parsed for _, parsed in sorted(tables, key=lambda table: table[0])]
            found += judged(of_node)
            if (no_path := without_path(of_node)) is not None:
                statements.append(no_path)
        statements = self._with_findings(statements, found)
        statements += self._guessed(facts, any(row.weight in _SERIOUS for row in statements))
        tables_shown = [parsed.shows for parsed in tables_read]
        unread = dict(self._unread)
        from_blocks = 0
        for block, report in self._specifications.judged(self._node):
            statements += statements_of(block, report)
            tables_shown.append(shown(report))
            self._kinds[NAMES[report.kind]] += len(block.lines)
            from_blocks += block.unread
            for number in block.numbers:
                unread.pop((block.name, number), None)
        read_lines = from_blocks + self._read + sum(parsed.lines for parsed in tables_read)
        return Reading(
            files=tuple(self._files),
            kinds=tuple(
                SeenKind(name, count, name not in kinds or kinds[name].is_sure)
                for name, count in self._kinds.most_common()
                if count
            ),
            proven=_proven(facts, verdict, statements),
            statements=tuple(_with_first(self._with_causes(_distinct(statements)))),
            lines=self._all - self._blank,
            unread=max(0, self._all - self._blank - read_lines),
            unread_lines=tuple(unread.values()),
            shown=_shown(tables_shown),
            log=log,
            log_verdict=verdict,
        )

    def _with_findings(
        self, statements: list[Statement], found: Iterable[tuple[Statement, tuple[str, ...]]]
    ) -> list[Statement]:
        """Add what the node's checks find; a line of the kernel's log that one explains is said once."""
        explained: set[Subject] = set()
        findings: list[Statement] = []
        for statement, lines in found:
            subjects = set(filter(None, map(subject_of, lines)))
            explained |= subjects
            place = self._kernel_log.first_of(subjects) or statement.place
            text = lines[0] if subjects else statement.text
            findings.append(replace(statement, place=place, text=text))
        ids = {finding.id for finding in findings}
        asked = 0
        others: list[Statement] = []
        for row in statements:
            subject = subject_of(row.text) if row.text else None
            if subject in explained:
                continue
            if subject is not None and ids and asked < _MOST_ASKED:
                # A finding names only some of its lines.
                asked += 1
                if any(finding.id in ids for finding, _ in judged([answer_of(row.text)])):
                    continue
            others.append(row)
        return [*others, *findings]

    def _guessed(self, facts: LogFacts, is_known: bool) -> list[Statement]:
        """Return what lines say that only name what failed: without a cause if another one `is_known`."""
        guesses = self._explained(facts, True)
        if not is_known:
            return guesses
        named = (row for row in guesses if not row.id.startswith("unknown-"))
        return [replace(row, weight=Weight.FOLLOWS, cause=_ANOTHER, fix="") for row in named]

    def _explained(self, facts: LogFacts, is_guess: bool) -> list[Statement]:
        beside = frozenset(seen.found.message.id for seen in self._seen.values())
        said = context_of(facts.versions, facts.settings, facts.nics, beside)
        if not facts.versions:  # PyTorch names it, too
            texts = "\n".join(seen.text for seen in self._seen.values())
            said = replace(said, version=leading_version("".join(_NCCL_VERSION.findall(texts)[:1])) or None)
        node = frozenset() if self._node is None else words_about(self._node)
        if self._names_gb10:
            node |= {"gb10"}
        of_nccl = replace(said, node=said.node | node)
        of_others = replace(of_nccl, version=None)
        statements = []
        for seen in (seen for seen in self._seen.values() if seen.is_guess is is_guess):
            context = of_nccl if seen.found.message.program == "NCCL" else of_others
            meaning = explain(seen.found, context)
            statements.append(replace(statement_of(meaning, seen.text, seen.place), count=seen.count))
        return statements

    def _with_causes(self, statements: list[Statement]) -> list[Statement]:
        """Name the line before where a statement only says that it has the cause, if one near it does."""
        causes = [row for row in statements if row.weight in _SERIOUS and row.place]
        unclear = {seen.place: seen.unclear for seen in self._seen.values()}
        return [_with_cause(row, causes, unclear.get(row.place, 0) if row.place else 0) for row in statements]

    def _problems(self, facts: LogFacts) -> list[Statement]:
        """Return what the reader of NCCL's logs makes of lines that the catalogue explains."""
        return [
            Statement(
                problem.kind,
                "NCCL",
                Weight(problem.severity),
                problem.title,
                problem.cause,
                problem.fix,
                text=problem.seen.text,
                place=problem.seen.first,
                count=problem.seen.count,
            )
            for problem in facts.problems
            if problem.severity != UNKNOWN
        ]


_BEFORE = re.compile(r"\blines? before\b|\bbefore (?:it|this)\b")
_WHOLE_PROCESS = "of the same process"


def _with_cause(row: Statement, causes: list[Statement], unclear: int) -> Statement:
    """Name the nearest line before, of a program that the cause of this one speaks of.

    None where an unclear line is nearer: it may be the cause.
    """
    if row.weight is not Weight.FOLLOWS or row.place is None or not _BEFORE.search(row.cause):
        return row
    spoken_of = {row.program, *_WORD.findall(row.cause)}
    near: dict[int, Statement] = {}
    for cause in causes:
        is_meant = cause.program in spoken_of or (
            _WHOLE_PROCESS in row.cause and cause.weight is Weight.CRITICAL
        )
        if is_meant and cause.place is not None and cause.place.file == row.place.file:
            near[row.place.line - cause.place.line] = cause
    distance = min((lines for lines in near if 0 < lines <= _NEAR), default=None)
    if distance is None or row.place.line - distance < unclear:
        return row
    text = f"Line {row.place.line - distance} says why: {near[distance].title.rstrip('.')}."
    return replace(row, cause=text, fix="" if _BEFORE.search(row.fix) else row.fix)


def _with_first(statements: list[Statement]) -> list[Statement]:
    """Note the first consequence where a text has only those: something failed, whatever it was."""
    if any(row.weight in (*_SERIOUS, Weight.NOTE) for row in statements):
        return statements
    follows = (row for row in statements if row.weight is Weight.FOLLOWS and row.place is not None)
    if (first := next(follows, None)) is None:
        return statements
    cause = f"{first.cause} The first error itself is not in this text.".lstrip()
    rest = [row for row in statements if row is not first]
    return [replace(first, weight=Weight.NOTE, cause=cause), *rest]


def _shown(sentences: Iterable[str]) -> tuple[str, ...]:
    """Return the sentences, without those that another one holds."""
    distinct = tuple(dict.fromkeys(filter(None, sentences)))
    return tuple(
        text
        for text in distinct
        if not any(text is not other and text.rstrip(".") in other for other in distinct[:_MOST_SHOWN])
    )[:_MOST_SHOWN]


def _distinct(statements: Iterable[Statement]) -> list[Statement]:
    """Return what has one cause once, the heaviest first and those of one weight in the order of the text."""
    found: dict[tuple[str, str, str], Statement] = {}
    for statement in statements:
        key = statement.id, statement.cause, statement.fix
        known = found.get(key)
        if known is None:
            found[key] = statement
        elif statement.text in known.text or known.text in statement.text:  # the same line
            found[key] = replace(known, count=max(known.count, statement.count))
        else:
            more = known.more
            if statement.title not in (known.title, *more) and len(more) < _MOST_MORE:
                more = *more, statement.title
            found[key] = replace(known, count=known.count + statement.count, more=more)
    return sorted(found.values(), key=lambda statement: _ORDER.index(statement.weight))


_PROVEN = {
    Proof.GDR: "GPU memory goes through the NIC: GPUDirect RDMA is in use",
    Proof.NO_GDR: "GPUDirect RDMA is not used",
    Proof.HOST: "data goes through host memory or TCP, without GPUDirect RDMA",
    Proof.NVLINK: "GPUs of different nodes exchange data over NVLink, without a NIC",
}
_STATES = {State.ALL: Proof.GDR, State.NONE: Proof.HOST}


def _proven(facts: LogFacts, verdict: LogVerdict | None, statements: Iterable[Statement]) -> Proven:
    """Return what proves the path: the channels of NCCL first, then single lines."""
    if verdict is not None and facts.channels.total and verdict.state is not State.UNKNOWN:
        proof = _STATES.get(verdict.state)
        places = [rank.first_staged or rank.first_gdr for rank in facts.ranks]
        path = "mixed" if proof is None else proof.value
        return Proven(path, f"GPUDirect RDMA: {verdict.text}", next(filter(None, places), None))
    if facts.has_nvlink_between_nodes and not facts.channels.total:
        return Proven(Proof.NVLINK.value, f"{_PROVEN[Proof.NVLINK]} (MNNVL)")
    proofs: dict[Proof, Statement] = {}
    for statement in statements:
        if statement.proves is not Proof.NOTHING:
            proofs.setdefault(statement.proves, statement)
    if len({Proof.HOST if proof is Proof.NO_GDR else proof for proof in proofs}) > 1:
        texts = "; ".join(f"{_PROVEN[proof]} ({statement.place})" for proof, statement in proofs.items())
        return Proven("mixed", f"Mixed: {texts}")
    for proof, statement in proofs.items():
        return Proven(proof.value, f"{_PROVEN[proof][0].upper()}{_PROVEN[proof][1:]}", statement.place)
    if any(network.text in TCP_NETWORKS for network in facts.networks) and len(facts.networks) == 1:
        return Proven(Proof.HOST.value, "NCCL chose TCP, without GPUDirect RDMA", facts.networks[0].first)
    return Proven("unknown", "This text does not show which path GPU memory takes")
