"""Loading modules: what is missing, in order, and what is not even tried."""

from __future__ import annotations

from dataclasses import replace

import pytest

from probes.base.plan import FileChange, Plan
from probes.base.unknown import Reason, Unknown
from probes.facts.kernel.modprobe_config import InstallLine, parse_load_list
from probes.facts.kernel.modules import ModuleFacts, ModuleState
from probes.facts.pci.functions import PciKind
from probes.facts.system.platform import Environment
from probes.plans.load_modules import OWN_FILE, load_plan
from probes.snapshot.examination import Examination
from tests.support.changed_facts import with_module, without
from tests.support.doctor import examination_of, findings_on
from tests.support.plans import answer, commands, offers_on, plan, undone, why_not

HGX, DGX = "hgx-h100", "dgx-a100"
PEERMEM = "nvidia_peermem"


def with_ofed(examination: Examination, release: str) -> Examination:
    tools = examination.tools
    assert not isinstance(tools, Unknown)
    return replace(examination, tools=replace(tools, ofed=release))


def with_module_facts(examination: Examination, **facts: object) -> Examination:
    modules = examination.node.modules
    assert isinstance(modules, ModuleFacts)
    changed = replace(modules, **facts)  # type: ignore[arg-type]
    return replace(examination, node=replace(examination.node, modules=changed))


def bare(examination: Examination) -> Examination:
    """A node on which nothing is loaded yet."""
    names = ("ib_core", "ib_uverbs", "rdma_cm", "mlx5_core", "mlx5_ib", "nvidia", "nvidia_uvm", PEERMEM)
    return without(examination, *names)


def test_a_node_with_all_modules_says_so() -> None:
    told = why_not("load-modules", examination_of(HGX))
    needed = "mlx5_core, mlx5_ib, nvidia, nvidia_uvm, nvidia_peermem"
    assert told == f"all needed modules are loaded ({needed})"


def test_each_module_has_its_own_modprobe_in_order() -> None:
    fix = plan("load-modules", bare(examination_of(DGX)))
    assert commands(fix) == [
        "modprobe mlx5_core",
        "modprobe mlx5_ib",
        "modprobe nvidia",
        "modprobe nvidia_uvm",
        "modprobe nvidia_peermem",
    ]
    assert undone(fix)[-1] == "rmmod nvidia_peermem"
    whys = [step.why.partition(":")[0] for step in fix.steps]
    assert whys == [
        "Load mlx5_core",
        "Load mlx5_ib once mlx5_core is loaded (needs ib_core, ib_uverbs)",
        "Load nvidia",
        "Load nvidia_uvm once nvidia is loaded",
        "Load nvidia_peermem once ib_core, nvidia are loaded",
    ]


def test_modules_of_earlier_steps_are_not_loaded_again() -> None:
    fix = offers_on("pcie-l40s+mlx5-core-not-loaded")["load-modules"].plan
    assert fix is not None
    assert commands(fix) == ["modprobe mlx5_core", "modprobe mlx5_ib"]
    fix = offers_on("pcie-l40s+ib-core-not-loaded")["load-modules"].plan
    assert fix is not None
    assert commands(fix) == ["modprobe mlx5_ib"]


def test_ib_uverbs_of_old_kernels_is_loaded_by_its_own_step() -> None:
    node = with_module(examination_of(HGX), "mlx5_ib", depends=("ib_core", "mlx5_core"))
    assert commands(plan("load-modules", without(node, "ib_uverbs"))) == ["modprobe ib_uverbs"]


def test_peermem_is_loaded_without_dmabuf_or_if_loaded_at_boot() -> None:
    for node in (examination_of(DGX), examination_of(HGX)):
        assert commands(plan("load-modules", without(node, PEERMEM))) == ["modprobe nvidia_peermem"]


def test_peermem_is_not_loaded_if_dmabuf_works() -> None:
    node = without(with_module(examination_of(HGX), PEERMEM, persistent=None), PEERMEM)
    assert why_not("load-modules", node).startswith("all needed modules are loaded")
    by_name = plan("load-peermem", node)
    assert commands(by_name) == ["modprobe nvidia_peermem"]
    assert "NCCL keeps using DMA-BUF" in by_name.note


def test_an_unknown_need_for_peermem_is_reported() -> None:
    node = with_module(bare(examination_of(DGX)), PEERMEM, persistent=None)
    fix = plan("load-modules", node)
    assert commands(fix)[-1] == "modprobe nvidia_uvm"
    assert "Cannot tell whether nvidia_peermem is needed as well: nvidia must be loaded first" in fix.note


def test_a_node_with_only_gpus_needs_no_rdma_modules() -> None:
    node = bare(examination_of(HGX))
    pci = node.node.pci
    assert not isinstance(pci, Unknown)
    gpus = {bdf: function for bdf, function in pci.functions.items() if function.kind.name == "GPU"}
    alone = replace(
        node,
        node=replace(node.node, pci=replace(pci, functions=gpus)),
        topology=replace(node.topology, nics=()),
    )
    assert commands(plan("load-modules", alone)) == ["modprobe nvidia", "modprobe nvidia_uvm"]
    assert why_not("load-peermem", alone) == "this node has no RDMA NIC"


def test_only_legacy_ofed_gets_the_peerdirect_option() -> None:
    node = without(examination_of(DGX), PEERMEM)
    old = with_ofed(node, "MLNX_OFED_LINUX-4.9-7.1.0.0")
    assert commands(plan("load-modules", old)) == ["modprobe nvidia_peermem peerdirect_support=1"]
    new = with_ofed(node, "MLNX_OFED_LINUX-24.10-0.7.0.0")
    assert commands(plan("load-modules", new)) == ["modprobe nvidia_peermem"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("peermem-not-on-disk", "no .ko for kernel"),
        ("peermem-built-without-symbols", "built without peer-memory symbols"),
        ("module-blacklisted-install", "replaced by `install nvidia_peermem /bin/false`"),
        ("module-blacklisted-cmdline", "blocked by module_blacklist= on the kernel command line"),
        ("module-wrong-vermagic", "its file was built for kernel 6.8.0-58-generic"),
        ("secure-boot-unsigned", "its file is unsigned, but this kernel accepts only signed modules"),
        (
            "peermem-symbol-version-mismatch-nvidia",
            "its file belongs to driver 565.57.01, but 570.211.01 is loaded",
        ),
    ],
)
def test_an_unloadable_module_is_not_tried(fault: str, reason: str) -> None:
    for action in ("load-modules", "load-peermem"):
        told = why_not(action, examination_of(f"{HGX}+{fault}"))
        assert told.startswith("nvidia_peermem cannot be loaded: ")
        assert reason in told


def test_unloadable_modules_are_listed_last() -> None:
    node = without(examination_of(f"{HGX}+peermem-built-without-symbols"), "nvidia_uvm")
    fix = plan("load-modules", node)
    assert commands(fix) == ["modprobe nvidia_uvm", "…"]
    assert fix.steps[-1].why.startswith("nvidia_peermem cannot be loaded: built without")


def test_a_module_with_an_unloadable_dependency_is_not_tried() -> None:
    node = without(examination_of(HGX), "nvidia", "nvidia_uvm", PEERMEM)
    node = with_module(
        node, "nvidia", install_line=InstallLine("nvidia", "/bin/false", "/etc/modprobe.d/x.conf:1")
    )
    told = why_not("load-modules", node)
    assert "nvidia cannot be loaded: replaced by" in told
    assert "nvidia_uvm cannot be loaded: it needs nvidia, which cannot be loaded: replaced by" in told


def test_a_kernel_with_modules_disabled_gets_no_plan() -> None:
    node = with_module_facts(without(examination_of(HGX), "nvidia_uvm"), loading_disabled=True)
    assert "modules_disabled is 1" in why_not("load-modules", node)


def test_a_blacklist_does_not_stop_loading_by_name() -> None:
    node = with_module(without(examination_of(HGX), PEERMEM), PEERMEM, blacklisted="/etc/modprobe.d/x.conf:1")
    assert commands(plan("load-modules", node)) == ["modprobe nvidia_peermem"]


def test_an_install_line_that_loads_the_module_does_not_stop_it() -> None:
    """As Debian's: the file is called nvidia-current.ko there."""
    install = InstallLine("nvidia", "modprobe -i nvidia-current", "/etc/modprobe.d/nvidia.conf:1")
    node = without(examination_of(HGX), "nvidia", "nvidia_uvm", PEERMEM)
    there = with_module(node, "nvidia", install_line=install)
    assert commands(plan("load-modules", there))[0] == "modprobe nvidia"
    absent = Unknown(Reason.NOT_THERE, "modules.dep")
    missing = with_module(node, "nvidia", install_line=install, on_disk=absent, depends=absent)
    assert "no .ko" in why_not("load-modules", missing)


def test_a_module_that_is_being_loaded_is_left_alone() -> None:
    node = with_module(examination_of(HGX), "nvidia_uvm", state=ModuleState.LOADING)
    assert "try again in a minute" in why_not("load-modules", node)


def test_a_built_in_module_counts_as_loaded() -> None:
    node = with_module(examination_of(HGX), "mlx5_core", state=ModuleState.BUILTIN)
    assert why_not("load-modules", node).startswith("all needed modules are loaded")


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["peermem-unknown-symbol-inbox-core", "peermem-symbol-version-mismatch"])
def test_a_refused_module_is_not_tried_again(fault: str) -> None:
    for name in (f"hgx-h100+{fault},no-gdr-path", f"hgx-h100+no-gdr-path,{fault}"):
        node = examination_of(name)
        told = answer("load-modules", node)
        steps = () if isinstance(told, str) else told.steps
        assert not any("nvidia_peermem" in step.argv for step in steps)
        assert "the kernel refused it before" in (told if isinstance(told, str) else told.steps[-1].why)
        fix = findings_on(name)["no-gdr-path"].fix
        assert fix is None


def test_efa_does_not_use_peermem() -> None:
    node = examination_of("hgx-h100+peermem-not-loaded")
    rdma, pci = node.node.rdma, node.node.pci
    assert not isinstance(rdma, Unknown)
    assert not isinstance(pci, Unknown)
    devices = tuple(replace(device, driver="efa") for device in rdma.devices)
    functions = {
        bdf: replace(function, vendor_id=0x1D0F) if function.kind is PciKind.NIC else function
        for bdf, function in pci.functions.items()
    }
    changed = replace(node.node, rdma=replace(rdma, devices=devices), pci=replace(pci, functions=functions))
    efa = replace(node, node=changed)
    assert why_not("load-peermem", efa) == "the NICs are EFA, which does not use nvidia_peermem"


@pytest.mark.parametrize(("release", "options"), [("5.0-2.1.8.0", 1), ("4.9-7.1.0.0", 1), ("5.1-0.6.6.0", 0)])
def test_ofed_5_0_and_older_need_the_option(release: str, options: int) -> None:
    node = with_ofed(examination_of("hgx-h100+peermem-not-loaded"), f"MLNX_OFED_LINUX-{release}")
    assert ("peerdirect_support=1" in commands(plan("load-peermem", node))[0]) == bool(options)


def change(made_plan: Plan) -> FileChange:
    file = made_plan.steps[0].file
    assert file is not None
    return file


def named(made_plan: Plan) -> tuple[str, ...]:
    """The modules in the file that the plan writes."""
    text = change(made_plan).text
    assert text is not None
    assert text.startswith("# Written by gdrtop")
    assert text.endswith("\n")
    return parse_load_list(text)


def with_rules_unread(examination: Examination, *paths: str) -> Examination:
    modules = examination.node.modules
    assert isinstance(modules, ModuleFacts)
    return replace(examination, node=replace(examination.node, modules=replace(modules, rules_unread=paths)))


def in_pod(examination: Examination) -> Examination:
    platform = examination.node.platform
    assert not isinstance(platform, Unknown)
    pod = replace(platform, environment=Environment.KUBERNETES_POD)
    return replace(examination, node=replace(examination.node, platform=pod))


def test_missing_modules_are_written_in_load_order() -> None:
    fix = plan("persist-modules", examination_of(HGX))
    assert commands(fix) == ["/etc/modules-load.d/gdrtop.conf"]
    assert named(fix) == ("mlx5_core", "mlx5_ib", "nvidia", "nvidia_uvm")  # nvidia.conf names the last one


def test_peermem_is_written_if_loaded_or_needed() -> None:
    loaded = with_module(examination_of(HGX), PEERMEM, persistent=None)
    assert named(plan("persist-modules", loaded))[-1] == PEERMEM
    assert PEERMEM not in named(plan("persist-modules", without(loaded, PEERMEM)))
    needed = without(with_module(examination_of(DGX), PEERMEM, persistent=None), PEERMEM)
    assert named(plan("persist-modules", needed))[-1] == PEERMEM


def test_modules_of_gdrtops_file_stay_in_it() -> None:
    node = with_module(examination_of(HGX), "nvidia_uvm", persistent=OWN_FILE)
    assert named(plan("persist-modules", node)) == ("mlx5_core", "mlx5_ib", "nvidia", "nvidia_uvm")


def test_nothing_is_written_if_the_boot_loads_everything() -> None:
    node = examination_of(HGX)
    for name in ("mlx5_core", "mlx5_ib", "nvidia", "nvidia_uvm"):
        node = with_module(node, name, persistent="/etc/modules-load.d/site.conf")
    assert "all modules that this node needs load at boot" in why_not("persist-modules", node)
    assert "/etc/modules-load.d/gdrtop.conf does not exist" in why_not("unpersist-modules", node)


def test_built_in_and_unloadable_modules_are_not_written() -> None:
    node = with_module(examination_of(HGX), "mlx5_core", state=ModuleState.BUILTIN)
    node = with_module(node, "nvidia_uvm", on_disk=Unknown(Reason.NOT_THERE, "modules.dep"))
    fix = plan("persist-modules", node)
    assert named(fix) == ("mlx5_ib", "nvidia")
    assert commands(fix)[-1] == "…"
    why = fix.steps[-1].why
    assert why.startswith("Skip nvidia_uvm for now: it cannot be loaded at boot, because no .ko")


def test_a_blocker_may_be_gone_at_boot() -> None:
    for fault in ("kernel-forbids-modules-disabled", "driver-half-updated"):
        node = with_module(examination_of(f"{HGX}+{fault}"), PEERMEM, persistent=None)
        assert named(plan("persist-modules", node))[-1] == PEERMEM
        assert not plan("persist-modules", node).steps[1:]
    rival = with_module(examination_of(f"{DGX}+nv-peer-mem-conflict"), PEERMEM, persistent=None)
    assert named(plan("persist-modules", rival))[-1] == PEERMEM


def test_unreadable_files_may_name_any_module() -> None:
    node = with_rules_unread(examination_of(HGX), "/etc/modules-load.d/site.conf")
    assert why_not("persist-modules", node) == "needs root: /etc/modules-load.d/site.conf cannot be read"
    assert "needs root" in why_not("unpersist-modules", node)
    other = with_rules_unread(examination_of(HGX), "/etc/modprobe.d/secret.conf")
    assert named(plan("persist-modules", other))


def test_a_container_does_not_change_the_boot() -> None:
    for action in ("persist-modules", "unpersist-modules"):
        assert "this is a container" in why_not(action, in_pod(examination_of(HGX)))


def test_the_undo_removes_only_gdrtops_file() -> None:
    fix = plan("unpersist-modules", with_module(examination_of(HGX), "nvidia_uvm", persistent=OWN_FILE))
    assert change(fix) == FileChange(OWN_FILE, None)
    assert "nvidia_uvm" in fix.steps[0].why


def test_module_options_need_modprobe_d() -> None:
    node = with_module(examination_of(DGX), PEERMEM, persistent=None)
    tools = node.tools
    assert not isinstance(tools, Unknown)
    old = replace(node, tools=replace(tools, ofed="MLNX_OFED_LINUX-4.9-7.1.0.0"))
    assert "options nvidia_peermem peerdirect_support=1" in plan("persist-modules", old).steps[-1].why


def test_the_doctors_fix_writes_the_same_file() -> None:
    fix = findings_on(f"{DGX}+peermem-not-persistent")["peermem-not-persistent"].fix
    assert fix is not None
    assert change(fix).path == OWN_FILE
    assert named(fix) == (PEERMEM,)


def test_a_module_is_loaded_with_those_that_are_missing_because_of_it() -> None:
    examination = examination_of("pcie-l40s+ib-core-not-loaded")
    loaded = [step.argv[1] for step in load_plan(examination, "ib_core").steps]
    assert loaded[0] == "ib_core"
    assert "mlx5_ib" in loaded
