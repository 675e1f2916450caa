"""What the boot is told to load, in a file of gdrtop's own."""

from __future__ import annotations

from dataclasses import replace

from probes.base.plan import FileChange, Plan
from probes.base.unknown import Reason, Unknown
from probes.facts.kernel.modprobe_config import parse_load_list
from probes.facts.kernel.modules import ModuleFacts, ModuleState
from probes.facts.system.platform import Environment
from probes.plans.load_modules import OWN_FILE
from probes.snapshot.examination import Examination
from tests.probes.checks.changed import with_module, without
from tests.probes.checks.doctor import examination_of, findings_on
from tests.probes.plans.plans_of import commands, plan, why_not

HGX, DGX = "hgx-h100", "dgx-a100"
PEERMEM = "nvidia_peermem"


def change(of: Plan) -> FileChange:
    file = of.steps[0].file
    assert file is not None
    return file


def named(of: Plan) -> tuple[str, ...]:
    """The modules in the file that the plan writes."""
    text = change(of).text
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
