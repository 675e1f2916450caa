"""The ladder: which modules are loaded, which can be loaded, and why not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.base.unknown import Reason, Unknown
from probes.facts.kernel.installed_modules import read_installed
from probes.facts.kernel.module_blockers import explain
from probes.facts.kernel.modules import (
    COMPANIONS,
    CORE_LADDER,
    LADDER,
    ModuleFacts,
    ModuleState,
    for_cards,
    parse_proc_modules,
    probe,
)
from probes.facts.pci.functions import PciFacts, PciFunction, PciKind
from probes.facts.pci.nic_families import CONNECTX, CONNECTX_3, MELLANOX, NicFamily, cards_of
from probes.host.machine.local import LocalHost
from tests.support.doctor import examination_of

RELEASE = "6.8.0-45-generic"
TREE = f"/lib/modules/{RELEASE}"

# /proc/modules of a real kernel with stub GPU modules.
PROC_MODULES = """\
nvidia_peermem 16384 3 - Live 0xffffffffc08a7000 (OE)
ib_peer_mem 16384 1 nvidia_peermem, Live 0xffffffffc08a2000 (OE)
nvidia 16384 2 nvidia_peermem, Live 0xffffffffc0848000 (POE)
ib_core 442368 4 nvidia_peermem,rdma_rxe,ib_uverbs,vmtopo, Live 0xffffffffc07c3000
ib_uverbs 172032 2 rdma_rxe,[permanent], Loading 0x0000000000000000 (O+)
"""

DEPENDENCIES = """\
kernel/drivers/infiniband/core/ib_core.ko.zst:
kernel/drivers/infiniband/core/ib_uverbs.ko.zst: kernel/drivers/infiniband/core/ib_core.ko.zst
kernel/drivers/net/mlx5/core/mlx5_core.ko.zst: kernel/drivers/net/mlxfw.ko.zst
updates/dkms/nvidia.ko:
updates/dkms/nvidia-uvm.ko: updates/dkms/nvidia.ko
updates/dkms/nvidia-peermem.ko: updates/dkms/nvidia.ko kernel/drivers/infiniband/core/ib_core.ko.zst
"""

SYMBOLS = """\
alias symbol:ib_register_peer_memory_client ib_core
alias symbol:ib_register_client ib_core
alias symbol:nvidia_p2p_get_pages nvidia
"""


def write(root: Path, path: str, text: str) -> None:
    file = root / path.lstrip("/")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


@pytest.fixture
def node(tmp_path: Path) -> Path:
    """A node with modules on disk and none loaded."""
    write(tmp_path, "/proc/sys/kernel/osrelease", RELEASE)
    write(tmp_path, "/proc/modules", "ext4 1 1 - Live 0x0\n")
    write(tmp_path, "/proc/cmdline", "quiet")
    write(tmp_path, f"{TREE}/modules.dep", DEPENDENCIES)
    write(tmp_path, f"{TREE}/modules.symbols", SYMBOLS)
    write(tmp_path, f"{TREE}/modules.builtin", "kernel/fs/ext2/ext2.ko\n")
    return tmp_path


def facts_of(root: Path) -> ModuleFacts:
    return probe(LocalHost(str(root)))


def load(root: Path, *names: str) -> None:
    write(root, "/proc/modules", "".join(f"{name} 16384 0 - Live 0x0 (POE)\n" for name in names))


def test_the_ladder_stands_in_load_order(node: Path) -> None:
    facts = facts_of(node)
    order = [rung.module for rung in facts.ladder]
    assert [name for name in order if name in CORE_LADDER] == list(CORE_LADDER)
    assert set(order) == set(CORE_LADDER) | set(COMPANIONS) == set(facts.modules) == set(LADDER)
    for rung in facts.ladder:
        assert all(order.index(need) < order.index(rung.module) for need in rung.needs)
        assert rung.core is (rung.module in CORE_LADDER)
        assert rung.why


def test_the_ladder_says_what_modules_dep_says_and_else_the_usual(node: Path) -> None:
    needs = {rung.module: rung.needs for rung in facts_of(node).ladder}
    assert needs["nvidia_peermem"] == ("ib_core", "nvidia")
    assert needs["mlx5_core"] == ()
    assert needs["mlx5_ib"] == ("ib_core", "ib_uverbs", "mlx5_core")


def test_peermem_is_not_called_necessary(node: Path) -> None:
    why = {rung.module: rung.why for rung in facts_of(node).ladder}
    assert "where DMA-BUF does not work" in why["nvidia_peermem"]
    assert "Predecessor" in why["nv_peer_mem"]


def test_a_loaded_module_with_refcnt_users_taint_and_version(node: Path) -> None:
    write(node, "/proc/modules", PROC_MODULES)
    write(node, "/sys/module/nvidia/version", "570.124.06\n")
    write(node, "/sys/module/nvidia/srcversion", "ABCDEF\n")
    write(node, "/sys/module/nvidia_peermem/parameters/persistent_api_support", "1\n")
    modules = facts_of(node).modules
    nvidia = modules["nvidia"]
    assert (nvidia.state, nvidia.refcnt, nvidia.taint) == (ModuleState.LIVE, 2, "POE")
    assert nvidia.used_by == ("nvidia_peermem",)
    assert (nvidia.version, nvidia.srcversion) == ("570.124.06", "ABCDEF")
    assert modules["nvidia_peermem"].parameters == {"persistent_api_support": "1"}
    assert modules["nvidia_peermem"].used_by == ()
    assert modules["ib_core"].used_by == ("nvidia_peermem", "rdma_rxe", "ib_uverbs", "vmtopo")
    assert modules["ib_core"].taint == ""
    uverbs = modules["ib_uverbs"]
    assert (uverbs.state, uverbs.used_by, uverbs.taint) == (ModuleState.LOADING, ("rdma_rxe",), "O")


def test_where_modules_are_on_disk_and_who_installed_them(node: Path) -> None:
    modules = facts_of(node).modules
    assert modules["nvidia_peermem"].on_disk == f"{TREE}/updates/dkms/nvidia-peermem.ko"
    assert modules["nvidia_peermem"].origin == "DKMS"
    assert modules["ib_core"].origin == "kernel"
    assert modules["mlx5_core"].depends == ("mlxfw",)
    gdrdrv = modules["gdrdrv"].on_disk
    assert isinstance(gdrdrv, Unknown)
    assert gdrdrv.reason is Reason.NOT_THERE


# As Debian's nvidia-kernel-common and nvidia-open-kernel-dkms have it.
DEBIAN_MODPROBE = """\
install nvidia modprobe -i nvidia-current-open $CMDLINE_OPTS
install nvidia-uvm modprobe nvidia ; modprobe -i nvidia-current-open-uvm $CMDLINE_OPTS
install nvidia-peermem modprobe nvidia ; modprobe -i nvidia-current-open-peermem $CMDLINE_OPTS
alias pci:v000010DEd00000E00sv*sd*bc04sc80i00* nvidia
"""


@pytest.fixture
def debian(node: Path) -> Path:
    """A node whose NVIDIA modules have Debian's names, which an alternative chooses."""
    dependencies = DEPENDENCIES.replace("dkms/nvidia", "dkms/nvidia-current-open")
    write(node, f"{TREE}/modules.dep", dependencies)
    write(node, f"{TREE}/modules.symbols", "alias symbol:nvidia_p2p_get_pages nvidia_current_open\n")
    write(node, "/etc/nvidia/current-open/nvidia-modprobe.conf", DEBIAN_MODPROBE)
    for link, target in (
        ("/etc/modprobe.d/nvidia.conf", "/etc/alternatives/glx--nvidia-modprobe.conf"),
        ("/etc/alternatives/glx--nvidia-modprobe.conf", "/etc/nvidia/current-open/nvidia-modprobe.conf"),
    ):
        (node / link.lstrip("/")).parent.mkdir(parents=True, exist_ok=True)
        (node / link.lstrip("/")).symlink_to(target)
    return node


def test_debians_driver_is_found_as_modprobe_finds_it(debian: Path) -> None:
    facts = facts_of(debian)
    for name in ("nvidia", "nvidia_uvm", "nvidia_peermem"):
        file = f"nvidia-current-open{name.removeprefix('nvidia').replace('_', '-')}.ko"
        assert facts.modules[name].on_disk == f"{TREE}/updates/dkms/{file}"
        assert facts.modules[name].origin == "DKMS"
    assert facts.modules["nvidia_peermem"].depends == ("ib_core", "nvidia")
    (provider,) = [row for row in facts.symbols if row.symbol == "nvidia_p2p_get_pages"]
    assert (provider.provider, provider.path) == ("nvidia", f"{TREE}/updates/dkms/nvidia-current-open.ko")
    assert "replaced" not in explain(facts, "nvidia_peermem")


def test_debians_driver_that_was_not_built_is_missing(debian: Path) -> None:
    write(debian, f"{TREE}/modules.dep", DEPENDENCIES.split("updates")[0])
    assert explain(facts_of(debian), "nvidia").startswith("no .ko")


def test_the_image_of_debians_driver_has_its_modules(debian: Path) -> None:
    installed = read_installed(LocalHost(str(debian)), RELEASE, ("nvidia", "nvidia_peermem", "gdrdrv"))
    assert installed.is_there("nvidia") is True
    assert installed.is_there("nvidia_peermem") is True
    assert installed.is_there("gdrdrv") is False


def test_a_kernel_that_cannot_unload_has_no_refcnt() -> None:
    refcnt = parse_proc_modules("nvidia 16384 - - Live 0x0\n")["nvidia"].refcnt
    assert isinstance(refcnt, Unknown)
    assert refcnt.reason is Reason.NOT_THERE


@pytest.mark.parametrize("line", ["nvidia", "nvidia 1 x - Bored 0x0", "nvidia 1 99999999999999 - x 0"])
def test_a_malformed_line_is_neither_loaded_nor_absent(line: str) -> None:
    module = parse_proc_modules(line)["nvidia"]
    assert isinstance(module.state, Unknown)
    assert isinstance(module.refcnt, Unknown)


def test_builtin_modules_come_from_the_list(node: Path) -> None:
    write(node, f"{TREE}/modules.builtin", "kernel/drivers/infiniband/core/ib_core.ko\n")
    write(node, f"{TREE}/modules.dep", "")
    facts = facts_of(node)
    core = facts.modules["ib_core"]
    assert core.state is ModuleState.BUILTIN
    assert isinstance(core.refcnt, Unknown)
    assert isinstance(core.on_disk, Unknown)
    assert "built into the kernel" in core.on_disk.detail
    assert explain(facts, "ib_core") == "builtin"


def test_without_the_list_a_directory_without_initstate_means_builtin(node: Path) -> None:
    (node / TREE.lstrip("/") / "modules.builtin").unlink()
    write(node, "/sys/module/ib_core/parameters/send_queue_size", "128")
    facts = facts_of(node)
    assert facts.modules["ib_core"].state is ModuleState.BUILTIN
    assert facts.modules["ib_core"].parameters == {"send_queue_size": "128"}
    assert facts.modules["nvidia"].state is ModuleState.NOT_LOADED


def test_a_kernel_without_proc_modules_is_unknown_calmly(tmp_path: Path) -> None:
    write(tmp_path, "/proc/sys/kernel/osrelease", RELEASE)
    facts = facts_of(tmp_path)
    for name in LADDER:
        state = facts.modules[name].state
        assert isinstance(state, Unknown)
        assert state.reason is Reason.NOT_THERE
        assert (
            explain(facts, name) == "state unknown: not there: this kernel has no modules, or /proc is hidden"
        )
    symbol = facts.symbols[0].provider
    assert isinstance(symbol, Unknown)
    assert symbol.reason is Reason.FILE_MISSING


def test_sysfs_shows_the_state_if_proc_modules_is_hidden(tmp_path: Path) -> None:
    for name, initstate in (("nvidia", "live"), ("ib_core", "coming"), ("mlx5_core", "asleep")):
        write(tmp_path, f"/sys/module/{name}/initstate", f"{initstate}\n")
    write(tmp_path, "/sys/module/nvidia/refcnt", "7\n")
    modules = facts_of(tmp_path).modules
    assert (modules["nvidia"].state, modules["nvidia"].refcnt) == (ModuleState.LIVE, 7)
    assert modules["ib_core"].state is ModuleState.LOADING
    assert isinstance(modules["mlx5_core"].state, Unknown)


def test_without_a_release_the_loaded_modules_are_still_known(tmp_path: Path) -> None:
    write(tmp_path, "/proc/modules", PROC_MODULES)
    facts = facts_of(tmp_path)
    assert isinstance(facts.kernel_release, Unknown)
    assert facts.modules["nvidia"].state is ModuleState.LIVE
    assert facts.modules["gdrdrv"].state is ModuleState.NOT_LOADED
    assert "the running kernel is unknown" in explain(facts, "gdrdrv")


def test_symbols_name_their_real_providers(node: Path) -> None:
    providers = {(s.symbol, s.needed_by): s.provider for s in facts_of(node).symbols}
    assert providers["ib_register_peer_memory_client", "nvidia_peermem"] == "ib_core"
    assert providers["nvidia_p2p_get_pages", "nvidia_peermem"] == "nvidia"
    uvm = providers["nvUvmInterfaceRegisterUvmCallbacks", "nvidia_uvm"]
    assert isinstance(uvm, Unknown)
    assert uvm.reason is Reason.NOT_THERE


def test_memory_peers_are_listed_and_their_absence_is_not_an_empty_list(node: Path) -> None:
    assert isinstance(facts_of(node).memory_peers, Unknown)
    write(node, "/sys/kernel/mm/memory_peers/nv_mem/version", "1")
    assert facts_of(node).memory_peers == ("nv_mem",)


def test_rules_of_the_admin_are_on_the_module(node: Path) -> None:
    write(node, "/etc/modprobe.d/x.conf", "\n\nblacklist nvidia-peermem\ninstall nvidia_uvm /bin/false\n")
    write(node, "/etc/modules-load.d/gdr.conf", "nvidia-peermem\n")
    (node / "etc/modprobe.d/odd.conf").mkdir()
    facts = facts_of(node)
    peermem = facts.modules["nvidia_peermem"]
    assert peermem.blacklisted == "/etc/modprobe.d/x.conf:3"
    assert peermem.persistent == "/etc/modules-load.d/gdr.conf"
    assert peermem.kernel_forbids is False
    line = facts.modules["nvidia_uvm"].install_line
    assert str(line) == "/etc/modprobe.d/x.conf:4: install nvidia_uvm /bin/false"
    assert facts.rules_unread == ("/etc/modprobe.d/odd.conf",)


def test_a_softdep_line_is_on_the_module_that_it_brings(node: Path) -> None:
    write(node, "/etc/modprobe.d/gdr.conf", "softdep nvidia post: nvidia-peermem\n")
    softdep = facts_of(node).modules["nvidia_peermem"].softdep
    assert softdep == "/etc/modprobe.d/gdr.conf:1: softdep nvidia post: nvidia-peermem"


# The ladder and the cards on the bus


def card(number: int, device_id: int, driver: str = "") -> PciFunction:
    pci = examination_of("dgx-a100").node.pci
    assert isinstance(pci, PciFacts)
    nic = next(function for function in pci.functions.values() if function.kind is PciKind.NIC)
    return replace(nic, bdf=f"0000:{number:02x}:00.0", device_id=device_id, driver=driver)


def bus(*cards: PciFunction) -> PciFacts:
    pci = examination_of("dgx-a100").node.pci
    assert isinstance(pci, PciFacts)
    return replace(pci, functions={card.bdf: card for card in cards})


@pytest.mark.parametrize(
    ("device_id", "family"),
    [
        (0x1003, CONNECTX_3),  # ConnectX-3
        (0x1007, CONNECTX_3),  # ConnectX-3 Pro
        (0x673C, CONNECTX_3),  # ConnectX-2
        (0x1011, CONNECTX),  # Connect-IB
        (0x101E, CONNECTX),  # a virtual function
        (0x1023, CONNECTX),  # ConnectX-8
        (0xA2DC, CONNECTX),  # BlueField-3
        (0x5A44, None),  # InfiniHost: mthca
    ],
)
def test_each_card_belongs_to_its_driver(device_id: int, family: NicFamily | None) -> None:
    for other in MELLANOX:
        assert bool(cards_of(bus(card(1, device_id)), other)) is (other is family)


def test_a_card_given_to_a_virtual_machine_does_not_count() -> None:
    assert cards_of(bus(card(1, 0x1003, "vfio-pci")), CONNECTX_3) == ()


def test_the_ladder_shows_mlx4_where_there_is_a_connectx_3_only(node: Path) -> None:
    facts = facts_of(node)

    def core(*cards: PciFunction) -> dict[str, bool]:
        return {
            rung.module: rung.core for rung in for_cards(facts, bus(*cards)).ladder if "mlx" in rung.module
        }

    newer = {"mlx5_core": True, "mlx5_ib": True}
    assert core(card(1, 0x1021)) == newer
    assert core() == newer
    assert core(card(1, 0x1003), card(2, 0x1021)) == {"mlx4_core": True, "mlx4_ib": True, **newer}
    older = core(card(1, 0x1003))
    assert older == {"mlx4_core": True, "mlx4_ib": True, "mlx5_core": False, "mlx5_ib": False}


def test_mlx4_that_is_loaded_without_a_card_is_shown(node: Path) -> None:
    load(node, "mlx4_core")
    shown = {rung.module for rung in for_cards(facts_of(node), bus()).ladder}
    assert "mlx4_core" in shown
    assert "mlx4_ib" not in shown


# What blocks a module


def test_no_ko_for_this_kernel(node: Path) -> None:
    assert explain(facts_of(node), "gdrdrv") == f"no .ko for kernel {RELEASE}"


def test_blacklisted(node: Path) -> None:
    write(node, "/etc/modprobe.d/x.conf", "\n\nblacklist nvidia\n")
    assert explain(facts_of(node), "nvidia") == "blacklisted by /etc/modprobe.d/x.conf:3"


def test_refused_by_the_kernel(node: Path) -> None:
    write(node, "/proc/cmdline", "ro module_blacklist=nvidia")
    assert explain(facts_of(node), "nvidia") == "blocked by module_blacklist= on the kernel command line"


def test_replaced_by_a_command(node: Path) -> None:
    write(node, "/etc/modprobe.d/x.conf", "install nvidia-peermem /bin/false\n")
    assert explain(facts_of(node), "nvidia-peermem") == (
        "replaced by `install nvidia_peermem /bin/false` in /etc/modprobe.d/x.conf:1"
    )


def test_needs_another_one_first(node: Path) -> None:
    assert explain(facts_of(node), "nvidia_uvm") == "needs nvidia first"
    load(node, "nvidia")
    assert explain(facts_of(node), "nvidia_uvm") == "on disk, not loaded"
    assert explain(facts_of(node), "nvidia_peermem") == "needs ib_core first"


def test_a_builtin_module_is_there(node: Path) -> None:
    load(node, "nvidia")
    write(node, f"{TREE}/modules.builtin", "kernel/drivers/infiniband/core/ib_core.ko\n")
    assert explain(facts_of(node), "nvidia_peermem") == "on disk, not loaded"


def test_built_without_peer_memory_symbols(node: Path) -> None:
    write(node, f"{TREE}/modules.symbols", "alias symbol:ib_register_client ib_core\n")
    assert explain(facts_of(node), "nvidia_peermem") == (
        "built without peer-memory symbols: no module exports ib_register_peer_memory_client"
    )


def test_ofed_installed_after_the_driver(node: Path) -> None:
    write(node, f"{TREE}/modules.dep", "updates/dkms/nvidia-peermem.ko: updates/dkms/nvidia.ko\n")
    assert explain(facts_of(node), "nvidia_peermem").startswith("built without peer-memory symbols: ")


def test_without_a_list_of_symbols_no_module_is_blamed(node: Path) -> None:
    (node / TREE.lstrip("/") / "modules.symbols").unlink()
    load(node, "nvidia", "ib_core")
    assert explain(facts_of(node), "nvidia_peermem") == "on disk, not loaded"


def test_only_one_of_the_two_peer_modules_can_be_loaded(node: Path) -> None:
    load(node, "nvidia", "ib_core", "nv_peer_mem")
    assert (
        explain(facts_of(node), "nvidia_peermem")
        == "nv_peer_mem is loaded, and only one of the two can be loaded"
    )


def test_no_module_can_be_loaded_any_more(node: Path) -> None:
    write(node, "/proc/sys/kernel/modules_disabled", "1\n")
    assert explain(facts_of(node), "nvidia").startswith("kernel.modules_disabled is 1")


def test_a_kernel_that_takes_signed_modules_only(node: Path) -> None:
    assert explain(facts_of(node), "nvidia") == "on disk, not loaded"
    write(node, "/sys/module/module/parameters/sig_enforce", "Y\n")
    assert explain(facts_of(node), "nvidia") == "on disk, not loaded; this kernel accepts only signed modules"


def test_loaded_and_strange_names(node: Path) -> None:
    load(node, "nvidia")
    facts = facts_of(node)
    assert explain(facts, "nvidia") == "loaded"
    assert explain(facts, "nouveau") == "not a module of the ladder"


def test_a_missing_ko_comes_before_a_blacklist(node: Path) -> None:
    facts = facts_of(node)
    gdrdrv = replace(facts.modules["gdrdrv"], blacklisted="/etc/modprobe.d/x.conf:1")
    facts = replace(facts, modules={**facts.modules, "gdrdrv": gdrdrv})
    assert explain(facts, "gdrdrv").startswith("no .ko")


words = st.lists(
    st.sampled_from(["nvidia", "ib_core", " ", "\n", "-", ",", "[permanent]", "Live", "1", "(POE)", "²"])
)


@given(words.map("".join) | st.text())
def test_no_text_stops_the_parser(text: str) -> None:
    for module in parse_proc_modules(text).values():
        assert isinstance(module.state, (ModuleState, Unknown))
        assert isinstance(module.refcnt, (int, Unknown))
        assert all(user.isprintable() for user in (*module.used_by, module.taint))


@pytest.mark.slow
@given(st.integers(0, 2**31 - 1), st.lists(st.from_regex(r"[a-z0-9_]{1,12}", fullmatch=True)))
def test_what_the_kernel_writes_is_read_back(refcnt: int, users: list[str]) -> None:
    column = "".join(f"{user}," for user in users) or "-"
    module = parse_proc_modules(f"nvidia 16384 {refcnt} {column} Live 0x0 (POE)\n")["nvidia"]
    assert (module.refcnt, module.used_by, module.taint) == (refcnt, tuple(users), "POE")
