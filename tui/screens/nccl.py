"""The NCCL screen: the logs of the jobs on this node, and what the selected one says."""

from __future__ import annotations

from dataclasses import replace

from textual.app import ComposeResult
from textual.widgets import Input

from probes.base.text import join_limited, plural
from probes.base.unknown import Unknown
from probes.live.processes.job_logs import NEXT_RUN, FoundLogs, JobLog
from tui.runtime.log_follower import Followed
from tui.screens import save_and_copy
from tui.screens.keys import KEYS, bind, leave_keys
from tui.screens.list_screen import FILTER_KEY, REFRESH_KEY, FilteredListScreen
from tui.screens.list_state import FilteredListState
from tui.screens.request import Request
from widgets.base.lines import Line, Run, Tone, fit, paragraphs, plain, wrapped
from widgets.nccl.log import draw

_TEXT_WIDTH = 160  # of a written file
_MOST_TYPED = 16
_GAP = "  "
FOLLOW_SECONDS = 1.0


class NcclState(FilteredListState):
    """Logs, selection, filter, and the log that is followed."""

    def __init__(self) -> None:
        super().__init__()
        self._found: FoundLogs | None = None
        self._typed: list[JobLog] = []
        self.opened = ""  # key of the log that is followed
        self.followed: Followed | None = None
        self._reading_failure = ""
        self._drawn: tuple[object, list[Line]] | None = None

    # What was found and read

    def set_found(self, found: FoundLogs) -> None:
        """Show the logs of the jobs; the one that is followed stays."""
        opened = self.log(self.opened)
        self._found, self._failure = found, ""
        if opened is not None and self.log(self.opened) is None:  # its job has ended
            self._type(opened)
        self._keep_selection()

    def add_typed(self, log: JobLog) -> None:
        """Add a file that the user named, and select it."""
        self._type(log)
        self.selected = log.key

    def _type(self, log: JobLog) -> None:
        self._typed = [log, *(other for other in self._typed if other.key != log.key)][:_MOST_TYPED]

    def select_job(self, job: str) -> bool:
        """Select a job's first log; return whether it has one."""
        log = next((log for log in self.logs if log.job == job), None)
        if log is not None:
            self.selected = log.key
        return log is not None

    @property
    def logs(self) -> list[JobLog]:
        """All logs, those that the user named first."""
        found = self._found.logs if self._found is not None else ()
        keys = {log.key for log in found}
        return [*(log for log in self._typed if log.key not in keys), *found]

    def log(self, key: str) -> JobLog | None:
        """Return a log by its key."""
        return next((log for log in self.logs if log.key == key), None)

    def open(self, key: str) -> None:
        """Note that a log is followed from now on."""
        self.opened, self.followed, self._reading_failure = key, None, ""

    def set_followed(self, followed: Followed) -> None:
        """Show what was read so far."""
        self.followed, self._reading_failure = followed, ""

    def fail_reading(self, message: str) -> None:
        """Show why the log cannot be read."""
        self._reading_failure = message

    def filter(self, word: str) -> None:
        """Show only lines that contain the word."""
        self.word = word.strip().lower()

    def _order(self) -> list[str]:
        return [log.key for log in self.logs]

    # Drawing

    def summary(self, width: int) -> list[Line]:
        """Draw how far the log was read, if one is open."""
        if self.opened != self.selected or not self.opened:
            return []
        return wrapped(self._progress(), width, Tone.DIM)

    def _progress(self) -> str:
        followed = self.followed
        log = self.log(self.opened)
        name = "the log" if log is None else _shown(log)
        if self._reading_failure:
            return f"✗ {self._reading_failure}"
        if followed is None:
            return f"Reading {name} …"
        if followed.is_behind:
            return f"Reading {name}, {_size(followed.read_bytes)} of {_size(followed.size_bytes)} …"
        text = f"Following {name}, {_size(followed.read_bytes)} read"
        if followed.restarts:
            text += "; the file was replaced or truncated, and was read again from the start"
        errors = [f"{file.name}: {file.error}" for file in followed.facts.files if file.error]
        if errors:
            text += f"; cannot read {join_limited(errors, 1)}"
        return text

    def list_lines(self, width: int) -> list[Line]:
        """Draw a line per log: size, where it comes from, job and file."""
        logs = self.logs
        if not logs:
            return self._none(width)
        rows = [(_size(log.size_bytes), log.source, _shown(log), log.name) for log in logs]
        widths = [max(len(row[column]) for row in rows) for column in range(3)]
        widths[2] = min(widths[2], max(20, width - sum(widths[:2]) - 30))
        lines = []
        for log, (size, source, file, job) in zip(logs, rows, strict=True):
            tone = Tone.CURSOR if log.key == self.selected else Tone.PLAIN
            cells = fit((Run(file, tone, log.key),), widths[2])
            text = (Run(f"{size:>{widths[0]}}{_GAP}{source:<{widths[1]}}{_GAP}"), *cells, Run(f"{_GAP}{job}"))
            lines.append(fit(text, width))
        return lines

    def _none(self, width: int) -> list[Line]:
        if self._found is None:
            return self._draw_absent("Searching for NCCL logs …", width)
        jobs = self._found.jobs
        keys = f"{KEYS['file'].display} opens a file, {KEYS['refresh'].display} searches again."
        if isinstance(jobs, Unknown):
            return wrapped(f"Jobs are unknown ({jobs}). {keys}", width, Tone.WARNING)
        found = "No NCCL log was found." if jobs else "No job on this node uses NCCL yet."
        return wrapped(f"{found} {keys}", width, Tone.WARNING if jobs else Tone.DIM)

    def detail_title(self) -> str:
        """Return the title of the lower pane; no name of a file, because Textual would read it as markup."""
        return "Log" if self.opened and self.opened == self.selected else "Next run"

    def detail_lines(self, width: int) -> list[Line]:
        """Draw what the selected log says if it is followed, else what to set for the next run."""
        if not self.opened or self.opened != self.selected or self.followed is None:
            return self._advice(width)
        key = (self.followed, width, self.word)
        if self._drawn is None or self._drawn[0] != key:
            self._drawn = key, self._matching(self._lines(self.followed, width), width)
        return self._drawn[1]

    @staticmethod
    def _lines(followed: Followed, width: int) -> list[Line]:
        verdict = followed.verdict
        if followed.is_behind:  # the rest may say more
            verdict = replace(verdict, text=f"so far {verdict.text}")
        return draw(followed.facts, verdict, width)

    def _matching(self, lines: list[Line], width: int) -> list[Line]:
        if not self.word:
            return lines
        found = [line for line in lines if self.word in plain(line).lower()]
        return found or wrapped(f'No line contains "{self.word}".', width, Tone.DIM)

    def _advice(self, width: int) -> list[Line]:
        found = self._found or FoundLogs()
        lines: list[Line] = []
        if self.selected:
            lines += [*wrapped("Enter opens the selected log and follows it.", width), ()]
        lines += paragraphs(found.missing, width, Tone.WARNING)
        if found.missing:
            lines.append(())
        lines += wrapped("Set these variables for the next run, for all processes of the job:", width)
        lines.append(())
        for variable, why in NEXT_RUN:
            lines.append((Run(f"  {variable}", Tone.TITLE),))
            lines += wrapped(why, width, Tone.DIM, "      ")
        lines.append(())
        text = (
            "NCCL writes these lines mainly while it connects. In a container, choose a directory that "
            "outlives it. gdrtop nccl-log reads the files later, even on another machine."
        )
        return [*lines, *wrapped(text, width, Tone.DIM)]

    def text(self) -> str:
        """Return what is shown of the followed log, as text."""
        if self.followed is None:
            return ""
        log = self.log(self.opened)
        head = [] if log is None else [f"{file.shown}" for file in log.files]
        lines = self._matching(self._lines(self.followed, _TEXT_WIDTH), _TEXT_WIDTH)
        return "\n".join([*head, "", *map(plain, lines)]) + "\n"


def _shown(log: JobLog) -> str:
    """Return the file, or the first one and how many there are."""
    first = log.files[0].shown
    return first if len(log.files) == 1 else f"{plural(len(log.files), 'file')}: {first} …"


def _size(size_bytes: int) -> str:
    for unit, shift in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if size_bytes >= 1 << shift:
            return f"{size_bytes / (1 << shift):.1f} {unit}"
    return f"{size_bytes} B"


class NcclScreen(FilteredListScreen[NcclState]):
    """The list of logs; Enter opens the selected one, and it is followed as it grows."""

    BINDINGS = [  # noqa: RUF012 - Textual's own type
        bind("file", "type_path"),
        FILTER_KEY,
        bind("write", "write"),
        bind("ras", "app.ras"),
        REFRESH_KEY,
        *leave_keys("nccl"),
    ]
    LIST = "logs"
    DETAILS = "log"
    TITLES = ("NCCL", "Logs", "Next run")
    FILTER = "A word in the line. Esc: clear"

    def _inputs(self) -> ComposeResult:
        yield from super()._inputs()
        yield Input(placeholder="Path of a log. Esc: cancel", id="path", max_length=4096)

    def on_mount(self) -> None:
        self._path.display = False
        self.set_interval(FOLLOW_SECONDS, self.follow)

    def follow(self) -> None:
        """Ask for what is new."""
        if self._state.opened:
            self.post_message(Request("read_log"))

    @property
    def _path(self) -> Input:
        return self.query_one("#path", Input)

    def _draw_panes(self) -> None:
        self._details.set_title(self._state.detail_title())
        super()._draw_panes()

    # Keys

    def why_not(self, action: str) -> str | None:
        if action == "write" and self._state.followed is None:
            return "open a log first, with Enter."
        return super().why_not(action)

    def action_open(self) -> None:
        """Follow the selected log, and show only it."""
        if self._state.selected:
            self.post_message(Request("follow_log", self._state.selected))
            self._details.scroll_to(y=0, animate=False)
        super().action_open()

    def show_opened(self) -> None:
        """Show only the log that is followed."""
        self._set_opened(True)
        self.draw()

    def action_refresh(self) -> None:
        self.post_message(Request("find_logs"))

    def action_write(self) -> None:
        save_and_copy.save(self, "gdrtop-nccl", txt=self._state.text())

    def action_type_path(self) -> None:
        self._path.display = True
        self.set_focus(self._path)

    def action_filter(self) -> None:
        self._word.display = True
        self.set_focus(self._word)

    def on_input_submitted(self, submitted: Input.Submitted) -> None:
        if submitted.input is self._path:
            path = submitted.value.strip()
            self._leave_path()
            if path:
                self.post_message(Request("open_log", path))

    def _leave_path(self) -> None:
        self._path.value = ""
        self._path.display = False
        self._focus_pane()

    def _focus_pane(self) -> None:
        (self._details if self.has_class("opened") else self._list).focus()

    def action_leave(self) -> None:
        """Close the prompt, else clear the filter, else go back to the list, else leave the screen."""
        if self._path.display:
            self._leave_path()
        elif self._word.display:
            self._clear_filter()
        else:
            super().action_leave()
