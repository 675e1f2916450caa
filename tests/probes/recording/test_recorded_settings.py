"""What checks of driver options and allocators read is in a recording."""

import pytest

from probes.recording.redaction.kernel_files import environment, maps
from probes.recording.redaction.tokens import Tokens


def test_the_allocators_settings_are_kept() -> None:
    content = b"PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True,max_split_size_mb:128\0"
    assert environment(Tokens(), content) == content


def test_driver_options_are_kept() -> None:
    text = 'RegistryDwords: "PeerMappingOverride=1;"\nEnableStreamMemOPs: 1\nDmaRemapPeerMmio: 0\n'
    assert Tokens().text(text) == text


@pytest.mark.parametrize("plugin", ["transport_ibgda.so.3.0.0", "transport_ibrc.so.3", "bootstrap_uid.so.3"])
def test_nvshmems_plugins_are_kept(plugin: str) -> None:
    """They tell a job that uses NVSHMEM from one that only links it."""
    line = f"7f0000000000-7f0000100000 r-xp 00000000 08:01 1 /usr/lib64/nvshmem_{plugin}\n"
    assert f"/usr/lib64/nvshmem_{plugin}" in maps(Tokens(), line)
