"""Identifiers in the answers of a node: counted and, on request, replaced by tokens.

Redaction is an allowlist: of each source, only what table.py names is kept, and of texts only known words. A
value gets the same token everywhere, in questions and in answers, and a token has the shape of its value, so
that probes read the recording like the node.

With or without redaction, a recording has no passwords: it has only the environment variables that probes
keep, no arguments of command lines, and of files that users choose only what NCCL reads.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from typing import Any, TypeVar

from probes.base.unknown import Maybe, Reason, Unknown, known
from probes.facts.jobs.process_files import parse_program
from probes.facts.system.rdma_cgroup import CGROUPS
from probes.host.answers import CommandOutput
from probes.host.usage import ProcessUsage
from probes.recording.format import Question
from probes.recording.recording_host import Moment
from probes.recording.redaction import answers as rules
from probes.recording.redaction.kernel_files import host_name
from probes.recording.redaction.processes import cgroup_path, is_variable
from probes.recording.redaction.table import COMMANDS, ENVIRONMENT, read_by_nccl, row_of
from probes.recording.redaction.tokens import USER, Tokens
from probes.recording.redaction.words import PROGRAMS

T = TypeVar("T")
_PROCESS_FILE = re.compile(r"/proc/([0-9]+)/([a-z]+)")
_OPEN_FILE = re.compile(r"/proc/[^/]+/fd/[0-9]+")
_DEVICE_FILE = re.compile(r"/dev/(?:nvidia[\w/-]*|infiniband/[\w]+)")
_ENVIRONMENT = re.compile(r"/proc/.*/environ")
# Files outside the system or of another user, read because a variable, an nccl.conf or a link points there.
_CHOSEN = re.compile(r"/proc/[^/]+/(?:root|cwd)/.*|/(?!(?:proc|sys|dev|boot|usr|lib|run|var)/).*", re.S)
PATH_QUESTIONS = ("file", "names", "link", "resolve", "size", "readable", "writable")
_HOST_FILES = ("/proc/sys/kernel/hostname", "/etc/hostname")
_USER_VARIABLES = ("USER", "LOGNAME", "SUDO_USER")
# Stands for the command line of a process without GPU or RDMA device: a program, not a kernel thread.
NO_COMMAND_LINE = b"(not recorded)\0"

# Rules for answers by kind of question; of the others, every text is redacted.
_RULES: dict[str, Callable[[Tokens, Any], Any]] = {
    "rdma_resources": rules.resources,
    "packet_numbers": rules.packets,
    "thread_names": rules.threads,
    "collectives": rules.collectives,
    "component_history": rules.component_history,
    "log_findings": rules.log_findings,
    "ethtool_counters": lambda tokens, answer: rules.counters(answer),
    "kernel_messages": rules.messages,
    "ras_answer": rules.ras_text,
    "ras_events": lambda tokens, events: tuple(rules.ras_text(tokens, event) for event in events),
    "names": lambda tokens, names: tuple(sorted({tokens.text(name) for name in names})),
}


class Identifiers(Tokens):
    """The identifiers of a node, its users and its devices in a recording; replaced if `redact` is set."""

    def __init__(self, redact: bool = False) -> None:
        super().__init__()
        self.redact = redact
        self._jobs: set[str] = set()  # pids whose maps, environment or limits were read

    def host(self, name: str) -> str:
        """Return a host name as it appears in the recording."""
        return host_name(self, name) if self.redact else name

    def label(self, label: str) -> str:
        """Return the origin's label, a directory or a simulated node, as it appears in the recording."""
        return self.text(label) if self.redact else label

    def value(self, value: T) -> T:
        """Return what gdrtop wrote about the node, with the tokens of the recording.

        `value` consists of strings, numbers, containers and dataclasses.
        """
        if not self.redact:
            return value
        before, self._is_own_text = self._is_own_text, True
        try:
            redacted: T = self._value(value)
        finally:
            self._is_own_text = before
        return redacted

    def apply(self, moment: Moment) -> Moment:
        """Return the moment as it is recorded."""
        self._learn(moment)
        moment = dataclasses.replace(moment, answers=self._without_secrets(moment.answers))
        # Also without redaction: the kinds of identifiers in the recording are reported.
        answers = {
            redacted: self._answer(question, answer)
            for question, answer in moment.answers.items()
            if (redacted := self._question(question)) is not None
        }
        return dataclasses.replace(moment, answers=answers) if self.redact else moment

    def _learn(self, moment: Moment) -> None:
        """Remember names of hosts and users, which are replaced everywhere, and the processes that matter."""
        for question, answer in moment.answers.items():
            subject = question.subject[0] if question.subject else ""
            match = _PROCESS_FILE.fullmatch(subject)
            if match and match[2] in ("maps", "environ", "limits"):
                self._jobs.add(match[1])
            elif question.kind == "file" and subject in _HOST_FILES and isinstance(answer, bytes):
                host_name(self, answer.decode("utf-8", "replace").partition("\n")[0])
            elif isinstance(answer, ProcessUsage):
                self.name(USER, known(answer.user, "root"))
            elif question.kind == "environment" and isinstance(answer, str):
                if subject == "HOSTNAME":
                    host_name(self, answer)
                elif subject in _USER_VARIABLES:
                    self.name(USER, answer)

    def _without_secrets(self, answers: dict[Question, Maybe[Any]]) -> dict[Question, Maybe[Any]]:
        """Reduce open files, environments and command lines to what probes keep of them."""
        kept = {key: answer for key, answer in answers.items() if not _is_other_file(key, answer)}
        for question, answer in answers.items():
            if question.kind != "file" or not isinstance(answer, bytes):
                continue
            match = _PROCESS_FILE.fullmatch(question.subject[0])
            if _ENVIRONMENT.fullmatch(question.subject[0]):
                variables = filter(is_variable, answer.split(b"\0"))
                kept[question] = b"".join(variable + b"\0" for variable in variables)
            elif match and match[2] == "cmdline" and match[1] not in self._jobs and answer:
                kept[question] = NO_COMMAND_LINE
            elif match and match[2] == "cmdline" and answer and not self.redact:
                kept[question] = known(parse_program(answer), "").encode() + b"\0"
            elif _CHOSEN.fullmatch(question.subject[0]):
                kept[question] = read_by_nccl(question.subject[0], answer)
        return kept

    # Questions and answers

    def _question(self, question: Question) -> Question | None:
        """Return a question as it is recorded; None if it is left out."""
        kind, subject = question
        if kind in PATH_QUESTIONS:
            row = row_of(subject[0])
            path = (
                cgroup_path(self, subject[0])
                if subject[0].startswith(f"{CGROUPS}/")
                else self.text(subject[0])
            )
            return None if row is None else Question(kind, (path,))
        if kind == "run":
            # Options come from gdrtop; all other words may come from the node.
            argv = tuple(word if word.startswith("-") else self.text(word) for word in subject[1:])
            program = subject[0].rpartition("/")[2]
            return Question(kind, (program, *argv)) if program in PROGRAMS else None
        if kind == "environment":
            return question if subject[0] in ENVIRONMENT else None
        if kind in ("ras_answer", "ras_events"):  # a loopback address and a command
            return question
        return Question(kind, tuple(self.text(part) for part in subject))

    def _answer(self, question: Question, answer: Maybe[Any]) -> Maybe[Any]:
        if isinstance(answer, bytes):
            return self._content(question.subject[0], answer)
        if isinstance(answer, CommandOutput):
            return self._output(question.subject, answer)
        if isinstance(answer, ProcessUsage) and not isinstance(answer.user, Unknown):
            return dataclasses.replace(self._value(answer), user=self.name(USER, answer.user))
        if question.kind == "link" and isinstance(answer, str) and _OPEN_FILE.fullmatch(question.subject[0]):
            return answer  # a device: other open files are not recorded
        rule = None if isinstance(answer, Unknown) else _RULES.get(question.kind)
        return self._value(answer) if rule is None else rule(self, answer)

    def _content(self, path: str, content: bytes) -> Maybe[bytes]:
        row = row_of(path)
        if row is None or row.rule is None:
            return Unknown(Reason.NOT_RECORDED, self.text(path), "redacted")
        if content == NO_COMMAND_LINE:
            return content
        return row.rule(self, content)

    def _output(self, argv: tuple[str, ...], output: CommandOutput) -> CommandOutput:
        rule = rules.help_text if "--help" in argv else COMMANDS.get(argv[0], Tokens.text)
        redacted = self._question(Question("run", argv))
        return CommandOutput(
            redacted.subject if redacted else (),
            output.exit_status,
            rule(self, output.stdout),
            self.text(output.stderr),
            output.left_out_bytes,
        )

    def _value(self, value: Any) -> Any:
        if isinstance(value, Unknown):  # the detail is gdrtop's own text
            return Unknown(value.reason, self.text(value.source), self.value(value.detail))
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, tuple | list):
            return type(value)(self._value(item) for item in value)
        if isinstance(value, dict):
            return {self._value(key): self._value(item) for key, item in value.items()}
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            names = [field.name for field in dataclasses.fields(value)]
            return type(value)(**{name: self._value(getattr(value, name)) for name in names})
        return value


def _is_other_file(question: Question, answer: Maybe[Any]) -> bool:
    """Return whether this is an open file other than a GPU or RDMA device; a busy node has many."""
    if (
        question.kind != "link"
        or not isinstance(answer, str)
        or not _OPEN_FILE.fullmatch(question.subject[0])
    ):
        return False
    return _DEVICE_FILE.fullmatch(answer) is None
