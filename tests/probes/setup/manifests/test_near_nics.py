"""GPUs and their near NICs, as labels, a condition, pairs of devices and lines of gres.conf."""

import shlex
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from probes.base.unknown import Reason, Unknown
from probes.checks.judgment import judge
from probes.facts.gpu.gpus import GpuFacts
from probes.facts.gpudirect import GpuDirectFacts
from probes.facts.pci.functions import PciFacts
from probes.facts.rdma.devices import RdmaFacts
from probes.setup.situation import Situation
from probes.snapshot.verdict import assess
from probes.topology.paths import build
from tests.support.parsed_manifests import (
    PEERMEM,
    changed,
    content,
    gres_line,
    is_shell,
    labels_in,
    parse,
    refusal_of,
    request_of,
    situation_of,
    text_of,
)

HGX = "hgx-h100"
HOST = ("--host", "host", "--over", "chroot /{host}")  # / of the node is at /host in the container
UNREAD = Unknown(Reason.TIMED_OUT, "test")


def labels_of(node: str | Situation) -> dict[str, str]:
    return labels_in(text_of("nfd", request_of(node)))


def flowing(text: str) -> str:
    """The text with its notes on one line each."""
    return text.replace("\n#       ", " ")


def with_pci(situation: Situation, pci: PciFacts) -> Situation:
    node = replace(situation.examination.node, pci=pci)
    return changed(situation, examination=replace(situation.examination, node=node, topology=build(node)))


def with_roots(situation: Situation, root: str) -> Situation:
    """The same node with all devices below one PCIe root, as virtual machines often show them."""
    pci = situation.examination.node.pci
    assert isinstance(pci, PciFacts)
    functions = {bdf: replace(function, root=root) for bdf, function in pci.functions.items()}
    return with_pci(situation, replace(pci, functions=functions))


# Labels


def test_labels_say_what_the_verdict_says() -> None:
    labels = labels_of("dgx-a100")
    verdict = judge(situation_of("dgx-a100").examination).verdict
    assert labels["path"] == "peermem"
    assert labels["gpus-direct"] == str(verdict.gpus_served) == "8"
    assert labels["nics-direct"] == str(verdict.nics)
    assert (labels["gpu0-nic"], labels["gpu0-nic-path"]) == ("mlx5_0", "PIX")
    assert labels["gpu1-nic"] == "mlx5_1"  # as near as mlx5_0, which GPU0 has


def test_the_path_is_that_of_new_jobs_and_not_of_a_running_one() -> None:
    assert "peermem" in judge(situation_of(HGX).examination).verdict.reason  # a job registered memory by it
    assert labels_of(HGX)["path"] == "dmabuf"
    assert labels_in(text_of("nfd", request_of(HGX, PEERMEM)))["path"] == "dmabuf"  # --path changes no label


def test_a_gpu_that_loses_its_nic_loses_its_label() -> None:
    before, after = labels_of("hgx-b200"), labels_of("hgx-b200+port-down")
    lost = {name for name in before if name not in after}
    assert len(lost) == 2
    assert all(name.endswith(("-nic", "-nic-path")) for name in lost)
    assert int(after["gpus-direct"]) == int(before["gpus-direct"]) - 1


def test_a_broken_node_uses_host_memory_and_names_no_nic() -> None:
    labels = labels_of("dgx-a100+no-gdr-path")
    assert labels == {"path": "host", "gpus-direct": "0", "nics-direct": "0"}


def test_nothing_unknown_becomes_a_label() -> None:
    assert "the verdict is UNKNOWN" in refusal_of("nfd", request_of("cloud-vm"))


def test_a_name_that_no_label_can_hold_is_left_out() -> None:
    situation = situation_of("hgx-b200")
    examination = situation.examination
    rdma = examination.node.rdma
    assert isinstance(rdma, RdmaFacts)
    direct = examination.node.gpudirect
    assert isinstance(direct, GpuDirectFacts)
    names = {"mlx5_4": "bad:name"}
    devices = tuple(replace(device, name=names.get(device.name, device.name)) for device in rdma.devices)
    direct = replace(
        direct,
        nic_dmabuf={names.get(name, name): answer for name, answer in direct.nic_dmabuf.items()},
        nic_peermem={names.get(name, name): answer for name, answer in direct.nic_peermem.items()},
    )
    node = replace(examination.node, rdma=replace(rdma, devices=devices), gpudirect=direct)
    topology = build(node)
    usability = assess(node, topology, None)
    assert usability.nics[topology.gpus[0].id] == ("bad:name",)
    odd = replace(examination, node=node, topology=topology, usability=usability)
    labels = labels_of(changed(situation, examination=odd))
    assert "gpu0-nic" not in labels
    assert labels["gpu1-nic"] == "mlx5_5"


def test_labels_expire_unless_they_are_written_again() -> None:
    text = text_of("nfd", request_of(HGX))
    at = situation_of(HGX).examination.taken_at
    assert labels_in(text, now=at + 899)
    assert labels_in(text, now=at + 901) == {}


@pytest.mark.parametrize("taken_at", [float("nan"), float("inf"), -1e30, 1e30])
def test_a_clock_that_shows_no_time_gives_no_labels(taken_at: float) -> None:
    situation = situation_of(HGX)
    odd = changed(situation, examination=replace(situation.examination, taken_at=taken_at))
    assert "clock" in refusal_of("nfd", request_of(odd))


# The condition, and the DaemonSet


def test_the_plugin_runs_gdrtop_on_the_node_below_host() -> None:
    plugin = parse("npd", text_of("npd", request_of(HGX)))
    (rule,) = plugin["rules"]
    assert rule["path"] == "/bin/sh"
    assert rule["args"][2:] == ["/opt/gdrtop/bin/gdrtop", "check", "--for", "npd", *HOST]
    assert plugin["conditions"][0]["type"] == "GPUDirectRDMADegraded"


def test_the_daemonset_only_reads_the_node() -> None:
    *_, daemon_set, plugin = parse("daemonset", text_of("daemonset", request_of(HGX)))
    assert plugin == parse("npd", text_of("npd", request_of(HGX)))
    pod = daemon_set["spec"]["template"]["spec"]
    paths = {volume["name"]: volume.get("hostPath", {}).get("path") for volume in pod["volumes"]}
    for container in pod["containers"]:
        mounts = {mount["name"]: mount for mount in container["volumeMounts"]}
        assert mounts.keys() <= paths.keys()
        assert mounts["host"]["mountPath"] == "/host"
        writable = {paths[name] for name, mount in mounts.items() if not mount.get("readOnly")} - {None}
        assert writable <= {"/etc/kubernetes/node-feature-discovery/features.d"}
    assert (
        daemon_set["spec"]["selector"]["matchLabels"] == daemon_set["spec"]["template"]["metadata"]["labels"]
    )


def test_the_daemonset_writes_the_labels_at_once_or_not_at_all(tmp_path: Path) -> None:
    *_, daemon_set, _ = parse("daemonset", text_of("daemonset", request_of(HGX)))
    _, labels = daemon_set["spec"]["template"]["spec"]["containers"]
    script = labels["command"][-1]
    assert is_shell(script)
    assert shlex.join(["manifest", "nfd", *HOST]) in script
    program, features = tmp_path / "program", tmp_path / "features"
    features.mkdir()
    once = script.replace("/opt/gdrtop/bin/gdrtop", str(program)).replace("/features", str(features))
    once = once.replace("sleep 300", "exit 0")
    for printed, status in (("first", 0), ("half", 2)):
        program.write_text(f'#!/bin/sh\necho "{printed} $4 $6"\nexit {status}\n')
        program.chmod(0o755)
        subprocess.run(["sh", "-c", once], check=True)
        assert (features / "gdrtop").read_text() == "first host chroot /{host}\n"


# Pairs for DRA


def test_a_pair_is_below_one_pcie_root() -> None:
    text = text_of("dra", request_of(HGX))
    _, template = parse("dra", text)
    devices = template["spec"]["spec"]["devices"]
    assert [request["name"] for request in devices["requests"]] == devices["constraints"][0]["requests"]
    assert "pci0000:15  GPU0, GPU1: 2 NICs mlx5_0, mlx5_1" in text
    assert "too loose" not in text


def test_a_root_that_all_devices_share_is_too_loose() -> None:
    text = flowing(text_of("dra", request_of(with_roots(situation_of("dgx-a100"), "pci0000:00"))))
    assert "the constraint is too loose for GPU0, GPU1, GPU2" in text
    assert "of 10 NICs that share the root of GPU0, 8 are farther than mlx5_0, mlx5_1" in text


def test_gpus_that_would_wait_forever_are_named() -> None:
    text = flowing(text_of("dra", request_of("pcie-l40s")))
    assert "no NIC shares the PCIe root of GPU2, GPU3: a pod that gets it stays Pending" in text
    assert "would stay Pending" in refusal_of(
        "dra", request_of("gb300")
    )  # by Data Direct alone they are near


def test_a_nearest_nic_below_another_root_is_named() -> None:
    situation = situation_of("dgx-a100")
    pci = situation.examination.node.pci
    assert isinstance(pci, PciFacts)
    topology = situation.examination.topology
    swapped = {"mlx5_0": "mlx5_2", "mlx5_1": "mlx5_3", "mlx5_2": "mlx5_0", "mlx5_3": "mlx5_1"}
    functions = dict(pci.functions)
    for name, other in swapped.items():
        bdf = topology.bdfs[name]
        functions[bdf] = replace(functions[bdf], root=pci.functions[topology.bdfs[other]].root)
    node = replace(situation.examination.node, pci=replace(pci, functions=functions))
    odd = changed(situation, examination=replace(situation.examination, node=node))  # the topology stays
    text = flowing(text_of("dra", request_of(odd)))
    assert "GPU0 never gets its nearest NIC mlx5_0, mlx5_1, which is below another root" in text


def test_slingshot_has_no_device_for_dranet() -> None:
    assert "Slingshot" in refusal_of("dra", request_of("slingshot"))


# gres.conf


def explicit(text: str) -> list[dict[str, str]]:
    """The lines for a Slurm without NVML, which are comments."""
    lines = (line.removeprefix("#   ") for line in text.splitlines())
    return [gres_line(line) for line in lines if " File=/dev/" in line]


def test_slurm_detects_gpus_and_counts_nics() -> None:
    text = text_of("gres", request_of(HGX))
    assert parse("gres", text) == [
        {"AutoDetect": "nvml"},
        {"Name": "nic", "Count": "8", "Flags": "CountOnly"},
    ]
    assert all(line.startswith(f"NodeName={HGX} ") for line in content(text))
    assert "Gres=gpu:nvidia_h100_80gb_hbm3:8,nic:8" in text


def test_explicit_lines_have_one_device_file_each_and_its_links() -> None:
    rows = explicit(text_of("gres", request_of(HGX)))
    assert [row["File"] for row in rows] == [f"/dev/nvidia{number}" for number in range(8)]
    for number, row in enumerate(rows):
        links = row["Links"].split(",")
        assert links.index("-1") == number
        assert set(links) == {"-1", "18"}
    assert [row.get("AutoDetect") for row in rows] == ["off", *[None] * 7]
    far = explicit(text_of("gres", request_of("pcie-l40s")))
    assert far[0]["Links"] == "-1,0,0,0"


def test_unknown_links_and_device_files_are_left_out() -> None:
    situation = situation_of(HGX)
    node = situation.examination.node
    assert isinstance(node.gpus, GpuFacts)

    def with_gpus(**fields: object) -> str:
        assert isinstance(node.gpus, GpuFacts)
        gpus = tuple(replace(gpu, **fields) for gpu in node.gpus.gpus)  # type: ignore[arg-type]
        odd = replace(node, gpus=replace(node.gpus, gpus=gpus))
        examination = replace(situation.examination, node=odd)
        return text_of("gres", request_of(changed(situation, examination=examination)))

    without_links = with_gpus(nvlink_peers=UNREAD)
    assert len(explicit(without_links)) == 8
    assert not any("Links" in row for row in explicit(without_links))
    assert "Links= is left out" in without_links
    without_files = with_gpus(minor=UNREAD)
    assert explicit(without_files) == []
    assert "the device files of 8 GPUs are unknown (timed out)" in without_files
