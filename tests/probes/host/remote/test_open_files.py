"""Many connections need more open files than the default limit."""

import resource

import pytest

from probes.host.remote.fan_out import allow_nodes

ENDLESS = resource.RLIM_INFINITY


@pytest.mark.parametrize(
    ("soft", "hard", "wanted", "allowed", "limit"),
    [
        (1024, 4096, 100, 100, 1024),  # enough
        (1024, 4096, 256, 256, 2176),
        (1024, ENDLESS, 1000, 1000, 8128),
        (1024, 2048, 256, 240, 2048),  # the hard limit is the end
        (1024, 1024, 256, 112, 1024),
        (64, 64, 256, 1, 64),
        (ENDLESS, ENDLESS, 1000, 1000, ENDLESS),
    ],
)
def test_the_limit_is_raised_for_the_nodes_as_far_as_it_may(
    monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, wanted: int, allowed: int, limit: int
) -> None:
    limits = {resource.RLIMIT_NOFILE: (soft, hard)}
    monkeypatch.setattr(resource, "getrlimit", limits.__getitem__)
    monkeypatch.setattr(resource, "setrlimit", limits.__setitem__)
    assert allow_nodes(wanted, files_a_node=8) == allowed
    assert limits == {resource.RLIMIT_NOFILE: (limit, hard)}
