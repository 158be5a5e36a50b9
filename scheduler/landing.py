"""Takes a staged round in: publishes, frees, and says what happened.

`Landing` runs on the event loop and is the only place where published output becomes events.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

from scheduler.book import Book
from scheduler.commit import Decision, Staged
from scheduler.entry import Entry, Retry, policy_of
from scheduler.events import EmittedToken, Finish, Origin, OutputEvent
from scheduler.plan import (
    DeviceDraft,
    Group,
    GroupResult,
    HostDraft,
    RoundPlan,
    RoundResult,
    TerminalKind,
)
from scheduler.request import FinishReason, ProposerKind
from scheduler.staging import Job, StagedGroup, Unstaged
from scheduler.stats import (
    CommitOutcome,
    Evidence,
    FinishedStats,
    GroupStats,
    Policy,
    SpeculationStats,
)
from scheduler.tokens import TokenIds

logger = logging.getLogger(__name__)

_ORIGINS = {
    TerminalKind.CORRECTION: Origin.CORRECTION,
    TerminalKind.BONUS: Origin.BONUS,
    TerminalKind.PLAIN: Origin.PLAIN,
}


@dataclass(frozen=True, slots=True)
class Landed:
    """What a round changed, for the engine to deliver and to count."""

    events: tuple[OutputEvent, ...]
    groups: tuple[GroupStats, ...]
    finished: tuple[FinishedStats, ...]
    itl_seconds: tuple[tuple[float, int], ...]


class Landing:
    """Publishes staged rounds into the book."""

    def __init__(self, book: Book) -> None:
        self._book = book

    def jobs(self, plan: RoundPlan) -> tuple[Job, ...]:
        """The frozen inputs of staging, taken before the round starts."""
        entries = [self._book.entries[group.request] for group in plan.groups]
        return tuple(
            Job(group, self._book.state(entry), entry.request)
            for group, entry in zip(plan.groups, entries, strict=True)
        )

    def land(
        self,
        jobs: Sequence[Job],
        staged: Sequence[StagedGroup],
        result: RoundResult,
        now: float,
    ) -> Landed:
        """Publish each group by compare-and-swap; stale ones are counted and dropped."""
        self._book.company.ran(len(jobs))
        parts = [
            self._land_one(job, each, outcome, now, result.round_id)
            for job, each, outcome in zip(jobs, staged, result.groups, strict=True)
        ]
        return Landed(
            events=tuple(event for part in parts for event in part.events),
            groups=tuple(stats for part in parts for stats in part.groups),
            finished=tuple(stats for part in parts for stats in part.finished),
            itl_seconds=tuple(itl for part in parts for itl in part.itl_seconds),
        )

    def fail(self, plan: RoundPlan, now: float, message: str) -> Landed:
        """A round broke. Nothing of it was published: each request gets one more try, alone; a
        request that broke a round alone ends with an error."""
        awaits = self._book.ledger.awaits
        alive = [g for g in plan.groups if awaits(g.request, g.generation, plan.round_id)]
        stats, ends = [], []
        for group in alive:
            entry = self._book.entries[group.request]
            job = Job(group, self._book.state(entry), entry.request)
            stats.append(_nothing_published(job, CommitOutcome.ABORTED))
            self._abort(entry, group, plan.round_id)
            if len(plan.groups) == 1 and entry.failures > 1:
                ends.append(self._finish(entry, FinishReason.ERROR, now, error=message))
        self._note_break(len(plan.groups), explained=bool(ends))
        return Landed(
            events=tuple(event for event, _ in ends),
            groups=tuple(stats),
            finished=tuple(finished for _, finished in ends),
            itl_seconds=(),
        )

    def _note_break(self, requests: int, *, explained: bool) -> None:
        """Bound what may share a round, if it is the size that breaks it."""
        company = self._book.company
        before = company.limit
        if explained:
            company.explained()
        elif requests > 1:
            company.broke(requests)
        if company.limit != before:
            logger.warning("rounds hold %s requests at most", company.limit or "any number of")

    def cancel(self, entry: Entry, now: float, reason: FinishReason) -> FinishedStats:
        """End a request outside a round: ABORT where its client gave it up, ERROR where the server
        did. The caller releases its blocks."""
        length = self._book.state(entry).emitted
        self._book.close(entry)
        return _finished(entry, reason, length, now)

    def _abort(self, entry: Entry, group: Group, round_id: int) -> None:
        """The round is over for this request; its share of it is to be run again."""
        self._book.ledger.abort(group.request, round_id)
        entry.failures += 1
        entry.retry = Retry(rows=group.rows, draft=group.draft)

    def _land_one(
        self, job: Job, staged: StagedGroup, result: GroupResult, now: float, round_id: int
    ) -> Landed:
        entry = self._book.entries.get(job.group.request)
        if not isinstance(staged, Staged):
            return self._land_nothing(job, entry, staged or result.error, now, round_id)
        outcome = self._publish(staged)
        stats = _group_stats(job, staged, outcome)
        if entry is None or outcome in {CommitOutcome.STALE, CommitOutcome.REPLAYED}:
            return Landed((), (stats,), (), ())
        if outcome is CommitOutcome.ABORTED:
            self._abort(entry, job.group, round_id)
            return self._land_fault(entry, stats, now, "publication broke")
        itl = _update(entry, job, staged, stats, now)
        decision = staged.decision
        if decision.text is None:
            return Landed((), (stats,), (), ())
        event = OutputEvent(
            request=job.group.request,
            tokens=emitted(job, staged),
            text=decision.text.text,
            finish=None,
        )
        if decision.ending is None:
            return Landed((event,), (stats,), (), itl)
        ending = decision.ending
        end, finished = self._finish(entry, ending.reason, now, stop=ending.stop)
        return Landed((replace(event, finish=end.finish),), (stats,), (finished,), itl)

    def _publish(self, staged: Staged) -> CommitOutcome:
        """Publish one group. A fault on the way concerns this group only: whether the swap came
        before it is what the ledger says."""
        try:
            return self._book.ledger.publish(staged)
        except Exception:
            logger.exception("publishing request %d broke", staged.record.request_id)
        published = self._book.ledger.has_published(staged.record)
        return CommitOutcome.PUBLISHED if published else CommitOutcome.ABORTED

    def _land_fault(self, entry: Entry, stats: GroupStats, now: float, problem: str) -> Landed:
        """One group could not be staged or published: once more, then an error."""
        if entry.failures == 1:
            return Landed((), (stats,), (), ())
        message = f"the output could not be committed ({problem})"
        event, finished = self._finish(entry, FinishReason.ERROR, now, error=message)
        return Landed((event,), (stats,), (finished,), ())

    def _land_nothing(
        self, job: Job, entry: Entry | None, cause: Unstaged | str | None, now: float, round_id: int
    ) -> Landed:
        """Nothing was staged. A fault of staging is tried once more, a row without a law is not:
        it would be the same."""
        group = job.group
        current = self._book.ledger.awaits(group.request, group.generation, round_id)
        if entry is None or not current:
            return Landed((), (_nothing_published(job, CommitOutcome.STALE),), (), ())
        stats = _nothing_published(job, CommitOutcome.ABORTED)
        if isinstance(cause, Unstaged):
            self._abort(entry, group, round_id)
            return self._land_fault(entry, stats, now, cause.problem)
        message = cause or "the round gave no usable law"
        self._book.ledger.abort(group.request, round_id)
        event, finished = self._finish(entry, FinishReason.ERROR, now, error=message)
        return Landed((event,), (stats,), (finished,), ())

    def _finish(
        self,
        entry: Entry,
        reason: FinishReason,
        now: float,
        *,
        stop: str | int | None = None,
        error: str | None = None,
    ) -> tuple[OutputEvent, FinishedStats]:
        length = self._book.state(entry).emitted
        self._book.close(entry)
        self._book.tables.release(entry)
        finished = _finished(entry, reason, length, now)
        finish = Finish(reason=reason, stop=stop, error=error, stats=finished.request_stats)
        event = OutputEvent(request=entry.request.request_id, tokens=(), text="", finish=finish)
        return event, finished


def emitted(job: Job, staged: Staged) -> tuple[EmittedToken, ...]:
    """The published tokens with their origins."""
    decision, result = staged.decision, staged.result
    first = len(job.state.tokens)
    tokens = []
    for index, token in enumerate(decision.emitted):
        drafted = index < decision.accepted
        outcome = result.outcomes[index] if drafted else None
        terminal = result.terminal or TerminalKind.PLAIN
        tokens.append(
            EmittedToken(
                token=token,
                position=first + index,
                origin=Origin.DRAFT if drafted else _ORIGINS[terminal],
                target_prob=None if outcome is None else outcome.target_prob,
                draft_prob=None if outcome is None else outcome.draft_prob,
                logprobs=result.logprobs[index] if result.logprobs else None,
            )
        )
    return tuple(tokens)


def draft_rows_after(group: Group, result: GroupResult, tokens: TokenIds) -> int:
    """The draft ledger after a round: the rows that are, by identity, a prefix of `tokens`.

    None count when the cache was lost: a draft row had no law, and the runner will clear it.
    """
    if not isinstance(group.draft, DeviceDraft) or result.draft_lost:
        return 0
    rows = group.draft.rows
    limit = len(tokens) - 1
    for token in result.draft_written:
        if rows >= limit or tokens[rows] != token:
            break
        rows += 1
    return rows


def _update(
    entry: Entry, job: Job, staged: Staged, stats: GroupStats, now: float
) -> tuple[tuple[float, int], ...]:
    """Move ledger and counters; returns (seconds a token, tokens) since the last publication. What
    a first publication holds besides the first token came together with it, after no time."""
    if isinstance(job.group.draft, DeviceDraft):
        entry.draft_rows = draft_rows_after(job.group, staged.result, staged.successor.tokens)
    entry.failures, entry.retry = 0, None
    counters, count = entry.counters, len(staged.decision.emitted)
    counters.rounds += 1
    if stats.speculation is not None:
        counters.steps += 1
        counters.drafted += stats.speculation.k
        counters.accepted += stats.speculation.accepted
        counters.histogram[stats.speculation.accepted] += 1
    if not count:
        return ()
    before, counters.last_token = counters.last_token, now
    if before is not None:
        return (((now - before) / count, count),)
    counters.first_token = now
    return ((0.0, count - 1),) if count > 1 else ()


def _speculation(
    decision: Decision, result: GroupResult, policy: Policy
) -> SpeculationStats | None:
    """Block verification looks at all drafts, and P depends on A: over reached places alone its
    masses would be those of rounds that went well (contract section 10)."""
    k = len(result.outcomes)
    if not k:
        return None
    cut = decision.terminal is TerminalKind.STOP
    reached = decision.accepted if cut else min(decision.accepted + 1, k)
    seen = result.outcomes if policy is Policy.BLOCK else result.outcomes[:reached]
    return SpeculationStats(
        k=k,
        accepted=decision.accepted,
        reached=reached,
        mass=tuple(each.mass for each in seen),
        base=tuple(each.base for each in seen),
    )


def _evidence(decision: Decision, result: GroupResult) -> Evidence | None:
    if decision.terminal is None:
        return None
    cut = decision.terminal is TerminalKind.STOP
    return Evidence(
        generation=result.generation,
        verified=result.accepted,
        outcomes=result.outcomes,
        terminal_token=None if cut else decision.emitted[-1],
        fallback=result.fallback,
    )


def _group_stats(job: Job, staged: Staged, outcome: CommitOutcome) -> GroupStats:
    """Written out for what every round has: `replace` for each of its requests would be felt."""
    group, decision = job.group, staged.decision
    if outcome is CommitOutcome.REPLAYED:
        return _nothing_published(job, outcome)
    evidence = _evidence(decision, staged.result)
    branch_rows = len(staged.result.written) - group.rows
    if outcome is not CommitOutcome.PUBLISHED:
        stats = _nothing_published(job, outcome)
        return replace(stats, evidence=evidence, branch_rows=branch_rows)
    policy = policy_of(job.request)
    return GroupStats(
        request=group.request,
        outcome=outcome,
        policy=policy,
        proposer=_proposer(group),
        domain=job.request.domain,
        position=len(group.tokens),
        committed=len(decision.emitted),
        prefilled=_prefilled(group),
        terminal=decision.terminal,
        speculation=_speculation(decision, staged.result, policy),
        evidence=evidence,
        branch_rows=branch_rows,
        kept_rows=len(staged.record.committed_kv_token_ids),
    )


def _prefilled(group: Group) -> int:
    """Target rows of a group besides its frontier's and its drafts'."""
    frontier = group.retains or (group.emits and group.rows > 0)
    return group.rows - frontier


def _nothing_published(job: Job, outcome: CommitOutcome) -> GroupStats:
    return GroupStats(
        request=job.group.request,
        outcome=outcome,
        policy=policy_of(job.request),
        proposer=_proposer(job.group),
        domain=job.request.domain,
        position=len(job.group.tokens),
        committed=0,
        prefilled=0,
        terminal=None,
        speculation=None,
    )


def _proposer(group: Group) -> ProposerKind:
    if group.draft is None:
        return ProposerKind.NONE
    return ProposerKind.NGRAM if isinstance(group.draft, HostDraft) else ProposerKind.DRAFT_MODEL


def _finished(entry: Entry, reason: FinishReason, length: int, now: float) -> FinishedStats:
    return FinishedStats(
        request=entry.request.request_id,
        reason=reason,
        speculated=entry.counters.drafted > 0,
        prompt_tokens=len(entry.request.prompt),
        request_stats=entry.summary(length, now),
        ttft=entry.request.ttft,
        tpot=entry.request.tpot,
        trace=entry.request.trace,
    )
