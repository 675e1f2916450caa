"""`nvidia-smi topo -m` of machines whose tree is known: gdrtop says the same of every pair."""

from pathlib import Path

from probes.base.unknown import Unknown
from probes.facts.node import probe_node
from probes.host.machine.local import LocalHost
from probes.simulation.host import SimulatedHost
from probes.topology.paths import build
from tests.support.machines import machine_file
from tests.support.topo_matrix import matrix_in, words_of
from tests.support.trees import MELLANOX, NVIDIA, add_function, add_rdma_device


def matrix(name: str) -> dict[tuple[str, str], str]:
    return matrix_in(machine_file(f"topo_m/{name}").read_text())


def test_hgx_of_the_cloud_is_as_our_simulated_hgx() -> None:
    """8 GPUs, 8 NICs, two of each below a switch: the simulated node without its storage NICs."""
    wanted = matrix("gke-8gpu-nv18-8nic.txt")
    topology = build(probe_node(SimulatedHost("hgx-h100")))
    compute = [nic for nic in topology.nics if nic.id not in ("mlx5_4", "mlx5_9")]
    names = {gpu.id: gpu.label for gpu in topology.gpus} | {
        nic.id: f"NIC{n}" for n, nic in enumerate(compute)
    }
    for (a, b), path in topology.paths.items():
        if a in names and b in names:
            smi = "?" if isinstance(path.smi, Unknown) else path.smi.value
            assert wanted[names[a], names[b]] == (f"NV{path.nvlinks}" if path.nvlinks else smi)


def test_workstation_with_gpus_on_one_host_bridge_and_a_nic_on_another(tmp_path: Path) -> None:
    """Threadripper: both GPUs below one host bridge (PHB), the two-port NIC below another of the node."""
    for port, bus in (("01", "01"), ("03", "21")):
        add_function(
            tmp_path,
            ("pci0000:00", f"0000:00:{port}.1", f"0000:{bus}:00.0"),
            NVIDIA,
            0x2230,
            0x030000,
            driver="nvidia",
        )
    for function in (0, 1):
        path = ("pci0000:e0", "0000:e0:01.1", f"0000:e1:00.{function}")
        add_function(tmp_path, path, MELLANOX, 0x1021, 0x020000)
        add_rdma_device(tmp_path, f"mlx5_{function}", path)
    assert words_of(build(probe_node(LocalHost(str(tmp_path))))) == matrix_in(
        machine_file("topo_m/puget-wrx90-topo.txt").read_text()
    )


def test_gpu_below_a_second_switch_is_pxb(tmp_path: Path) -> None:
    """IGX Orin: the NIC's own switch with its two ports, and behind a further switch the GPU."""
    top = ("pci0005:00", "0005:00:00.0", "0005:01:00.0")
    for function in (0, 1):
        path = (*top, "0005:02:00.0", f"0005:03:00.{function}")
        add_function(tmp_path, path, MELLANOX, 0x1021, 0x020000)
        add_rdma_device(tmp_path, f"mlx5_{function}", path)
    gpu = (*top, "0005:02:01.0", "0005:05:00.0", "0005:06:00.0", "0005:07:00.0")
    add_function(tmp_path, gpu, NVIDIA, 0x2230, 0x030000)
    assert words_of(build(probe_node(LocalHost(str(tmp_path))))) == matrix_in(
        machine_file("topo_m/igx-orin-topo.txt").read_text()
    )
