"""Reads acceptance and costs off the text of a server's /metrics; knows no other side of it."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import httpx
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from scheduler.speedup import reach_profile
from server.ledger.flags import BadFlag

__all__ = ["Reading", "read_metrics"]

_FLAG = "--from-metrics"
_PREFIX = "fencepost_"
_TIMEOUT_SECONDS = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What a server measured since its start.

    `reached` counts tests by draft position. Times are means in milliseconds over all engine
    rounds, whatever their K and their rows: a draft step, the target's call, the rest of a round.
    """

    profile: tuple[float, ...]
    reached: tuple[int, ...]
    rounds: int
    mean_k: float
    draft_ms: float
    verify_ms: float
    other_ms: float


def read_metrics(source: str, where: Mapping[str, str]) -> Reading:
    """Read a URL or a file; only samples whose labels agree with `where` count as acceptance.

    Raises BadFlag when there is nothing to read or nothing was drafted and tested.
    """
    samples = _samples(_text(source))
    accepted = _by_position(samples, "spec_accepted_total", where)
    reached = _by_position(samples, "spec_reached_total", where)
    try:
        profile = reach_profile(reached, accepted)
    except ValueError as problem:
        raise BadFlag(_FLAG, f"{source}: {problem}") from None
    if not profile:
        labels = " with these labels" if where else ""
        raise BadFlag(_FLAG, f"{source}: no draft was tested{labels}, so acceptance is unknown")
    return _reading(samples, profile, reached[: len(profile)])


def _reading(
    samples: Mapping[str, list[Sample]], profile: tuple[float, ...], reached: list[float]
) -> Reading:
    rounds = _total(samples, "rounds_total")
    published, drafts = (_total(samples, f"round_k_{part}") for part in ("count", "sum"))
    if not rounds or not published or not drafts:
        raise BadFlag(_FLAG, f"{_PREFIX}rounds_total or {_PREFIX}round_k is missing or 0")
    parts: defaultdict[str, float] = defaultdict(float)
    for sample in samples.get("round_seconds_total", ()):
        parts[sample.labels["part"]] += 1e3 * sample.value / rounds
    draft, verify = parts.pop("draft", 0.0), parts.pop("verify", 0.0)
    mean_k = drafts / published
    return Reading(
        profile=profile,
        reached=tuple(map(int, reached)),
        rounds=int(rounds),
        mean_k=mean_k,
        draft_ms=draft / mean_k,
        verify_ms=verify,
        other_ms=sum(parts.values()),
    )


def _text(source: str) -> str:
    try:
        if source.startswith(("http://", "https://")):
            answer = httpx.get(source, timeout=_TIMEOUT_SECONDS, follow_redirects=True)
            return answer.raise_for_status().text
        return Path(source).read_text(encoding="utf-8")
    except (httpx.HTTPError, httpx.InvalidURL, OSError, UnicodeDecodeError) as problem:
        why = (str(problem) or type(problem).__name__).splitlines()[0]
        raise BadFlag(_FLAG, f"cannot read {source}: {why}") from None


def _samples(text: str) -> dict[str, list[Sample]]:
    """Our samples by name, without the prefix."""
    found: defaultdict[str, list[Sample]] = defaultdict(list)
    try:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.name.startswith(_PREFIX):
                    found[sample.name.removeprefix(_PREFIX)].append(sample)
    except (ValueError, KeyError, IndexError) as problem:
        raise BadFlag(_FLAG, f"this is no metrics page: {problem}") from None
    return found


def _by_position(
    samples: Mapping[str, list[Sample]], name: str, where: Mapping[str, str]
) -> list[float]:
    sums: defaultdict[int, float] = defaultdict(float)
    for sample in samples.get(name, ()):
        if _agrees(sample.labels, where.items()):
            sums[int(sample.labels["position"])] += sample.value
    return [sums[position] for position in range(len(sums))]


def _agrees(labels: Mapping[str, str], wanted: Iterable[tuple[str, str]]) -> bool:
    return all(labels.get(name) == value for name, value in wanted)


def _total(samples: Mapping[str, list[Sample]], name: str) -> float:
    return sum(sample.value for sample in samples.get(name, ()))
