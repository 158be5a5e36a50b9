"""Reads acceptance and costs off the text of a server's /metrics; knows no other side of it."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
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
_MOST = 2.0**53
"""Up to here a float counts exactly; no counter gets there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What a server measured since its start.

    `reached` counts tests by draft position. `emitting` are those of all engine `rounds` that
    decided tokens: not the ones that only prefilled, or only appended (retained layout). Times are
    in milliseconds, those of all rounds shared out among the emitting ones, whatever their K and
    their rows: a draft step, the target's call, the rest of a round.
    """

    profile: tuple[float, ...]
    reached: tuple[int, ...]
    rounds: int
    emitting: int
    mean_k: float
    draft_ms: float
    verify_ms: float
    other_ms: float


def read_metrics(source: str, where: Mapping[str, str]) -> Reading:
    """Read a URL or a file; only samples whose labels agree with `where` count as acceptance.

    Raises BadFlag when there is nothing to read, when a number or a label of ours makes no sense,
    or when nothing was drafted and tested.
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
    rounds, emitting = _total(samples, "rounds_total"), _emitting(samples)
    published, drafts = (_total(samples, f"round_k_{part}") for part in ("count", "sum"))
    if min(rounds, emitting, published, drafts) < 1:
        names = ", ".join(f"{_PREFIX}{name}" for name in ("rounds_total", "round_rows"))
        raise BadFlag(_FLAG, f"{names} or {_PREFIX}round_k is missing or 0")
    parts: defaultdict[str, float] = defaultdict(float)
    for sample in samples.get("round_seconds_total", ()):
        parts[_label(sample, "part")] += 1e3 * _value(sample) / emitting
    draft, verify = parts.pop("draft", 0.0), parts.pop("verify", 0.0)
    mean_k = drafts / published
    return Reading(
        profile=profile,
        reached=tuple(map(int, reached)),
        rounds=int(rounds),
        emitting=int(emitting),
        mean_k=mean_k,
        draft_ms=draft / mean_k,
        verify_ms=verify,
        other_ms=sum(parts.values()),
    )


def _emitting(samples: Mapping[str, list[Sample]]) -> float:
    """Rounds in which some request decided tokens: those with more than 0 frontier rows."""
    frontier = (("kind", "frontier"),)
    empty = (
        _total(samples, "round_rows_bucket", (*frontier, ("le", zero))) for zero in ("0", "0.0")
    )
    return _total(samples, "round_rows_count", frontier) - sum(empty)


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
    except (ValueError, KeyError, IndexError, OverflowError) as problem:
        raise BadFlag(_FLAG, f"this is no metrics page: {problem}") from None
    return found


def _by_position(
    samples: Mapping[str, list[Sample]], name: str, where: Mapping[str, str]
) -> list[float]:
    sums: defaultdict[int, float] = defaultdict(float)
    for sample in samples.get(name, ()):
        position = _position(sample)
        if _agrees(sample.labels, where.items()):
            sums[position] += _value(sample)
    return [sums[position] for position in range(len(sums))]


def _position(sample: Sample) -> int:
    text = _label(sample, "position")
    try:
        return int(text)
    except ValueError:
        raise BadFlag(_FLAG, f"{sample.name}: position {text!r} is no number") from None


def _label(sample: Sample, name: str) -> str:
    try:
        return sample.labels[name]
    except KeyError:
        raise BadFlag(_FLAG, f"{sample.name} has no label {name!r}") from None


def _value(sample: Sample) -> float:
    if not 0 <= sample.value <= _MOST:  # also catches NaN
        raise BadFlag(_FLAG, f"{sample.name}: a counter cannot be {sample.value!s:.40}")
    return float(sample.value)


def _agrees(labels: Mapping[str, str], wanted: Iterable[tuple[str, str]]) -> bool:
    return all(labels.get(name) == value for name, value in wanted)


def _total(
    samples: Mapping[str, list[Sample]], name: str, wanted: Collection[tuple[str, str]] = ()
) -> float:
    return sum(_value(each) for each in samples.get(name, ()) if _agrees(each.labels, wanted))
