"""The manual: one Markdown file a subject, shown by `gdrtop help`, by the key `?` and in the man page."""

from __future__ import annotations

from importlib import resources

# In the order of reading.
SUBJECTS = (
    "verdict",
    "dashboard",
    "live",
    "explain",
    "doctor",
    "versions",
    "setup",
    "environment",
    "actions",
    "safety",
    "bandwidth",
    "prove",
    "topology",
    "nccl-log",
    "recording",
    "report",
    "watch",
    "metrics",
    "consumers",
    "slurm",
    "remote",
    "fleet",
    "fleet-live",
    "fleet-bench",
    "ras",
    "hang",
    "manifests",
    "json",
    "config",
    "files",
    "simulation",
    "install",
)


def page(subject: str) -> str:
    """Return the Markdown text of a subject, one of SUBJECTS."""
    return (resources.files("tui.manual") / f"{subject}.md").read_text(encoding="utf-8")


def title(subject: str) -> str:
    """Return the title of a subject: its first line."""
    return page(subject).partition("\n")[0].removeprefix("# ")
