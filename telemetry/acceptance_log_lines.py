"""Writes a round of one request as lines of the acceptance log; knows no file and no thread.

A line is one JSON object. `record` names its kind: `header`, `position` (one draft position that
was reached), `plain` (a round without drafts), `unpublished` (a round that was decided and then
given up) or `dropped` (what the line's place would have held). Numbers that are not finite are
null.
"""

import json
import math
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from scheduler.plan import DraftOutcome, TerminalKind
from scheduler.stats import CommitOutcome, Evidence, GroupStats, Policy, SpeculationStats
from telemetry.metrics import PREFIX_BUCKETS

__all__ = [
    "SCHEMA",
    "LogHeader",
    "dropped_line",
    "header_line",
    "is_header",
    "record_count",
    "round_lines",
]

SCHEMA = 1
_LIMITS = tuple(limit for limit, _ in PREFIX_BUCKETS if limit is not None)
_COMPARING = frozenset({Policy.GREEDY, Policy.SHARED_NOISE})
_encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


@dataclass(frozen=True, slots=True, kw_only=True)
class LogHeader:
    """What is the same for all records of one run. `started` is UTC, in ISO 8601."""

    target: str
    draft: str | None
    dtype: str
    layout: str
    server_version: str
    started: str


def header_line(header: LogHeader, file: int) -> bytes:
    """The first line of the run's file number `file`, counted from 0."""
    return _line({"record": "header", "schema": SCHEMA, "file": file, **asdict(header)})


def is_header(line: bytes) -> bool:
    """Whether a file that begins with `line` is a log, of whatever schema. A torn line counts."""
    return line.startswith(b'{"record":"header","schema":')


def dropped_line(count: int) -> bytes:
    """Says that `count` records before this line were not written."""
    return _line({"record": "dropped", "count": count})


def record_count(group: GroupStats) -> int:
    """How many records `round_lines` makes of one request's round."""
    if group.evidence is None:
        return 0
    return 1 if group.speculation is None else group.speculation.reached


def round_lines(round_id: int, group: GroupStats, domain: str) -> bytes:
    """All lines of one request's round, under the given domain label."""
    evidence, speculation = group.evidence, group.speculation
    if evidence is None:
        return b""
    if group.outcome is not CommitOutcome.PUBLISHED:
        records = [_unpublished(group)]
    elif speculation is None:
        records = [_plain(group, evidence)]
    else:
        places = range(1, speculation.reached + 1)
        records = [_position(group, evidence, speculation, place) for place in places]
    # What all lines of the round share is encoded once.
    shared = _encode(_shared(round_id, group, evidence, domain))[1:]
    return "".join(f"{_encode(record)[:-1]},{shared}\n" for record in records).encode()


def _shared(round_id: int, group: GroupStats, evidence: Evidence, domain: str) -> dict[str, object]:
    """What all records of the round say alike."""
    return {
        "round_id": round_id,
        "request": group.request,
        "generation": evidence.generation,
        "k": len(evidence.outcomes),
        "policy": group.policy.value,
        "proposer": group.proposer.value,
        "domain": domain,
        "prefix": PREFIX_BUCKETS[bisect_right(_LIMITS, group.position)][1],
        "verified": evidence.verified,
        "committed_token_count": group.committed,
        "cut": group.terminal is TerminalKind.STOP,
    }


def _unpublished(group: GroupStats) -> dict[str, object]:
    return {
        "record": "unpublished",
        "position": group.position,
        "outcome": group.outcome.value,
    }


def _plain(group: GroupStats, evidence: Evidence) -> dict[str, object]:
    return {"record": "plain", "position": group.position} | _ending(group, evidence)


def _position(
    group: GroupStats, evidence: Evidence, speculation: SpeculationStats, place: int
) -> dict[str, object]:
    """The draft at `place`, 1-based; the last one reached says how the round ended."""
    outcome = evidence.outcomes[place - 1]
    block = group.policy is Policy.BLOCK
    record: dict[str, object] = {
        "record": "position",
        "position": group.position + place - 1,
        "place": place,
        "draft_token": outcome.token,
        "target_token": outcome.choice,
        **_test(outcome, block=block),
        "accepted": place <= speculation.accepted,
    }
    if place < speculation.reached:
        return record | _NOT_ENDED
    unreached = [_test(each, block=True) for each in evidence.outcomes[place:]] if block else []
    return record | _ending(group, evidence) | {"unreached": unreached}


def _test(outcome: DraftOutcome, *, block: bool) -> dict[str, object]:
    """The numbers of one acceptance test. `reach` is P_i of block verification."""
    return {
        "q_prob": _finite(outcome.draft_prob),
        "p_prob": _finite(outcome.target_prob),
        "accept_ratio": _finite(outcome.bound),
        "uniform": _finite(outcome.uniform),
        "reach": _finite(outcome.mass) if block else None,
    }


_NOT_ENDED: dict[str, object] = {
    "terminal_kind": None,
    "terminal_token": None,
    "correction_distribution_id": None,
    "correction_scale": None,
    "unreached": [],
}


def _ending(group: GroupStats, evidence: Evidence) -> dict[str, object]:
    law = _law(group, evidence)
    return {
        "terminal_kind": None if group.terminal is None else group.terminal.value,
        "terminal_token": evidence.terminal_token,
        "correction_distribution_id": law,
        "correction_scale": _scale(evidence) if law == "block_residual" else None,
    }


def _law(group: GroupStats, evidence: Evidence) -> str | None:
    """Which law the terminal came from (contract section 2)."""
    if group.terminal in {None, TerminalKind.STOP}:
        return None
    if group.policy in _COMPARING:
        return "choice"
    if group.terminal is not TerminalKind.CORRECTION:
        return "target"
    if evidence.fallback:
        return "target_fallback"
    return "block_residual" if group.policy is Policy.BLOCK else "residual"


def _scale(evidence: Evidence) -> float | None:
    """P_A, which scales the target's row in the residual of block verification."""
    accepted = evidence.verified
    return 1.0 if accepted == 0 else _finite(evidence.outcomes[accepted - 1].mass)


def _finite(number: float | None) -> float | None:
    return number if number is not None and math.isfinite(number) else None


def _line(record: Mapping[str, object]) -> bytes:
    return f"{_encode(record)}\n".encode()
