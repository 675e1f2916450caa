"""The parts of an inference stack in a process, from its libraries, its names and its command line."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.base.unknown import Maybe, Reason, Unknown, known
from probes.facts.jobs.process_files import MappedLibrary, parse_maps, parse_serving_options, serving_words
from probes.facts.jobs.processes import Process
from probes.live.model.sample import Role
from probes.live.model.transfer import ServingRole
from probes.live.processes.serving import api_port, serving_of
from tests.support.live_samples import a_process

NO_ROOT = Unknown(Reason.NEEDS_ROOT, "/proc/4711/maps")


def process(
    *libraries: str, comm: str = "python3", program: str = "python3", cmdline: bytes = b""
) -> Process:
    maps = b"".join(b"7f00-7f01 r-xp 00000000 00:00 1 /usr/lib/%s\n" % name.encode() for name in libraries)
    return replace(
        a_process(0).process,
        comm=comm,
        program=program,
        libraries=parse_maps(maps),
        serving_options=parse_serving_options(cmdline),
    )


@pytest.mark.parametrize(
    ("found", "role", "text"),
    [
        (
            process("libplugin_UCX.so", "libucp-b39b3ed9.so.0.0.0", comm="VLLM::Worker_TP"),
            Role.NCCL,
            "vLLM, NIXL over UCX",
        ),
        (process("libplugin_LIBFABRIC.so"), Role.OTHER, "NIXL over libfabric"),
        (process("mooncake/engine.so", comm="sglang::scheduler_TP0"[:15]), Role.OTHER, "SGLang, Mooncake"),
        (process("libucp.so.0.0.0", program="trtllm-serve"), Role.UCX, "TensorRT-LLM, UCX"),
        (process("libucp.so.0.0.0"), Role.UCX, "UCX"),
        (process("libucp.so.0.0.0", "libplugin_UCX.so"), Role.UCX, "NIXL over UCX"),
        (process(comm="python3", program="dynamo.frontend"), Role.GPU, "Dynamo, router"),
        (
            process(
                "libplugin_UCX.so",
                program="dynamo.vllm",
                cmdline=b"dynamo.vllm\0--disaggregation-mode\0decode\0",
            ),
            Role.UCX,
            "Dynamo, vLLM, NIXL over UCX, decode",
        ),
        (
            process(
                "libplugin_UCX.so",
                program="vllm",
                cmdline=b'vllm\0--kv-transfer-config={"kv_connector":"LMCacheConnectorV1"}\0',
            ),
            Role.UCX,
            "vLLM, LMCache, NIXL over UCX",
        ),
    ],
)
def test_what_is_recognized(found: Process, role: Role, text: str) -> None:
    serving = serving_of(found, role)
    assert serving is not None
    assert serving.text == text
    assert serving.evidence


@pytest.mark.parametrize(
    ("found", "role"),
    [
        (
            process("libnccl.so.2.27.3", "libucp.so.0.0.0", program="train.py"),
            Role.NCCL,
        ),  # an image of PyTorch
        (process("libnixl.so"), Role.OTHER),  # without a plugin, it moves nothing
        (process(comm="my-vllm-eval", program="my-vllm-eval"), Role.GPU),
    ],
)
def test_what_is_no_inference(found: Process, role: Role) -> None:
    assert serving_of(found, role) is None


def test_the_process_of_another_user_has_a_framework_and_an_unknown_engine() -> None:
    other = replace(process(comm="VLLM::EngineCor"), libraries=NO_ROOT)
    serving = serving_of(other, Role.OTHER)
    assert serving is not None
    assert serving.engine == NO_ROOT
    assert serving.framework == "vLLM"


def test_the_kv_role_of_vllm_is_no_sign_of_the_role() -> None:
    config = b'{"kv_connector":"NixlConnector","kv_role":"kv_producer"}'
    found = process(
        "libplugin_UCX.so", program="vllm", cmdline=b"vllm\0serve\0--kv-transfer-config\0" + config
    )
    serving = serving_of(found, Role.UCX)
    assert serving is not None
    assert isinstance(serving.role, Unknown)
    assert "proxy" in serving.role.detail


def test_the_prefill_server_says_so() -> None:
    words = b"python3\0-m\0sglang.launch_server\0--disaggregation-mode=prefill\0--port\08998\0"
    serving = serving_of(process("mooncake/engine.so", cmdline=words), Role.OTHER)
    assert serving is not None
    assert serving.role is ServingRole.PREFILL


def test_the_port_of_requests() -> None:
    assert api_port(process(comm="VLLM::EngineCor")) == 8000
    assert api_port(process(cmdline=b"x\0--disaggregation-mode=decode\0--port=8081\0")) == 8081
    assert api_port(process()) is None


OPTIONS = (
    b'vllm\0--port\09000\0--kv-transfer-config\0{"kv_connector":"NixlConnector","kv_buffer_device":"cpu"}\0'
)


def test_the_words_of_a_recording_say_the_same() -> None:
    found = parse_serving_options(OPTIONS)
    assert found == {"port": "9000", "kv_connector": "NixlConnector", "kv_buffer_device": "cpu"}
    assert parse_serving_options(b"vllm\0" + serving_words(found)) == found


@pytest.mark.parametrize(
    "cmdline",
    [
        b"train.py\0--port\08000\0",  # any program may have one
        b"vllm\0--kv-transfer-config\0{not json\0",
        b"vllm\0--kv-transfer-config\0[1]\0",
        b"vllm\0--disaggregation-mode\0s3cr3t\0",
        b'vllm\0--kv-transfer-config\0{"kv_connector":"OurOwnConnector","kv_buffer_device":7}\0',
        b"disaggregation-mode\0prefill\0",
    ],
)
def test_other_words_are_not_kept(cmdline: bytes) -> None:
    assert parse_serving_options(cmdline) == {}


@given(st.binary(max_size=300))
def test_no_command_line_stops_the_parser(cmdline: bytes) -> None:
    assert all(isinstance(value, str) for value in parse_serving_options(cmdline + b"\0" + OPTIONS).values())


def named(*names: str) -> Maybe[tuple[MappedLibrary, ...]]:
    return process(*names).libraries


def test_plugins_of_nixl_are_known_libraries() -> None:
    paths = ("libplugin_UCX.so", "libplugin_Mooncake.so", "libplugin_POSIX.so", "libplugin_LIBFABRIC.so")
    assert [library.name for library in known(named(*paths), ())] == [
        "libplugin_UCX",
        "libplugin_Mooncake",
        "libplugin_LIBFABRIC",
    ]
