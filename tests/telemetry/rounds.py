"""Builds the frozen stats of a round by hand."""

from dataclasses import replace

from scheduler.events import RequestStats
from scheduler.plan import RoundTimings, TerminalKind
from scheduler.request import FinishReason, ProposerKind
from scheduler.stats import (
    Choice,
    CommitOutcome,
    Decision,
    FinishedStats,
    Forecast,
    GroupStats,
    LoadStats,
    Policy,
    PoolStats,
    Reason,
    SpeculationStats,
    StepStats,
)

_OWN = ("request", "ttft", "tpot", "trace")
LOAD = LoadStats(
    running=0, waiting=0, target_pool=PoolStats(used=0, free=8, cached=0), draft_pool=None
)


def drafted(k, accepted, *, stop=False, mass=0.5, base=1.0, **changes):
    """A published round of one request that drafted `k` tokens."""
    reached = accepted if stop else min(accepted + 1, k)
    terminal = TerminalKind.BONUS if accepted == k else TerminalKind.CORRECTION
    group = GroupStats(
        request=1,
        outcome=CommitOutcome.PUBLISHED,
        policy=Policy.TOKEN,
        proposer=ProposerKind.DRAFT_MODEL,
        domain="other",
        position=10,
        committed=accepted if stop else accepted + 1,
        prefilled=0,
        terminal=TerminalKind.STOP if stop else terminal,
        speculation=SpeculationStats(
            k=k,
            accepted=accepted,
            reached=reached,
            mass=(mass,) * reached,
            base=(base,) * reached,
        ),
    )
    return replace(group, **changes)


def plain(**changes):
    """A published round of one request that drafted nothing and gave one token."""
    group = drafted(
        0,
        0,
        committed=1,
        speculation=None,
        proposer=ProposerKind.NONE,
        terminal=TerminalKind.PLAIN,
    )
    return replace(group, **changes)


def step(*groups, **changes):
    """One round of these groups."""
    stats = StepStats(
        round_id=1,
        groups=groups,
        finished=(),
        timings=RoundTimings(draft=0.0, verify=0.0, decide=0.0, forward=0.0),
        round_seconds=0.0,
        schedule_seconds=0.0,
        commit_seconds=0.0,
        target_rows=0,
        draft_rows=0,
        logit_rows=0,
        host_syncs=0,
        residual_fallbacks=0,
        preemptions=0,
        load=LOAD,
    )
    return replace(stats, **changes)


def decided(*ks, reason=Reason.KEPT, reasons=None, forecast=None):
    """A decision of these K for the requests 1, 2, ...; all for one reason, or each for its own."""
    reasons = reasons or [reason] * len(ks)
    return Decision(
        choices={
            n: Choice(k=k, reason=why, accepted=k / 2)
            for n, (k, why) in enumerate(zip(ks, reasons, strict=True), 1)
        },
        forecast=forecast,
    )


def forecast(tokens=6.0, seconds=0.25, plain_tokens=2.0, plain_seconds=0.125):
    """By default 24 tokens a second where plain decoding gives 16: a gain of 1.5."""
    return Forecast(
        tokens=tokens, seconds=seconds, plain_tokens=plain_tokens, plain_seconds=plain_seconds
    )


def ended(reason=FinishReason.STOP, *, speculated=True, prompt_tokens=7, **changes):
    """A request that arrived at 100 s, was admitted after 0.5 s, gave its first token after 2 s
    and ended after 6 s with 5 tokens. `changes` name fields of its record or of its stats."""
    own = {name: changes.pop(name) for name in _OWN if name in changes}
    stats = RequestStats(
        steps=1,
        drafted=4,
        accepted=2,
        histogram=(0, 0, 1, 0, 0),
        rounds=1,
        completion_tokens=5,
        cached_tokens=0,
        arrival=100.0,
        admitted=100.5,
        first_token=102.0,
        finished=106.0,
    )
    found = FinishedStats(
        request=1,
        reason=reason,
        speculated=speculated,
        prompt_tokens=prompt_tokens,
        request_stats=replace(stats, **changes),
    )
    return replace(found, **own)
