"""A forecast as data: what the next boot of each kernel brings, row by row, with evidence."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from probes.base.unknown import Maybe
from probes.facts.gpudirect import GdrPath
from probes.queries.finding import Evidence


class Outlook(Enum):
    """What to expect after a reboot, the best first."""

    WILL = "will"
    RISK = "at risk"  # it depends, or works worse than now
    UNKNOWN = "unknown"
    WILL_NOT = "will not"


_ORDER = tuple(Outlook)


@dataclass(frozen=True)
class ForecastRow:
    """One condition of the path after a reboot."""

    id: str  # "gpu-driver"; never changes
    title: str  # "GPU driver"
    outlook: Outlook
    reason: str  # one line
    evidence: tuple[Evidence, ...] = ()
    path: GdrPath | None = None  # the path that needs it; None: both
    decides: bool = True  # False: where it is unknown, the forecast stands without it


@dataclass(frozen=True)
class RowBuilder:
    """What the rows of one condition have in common, whatever their outlook."""

    id: str
    title: str
    path: GdrPath | None = None

    def of(self, outlook: Outlook, reason: str, *evidence: Evidence, decides: bool = True) -> ForecastRow:
        """Return the row with an outlook."""
        return ForecastRow(self.id, self.title, outlook, reason, evidence, self.path, decides)

    def will(self, reason: str, *evidence: Evidence) -> ForecastRow:
        """Return the row of a condition that will be met."""
        return self.of(Outlook.WILL, reason, *evidence)

    def risk(self, reason: str, *evidence: Evidence) -> ForecastRow:
        """Return the row of a condition that may not be met."""
        return self.of(Outlook.RISK, reason, *evidence)

    def will_not(self, reason: str, *evidence: Evidence) -> ForecastRow:
        """Return the row of a condition that will not be met."""
        return self.of(Outlook.WILL_NOT, reason, *evidence)

    def unknown(self, reason: str, *evidence: Evidence, decides: bool = True) -> ForecastRow:
        """Return the row of a condition that no file shows."""
        return self.of(Outlook.UNKNOWN, reason, *evidence, decides=decides)


@dataclass(frozen=True)
class KernelForecast:
    """What to expect of one kernel."""

    release: str
    is_running: bool
    is_next: Maybe[bool]  # the boot loader starts it by default
    rows: tuple[ForecastRow, ...]

    @property
    def path(self) -> GdrPath | None:
        """Return the better path: DMA-BUF where both are as likely; None: there will be none."""
        here = [path for path in _PATHS if any(row.path is path for row in self.rows)] or list(_PATHS)
        of = {path: worst(row for row in self.rows if row.path is path) for path in here}
        best = min(here, key=lambda path: _ORDER.index(of[path]))
        return None if of[best] is Outlook.WILL_NOT else best

    @property
    def outlook(self) -> Outlook:
        """Return the outlook of the whole: the worst of what both paths need and of the better path."""
        return worst(self.deciding)

    @property
    def deciding(self) -> tuple[ForecastRow, ...]:
        """Return the rows that decide: those of both paths and of the better one, or all if none is left."""
        path = self.path
        return tuple(row for row in self.rows if path is None or row.path in (None, path))

    @property
    def reason(self) -> str:
        """Return why, in one line; "" if all is well."""
        return "; ".join(self.reasons)

    @property
    def reasons(self) -> tuple[str, ...]:
        """Return why, in the words of the first of the worst rows, or of the first of each path."""
        outlook = self.outlook
        rows = [row for row in self.deciding if _counted(row) is outlook and outlook is not Outlook.WILL]
        if self.path is None and not any(row.path is None for row in rows):
            of_paths = {row.path: row for row in reversed(rows)}
            return tuple(f"{path.value}: {of_paths[path].reason}" for path in _PATHS if path in of_paths)
        return tuple(row.reason for row in rows[:1])


_PATHS = (GdrPath.DMABUF, GdrPath.PEERMEM, GdrPath.EFA, GdrPath.CXI)


@dataclass(frozen=True)
class Forecast:
    """The forecast of a node or an image."""

    kernels: tuple[KernelForecast, ...]  # the newest first
    next_kernel: Maybe[str]  # what the boot loader starts by default
    not_applicable: str = ""  # why there is nothing to forecast here
    not_known: tuple[str, ...] = ()  # what no file says

    def chosen(self, release: str = "") -> KernelForecast | None:
        """Return the kernel with this release; without one the next kernel, else the running or newest."""
        if release:
            return next((kernel for kernel in self.kernels if kernel.release == release), None)
        for wanted in (lambda kernel: kernel.is_next is True, lambda kernel: kernel.is_running):
            for kernel in self.kernels:
                if wanted(kernel):
                    return kernel
        return self.kernels[0] if self.kernels else None


def worst(rows: Iterable[ForecastRow]) -> Outlook:
    """Return the worst outlook of rows that count; WILL for none."""
    return max((_counted(row) for row in rows), key=_ORDER.index, default=Outlook.WILL)


def _counted(row: ForecastRow) -> Outlook:
    """Return the outlook that a row adds: an unknown that does not decide adds none."""
    return Outlook.WILL if row.outlook is Outlook.UNKNOWN and not row.decides else row.outlook


def exit_status(kernel: KernelForecast | None) -> int:
    """Return the status for monitoring: 0 will, 1 at risk, 2 will not, 3 unknown or not applicable."""
    if kernel is None:
        return 3
    return {Outlook.WILL: 0, Outlook.RISK: 1, Outlook.WILL_NOT: 2, Outlook.UNKNOWN: 3}[kernel.outlook]
