"""The catalogue of variables: complete, consistent, and with the defaults of each version."""

import re

import pytest

from probes.facts.jobs.process_files import FAMILIES
from probes.nccl.settings import parse_level, parse_number
from probes.nccl.variables.catalogue import (
    VARIABLE_NAME,
    Kind,
    Variable,
    is_known,
    meaning_of,
    newest,
    parameters,
    parse_version,
    variables,
)
from probes.recording.redaction.tokens import VARIABLES


@pytest.mark.parametrize("variable", variables().values(), ids=variables().keys())
def test_a_variable_is_described(variable: Variable) -> None:
    assert VARIABLE_NAME.fullmatch(variable.name)
    assert not variable.meaning.endswith(".")
    assert variable.reference.startswith("https://")
    assert all(note.endswith(".") for note in variable.notes)
    versions = [parse_version(since) for since, _ in variable.defaults]
    assert versions == sorted(versions)
    for _, value in variable.defaults:
        if variable.kind is Kind.NUMBER:
            number = parse_number(value)
            assert number is not None
            assert not variable.limits or variable.limits[0] <= number <= variable.limits[1]
        if variable.kind is Kind.LEVEL:
            assert parse_level(value)
    if variable.instead:
        assert variable.instead in variables() or re.fullmatch(r"NCCL_(MIN|MAX)_CTAS", variable.instead)


@pytest.mark.parametrize(
    ("name", "version", "default"),
    [
        ("NCCL_IB_TIMEOUT", "2.13", "14"),
        ("NCCL_IB_TIMEOUT", "2.14", "18"),
        ("NCCL_IB_TIMEOUT", "2.22.3", "18"),
        ("NCCL_IB_TIMEOUT", "2.23.4", "20"),
        ("NCCL_IB_GID_INDEX", "2.20.5", "0"),
        ("NCCL_IB_GID_INDEX", "2.21.5", "-1"),
        ("NCCL_IB_SPLIT_DATA_ON_QPS", "2.19.3", "1"),
        ("NCCL_IB_SPLIT_DATA_ON_QPS", "2.20.3", "0"),
        ("NCCL_NET_GDR_C2C", "2.25.1", ""),
        ("NCCL_NET_GDR_C2C", "2.26.2", "0"),
        ("NCCL_NET_GDR_C2C", "2.27.3", "1"),
        ("NCCL_NET_GDR_LEVEL", "2.28.9", "PXB"),
        ("NCCL_NET_GDR_LEVEL", "2.29.2", "P2C"),
        ("NCCL_CUMEM_ENABLE", "2.18.5", "0"),
        ("NCCL_NVLS_ENABLE", "2.17.1", "1"),
        ("NCCL_NVLS_ENABLE", "2.18.1", "2"),
        # NCCL_PARAM of 2.31.2, as far as the default is the same on every platform
        ("NCCL_CROSS_NIC", "2.31.2", "2"),
        ("NCCL_CUMEM_ENABLE", "2.31.2", "-2"),
        ("NCCL_DMABUF_ENABLE", "2.31.2", "1"),
        ("NCCL_IB_DATA_DIRECT", "2.31.2", "1"),
        ("NCCL_IB_PCI_RELAXED_ORDERING", "2.31.2", "2"),
        ("NCCL_IB_PKEY_VALUE", "2.31.2", "-1"),
        ("NCCL_IB_QPS_PER_CONNECTION", "2.31.2", "1"),
        ("NCCL_IB_SPLIT_DATA_ON_QPS", "2.31.2", "0"),
        ("NCCL_IB_TIMEOUT", "2.31.2", "20"),
        ("NCCL_MNNVL_ENABLE", "2.31.2", "2"),
        ("NCCL_NET_GDR_C2C", "2.31.2", "1"),
        ("NCCL_NET_GDR_READ", "2.31.2", "-2"),
        ("NCCL_NVLS_ENABLE", "2.31.2", "2"),
        ("NCCL_P2P_PXN_LEVEL", "2.31.2", "2"),
        ("NCCL_PXN_C2C", "2.31.2", "1"),
    ],
)
def test_defaults_follow_the_version(name: str, version: str, default: str) -> None:
    assert variables()[name].default(parse_version(version)) == default


@pytest.mark.parametrize(
    ("name", "value", "unknown"),
    [
        ("NCCL_DEBUG", "info", []),
        ("NCCL_DEBUG", "RED", ["RED"]),
        ("NCCL_DEBUG", "attn", []),
        ("NCCL_ALGO", "^Ring,nvlstree", []),
        ("NCCL_ALGO", "ring;allreduce:tree,Rong", ["Rong"]),
        ("NCCL_SOCKET_FAMILY", "af_inet", ["af_inet"]),
        ("NCCL_IB_RAIL_POLICY", "cx9:alt", []),  # strcasecmp, net_ib/init.cc of 2.32
        ("NCCL_IB_RAIL_POLICY", "CX8", ["CX8"]),
    ],
)
def test_words_are_compared_as_nccl_compares_them(name: str, value: str, unknown: list[str]) -> None:
    assert variables()[name].unknown_words(value) == unknown


def test_names_that_nccl_reads_are_known() -> None:
    assert is_known("NCCL_IB_OOO_RQ")
    assert is_known("NCCL_IB_SORT_MERGE_NICS")
    assert not is_known("NCCL_HOME")


READ_BY_NCCL = [variable for variable in variables().values() if variable.name in parameters()]
RELEASES = sorted(
    {parse_version(each.first) for each in parameters().values()}
    | {parse_version(since) for each in parameters().values() for since, _ in each.defaults}
)
FIRST_COMPLETE = parse_version("2.3.5")  # the releases of 2.0 to 2.3.4 have no public source
# -2 or -1 in NCCL's source: it decides itself, and the catalogue has what it then uses, or nothing.
DECIDED = {
    *("NCCL_BUFFSIZE", "NCCL_IB_ADAPTIVE_ROUTING", "NCCL_IB_AR_THRESHOLD", "NCCL_IB_CUDA_SUPPORT"),
    *("NCCL_IB_FIFO_TC", "NCCL_IB_GDR_LEVEL", "NCCL_IB_SL", "NCCL_IB_TC", "NCCL_LL_THRESHOLD"),
    *("NCCL_MAX_NCHANNELS", "NCCL_MIN_NCHANNELS", "NCCL_NET_GDR_READ", "NCCL_NET_SHARED_BUFFERS"),
    *("NCCL_NSOCKS_PERTHREAD", "NCCL_NTHREADS", "NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL", "NCCL_SOCKET_NTHREADS"),
    *("NCCL_TREE_THRESHOLD",),
}


@pytest.mark.parametrize("variable", READ_BY_NCCL, ids=[variable.name for variable in READ_BY_NCCL])
def test_the_catalogue_agrees_with_every_release_of_nccl(variable: Variable) -> None:
    """parameters.txt is written from all tags of github.com/NVIDIA/nccl."""
    parameter = parameters()[variable.name]
    first, since = parse_version(parameter.first), parse_version(variable.since)
    if first > FIRST_COMPLETE:
        assert variable.since, f"since {parameter.first}"
    if since >= FIRST_COMPLETE:
        assert since <= first
        assert not any(since <= release < first for release in RELEASES), f"since {parameter.first}"
    if variable.name in DECIDED:
        return
    for release in (release for release in RELEASES if first <= release <= parse_version(parameter.last)):
        default = parameter.default(release)
        if parse_number(default) is not None and (int(default) >= 0 or variable.default(release)):
            assert variable.default(release) in (default, ""), release


def test_a_variable_that_no_release_names_any_more_is_called_removed() -> None:
    for variable in READ_BY_NCCL:
        is_gone = parameters()[variable.name].last != newest()
        assert bool(variable.removed) == is_gone, variable.name


def test_a_redacted_recording_keeps_the_variables_of_the_catalogue() -> None:
    read = (name for name in variables() if name.startswith(FAMILIES))  # of the environment of a process
    missing = sorted(name for name in read if name not in VARIABLES)
    assert not missing, f"add to [variables] in probes/recording/redaction/words.txt: {missing}"


def test_logs_and_the_environment_share_one_meaning() -> None:
    assert "GPUDirect RDMA" in meaning_of("NCCL_NET_GDR_LEVEL")
    assert meaning_of("NCCL_UNKNOWN") == ""
