"""The manual: one Markdown file a subject, shown by `gdrtop help`, by the key `?` and in the man page."""

from __future__ import annotations

from importlib import resources

# In the order of reading: each page with the question that it answers.
GROUPS: dict[str, dict[str, str]] = {
    "Start": {
        "install": "How is gdrtop installed, also where nothing may be installed?",
        "verdict": "What do READY, DEGRADED and the other words mean?",
        "dashboard": "Which keys, panels and marks are there?",
        "simulation": "How can it be tried without a GPU?",
        "words": "What do the words of this field mean?",
    },
    "One node": {
        "doctor": "What is wrong, why, and how is it fixed?",
        "versions": "Which versions do not work together?",
        "setup": "What does a new node need, and what will an upgrade do?",
        "actions": "What can gdrtop change, and how is it undone?",
        "safety": "What does gdrtop write, and whom can it disturb?",
        "topology": "Which NIC is near which GPU?",
        "prove": "Can this NIC register the memory of this GPU?",
        "bandwidth": "How fast is it, and what makes it slow?",
        "report": "What goes into a ticket?",
        "recording": "How is what a node shows kept and replayed?",
    },
    "A job": {
        "live": "Do the running jobs use GPUDirect RDMA, and how fast?",
        "explain": "Why is the job of this user slow?",
        "environment": "Which variables does a job need, and which are wrong?",
        "read": "What does this text mean: a log, an output, a script?",
        "nccl-log": "What does this NCCL log say?",
        "hang": "Why is this job stuck?",
        "ras": "Which rank do the others wait for?",
    },
    "Many nodes": {
        "remote": "How is another node read, and with which rights?",
        "fleet": "Which nodes differ from the rest?",
        "fleet-live": "What does a job do on all of its nodes?",
        "fleet-bench": "Which node, NIC or rail is slow?",
    },
    "Automation": {
        "slurm": "How are jobs kept off a broken node?",
        "consumers": "How do Nagios, Kubernetes and CI use the checks?",
        "metrics": "How does Prometheus watch nodes, and which alerts are there?",
        "watch": "What happened last night? Who tells me when a job is slow?",
        "manifests": "What do other nodes like this one need?",
        "json": "How do scripts read gdrtop?",
    },
    "Reference": {
        "config": "What can be configured, and how is a finding silenced?",
        "files": "Which files does gdrtop read and write?",
        "machines": "On which real machines was gdrtop compared, and with what?",
    },
}
SUBJECTS = tuple(subject for questions in GROUPS.values() for subject in questions)
# The page about each command that has no page of its own name.
COMMAND_PAGES = {
    **dict.fromkeys(("check",), "doctor"),
    **dict.fromkeys(("topo", "modules"), "topology"),
    **dict.fromkeys(("prolog", "epilog", "health-check"), "slurm"),
    **dict.fromkeys(("fleet check", "fleet watch", "diff"), "fleet"),
    **{"fleet live": "fleet-live", "fleet bench": "fleet-bench", "fleet hang": "hang"},
    **{
        "forecast": "setup",
        "do": "actions",
        "env": "environment",
        "bench": "bandwidth",
        "record": "recording",
    },
    **{"manifest": "manifests", "reliability": "watch", "schema": "json", "completion": "install"},
    "help": "words",
}


def page(subject: str) -> str:
    """Return the Markdown text of a subject, one of SUBJECTS."""
    return (resources.files("tui.manual") / f"{subject}.md").read_text(encoding="utf-8")


def title(subject: str) -> str:
    """Return the title of a subject: its first line."""
    return page(subject).partition("\n")[0].removeprefix("# ")
