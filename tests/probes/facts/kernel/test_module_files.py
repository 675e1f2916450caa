"""The fields of the module files on disk."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from probes.base.unknown import Maybe, Reason, Unknown
from probes.facts.kernel import modules
from probes.facts.kernel.module_files import (
    PEER_MEMORY_SYMBOL,
    ExportedSymbol,
    ModuleFile,
    ModuleFileFacts,
    parse_modinfo,
    parse_symvers,
    probe,
)
from probes.host.machine.local import LocalHost
from probes.host.protocol import CommandOutput
from probes.simulation.host import SimulatedHost
from tests.support.trees import write

RELEASE = "6.8.0-45-generic"
PRINTED = f"""\
filename:       /lib/modules/{RELEASE}/updates/dkms/nvidia-peermem.ko.zst
version:        570.124.06
license:        Dual BSD/GPL
description:    NVIDIA GPU memory plug-in
srcversion:     0A1B2C3D4E5F60718293A4B
depends:        ib_uverbs,nvidia
name:           nvidia_peermem
vermagic:       {RELEASE} SMP preempt mod_unload modversions
sig_id:         PKCS#7
signer:         DKMS module signing key
signature:      5A:5B:
\t\tfilename:5C
parm:           peerdirect_support:Set level of support (int)
name:           ib_core
filename:       (builtin)
license:        Dual BSD/GPL
filename:       /lib/modules/{RELEASE}/updates/gdrdrv.ko
depends:
vermagic:       6.8.0-40-generic SMP
"""
SYMVERS = (
    f"0x12345678\t{PEER_MEMORY_SYMBOL}_x\tother\tEXPORT_SYMBOL\t\n"
    f"0x0badcafe\t{PEER_MEMORY_SYMBOL}\tdrivers/infiniband/core/ib_uverbs\tEXPORT_SYMBOL\t\n"
)


class Modinfo(LocalHost):
    """A tree with a given answer of modinfo."""

    def __init__(self, root: Path, stdout: str = "", stderr: str = "") -> None:
        super().__init__(str(root))
        self._answer = stdout, stderr

    def run(self, argv: Sequence[str], seconds: float = 2.0) -> Maybe[CommandOutput]:
        return CommandOutput(tuple(argv), 1, *self._answer)


def files(facts: ModuleFileFacts) -> dict[str, ModuleFile]:
    assert not isinstance(facts.files, Unknown)
    return facts.files


def test_a_module_names_its_kernel_version_and_signer(tmp_path: Path) -> None:
    file = files(probe(Modinfo(tmp_path, PRINTED), RELEASE))["nvidia_peermem"]
    assert (file.version, file.kernel, file.signer) == ("570.124.06", RELEASE, "DKMS module signing key")
    assert file.depends == ("ib_uverbs", "nvidia")
    assert file.license == "Dual BSD/GPL"
    assert file.path.endswith("nvidia-peermem.ko.zst")


def test_an_unsigned_module_of_another_kernel(tmp_path: Path) -> None:
    file = files(probe(Modinfo(tmp_path, PRINTED), RELEASE))["gdrdrv"]
    assert file.kernel == "6.8.0-40-generic"
    assert isinstance(file.signer, Unknown)
    assert file.signer.reason is Reason.NOT_THERE
    assert file.depends == ()


def test_what_is_built_in_has_its_name_before_its_file() -> None:
    found = parse_modinfo(PRINTED)
    assert set(found) == {"nvidia_peermem", "ib_core", "gdrdrv"}
    assert found["ib_core"].path == "(builtin)"
    unnamed = "filename: /x/gdrdrv.ko\nversion: 2.4\nname: ib_core\nfilename: (builtin)\n"
    assert {file.name: file.path for file in parse_modinfo(unnamed).values()} == {
        "gdrdrv": "/x/gdrdrv.ko",
        "ib_core": "(builtin)",
    }


def test_modules_without_a_file_are_missing_and_that_is_known(tmp_path: Path) -> None:
    error = "modinfo: ERROR: Module nvidia not found.\n"
    assert files(probe(Modinfo(tmp_path, "", error), RELEASE)) == {}


def test_a_modinfo_that_fails_is_not_a_node_without_modules(tmp_path: Path) -> None:
    assert isinstance(probe(Modinfo(tmp_path), RELEASE).files, Unknown)
    assert isinstance(probe(LocalHost(str(tmp_path)), RELEASE).files, Unknown)


def test_modinfo_is_asked_for_the_names_of_debians_files(tmp_path: Path) -> None:
    class Debian(LocalHost):
        def run(self, argv: Sequence[str], seconds: float = 2.0) -> Maybe[CommandOutput]:
            printed = PRINTED.replace("nvidia-peermem.ko", "nvidia-current-peermem.ko")
            if "nvidia_current_peermem" in argv:
                return CommandOutput(tuple(argv), 0, printed[: printed.index("name:           ib_core")], "")
            return CommandOutput(tuple(argv), 1, "", "modinfo: ERROR: Module nvidia_peermem not found.")

    write(tmp_path, "/proc/sys/kernel/osrelease", RELEASE)
    write(tmp_path, f"/lib/modules/{RELEASE}/modules.dep", "updates/dkms/nvidia-current-peermem.ko.zst:\n")
    line = "install nvidia-peermem modprobe -i nvidia-current-peermem\n"
    write(tmp_path, "/etc/modprobe.d/nvidia.conf", line)
    host = Debian(str(tmp_path))
    found = files(probe(host, RELEASE, modules.probe(host).file_names))
    assert found["nvidia_peermem"].path.endswith("/nvidia-current-peermem.ko.zst")


def test_the_symbols_that_the_drivers_build_would_find(tmp_path: Path) -> None:
    path = f"/usr/src/ofa_kernel/x86_64/{RELEASE}/Module.symvers"
    write(tmp_path, path, SYMVERS)
    write(tmp_path, f"/lib/modules/{RELEASE}/build/Module.symvers", "0x1\tib_dealloc_pd\tx\tEXPORT_SYMBOL\n")
    facts = probe(Modinfo(tmp_path), RELEASE)
    assert facts.peer_memory == (ExportedSymbol(path, 0x0BADCAFE, "ib_uverbs"),)
    assert facts.unread == ()


def test_without_ofed_a_peer_memory_module_cannot_be_built(tmp_path: Path) -> None:
    assert probe(Modinfo(tmp_path), RELEASE).peer_memory == ()


def test_a_release_that_is_none_never_becomes_part_of_a_path(tmp_path: Path) -> None:
    write(tmp_path, "/lib/modules/build/Module.symvers", SYMVERS)
    assert probe(Modinfo(tmp_path), "../modules").peer_memory == ()


@given(st.text())
def test_no_text_stops_the_parser(text: str) -> None:
    for file in parse_modinfo(f"filename: /x/{text}\nvermagic: {text}\ndepends: {text}\n{text}").values():
        assert (file.name + file.path + "".join(file.depends)).isprintable()


@given(st.binary())
def test_no_bytes_stop_the_search(content: bytes) -> None:
    parse_symvers(content, PEER_MEMORY_SYMBOL)
    line = b"0x1\tib_x\t" + content + b"\tEXPORT_SYMBOL"
    found = parse_symvers(line, "ib_x")
    assert found is None or found.module.isprintable()


def test_a_module_that_only_another_kernel_has_is_found_there() -> None:
    host = SimulatedHost("dgx-a100+peermem-not-on-disk-other-kernel")
    assert probe(host, "5.15.0-1063-nvidia").elsewhere == ("6.8.0-58-generic",)
    assert probe(SimulatedHost("dgx-a100"), "5.15.0-1063-nvidia").elsewhere == ()
