#!/bin/sh

PATH=/usr/sbin:/usr/bin:/sbin:/bin:/usr/local/bin
export PATH

# --log-only: write what would stop the job to the system log, and let it start.
# Without it, gdrtop drains the node and the job is requeued. --heal: first load missing modules.
# Other warnings than a GPU that asks for a reset, unknown results and a missing gdrtop never stop a job.
OPTIONS=--log-only
LIMIT_SECONDS=60

say() {
    logger -t gdrtop -- "prolog, job ${SLURM_JOB_ID:-?}: $1" 2>/dev/null || :
}

# Nothing but this and modules-load.d loads it; a restart of openibd unloads it.
if [ ! -e /sys/module/nvidia_peermem ]; then
    timeout -k 2 10 modprobe nvidia_peermem >/dev/null 2>&1 ||
        say "nvidia_peermem could not be loaded"
fi

if ! command -v gdrtop >/dev/null 2>&1; then
    say "gdrtop is not installed in $PATH"
    exit 0
fi

# gdrtop has a time limit of its own; timeout ends one that hangs all the same, and -k kills it.
timeout -k 2 "$LIMIT_SECONDS" gdrtop prolog $OPTIONS </dev/null
status=$?

# gdrtop ends with 1 only if the job must not start, but so does a Python that cannot start.
if [ "$status" = 1 ] && ! gdrtop --version >/dev/null 2>&1; then
    status="1: it cannot start"
fi

case $status in
    0) ;;
    1) exit 1 ;;
    124) say "gdrtop prolog did not finish within $LIMIT_SECONDS s" ;;
    137) say "gdrtop prolog was killed (SIGKILL): memory ran out, or it hung and timeout killed it" ;;
    *) say "gdrtop prolog has no result (exit status $status)" ;;
esac
exit 0
