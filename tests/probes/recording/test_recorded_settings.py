"""What checks of driver options and allocators read is in a recording."""

from probes.recording.redaction.processes import environment, maps
from probes.recording.redaction.tokens import Tokens


def test_the_allocators_settings_are_kept() -> None:
    content = b"PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True,max_split_size_mb:128\0"
    assert environment(Tokens(), content) == content


def test_driver_options_are_kept() -> None:
    text = 'RegistryDwords: "PeerMappingOverride=1;"\nEnableStreamMemOPs: 1\nDmaRemapPeerMmio: 0\n'
    assert Tokens().text(text) == text


def test_nvshmems_transport_is_kept() -> None:
    line = "7f0000000000-7f0000100000 r-xp 00000000 08:01 1 /usr/lib64/nvshmem_transport_ibgda.so.3.0.0\n"
    assert "/usr/lib64/nvshmem_transport_ibgda.so.3.0.0" in maps(Tokens(), line)
