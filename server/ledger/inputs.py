"""Turns parsed flags into one consistent question: a profile, the K to look at, what rounds cost.

Knows which flags go together; computes nothing of speculation.
"""

import argparse
from dataclasses import dataclass

from scheduler.speedup import iid_profile, kv_row_bytes, verify_line
from server.ledger.flags import LONGEST_TIME, SHORTEST_TIME, BadFlag, VerifyCost
from server.ledger.scrape import Reading, read_metrics

__all__ = ["Costs", "Inputs", "Sizes", "read_inputs"]

_DEFAULT_LONGEST = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Times in milliseconds, or in plain decoding steps (`in_ms` false).

    `verify` is the target's call at each K, `plain` a round without speculation.
    """

    in_ms: bool
    draft: float
    verify: dict[int, float]
    other: float
    plain: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Bytes of one K/V row and of one probability, and the length of a probability row."""

    row_bytes: int
    vocabulary: int
    number_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """What was asked: `ks` rise and begin with 0; `profile` reaches as far as the last of them."""

    profile: tuple[float, ...]
    ks: tuple[int, ...]
    costs: Costs
    sizes: Sizes | None
    reading: Reading | None


def read_inputs(given: argparse.Namespace) -> Inputs:
    """Check the flags against each other. Raises BadFlag."""
    if given.where and given.from_metrics is None:
        raise BadFlag("--where", "goes with --from-metrics only")
    reading = None if given.from_metrics is None else read_metrics(given.from_metrics, given.where)
    profile = given.profile if reading is None else reading.profile
    listed: tuple[int, ...] = given.k or tuple(
        range(1 + (_DEFAULT_LONGEST if profile is None else len(profile)))
    )
    if profile is None:
        profile = iid_profile(given.alpha, listed[-1])
    if listed[-1] > len(profile):
        raise BadFlag("--k", f"{listed[-1]} is past the {len(profile)} positions that are known")
    return Inputs(
        profile=profile[: listed[-1]],
        ks=tuple(sorted({0, *listed})),
        costs=_costs(given, listed, reading),
        sizes=_sizes(given),
        reading=reading,
    )


def _costs(given: argparse.Namespace, ks: tuple[int, ...], reading: Reading | None) -> Costs:
    if given.c is not None:
        return _ratio_costs(given, ks)
    for flag in ("--verify-ratio", "--other-ratio"):
        if _value(given, flag) is not None:
            raise BadFlag(flag, "needs --c, and goes with no --draft-ms")
    if reading is not None:
        return _measured_costs(given, ks, reading)
    if given.draft_ms is None:
        raise BadFlag("--draft-ms", "needed (or --c) to price a round")
    if given.verify_ms is None:
        raise BadFlag("--verify-ms", "needed beside --draft-ms")
    verify = _verify_times("--verify-ms", given.verify_ms, ks)
    plain, other = _plain(given, verify, 0.0), given.other_ms or 0.0
    return Costs(in_ms=True, draft=given.draft_ms, verify=verify, other=other, plain=plain)


def _ratio_costs(given: argparse.Namespace, ks: tuple[int, ...]) -> Costs:
    for flag in ("--draft-ms", "--verify-ms", "--other-ms"):
        if _value(given, flag) is not None:
            raise BadFlag(flag, "goes with no --c: give times or ratios")
    step = given.baseline_ms or 1.0
    ratio = VerifyCost(table=(1.0,)) if given.verify_ratio is None else given.verify_ratio
    ratios = _verify_times("--verify-ratio", ratio, ks)
    return Costs(
        in_ms=given.baseline_ms is not None,
        draft=step * given.c,
        verify={k: step * ratio for k, ratio in ratios.items()},
        other=step * (given.other_ratio or 0.0),
        plain=step,
    )


def _measured_costs(given: argparse.Namespace, ks: tuple[int, ...], reading: Reading) -> Costs:
    """The reading's times, each unless a flag gives another."""
    if given.verify_ms is None:
        cost = VerifyCost(table=(_usable("--verify-ms", reading.verify_ms, SHORTEST_TIME),))
    else:
        cost = given.verify_ms
    verify = _verify_times("--verify-ms", cost, ks)
    draft, other = given.draft_ms, given.other_ms
    if draft is None:
        draft = _usable("--draft-ms", reading.draft_ms)
    if other is None:
        other = _usable("--other-ms", reading.other_ms)
    plain = _plain(given, verify, other)
    return Costs(in_ms=True, draft=draft, verify=verify, other=other, plain=plain)


def _usable(flag: str, time: float, least: float = 0.0) -> float:
    """A measured time, unless it is out of bounds, so that the flag has to give it."""
    if not least <= time <= LONGEST_TIME:
        raise BadFlag(flag, f"needed: {time:g} ms was measured, not {least:g} .. {LONGEST_TIME:g}")
    return time


def _plain(given: argparse.Namespace, verify: dict[int, float], other: float) -> float:
    """A plain round: what its flag says, else the target's call at K = 0 and `other`."""
    if given.baseline_ms is not None:
        return float(given.baseline_ms)
    if 0 not in verify:
        raise BadFlag("--baseline-ms", "needed: --verify-ms has no number for K = 0")
    return verify[0] + other


def _verify_times(flag: str, cost: VerifyCost, ks: tuple[int, ...]) -> dict[int, float]:
    """The call's time at each listed K; at 0 too when it is known without being listed."""
    table = cost.table
    if not table:
        return {k: verify_line(cost.base, cost.slope, k) for k in (0, *ks)}
    if len(table) == 1:
        return dict.fromkeys((0, *ks), table[0])
    if len(table) != len(ks):
        shown = ", ".join(map(str, ks))
        raise BadFlag(flag, f"{len(table)} numbers for {len(ks)} values of K ({shown})")
    return dict(zip(ks, table, strict=True))


def _sizes(given: argparse.Namespace) -> Sizes | None:
    flags = ("--layers", "--kv-heads", "--head-dim", "--vocab")
    missing = [flag for flag in flags if _value(given, flag) is None]
    if len(missing) == len(flags):
        return None
    if missing:
        raise BadFlag(missing[0], f"needed: {', '.join(flags)} go together")
    return Sizes(
        row_bytes=kv_row_bytes(given.layers, given.kv_heads, given.head_dim, given.kv_bytes),
        vocabulary=given.vocab,
        number_bytes=given.row_bytes,
    )


def _value(given: argparse.Namespace, flag: str) -> object:
    return vars(given)[flag.removeprefix("--").replace("-", "_")]
