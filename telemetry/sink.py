"""Turns the engine's frozen stats into counts; knows no clock and decides nothing.

It runs on the event loop after every round, so all label sets are looked up at construction.
"""

from bisect import bisect_left, bisect_right
from dataclasses import dataclass

from prometheus_client import Gauge

from scheduler.plan import TerminalKind
from scheduler.request import FinishReason, ProposerKind
from scheduler.stats import (
    CommitOutcome,
    Decision,
    FinishedStats,
    GroupStats,
    LoadStats,
    Policy,
    PoolStats,
    Reason,
    SpeculationStats,
    StepStats,
)
from telemetry.families import Cell
from telemetry.gains import Gain, compare
from telemetry.metrics import (
    BLOCK_STATES,
    OTHER_DOMAIN,
    POOLS,
    PREFIX_BUCKETS,
    PROPOSERS,
    ROUND_PARTS,
    ROUND_SIZES,
    ROW_MODELS,
    SPECULATION,
    ControllerMetrics,
    Metrics,
    SpeculationMetrics,
)
from telemetry.slo import seconds_a_token

__all__ = ["PrometheusSink"]

_ENDED_BY_ITSELF = frozenset({FinishReason.STOP, FinishReason.LENGTH})
_PREFIX_LIMITS = tuple(limit for limit, _ in PREFIX_BUCKETS if limit is not None)
_SIZE_LIMITS = tuple(limit for limit, _ in ROUND_SIZES if limit is not None)
_NO_BLOCKS = PoolStats(used=0, free=0, cached=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Lane:
    """Rows by draft position of one proposer, policy and domain; reach has one a prefix bucket."""

    reached: tuple[list[float], ...]
    accepted: tuple[list[float], ...]
    proposed: list[float]
    verified: list[float]
    mass: list[float]
    base: list[float]

    def add(self, speculation: SpeculationStats, tokens: int) -> None:
        """Count one round of a request that had `tokens` tokens before it."""
        bucket = bisect_right(_PREFIX_LIMITS, tokens)
        self.reached[bucket][speculation.reached] += 1
        self.accepted[bucket][speculation.accepted] += 1
        self.proposed[speculation.k] += 1
        self.verified[speculation.k] += 1
        for position, mass in enumerate(speculation.mass):
            self.mass[position] += mass
        for position, base in enumerate(speculation.base):
            self.base[position] += base


class _Decisions:
    """Counts how K was chosen and what came of it."""

    def __init__(self, metrics: ControllerMetrics) -> None:
        self._k, self._goodput = metrics.k, metrics.goodput
        self._reasons = {each: metrics.decisions.cell(each.value) for each in Reason}
        self._gain = {name: family.cell() for name, family in metrics.gain.items()}

    def add(self, decision: Decision) -> None:
        """Count one round's choices and show its forecast."""
        for choice in decision.choices.values():
            self._reasons[choice.reason].value += 1
            self._k.observe(choice.k)
        forecast = decision.forecast
        if forecast is not None and forecast.seconds > 0.0:
            self._goodput.set(forecast.tokens / forecast.seconds)

    def add_gain(self, gain: Gain) -> None:
        """Count one round that can be compared with its forecast."""
        for name, cell in self._gain.items():
            cell.value += getattr(gain, name)


class PrometheusSink:
    """A `StatsSink` that counts into `metrics`. Call it from one thread only."""

    def __init__(self, metrics: Metrics) -> None:
        rounds, requests = metrics.rounds, metrics.requests
        self._requests, self._round_rows, self._load = requests, rounds.round_rows, metrics.load
        self._slo, self._state = metrics.slo, metrics.state
        self._prefix_cache = metrics.prefix_cache
        self._lanes: dict[tuple[ProposerKind, Policy, str], _Lane] = {
            (proposer, policy, domain): _lane(metrics.speculation, proposer, policy, domain)
            for proposer in PROPOSERS
            for policy in Policy
            for domain in metrics.domains
        }
        self._laws = {terminal: _law(metrics, terminal) for terminal in TerminalKind}
        self._round_k = metrics.law.round_k
        self._commits = {each: rounds.commits.cell(each.value) for each in CommitOutcome}
        self._parts = [
            [rounds.round_seconds.cell(part, size) for part in ROUND_PARTS]
            for _, size in ROUND_SIZES
        ]
        self._costs = [rounds.rows.cell(model) for model in ROW_MODELS]
        self._costs += [
            each.cell()
            for each in (rounds.host_syncs, rounds.residual_fallbacks, rounds.preemptions)
        ]
        self._count, self._forward = rounds.rounds.cell(), rounds.forward_seconds.cell()
        self._committed = rounds.tokens_committed.cell(metrics.model)
        self._prefilled = rounds.tokens_prefilled.cell()
        self._pools = [
            [metrics.load.kv_blocks.labels(pool, state) for state in BLOCK_STATES] for pool in POOLS
        ]
        self._decisions = _Decisions(metrics.controller)
        self._ended = {each: requests.ended.labels(each.value) for each in FinishReason}
        self._ttft = [requests.ttft.labels(each) for each in SPECULATION]
        self._tpot = [requests.tpot.labels(each) for each in SPECULATION]

    def step(self, stats: StepStats) -> None:
        """Count one published round and the requests that ended in it."""
        self._add_groups(stats.groups)
        self._add_costs(stats)
        self._state.count(stats)
        self._add_decision(stats)
        for seconds, tokens in stats.itl_seconds:
            self._requests.inter_token.observe(seconds, tokens)
        for finished in stats.finished:
            self.finished(finished)
        self.load(stats.load)

    def load(self, load: LoadStats) -> None:
        """Show the load as it is now."""
        self._load.running.set(load.running)
        self._load.waiting.set(load.waiting)
        self._load.kv_usage.set(_usage(load.target_pool))
        _show_pool(self._pools[0], load.target_pool)
        _show_pool(self._pools[1], load.draft_pool or _NO_BLOCKS)

    def finished(self, finished: FinishedStats) -> None:
        """Count one request that ended. Times to the end are observed only where the request
        ended by itself: an abort measures the client's patience."""
        requests, stats = self._requests, finished.request_stats
        speculated = int(finished.speculated)
        self._ended[finished.reason].inc()
        self._slo.count(finished)
        self._prefix_cache.count(finished)
        requests.prompt_tokens.inc(finished.prompt_tokens)
        if stats.admitted is not None:
            requests.queue.observe(stats.admitted - stats.arrival)
        if stats.first_token is not None:
            self._ttft[speculated].observe(stats.first_token - stats.arrival)
        if finished.reason not in _ENDED_BY_ITSELF:
            return
        requests.total.observe(stats.finished - stats.arrival)
        seconds = seconds_a_token(finished)
        if seconds is not None:
            self._tpot[speculated].observe(seconds)

    def _add_groups(self, groups: tuple[GroupStats, ...]) -> None:
        committed = prefilled = frontiers = drafts = 0
        for group in groups:
            self._commits[group.outcome].value += 1
            committed += group.committed
            prefilled += group.prefilled
            if group.outcome is not CommitOutcome.PUBLISHED:
                self._add_lost(group)
            if group.terminal is not None:
                frontiers += 1
                drafts += self._add_law(group, group.terminal)
        self._committed.value += committed
        self._prefilled.value += prefilled
        rows = self._round_rows
        rows.observe(prefilled, label="prefill")
        rows.observe(frontiers, label="frontier")
        rows.observe(drafts, label="draft")

    def _add_law(self, group: GroupStats, terminal: TerminalKind) -> int:
        """Count one published round that emitted; returns its K."""
        speculation = group.speculation
        if speculation is None:
            k = accepted = 0
        else:
            k, accepted = speculation.k, speculation.accepted
            self._lane_of(group).add(speculation, group.position)
        self._laws[terminal][k][accepted].value += 1
        self._round_k.observe(k)
        return k

    def _add_lost(self, group: GroupStats) -> None:
        """Count drafts that were decided upon and not published."""
        if group.evidence is not None and group.evidence.outcomes:
            self._lane_of(group).proposed[len(group.evidence.outcomes)] += 1

    def _lane_of(self, group: GroupStats) -> _Lane:
        lane = self._lanes.get((group.proposer, group.policy, group.domain))
        return lane or self._lanes[group.proposer, group.policy, OTHER_DOMAIN]

    def _add_costs(self, stats: StepStats) -> None:
        timings = stats.timings
        parts = [timings.draft, timings.verify, timings.decide]
        parts += [stats.schedule_seconds, stats.commit_seconds]
        parts.append(max(stats.round_seconds - sum(parts), 0.0))
        cells = self._parts[bisect_left(_SIZE_LIMITS, stats.target_rows)]
        for cell, seconds in zip(cells, parts, strict=True):
            cell.value += seconds
        counts = [stats.target_rows, stats.draft_rows, stats.logit_rows]
        counts += [stats.host_syncs, stats.residual_fallbacks, stats.preemptions]
        for cell, count in zip(self._costs, counts, strict=True):
            cell.value += count
        self._count.value += 1
        self._forward.value += timings.forward

    def _add_decision(self, stats: StepStats) -> None:
        if stats.decision is None:
            return
        self._decisions.add(stats.decision)
        gain = compare(stats)
        if gain is not None:
            self._decisions.add_gain(gain)


def _lane(
    metrics: SpeculationMetrics, proposer: ProposerKind, policy: Policy, domain: str
) -> _Lane:
    rule = (proposer.value, policy.value)
    labels = [(*rule, domain, prefix) for _, prefix in PREFIX_BUCKETS]
    return _Lane(
        reached=tuple(metrics.reached.row(*each) for each in labels),
        accepted=tuple(metrics.accepted.row(*each) for each in labels),
        proposed=metrics.proposed.row(proposer.value),
        verified=metrics.verified.row(proposer.value),
        mass=metrics.mass.row(*rule),
        base=metrics.base.row(*rule),
    )


def _law(metrics: Metrics, terminal: TerminalKind) -> list[list[Cell]]:
    """Cells by K, then by accepted drafts."""
    return [
        [
            metrics.law.rounds.cell(str(k), str(accepted), terminal.value)
            for accepted in range(k + 1)
        ]
        for k in range(metrics.k_max + 1)
    ]


def _usage(pool: PoolStats) -> float:
    total = pool.used + pool.free + pool.cached
    return pool.used / total if total else 0.0


def _show_pool(gauges: list[Gauge], pool: PoolStats) -> None:
    for gauge, blocks in zip(gauges, (pool.used, pool.free, pool.cached), strict=True):
        gauge.set(blocks)
