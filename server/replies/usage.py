"""Token counts and timings of one call, from the engine's statistics of its choices."""

from collections.abc import Sequence
from typing import Any

from scheduler.events import RequestStats
from server.replies.piece import ReplyOptions

__all__ = ["metrics_block", "running_usage", "usage_block"]


def usage_block(stats: Sequence[RequestStats], options: ReplyOptions) -> dict[str, Any]:
    """Counts of the whole call; `stats` are in the order of the choices.

    Each prompt counts once. What was found cached is taken from its first choice.
    """
    cached = sum(one.cached_tokens for one in stats[:: options.choices])
    return _usage(options, sum(one.completion_tokens for one in stats), cached)


def running_usage(options: ReplyOptions, completion_tokens: int) -> dict[str, Any]:
    """Counts in the middle of a stream."""
    return _usage(options, completion_tokens, 0)


def _usage(options: ReplyOptions, completion_tokens: int, cached: int) -> dict[str, Any]:
    prompt_tokens = sum(map(len, options.prompts))
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


def metrics_block(
    stats: Sequence[RequestStats], options: ReplyOptions, k_max: int
) -> dict[str, Any]:
    """Times in milliseconds, and speculation unless the call switched it off.

    The first token and the queue are those of the earliest choice; generation runs from the first
    token to the last finish. tokens_per_second is all published tokens over the time since
    arrival; mean_itl_ms the generation time over the tokens after each choice's first.
    """
    arrival = min(one.arrival for one in stats)
    finished = max(one.finished for one in stats)
    firsts = [one.first_token for one in stats if one.first_token is not None]
    admitted = [one.admitted for one in stats if one.admitted is not None]
    first = min(firsts, default=finished)
    tokens = sum(one.completion_tokens for one in stats)
    gaps = sum(max(0, one.completion_tokens - 1) for one in stats)
    spans = sum(one.finished - one.first_token for one in stats if one.first_token is not None)
    block: dict[str, Any] = {
        "time_to_first_token_ms": _ms(first - arrival),
        "generation_time_ms": _ms(finished - first),
        "queue_time_ms": _ms(min(admitted, default=finished) - arrival),
        "mean_itl_ms": _ms(_ratio(spans, gaps)),
        "tokens_per_second": round(_ratio(tokens, finished - arrival), 3),
    }
    if options.speculated:
        block["speculative_decoding"] = _speculation(stats, k_max)
    return block


def _speculation(stats: Sequence[RequestStats], k_max: int) -> dict[str, Any]:
    steps = sum(one.steps for one in stats)
    drafted = sum(one.drafted for one in stats)
    accepted = sum(one.accepted for one in stats)
    histogram = [0] * (k_max + 1)
    for one in stats:
        for length, count in enumerate(one.histogram):
            histogram[length] += count
    return {
        "mean_acceptance_length": round(1 + _ratio(accepted, steps), 6) if steps else 0.0,
        "draft_acceptance_rate": round(_ratio(accepted, drafted), 6),
        "acceptance_histogram": histogram,
        "num_spec_steps": steps,
        "num_accepted_draft_tokens": accepted,
        "num_draft_tokens": drafted,
        "num_spec_tokens": k_max,
    }


def _ms(seconds: float) -> float:
    return round(max(0.0, seconds) * 1000, 3)


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole > 0 else 0.0
