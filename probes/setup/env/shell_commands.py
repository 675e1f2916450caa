"""Split shell text into the commands that a shell would run, with line numbers and without running anything.

Source: POSIX.1-2024, Shell Command Language, 2.2 Quoting, 2.3 Token Recognition, 2.7.4 Here-Document.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from dataclasses import dataclass

from probes.base.frozen import frozen

_DEEPEST = 8  # $( "$( … )" )
_LONGEST_EXPANSION = 2_000
_PLAIN = re.compile(r"[^\s;&|()<>\"'\\$`]+")
_PLAIN_IN_QUOTES = re.compile(r"[^\"\\$`]+")
_OPERATOR = re.compile(r";;&?|;&|&&|\|\||[;&|()]")
_REDIRECTION = re.compile(r"&>>?|<<<|<<-?|<>|>>|>\||[<>]&?")


@frozen
class Word:
    """One word without its quotation marks; "$" and backticks stay as they are."""

    text: str
    line: int


@dataclass
class Command:
    """One simple command, or the elements of an array."""

    words: list[Word]
    operator: str  # before the command: "&&", ";", "\n"; "=(" before the elements of an array
    heredoc: Word | None = None  # what the command reads from standard input
    array: str = ""  # the name before "=("


def split_commands(text: str, line: int = 1) -> list[Command]:
    """Return the commands in the order of the text; those inside $( … ) come before the one around them."""
    splitter = _Splitter(text, line)
    splitter.read(0, False)
    return splitter.commands


class _Splitter:
    """Reads the text once; a quotation without an end is an ordinary character."""

    def __init__(self, text: str, line: int) -> None:
        self.commands: list[Command] = []
        self._text = text
        self._place = 0
        self._first_line = line
        self._line_ends = [match.start() for match in re.finditer("\n", text)]
        self._ends_of_heredocs: dict[str, list[int]] | None = None
        self._without_end: set[str] = set()  # quotation marks
        self._waiting: list[tuple[Command, str]] = []  # here-documents begin on the next line

    def read(self, depth: int, is_nested: bool) -> None:
        """Read commands up to the end, or to the parenthesis that closes a substitution."""
        text, end = self._text, len(self._text)
        command = Command([], "")
        open_parentheses = 0
        skips_word = False
        while self._place < end:
            character = text[self._place]
            if character == "\n":
                self._place += 1
                skips_word = False  # <NAME>, a placeholder, is no redirection
                command = self._next(command, "\n")
                self._read_heredocs()
            elif character.isspace():
                self._place += 1
            elif text.startswith("\\\n", self._place):
                self._place += 2
            elif character == "#":
                stop = text.find("\n", self._place)
                self._place = end if stop < 0 else stop
            elif match := _REDIRECTION.match(text, self._place):
                self._place = match.end()
                if match[0] in ("<<", "<<-"):
                    while text[self._place : self._place + 1] in (" ", "\t"):
                        self._place += 1
                    self._waiting.append((command, self._word(depth).text))
                else:
                    skips_word = not text.startswith("(", self._place)  # <( … ) holds commands
            elif match := _OPERATOR.match(text, self._place):
                if match[0] == "(" and not command.words and self._skip_arithmetic():
                    continue
                self._place = match.end()
                if is_nested and match[0] == ")":
                    if not open_parentheses:
                        break
                    open_parentheses -= 1
                open_parentheses += match[0] == "("
                command = self._next(command, match[0])
            else:
                word = self._word(depth)
                if word.text.endswith("=") and text.startswith("(", self._place):
                    self._place += 1
                    self.commands.append(Command(self._array(depth), "=(", array=word.text[:-1]))
                elif not skips_word:
                    command.words.append(word)
                skips_word = False
        self._next(command, "")

    def _next(self, command: Command, operator: str) -> Command:
        if command.words:
            self.commands.append(command)
        return Command([], operator)

    def _line(self, place: int) -> int:
        return self._first_line + bisect_left(self._line_ends, place)

    def _skip_arithmetic(self) -> bool:
        """Skip ((…)), in which "<<" is a shift."""
        if not self._text.startswith("((", self._place):
            return False
        stop = self._text.find("))", self._place, self._place + _LONGEST_EXPANSION)
        self._place = stop + 2 if stop >= 0 else self._place
        return stop >= 0

    def _array(self, depth: int) -> list[Word]:
        words: list[Word] = []
        while self._place < len(self._text):
            character = self._text[self._place]
            if character == "#":
                stop = self._text.find("\n", self._place)
                self._place = len(self._text) if stop < 0 else stop
            elif character in ";&|()<>" or character.isspace():
                self._place += 1
                if character == ")":
                    break
            else:
                words.append(self._word(depth))
        return words

    def _word(self, depth: int) -> Word:
        text, start = self._text, self._place
        parts: list[str] = []
        while self._place < len(text):
            if match := _PLAIN.match(text, self._place):
                parts.append(match[0])
                self._place = match.end()
                continue
            character = text[self._place]
            if character == "\\":
                if not text.startswith("\\\n", self._place):
                    parts.append(text[self._place + 1 : self._place + 2])
                self._place += 2
            elif character == "'":
                parts.append(self._up_to("'").strip("'"))
            elif character == '"':
                parts.append(self._quoted(depth))
            elif character in "$`":
                parts.append(self._expansion(depth))
            else:
                break
        return Word("".join(parts), self._line(start))

    def _up_to(self, mark: str) -> str:
        """Return the text up to the next mark of this kind, with both marks."""
        stop = -1 if mark in self._without_end else self._text.find(mark, self._place + 1)
        if stop < 0:
            self._without_end.add(mark)
            stop = self._place
        found = self._text[self._place : stop + 1]
        self._place = stop + 1
        return found

    def _quoted(self, depth: int) -> str:
        text, start, count = self._text, self._place, len(self.commands)
        self._place += 1
        parts: list[str] = []
        while '"' not in self._without_end and self._place < len(text):
            if match := _PLAIN_IN_QUOTES.match(text, self._place):
                parts.append(match[0])
                self._place = match.end()
                continue
            character = text[self._place]
            if character == '"':
                self._place += 1
                return "".join(parts)
            if character == "\\":
                after = text[self._place + 1 : self._place + 2]
                parts.append(after if after and after in '"\\$`' else f"\\{after}")
                self._place += 2
            else:
                parts.append(self._expansion(depth))
        self._without_end.add('"')
        self._place = start + 1
        del self.commands[count:]
        return ""

    def _expansion(self, depth: int) -> str:
        """Read what begins with "$" or a backtick."""
        text, start = self._text, self._place
        if text[start] == "`":
            return self._up_to("`")
        self._place += 1
        if text.startswith("$'", start):
            return self._up_to("'").strip("'")
        if text.startswith("${", start):
            stop = text.find("}", start, start + _LONGEST_EXPANSION)
            self._place = stop + 1 if stop >= 0 else start + 2
        elif text.startswith("$((", start) and self._skip_arithmetic():
            pass
        elif text.startswith("$(", start) and depth < _DEEPEST:
            self._place += 1
            self.read(depth + 1, True)
        return text[start : self._place]

    def _read_heredocs(self) -> None:
        for command, mark in self._waiting:
            if self._ends_of_heredocs is None:
                self._ends_of_heredocs = {}
                begin = 0
                for line in self._text.split("\n"):
                    self._ends_of_heredocs.setdefault(line.strip(), []).append(begin)
                    begin += len(line) + 1
            ends = self._ends_of_heredocs.get(mark.strip(), [])
            number = bisect_left(ends, self._place)
            if number < len(ends):
                command.heredoc = Word(self._text[self._place : ends[number]], self._line(self._place))
                after = bisect_right(self._line_ends, ends[number] - 1)
                is_last = after >= len(self._line_ends)
                self._place = len(self._text) if is_last else self._line_ends[after] + 1
        self._waiting = []
