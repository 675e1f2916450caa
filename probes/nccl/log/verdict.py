"""Whether a job uses GPUDirect RDMA, by its log, and which lines say why not.

`/GDRDMA` on a `via NET/` line is the proof in every version, and its absence there means host memory. Nothing
else proves either: "GDR 1" also stands in logs without a network channel.
"""

from __future__ import annotations

from collections.abc import Iterable

from probes.base.text import leading_version, plural
from probes.nccl.log.facts import Channels, LogFacts, LogVerdict, Place, Problem, Rank, Reason, Setting, State

_LAZY = (2, 22, 0)  # connects at the first collective
FIRST_WITH_DMABUF = (2, 13, 4)  # reports DMA-BUF
_MOST_PLACES = 3
_READ_PER_UNKNOWN = 3  # channels, with which those that could not be read change nothing
_OFF_WITH_ZERO = ("NCCL_NET_GDR_READ", "NCCL_NET_GDR_C2C", "NCCL_DMABUF_ENABLE", "NCCL_IB_CUDA_SUPPORT")
TCP_NETWORKS = frozenset(("Socket", "FastSocket"))
"""FastSocket: Google's plugin, https://github.com/google/nccl-fastsocket."""
NEXT_RUN = "NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,NET,GRAPH,ENV"
NO_REASON = (
    "The log does not say why; these channels use host memory. Most often the node, for a container its"
    " host, has neither nvidia_peermem nor DMA-BUF, or the NIC is too far from the GPU"
)

_SPARK_NICS = ("rocep1s0f", "roceP2p1s0f")
"""How the two halves of a DGX Spark's NIC are called, https://build.nvidia.com/spark/nccl."""
_SPARK = (
    "The NICs have the names of a DGX Spark's (GB10), where no NIC can reach GPU memory by design: NCCL"
    " copies through host memory, and 92 to 97 Gb/s for each half of a port are normal"
)


def verdict_of(facts: LogFacts) -> LogVerdict:
    """Return the answer."""
    channels = facts.channels
    if not channels.total:
        return _without_channels(facts)
    state = _state(channels)
    reasons = [*([] if state is State.ALL else _reasons(facts)), *_unread(facts)]
    if state is State.ALL and any(file.error for file in facts.files):
        state = State.UNKNOWN
        reasons = [Reason("Part of the input could not be read, so other channels may differ")]
    return LogVerdict(state, _count(facts), tuple(reasons))


def _state(channels: Channels) -> State:
    """Decide by the channels that were read, if few were not; a torn line changes nothing."""
    if channels.staged and channels.gdr:
        return State.PARTLY
    if channels.unknown * _READ_PER_UNKNOWN > channels.staged + channels.gdr:
        return State.UNKNOWN
    return State.NONE if channels.staged else State.ALL


def _count(facts: LogFacts) -> str:
    """Return "12 of 16 channels on 6 of 8 ranks", with the directions where they differ."""
    channels = facts.channels
    ranks = [rank for rank in facts.ranks if rank.channels.total]
    whole = [rank for rank in ranks if rank.channels.gdr == rank.channels.total]
    text = f"{channels.gdr} of {plural(channels.total, 'channel')}"
    if ranks and not facts.more_ranks:
        text += f" on {len(whole)} of {plural(len(ranks), 'rank')}"
    send, receive = facts.send, facts.receive
    if send.gdr * receive.total != receive.gdr * send.total:
        text += f" (send {send.gdr} of {send.total}, receive {receive.gdr} of {receive.total})"
    if channels.unknown:
        text += f"; {plural(channels.unknown, 'channel')} unknown"
    return text


def _unread(facts: LogFacts) -> list[Reason]:
    reasons, repeated = [], facts.repeated_channels
    cut = facts.channels.unknown - repeated
    places = () if facts.first_unknown is None else (facts.first_unknown,)
    if cut:
        lines = "1 channel line is" if cut == 1 else f"{cut} channel lines are"
        reasons.append(Reason(f"{lines} cut off or garbled before the path", places))
    if repeated:
        text = f"Ray left out the lines of {plural(repeated, 'channel')}, whose paths may differ"
        reasons.append(Reason(f"{text}. For the next run, set RAY_DEDUP_LOGS=0", () if cut else places))
    return reasons


def _without_channels(facts: LogFacts) -> LogVerdict:
    comms, reasons = facts.communicators, []
    versions = [numbers for version in facts.versions if (numbers := leading_version(version.text))]
    sockets = [network for network in facts.networks if network.text in TCP_NETWORKS]
    if sockets and len(facts.networks) == 1:
        reasons.append(Reason("NCCL chose TCP sockets, which cannot use GPUDirect RDMA", (sockets[0].first,)))
        reasons.extend(_why_sockets(facts))
    began = facts.networks or facts.plugins or facts.nics or comms.largest
    if not facts.nccl_lines:
        reasons.append(Reason(f"No NCCL lines found. For the next run, set {NEXT_RUN}"))
        return LogVerdict(State.UNKNOWN, "unknown: not an NCCL log", tuple(reasons))
    if facts.has_nvlink_between_nodes:
        nvlink = "Ranks of different nodes reach each other over NVLink (MNNVL), which needs no NIC"
        return LogVerdict(State.UNKNOWN, "not used: channels between nodes use NVLink", (Reason(nvlink),))
    inside = facts.local_channels + facts.nvlink_channels
    if comms.nodes == 1 and (inside or comms.largest == 1):
        one_node = "All ranks are on one node; their channels do not use the network"
        reasons.append(
            Reason("The job has a single rank, which needs no network" if comms.largest == 1 else one_node)
        )
        return LogVerdict(State.UNKNOWN, "unknown: no channel uses the network", (*reasons, *_rings(facts)))
    fatal = facts.first_fatal
    says_more = began or facts.settings or facts.no_device is not None
    if inside or facts.rings.connected:
        reasons.append(Reason("Channels were set up, but none in the log uses the network"))
    elif began and versions and min(versions) >= _LAZY:
        reasons.append(
            Reason(
                "This version connects at the first collective (NCCL_RUNTIME_CONNECT), and the log has no "
                "channel yet"
            )
        )
    if fatal is not None and says_more and not _came_before_sockets(fatal, facts):
        reasons.append(
            Reason(f"The log has an error, but no network channel: {fatal.title}", (fatal.seen.first,))
        )
    elif not facts.networks and not inside:
        reasons.append(
            Reason(f"If the job has run collectives, the log is too terse: set {NEXT_RUN} for the next run")
        )
    reasons.extend(_rings(facts))
    reasons.extend(_incapable(facts))
    return LogVerdict(State.UNKNOWN, "not known yet: the log has no network channel", tuple(reasons))


def _rings(facts: LogFacts) -> list[Reason]:
    if facts.rings.gdr:
        return [Reason('"GDR 1" after "Connected all rings" proves nothing without a network channel')]
    return []


def _reasons(facts: LogFacts) -> list[Reason]:
    """Return the lines that explain channels without GPUDirect RDMA, the decisive ones first."""
    staged = [rank for rank in facts.ranks if rank.first_staged is not None]
    networks = {device.partition("/")[0] for rank in staged for device in rank.devices}
    reasons: list[Reason] = []
    if not facts.channels.staged:
        return reasons
    if networks & TCP_NETWORKS:
        places = _places(rank.first_staged for rank in staged)
        reasons.append(Reason("Channels use TCP sockets, which cannot use GPUDirect RDMA", places))
        reasons.extend(_why_sockets(facts))
    if _are_of_spark(facts):
        reasons.append(Reason(_SPARK, _places(rank.first_staged for rank in staged)))
    elif not networks or networks - TCP_NETWORKS:
        reasons.extend([*_incapable(facts), *_disabled_by_plugin(facts), *_too_far(facts)])
        reasons.extend([*_one_direction(facts), *_settings(facts)])
    if not reasons:
        places = _places(rank.first_staged for rank in staged)
        reasons.append(Reason(NO_REASON, places))
    return reasons


def _are_of_spark(facts: LogFacts) -> bool:
    said = [nic.text for nic in facts.nics] + [capability.name for capability in facts.capabilities]
    return all(any(name in text for text in said) for name in _SPARK_NICS)


def _places(places: Iterable[Place | None]) -> tuple[Place, ...]:
    found = {place for place in places if place is not None}
    return tuple(sorted(found, key=lambda place: (place.file, place.line))[:_MOST_PLACES])


def _why_sockets(facts: LogFacts) -> list[Reason]:
    reasons = []
    if facts.no_verbs is not None:
        text = "NCCL could not open libibverbs: rdma-core is missing in the job's image"
        return [Reason(text, (facts.no_verbs.first,))]
    errors = {problem.kind: problem for problem in facts.problems if _came_before_sockets(problem, facts)}
    if errors:
        return [Reason(problem.title, (problem.seen.first,)) for problem in errors.values()][:_MOST_PLACES]
    if facts.no_device is not None:
        reasons.append(Reason("NCCL found no InfiniBand or RoCE device", (facts.no_device.first,)))
    for setting in facts.settings:
        if (setting.name == "NCCL_IB_DISABLE" and setting.value not in ("0", "")) or (
            setting.name == "NCCL_NET" and setting.value.lower() == "socket"
        ):
            reasons.append(_setting(setting, "; unset it to use RDMA"))
    for plugin in facts.plugins:
        if "Could not find" in plugin.text or "No plugin found" in plugin.text:
            text = "No network plugin was loaded; networks such as EFA need one"
            reasons.append(Reason(text, (plugin.first,)))
            break
    return reasons


def _came_before_sockets(problem: Problem, facts: LogFacts) -> bool:
    """Return whether an error came before NCCL chose sockets, and so most likely is why."""
    place = problem.seen.first
    chosen = [network.first for network in facts.networks if network.text in TCP_NETWORKS]
    is_before = any(place.file == first.file and place.line < first.line for first in chosen)
    return problem.severity == "critical" and is_before


def _incapable(facts: LogFacts) -> list[Reason]:
    disabled = [
        capability
        for capability in facts.capabilities
        if not capability.is_enabled and capability.network not in TCP_NETWORKS
    ]
    if not disabled:
        return []
    names = ", ".join(dict.fromkeys(capability.name for capability in disabled[:8]))
    places = _places(capability.seen.first for capability in disabled)
    reasons = [
        Reason(
            f"GPUDirect RDMA is disabled for {names}: NCCL can register GPU memory neither with"
            " nvidia-peermem nor with DMA-BUF",
            places,
        )
    ]
    versions = [numbers for version in facts.versions if (numbers := leading_version(version.text))]
    # These lines are written to the same subsystem.
    initialized = facts.networks and (facts.communicators.started or facts.communicators.completed)
    if facts.dmabuf is None and initialized and versions and min(versions) >= FIRST_WITH_DMABUF:
        reasons.append(Reason('No line says "DMA-BUF is available": NCCL cannot use it here'))
    return reasons


def _disabled_by_plugin(facts: LogFacts) -> list[Reason]:
    """Return why aws-ofi-nccl uses host memory (nccl_ofi_ofiutils.cpp)."""
    lines = [line for line in facts.plugins if "disabling GDR" in line.text]
    text = (
        "The plugin aws-ofi-nccl disabled GPUDirect RDMA: libfabric cannot register GPU memory here, or this"
        " EFA has no RDMA"
    )
    return [Reason(text, _places(line.first for line in lines))] if lines else []


def _too_far(facts: LogFacts) -> list[Reason]:
    far: dict[str, list[Place]] = {}
    for pair in facts.distances:
        if not pair.is_enabled:
            distance, limit = pair.words or (pair.distance, pair.limit)
            kind = "" if pair.words else " (numbers of an unknown version)"
            text = f"The GPU–NIC distance is {distance}; the limit is {limit}{kind}"
            far.setdefault(text, []).append(pair.seen.first)
    return [Reason(text, _places(places)) for text, places in far.items()][:4]


def _one_direction(facts: LogFacts) -> list[Reason]:
    if facts.send.staged and not facts.send.gdr and facts.receive.gdr and not facts.receive.staged:
        places = _places(rank.first_staged for rank in facts.ranks if rank.send.staged)
        text = (
            "Only receiving uses GPUDirect RDMA. Sending (read) is off with NCCL_NET_GDR_READ=0, or on GPUs "
            "before Ampere without NVLink"
        )
        return [Reason(text, places)]
    return []


def _settings(facts: LogFacts) -> list[Reason]:
    reasons = []
    for setting in facts.settings:
        name, value = setting.name, setting.value
        if (name == "NCCL_NET_GDR_LEVEL" and value != "SYS") or (name in _OFF_WITH_ZERO and value == "0"):
            reasons.append(_setting(setting))
    return reasons


def _setting(setting: Setting, advice: str = "") -> Reason:
    meaning = f" ({setting.meaning})" if setting.meaning else ""
    return Reason(f"{setting.name}={setting.value}{meaning}{advice}", (setting.seen.first,))


def staged_first(ranks: Iterable[Rank]) -> list[Rank]:
    """Return the ranks with network channels: those with channels through host memory first, by number."""
    shown = [rank for rank in ranks if rank.channels.total]

    def order(rank: Rank) -> tuple[bool, bool, int, str]:
        last = rank.rank if rank.rank is not None else 1 << 40
        return (not rank.channels.staged, not rank.channels.unknown, last, rank.host)

    return sorted(shown, key=order)
