"""What Live says of queue pairs that the kernel does not list and no counter has the losses of."""

from __future__ import annotations

from dataclasses import replace

import pytest

from probes.facts.jobs.process_files import MappedLibrary
from probes.live.model.sample import LiveProcess, LiveSample
from tests.support.live_samples import ABSENT, a_port, a_process, sample_of
from widgets.base.lines import plain
from widgets.live import detail, nics, ranks

_QUIET = {"packet_seq_err": 0.0, "rnr_nak_retry_err": 0.0, "np_cnp_sent": 0.0}


def posting(number: int = 0, library: str = "nvshmem_transport_ibgda") -> LiveProcess:
    process = a_process(number)
    mapped = (MappedLibrary(library, f"/usr/lib64/{library}.so.3", ABSENT),)
    return replace(process, process=replace(process.process, libraries=mapped))


def sample_with(process: LiveProcess, **counters: float) -> LiveSample:
    ports = tuple(a_port(number, counters={**_QUIET, **counters}) for number in (0, 1))
    return replace(sample_of(process), ports=ports)


def cells(sample: LiveSample, device: str) -> dict[str, str]:
    head, *rows = [plain(line) for line in nics.draw(sample, 200)]
    row = next(row for row in rows if device in row)
    starts = {title: head.index(title) + len(title) for title in ("CNP/s", "retrans/s", "RNR/s")}
    return {title: row[:end].split()[-1] for title, end in starts.items()}


def test_no_losses_are_shown_as_zero_where_none_are_counted() -> None:
    shown = cells(sample_with(posting()), "mlx5_0")
    assert shown == {"CNP/s": "0", "retrans/s": "?", "RNR/s": "?"}  # the port counts CNPs
    assert cells(sample_with(posting()), "mlx5_1")["retrans/s"] == "0"  # another NIC
    assert cells(sample_with(posting(), packet_seq_err=5.0), "mlx5_0")["retrans/s"] == "5.0"
    for library in ("nvshmem_transport_ibrc", "libnccl"):
        assert cells(sample_with(posting(0, library)), "mlx5_0")["retrans/s"] == "0"


@pytest.mark.parametrize(
    ("thread", "library", "sentence"),
    [
        (
            "NCCL Service 0",
            "nvshmem_transport_ibgda",
            "not counted for GPU-posted queues (NVSHMEM IBGDA, rank 0)",
        ),
        ("NCCL GIN Progre", "libnccl", "possibly not counted for GPU-posted queues (NCCL's GDAKI, rank 0)"),
        ("NCCL Service 0", "libnccl", ""),
    ],
)
def test_a_nic_says_whose_losses_it_does_not_count(thread: str, library: str, sentence: str) -> None:
    sample = sample_with(replace(posting(0, library), threads=(thread,)))
    text = " ".join(plain(line).strip() for line in detail.of_port(sample.ports[0], sample, 200))
    assert (f"Losses and timeouts: {sentence}" in text) == bool(sentence)
    assert ("Losses and timeouts" in text) == bool(sentence)


def test_the_number_of_queue_pairs_is_the_least() -> None:
    text = plain(list(ranks.draw(sample_with(posting()), 200))[1])
    assert "32+ QPs" in text
    assert "32 QPs" in plain(list(ranks.draw(sample_with(a_process(0)), 200))[1])
    process = posting()
    shown = " ".join(plain(line).strip() for line in detail.of_process(process, sample_with(process), 200))
    assert "others of NVSHMEM IBGDA, to which GPUs post: the kernel does not list them" in shown


def test_the_rate_of_a_process_without_listed_queue_pairs_is_unknown_and_not_none() -> None:
    process = replace(posting(), nics=())
    shown = " ".join(plain(line).strip() for line in detail.of_process(process, sample_with(process), 200))
    assert "unknown: queue pairs are not listed (not counted for GPU-posted queues (NVSHMEM IBGDA))" in shown
    none = replace(a_process(0), nics=())
    shown = " ".join(plain(line).strip() for line in detail.of_process(none, sample_with(none), 200))
    assert "no connected queue pair" in shown


def test_a_nic_shows_what_it_sends_by_priority() -> None:
    port = replace(a_port(0), sent_by_priority={0: 92.0, 3: 1.5, 5: 0.0})
    sample = replace(sample_of(a_process(0)), ports=(port,))
    text = " ".join(plain(line) for line in detail.of_port(port, sample, 120))
    assert "Gb/s sent: 92 in 0, 1.5 in 3" in " ".join(text.split())
    assert "Priorities" not in " ".join(plain(line) for line in detail.of_port(a_port(0), sample, 120))
