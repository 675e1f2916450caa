"""modules.dep, modules.symbols and modules.builtin: searched, with any content."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.base.unknown import Reason, Unknown
from probes.facts.kernel.depmod import (
    DepmodEntry,
    ModuleTree,
    find_module,
    find_provider,
    is_builtin,
    origin_of,
    read_tree,
)
from probes.host.machine.local import LocalHost

RELEASE = "6.8.0-45-generic"

DEPENDENCIES = b"""\
kernel/drivers/infiniband/core/ib_core.ko.zst:
kernel/drivers/infiniband/core/ib_uverbs.ko.zst: kernel/drivers/infiniband/core/ib_core.ko.zst
kernel/net/notib_core.ko: kernel/drivers/infiniband/core/ib_core.ko.zst
updates/dkms/nvidia.ko:
updates/dkms/nvidia-peermem.ko.xz: updates/dkms/nvidia.ko kernel/drivers/infiniband/core/ib_uverbs.ko.zst \
kernel/drivers/infiniband/core/ib_core.ko.zst
top_level.ko: updates/dkms/nvidia.ko
/opt/vendor/gdrdrv.ko: updates/dkms/nvidia.ko
"""

SYMBOLS = b"""\
# Aliases for symbols, used by symbol_request().
alias symbol:ib_register_client_other wrong
alias symbol:ib_register_client ib_core
alias symbol:nvidia_p2p_get_pages nvidia
alias symbol:ib_register_peer_memory_client ib-peer-mem
"""


def tree_of(
    dependencies: bytes | None = DEPENDENCIES, symbols: bytes | None = SYMBOLS, builtin: bytes | None = b""
) -> ModuleTree:
    missing = Unknown(Reason.FILE_MISSING)
    return ModuleTree(
        f"/lib/modules/{RELEASE}",
        missing if dependencies is None else dependencies,
        (dependencies or b"").replace(b"-", b"_"),
        missing if symbols is None else symbols,
        missing if builtin is None else builtin.replace(b"-", b"_"),
    )


def found(tree: ModuleTree, name: str) -> DepmodEntry:
    file = find_module(tree, name)
    assert isinstance(file, DepmodEntry)
    return file


def test_a_module_is_found_in_either_spelling_and_compressed() -> None:
    peermem = found(tree_of(), "nvidia_peermem")
    assert peermem.path == f"/lib/modules/{RELEASE}/updates/dkms/nvidia-peermem.ko.xz"


def test_dependencies_come_in_the_order_they_are_loaded() -> None:
    assert found(tree_of(), "nvidia_peermem").depends == ("ib_core", "ib_uverbs", "nvidia")
    assert found(tree_of(), "ib_core").depends == ()


def test_a_name_that_only_ends_alike_is_another_module() -> None:
    without = DEPENDENCIES.replace(b"kernel/drivers/infiniband/core/ib_core.ko.zst:\n", b"")
    core = find_module(tree_of(without), "ib_core")
    assert isinstance(core, Unknown)
    assert core.reason is Reason.NOT_THERE


def test_a_module_that_others_only_depend_on_is_not_on_disk() -> None:
    assert isinstance(find_module(tree_of(b"updates/a.ko: updates/nvidia.ko\n"), "nvidia"), Unknown)


def test_modules_at_the_top_of_the_tree_and_outside_of_it_have_their_own_paths() -> None:
    assert found(tree_of(), "top_level").path == f"/lib/modules/{RELEASE}/top_level.ko"
    assert found(tree_of(), "gdrdrv").path == "/opt/vendor/gdrdrv.ko"


def test_without_modules_dep_nothing_is_said_to_be_missing(tmp_path: Path) -> None:
    file = find_module(read_tree(LocalHost(str(tmp_path)), RELEASE), "nvidia")
    assert isinstance(file, Unknown)
    assert file.reason is Reason.FILE_MISSING
    assert f"/lib/modules/{RELEASE}/modules.dep" in str(file)


def test_without_a_release_no_tree_is_read(tmp_path: Path) -> None:
    tree = read_tree(LocalHost(str(tmp_path)), Unknown(Reason.NOT_THERE, "/proc/sys/kernel/osrelease"))
    for answer in (find_module(tree, "nvidia"), find_provider(tree, "x"), is_builtin(tree, "nvidia")):
        assert isinstance(answer, Unknown)
        assert "the running kernel" in answer.detail


@pytest.mark.parametrize(
    ("symbol", "module"),
    [
        ("ib_register_client", "ib_core"),
        ("nvidia_p2p_get_pages", "nvidia"),
        ("ib_register_peer_memory_client", "ib_peer_mem"),
    ],
)
def test_the_exporting_module_is_named(symbol: str, module: str) -> None:
    assert find_provider(tree_of(), symbol) == module


def test_a_symbol_without_exporter_differs_from_a_missing_list() -> None:
    nobody = find_provider(tree_of(), "nvUvmInterfaceRegisterUvmCallbacks")
    no_list = find_provider(tree_of(symbols=None), "nvUvmInterfaceRegisterUvmCallbacks")
    assert isinstance(nobody, Unknown)
    assert isinstance(no_list, Unknown)
    assert (nobody.reason, no_list.reason) == (Reason.NOT_THERE, Reason.FILE_MISSING)


def test_builtin_modules_are_recognised_by_their_whole_name() -> None:
    tree = tree_of(builtin=b"kernel/core/ib_core.ko\nkernel/net/xnvidia.ko\nkernel/nvidia-uvm.ko")
    assert is_builtin(tree, "ib_core") is True
    assert is_builtin(tree, "nvidia_uvm") is True
    assert is_builtin(tree, "nvidia") is False


@pytest.mark.parametrize(
    ("path", "whose"),
    [
        ("kernel/drivers/infiniband/core/ib_core.ko.xz", "kernel"),
        ("kernel/nvidia-570-open/nvidia.ko", "kernel"),
        ("updates/dkms/nvidia.ko.zst", "DKMS"),
        ("extra/mlnx-ofa_kernel/drivers/infiniband/core/ib_core.ko", "OFED"),
        ("updates/mlnx-ofa_kernel/net/mlx5_core.ko", "OFED"),
        ("weak-updates/kernel-mft/mst_pci.ko", "OFED"),
        ("extra/nvidia.ko.xz", "extra"),
        ("updates/gdrdrv.ko", "updates"),
        ("gdrdrv.ko", "extra"),
        ("/opt/gdrdrv.ko", "extra"),
    ],
)
def test_the_path_shows_who_installed_a_module(path: str, whose: str) -> None:
    assert origin_of(path) == whose


def test_the_files_of_the_running_kernel_are_read(tmp_path: Path) -> None:
    directory = tmp_path / "lib/modules" / RELEASE
    directory.mkdir(parents=True)
    (directory / "modules.dep").write_bytes(DEPENDENCIES)
    (directory / "modules.symbols").write_bytes(SYMBOLS)
    (directory / "modules.builtin").write_bytes(b"kernel/fs/ext4-x.ko\n")
    tree = read_tree(LocalHost(str(tmp_path)), RELEASE)
    assert found(tree, "nvidia").relative == "updates/dkms/nvidia.ko"
    assert find_provider(tree, "ib_register_client") == "ib_core"
    assert is_builtin(tree, "ext4_x") is True


noise = st.lists(
    st.sampled_from([b"/", b":", b" ", b"\n", b".ko", b"ib_core", b"alias symbol:", b"x", b"\xff\x1b"])
)


@pytest.mark.slow
@given(noise.map(b"".join) | st.binary(), st.text(max_size=8) | st.just("ib_core"))
def test_no_file_stops_the_search(content: bytes, name: str) -> None:
    tree = tree_of(content, content, content)
    file = find_module(tree, name)
    if isinstance(file, DepmodEntry):
        assert all(text.isprintable() for text in (file.path, file.relative, *file.depends))
    provider = find_provider(tree, name)
    assert isinstance(provider, Unknown) or provider.isprintable()
    assert is_builtin(tree, name) in (True, False)


@pytest.mark.slow
@given(st.lists(st.from_regex(r"[a-z][a-z0-9_-]{0,12}", fullmatch=True), min_size=1, unique=True))
def test_every_module_of_a_file_is_found_with_its_dependencies(names: list[str]) -> None:
    underscored = [name.replace("-", "_") for name in names]
    if len(set(underscored)) < len(names):
        return
    others = " ".join(f"kernel/{name}.ko" for name in names)
    tree = tree_of("".join(f"kernel/{name}.ko: {others}\n" for name in names).encode())
    for name, wanted in zip(names, underscored, strict=True):
        file = found(tree, wanted)
        assert file.relative == f"kernel/{name}.ko"
        assert file.depends == tuple(reversed(underscored))
