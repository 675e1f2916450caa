"""A node whose answers have all come before: what it has not been asked yet is noted."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from probes.base.unknown import Maybe
from probes.host.remote.collected_host import NOT_ASKED_YET, CollectedHost, Question
from probes.host.remote.transport import GARBLED, ConnectionFailed, unpack


@dataclass
class Answers:
    """What a node has answered so far: the questions of each round, and the line that came for it."""

    host: str
    is_root: bool = False
    asked: list[list[Any]] = field(default_factory=list)
    lines: list[bytes] = field(default_factory=list)


@dataclass
class Missing:
    """The questions that a node still has to answer, or why it cannot be judged."""

    questions: list[Any]
    failure: str = ""


class BatchHost(CollectedHost):
    """A node whose answers have come in batches."""

    def __init__(self, answers: Answers) -> None:
        """Unpack the answers; ConnectionFailed: they are garbled."""
        super().__init__(answers.host, answers.is_root)
        self._answers: dict[Question, Any] = {}
        self.missing: dict[Question, None] = {}
        for asked, line in zip(answers.asked, answers.lines, strict=True):
            message = unpack(line)
            found = message.get("answers")
            if (
                not isinstance(found, list)
                or len(found) != len(asked)
                or not self._set_clocks(message, False)
            ):
                raise ConnectionFailed(GARBLED)
            self._answers.update(zip(map(tuple, asked), found, strict=True))

    def _answer_to(self, question: Question, source: str) -> Maybe[Any]:
        if question in self._answers:
            return self._answers[question]
        self.missing[question] = None
        return NOT_ASKED_YET
