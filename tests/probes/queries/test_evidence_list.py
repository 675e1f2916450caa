"""Long lists are cut and the rest is counted, in words that scripts of admins may match."""

from probes.base.evidence import LIKE_THESE, Evidence, first_distinct, first_n
from probes.base.text import join_limited
from probes.base.unknown import Reason, Unknown
from probes.queries.finding import needs

NICS = [f"mlx5_{number}" for number in range(10)]
SEEN = [Evidence(f"/sys/class/infiniband/{nic}", "down") for nic in NICS]


def test_needs_names_the_fact_and_the_reason() -> None:
    """Checks that need the same are grouped by these words."""
    assert needs("the kernel log", Unknown(Reason.NEEDS_ROOT, "/dev/kmsg")) == "needs root: the kernel log"
    assert needs("the GPUs", Unknown(Reason.TIMED_OUT)) == "needs the GPUs (timed out)"
    driver = Unknown(Reason.DRIVER_ERROR, "NVML", "GPU is lost")
    assert needs("NVML", driver) == "needs NVML (driver error: GPU is lost)"


def test_words_are_listed_once_and_the_rest_counted() -> None:
    assert join_limited(NICS[:8]) == ", ".join(NICS[:8])
    assert join_limited(NICS) == f"{', '.join(NICS[:8])} and 2 more"
    assert join_limited(["GPU0", "GPU1", "GPU0", "GPU2"], 2) == "GPU0, GPU1 and 1 more"
    assert join_limited([]) == ""


def test_first_distinct_counts_the_rest_at_its_first_source() -> None:
    assert first_distinct(SEEN[:8] * 2) == tuple(SEEN[:8])
    assert first_distinct(SEEN) == (*SEEN[:8], Evidence("/sys/class/infiniband/mlx5_8", "and 2 more"))
    assert first_distinct(SEEN, LIKE_THESE)[-1].value == "and 2 more like these"
    assert first_distinct([]) == ()


def test_log_lines_keep_their_repetitions() -> None:
    line = Evidence("dmesg", "link is down")
    assert first_n([line] * 3) == (line,) * 3
    assert first_n([line] * 9) == (*[line] * 8, Evidence("dmesg", "and 1 more"))
    assert first_n(SEEN)[-1] == Evidence("/sys/class/infiniband/mlx5_0", "and 2 more")
