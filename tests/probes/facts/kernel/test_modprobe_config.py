"""Blacklists, install lines and modules loaded at boot, read in the same way as kmod and systemd do."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.base.unknown import Reason, Unknown
from probes.facts.kernel.modprobe_config import (
    BootBlacklist,
    LoadingRules,
    parse_cmdline,
    parse_load_list,
    parse_modprobe,
    read_rules,
)
from probes.host.machine.local import LocalHost


def write(root: Path, path: str, text: str) -> None:
    file = root / path.lstrip("/")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def rules_of(root: Path, cmdline: str = "ro quiet") -> LoadingRules:
    return read_rules(LocalHost(str(root)), cmdline)


def install_of(rules: LoadingRules, module: str) -> str:
    return str(rules.install_line(module))


def test_a_blacklist_line_is_quoted_with_file_and_line(tmp_path: Path) -> None:
    write(tmp_path, "/etc/modprobe.d/gpu.conf", "\n# by hand\nblacklist nvidia-peermem\n")
    assert rules_of(tmp_path).blacklisted("nvidia_peermem") == "/etc/modprobe.d/gpu.conf:3"
    assert rules_of(tmp_path).blacklisted("nvidia") is None


def test_comments_and_other_words_blacklist_nothing(tmp_path: Path) -> None:
    write(
        tmp_path,
        "/etc/modprobe.d/a.conf",
        "#blacklist nvidia\n # blacklist nvidia\noptions nvidia blacklist=1\nblacklist\ninstall nvidia\n",
    )
    assert rules_of(tmp_path).blacklisted("nvidia") is None
    assert rules_of(tmp_path).install_line("nvidia") is None


def test_lines_that_end_in_a_backslash_go_on(tmp_path: Path) -> None:
    write(
        tmp_path,
        "/etc/modprobe.d/a.conf",
        "install nvidia_peermem \\\n  /bin/false\n"
        "# a comment goes on \\\nblacklist ib_core\n"
        "blacklist \\\nnvidia\n",
    )
    rules = rules_of(tmp_path)
    assert (
        install_of(rules, "nvidia_peermem") == "/etc/modprobe.d/a.conf:1: install nvidia_peermem /bin/false"
    )
    assert rules.blacklisted("ib_core") is None
    assert rules.blacklisted("nvidia") == "/etc/modprobe.d/a.conf:5"


def test_an_install_line_counts_for_what_fits_its_pattern_and_the_first_one_counts(tmp_path: Path) -> None:
    write(tmp_path, "/etc/modprobe.d/10.conf", "install nvidia-* /bin/true\n")
    write(tmp_path, "/etc/modprobe.d/20.conf", "install nvidia_uvm /bin/false\n")
    rules = rules_of(tmp_path)
    assert install_of(rules, "nvidia_uvm") == "/etc/modprobe.d/10.conf:1: install nvidia_* /bin/true"
    assert rules.install_line("nvidia") is None


@pytest.mark.parametrize(
    ("lines", "file"),
    [
        ("install nvidia-peermem modprobe -i nvidia-current-peermem $CMDLINE_OPTS", "nvidia_current_peermem"),
        ("install nvidia-* modprobe nvidia; /sbin/modprobe -qi nvidia-tesla-peermem", "nvidia_tesla_peermem"),
        ("install nvidia-peermem modprobe --ignore-install nvidia-peermem && /sbin/set-up", "nvidia_peermem"),
        ("install nvidia-peermem modprobe nvidia", "nvidia_peermem"),
        ("install nvidia-peermem /bin/false", "nvidia_peermem"),
        ("install nvidia-peermem modprobe -i", "nvidia_peermem"),
        ("alias nvidia-peermem nvidia-550-peermem", "nvidia_550_peermem"),
        ("alias nvidia_p* other\ninstall other modprobe -i other-550", "other_550"),
        ("alias pci:v000010DE* nvidia_peermem", "nvidia_peermem"),
    ],
)
def test_which_file_modprobe_loads(tmp_path: Path, lines: str, file: str) -> None:
    write(tmp_path, "/etc/modprobe.d/a.conf", f"{lines}\n")
    assert rules_of(tmp_path).file_name("nvidia_peermem") == file


def test_of_two_files_with_one_name_the_admins_counts(tmp_path: Path) -> None:
    write(tmp_path, "/etc/modprobe.d/nvidia.conf", "# nothing\n")
    for directory in ("/run", "/usr/local/lib", "/usr/lib", "/lib"):
        write(tmp_path, f"{directory}/modprobe.d/nvidia.conf", "blacklist nvidia\n")
    write(tmp_path, "/lib/modprobe.d/other.conf", "blacklist gdrdrv\n")
    rules = rules_of(tmp_path)
    assert rules.blacklisted("nvidia") is None
    assert rules.blacklisted("gdrdrv") == "/lib/modprobe.d/other.conf:1"


def test_a_file_masked_by_dev_null_counts_as_empty_in_a_tree_without_it(tmp_path: Path) -> None:
    for directory in ("modprobe.d", "modules-load.d"):
        write(tmp_path, f"/usr/lib/{directory}/a.conf", "blacklist nvidia\n")
        (tmp_path / "etc" / directory).mkdir(parents=True)
        (tmp_path / "etc" / directory / "a.conf").symlink_to("/dev/null")
    rules = rules_of(tmp_path)
    assert rules.blacklisted("nvidia") is None
    assert not rules.unread


def test_only_conf_files_count(tmp_path: Path) -> None:
    write(tmp_path, "/etc/modprobe.d/a.conf.dpkg-old", "blacklist nvidia\n")
    write(tmp_path, "/etc/modprobe.d/.a.conf", "blacklist nvidia\n")
    assert rules_of(tmp_path).blacklisted("nvidia") is None


def test_the_kernel_command_line_blacklists_too(tmp_path: Path) -> None:
    rules = rules_of(
        tmp_path, "quiet modprobe.blacklist=nouveau,nvidia-uvm module_blacklist=nvidia_peermem,x"
    )
    assert rules.blacklisted("nvidia_uvm") == "/proc/cmdline: modprobe.blacklist=nvidia_uvm"
    assert rules.blacklisted("nvidia_peermem") == "/proc/cmdline: module_blacklist=nvidia_peermem"


def test_the_kernel_itself_knows_names_with_underscores_only() -> None:
    assert parse_cmdline("module-blacklist=nvidia-peermem") == BootBlacklist((), ("nvidia-peermem",))


def test_what_the_kernel_refuses_is_named_before_modprobe_d(tmp_path: Path) -> None:
    write(tmp_path, "/etc/modprobe.d/a.conf", "blacklist nvidia\n")
    assert rules_of(tmp_path, "module_blacklist=nvidia").blacklisted("nvidia") == (
        "/proc/cmdline: module_blacklist=nvidia"
    )


@pytest.mark.parametrize(
    "path",
    [
        "/etc/modules-load.d/gdr.conf",
        "/run/modules-load.d/gdr.conf",
        "/usr/local/lib/modules-load.d/gdr.conf",
        "/usr/lib/modules-load.d/gdr.conf",
        "/etc/modules",
        "/etc/rdma/modules/infiniband.conf",
    ],
)
def test_a_module_loaded_at_boot_names_its_file(tmp_path: Path, path: str) -> None:
    write(tmp_path, path, "# GPUDirect\n; more\n\n  nvidia-peermem  \nib_umad option=1\n")
    rules = rules_of(tmp_path)
    assert rules.at_boot == {"nvidia_peermem": path, "ib_umad": path}


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "etc/modprobe.d/odd.conf").mkdir(parents=True)
    write(tmp_path, "/etc/modules-load.d/big.conf", "x" * 70000)
    assert rules_of(tmp_path).unread == ("/etc/modprobe.d/odd.conf", "/etc/modules-load.d/big.conf")


def test_an_empty_tree_has_no_rules(tmp_path: Path) -> None:
    rules = read_rules(LocalHost(str(tmp_path)), Unknown(Reason.NOT_THERE))
    assert rules.blacklisted("nvidia") is None
    assert rules.install_line("nvidia") is None
    assert rules.at_boot == {}
    assert rules.unread == ()


words = st.lists(
    st.sampled_from(["blacklist", "install", " ", "\t", "\\", "\n", "#", "[!", "*", "nvidia", "\x1b"])
)


@given(words.map("".join) | st.text())
def test_no_file_stops_the_parsers(text: str) -> None:
    config = parse_modprobe(text, "x.conf")
    rules = LoadingRules(config, parse_cmdline(text), {})
    rules.blacklisted("nvidia")
    line = rules.install_line("nvidia")
    assert line is None or line.command.isprintable()
    assert all(parse_load_list(text))


@given(st.integers(0, 30), st.sampled_from(["", "# comment", "options x y=1", "alias a b"]))
def test_the_line_number_is_the_files(before: int, filler: str) -> None:
    text = f"{filler}\n" * before + "blacklist nvidia\n"
    assert parse_modprobe(text, "x.conf").blacklist == {"nvidia": f"x.conf:{before + 1}"}


def test_a_softdep_line_brings_modules_before_and_behind_another(tmp_path: Path) -> None:
    line = "softdep nvidia pre: ib_core post: nvidia-uvm nvidia-peermem"
    write(tmp_path, "/etc/modprobe.d/gdr.conf", f"# softdep nvidia post: gdrdrv\n{line}\n")
    softdeps = rules_of(tmp_path).config.softdeps
    assert set(softdeps) == {"ib_core", "nvidia_uvm", "nvidia_peermem"}
    where = "/etc/modprobe.d/gdr.conf:2: softdep nvidia pre: ib_core post: nvidia-uvm nvidia-peermem"
    assert softdeps["nvidia_peermem"] == where
