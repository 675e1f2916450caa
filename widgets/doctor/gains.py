"""Say what a fix should bring, in Gb/s between GPUs and NICs."""

from __future__ import annotations

from collections.abc import Sequence

from probes.base.text import plural
from probes.base.unknown import Maybe, Unknown
from probes.queries.finding import DETOUR, PairGain

_MOST_PAIRS = 3  # named


def gain_text(gains: Sequence[PairGain]) -> str:
    """Return a sentence for each group of pairs with equal limits; "" without a gain.

    "Should raise the limit of GPU2–mlx5_2 and GPU3–mlx5_2 from 230 to 397 Gb/s, each pair alone."
    """
    groups: dict[tuple[int | None, int], list[PairGain]] = {}
    for gain in gains:
        groups.setdefault((_rounded(gain.now_gbps), round(gain.fixed_gbps)), []).append(gain)
    return " ".join(_sentence(now, fixed, group) for (now, fixed), group in groups.items())


def _rounded(gbps: Maybe[float]) -> int | None:
    return None if isinstance(gbps, Unknown) else round(gbps)


def _sentence(now: int | None, fixed: int, gains: Sequence[PairGain]) -> str:
    pairs = _pairs(gains)
    alone = ", each pair alone" if len(gains) > 1 else ""
    if now is None:
        given = f"Should give {pairs} up to {fixed} Gb/s{alone}."
        whose = "Their" if len(gains) > 1 else "Its"
        is_detour = gains[0].now_gbps == DETOUR
        return f"{given} {whose} traffic uses the CPU now, at an unknown rate." if is_detour else given
    if now == 0:
        return f"Should give {pairs} up to {fixed} Gb/s by GPUDirect RDMA{alone}; now there is none."
    return f"Should raise the limit of {pairs} from {now} to {fixed} Gb/s{alone}."


def _pairs(gains: Sequence[PairGain]) -> str:
    """Return "GPU2–mlx5_2 and GPU3–mlx5_2", or "16 pairs (GPU0–mlx5_0, …)"."""
    names = [f"{gain.gpu}–{gain.nic}" for gain in gains]
    if len(names) > _MOST_PAIRS:
        return f"{plural(len(names), 'pair')} ({names[0]} …)"
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last
