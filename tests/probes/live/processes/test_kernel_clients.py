"""Storage in the kernel on the NICs of a job."""

from __future__ import annotations

from dataclasses import replace

import pytest

from probes.host.rdma_resources import ProtectionDomain, QueuePair, RdmaResources
from probes.live.model.sample import LiveSample
from probes.live.processes.processes import kernel_clients
from tests.support.simulated_jobs import SimulatedWatch
from widgets.base.lines import plain
from widgets.live import detail, nics
from widgets.live.figures import rank_rates
from widgets.live.job_lines import rates_text

# A log of an NVMe over Fabrics target on an H100 node, in a public repository:
# "mlx5_0 lqpn 1879 rqpn 863 type RC state RTS comm [rdma_cm]"
# "mlx5_6 lqpn  863 rqpn 1879 type RC state RTS pid  python"
TARGET = QueuePair("mlx5_0", 1879, "RC", "RTS", 1, 863, kernel_name="rdma_cm")
PROGRAM = QueuePair("mlx5_6", 863, "RC", "RTS", 1, 1879, pid=4711)


@pytest.mark.parametrize(
    ("owners", "names"),
    [
        (("ib_core", "nvmet_rdma"), ("NVMe-oF target",)),
        (("ib_core", "rpcrdma", "ko2iblnd"), ("Lustre", "NFS")),
        (("ib_srpt", "ko2iblnd"), ("Lustre",)),  # ib_srpt has a domain since it was loaded
        (("ib_srpt",), ("SRP target",)),
        (("ib_core",), ("kernel (rdma_cm)",)),
        (("nvme-rdma\x1b[31m",), ("kernel (rdma_cm)",)),
    ],
)
def test_a_client_is_named_by_its_protection_domain(owners: tuple[str, ...], names: tuple[str, ...]) -> None:
    domains = tuple(
        ProtectionDomain("mlx5_0", number, kernel_name=name) for number, name in enumerate(owners)
    )
    assert kernel_clients(RdmaResources((TARGET, PROGRAM), domains=domains)) == {"mlx5_0": names}


def test_an_owner_of_queue_pairs_is_not_taken_for_another_with_a_domain() -> None:
    """IPoIB in connected mode; ib_srp has a domain on each device without a target."""
    ipoib = replace(TARGET, kernel_name="ib_ipoib")
    domains = (ProtectionDomain("mlx5_0", 1, kernel_name="ib_srp"),)
    assert kernel_clients(RdmaResources((ipoib,), domains=domains)) == {"mlx5_0": ("kernel (ib_ipoib)",)}
    found = kernel_clients(RdmaResources((ipoib, replace(TARGET, kernel_name="ib_srp"), PROGRAM)))
    assert found == {"mlx5_0": ("SRP", "kernel (ib_ipoib)")}


def test_management_and_programs_are_no_clients() -> None:
    """ib_core has a GSI queue pair on each device, and IPoIB in datagram mode one of type UD."""
    own = QueuePair("mlx5_0", 1, "GSI", "RTS", kernel_name="ib_core")
    ipoib = QueuePair("mlx5_0", 71, "UD", "RTS", kernel_name="ib_ipoib")
    waiting = QueuePair("mlx5_0", 72, "RC", "INIT", kernel_name="rdma_cm")
    assert kernel_clients(RdmaResources((own, ipoib, waiting, PROGRAM))) == {}


@pytest.fixture(scope="module")
def sample() -> LiveSample:
    return tuple(SimulatedWatch("hgx-h100+storage-traffic").samples(4))[-1]


def test_the_rates_of_the_job_are_upper_limits(sample: LiveSample) -> None:
    job = replace(sample.jobs[0], sent_gbps=2000.0, received_gbps=1900.0)
    assert sample.kernel_clients == {"mlx5_1": ("Lustre",)}
    assert rates_text(job, sample) == "≤ ↑2.00 ↓1.90 Tb/s"
    assert rates_text(job, replace(sample, kernel_clients={})) == "↑2.00 ↓1.90 Tb/s"
    shared = [rate.shared_with for rate in rank_rates(sample).values() if rate.shared_with]
    assert ("mlx5_1 with Lustre",) in shared


def test_the_nic_names_it(sample: LiveSample) -> None:
    rows = [plain(line) for line in nics.draw(sample, 220)]
    assert ", Lustre" in next(row for row in rows if row.startswith("mlx5_1"))
    port = next(port for port in sample.ports if port.device == "mlx5_1")
    assert any("Lustre, in the kernel" in plain(line) for line in detail.of_port(port, sample, 100))
