"""A plan to log and to report."""

from probes.base.plan import FileChange, Plan, Step

LOAD = Step("loads it", ("modprobe", "nvidia_peermem"), undo=("rmmod", "nvidia_peermem"))
WRITE = Step("keeps it", file=FileChange("/etc/modules-load.d/gdrtop.conf", "nvidia_peermem\n"))
PLAN = Plan("Load nvidia_peermem", (LOAD, WRITE))
