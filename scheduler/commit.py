"""The only way output changes: decide, stage, publish (contract section 6).

`stage` is pure and runs off the event loop; `Ledger.publish` swaps one frozen state for the next
if the generation still matches, all of it at once. A fault at any named point leaves the
authoritative state as it was, or (after the swap) as it is to be.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum

from scheduler.errors import CommitRejected
from scheduler.lifecycle import Phase, advance
from scheduler.plan import Group, GroupResult, Layout, TerminalKind
from scheduler.request import FinishReason, Request, StagedText, Verifier
from scheduler.state import RequestState, RngState, extend_history
from scheduler.stats import CommitOutcome
from scheduler.tokens import tokens_of


class FaultPoint(Enum):
    """Where a test may break a round."""

    AFTER_VERIFICATION = "after_verification"
    AFTER_DECISION = "after_decision"
    AFTER_KV_STAGED = "after_kv_staged"
    AFTER_OUTPUT_STAGED = "after_output_staged"
    BEFORE_PUBLICATION = "before_publication"
    AFTER_PUBLICATION = "after_publication"


FaultHook = Callable[[FaultPoint, int], None]
"""Called with the point and the request id; may raise."""


def no_faults(_point: FaultPoint, _request: int) -> None:
    """The hook of production."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """Why a run was cut; `stop` is the stop string or stop id, if one did it."""

    reason: FinishReason
    stop: str | int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What is kept of a verified run. `accepted` counts kept drafts, `terminal` is STOP when the
    cut fell inside the accepted prefix and None for a prefill chunk that emits nothing."""

    emitted: tuple[int, ...]
    accepted: int
    terminal: TerminalKind | None
    text: StagedText | None
    ending: Ending | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitRecord:
    """One request's round, as it is published or not at all."""

    request_id: int
    round_id: int
    expected_generation: int
    layout: Layout
    accepted_draft_count: int
    terminal_kind: TerminalKind | None
    emitted_token_ids: tuple[int, ...]
    committed_kv_token_ids: tuple[int, ...]
    discarded_kv_token_ids: tuple[int, ...]
    rng_before: int
    rng_after: int
    processor_before: str
    processor_after: str
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Staged:
    """A transaction on its way: the successor exists beside the state that it may replace.

    `checked` are the very records on which the postconditions were found to hold: start state,
    record, successor.
    """

    phase: Phase
    record: CommitRecord
    successor: RequestState
    decision: Decision
    result: GroupResult
    checked: tuple[RequestState, CommitRecord, RequestState]

    def holds_on(self, state: RequestState) -> bool:
        """Whether the postconditions are known to hold from `state` on. They look at frozen records
        only, so on the same three they give what they gave; an equal one is not the same."""
        start, record, successor = self.checked
        return start is state and record is self.record and successor is self.successor


def draws_consumed(group: Group, result: GroupResult, decision: Decision) -> int:
    """Draws that the published part of a round used up (contract section 7)."""
    drafted = len(result.outcomes)
    if decision.terminal is None or group.sampling.greedy:
        return 0
    if group.verifier is Verifier.SHARED_NOISE:
        return len(decision.emitted)
    terminal = 0 if decision.terminal is TerminalKind.STOP else 1
    if group.verifier is Verifier.BLOCK:
        return drafted + terminal
    return min(decision.accepted + terminal, drafted) + terminal


def decide(state: RequestState, request: Request, result: GroupResult) -> Decision:
    """Cut a verified run at the first stop id, then stop string, then the budget, in token order.

    Pure: the text stage works on immutable states.
    """
    if result.terminal is None:
        return Decision(emitted=(), accepted=0, terminal=None, text=None, ending=None)
    run, ending = _cut_at_ids(state, request, result.emitted)
    hidden = ending is not None and isinstance(ending.stop, int) and not request.stop.include_stop
    visible = run[:-1] if hidden else run
    text = request.text.stage(state.text, visible, final=ending is not None)
    if text.stop is not None:
        run = run[: text.kept]
        ending = Ending(reason=FinishReason.STOP, stop=text.stop)
    whole = len(run) > result.accepted
    return Decision(
        emitted=run,
        accepted=min(result.accepted, len(run)),
        terminal=result.terminal if whole else TerminalKind.STOP,
        text=text,
        ending=ending,
    )


def _cut_at_ids(
    state: RequestState, request: Request, run: tuple[int, ...]
) -> tuple[tuple[int, ...], Ending | None]:
    """The run up to the first stop id or the end of the budget; a stop on the last token wins."""
    budget = request.stop.max_tokens - state.emitted
    for count, token in enumerate(run[:budget], 1):
        if token in request.stop.token_ids:
            return run[:count], Ending(reason=FinishReason.STOP, stop=token)
    if len(run) >= budget:
        return run[:budget], Ending(reason=FinishReason.LENGTH)
    return run, None


def stage(
    plan: tuple[int, Layout, str],
    group: Group,
    state: RequestState,
    request: Request,
    result: GroupResult,
    fault: FaultHook = no_faults,
) -> Staged:
    """Build the record and the successor of one verified group. `plan` is (round id, layout,
    digest). Raises CommitRejected when a postcondition fails; nothing outside changes."""
    check_addressee(group, result)
    phase = advance(Phase.READY, Phase.VERIFIED)
    fault(FaultPoint.AFTER_VERIFICATION, group.request)
    decision, phase = decide(state, request, result), advance(phase, Phase.DECIDED)
    fault(FaultPoint.AFTER_DECISION, group.request)
    added = len(decision.emitted) + group.rows - 1 if group.emits else group.rows
    rows = result.written[:added], result.written[added:]
    fault(FaultPoint.AFTER_KV_STAGED, group.request)
    successor = _successor(state, decision, added, draws_consumed(group, result, decision))
    fault(FaultPoint.AFTER_OUTPUT_STAGED, group.request)
    record = _record(plan, group, state, successor, decision, rows)
    check_postconditions(state, record, successor)
    return Staged(
        phase=advance(phase, Phase.STAGED),
        record=record,
        successor=successor,
        decision=decision,
        result=result,
        checked=(state, record, successor),
    )


def _record(
    plan: tuple[int, Layout, str],
    group: Group,
    state: RequestState,
    successor: RequestState,
    decision: Decision,
    rows: tuple[tuple[int, ...], tuple[int, ...]],
) -> CommitRecord:
    """The record of a round from `state` to `successor`; `rows`: ids committed, ids discarded."""
    round_id, layout, digest = plan
    return CommitRecord(
        request_id=group.request,
        round_id=round_id,
        expected_generation=group.generation,
        layout=layout,
        accepted_draft_count=decision.accepted,
        terminal_kind=decision.terminal,
        emitted_token_ids=decision.emitted,
        committed_kv_token_ids=rows[0],
        discarded_kv_token_ids=rows[1],
        rng_before=state.rng.consumed,
        rng_after=successor.rng.consumed,
        processor_before=state.history,
        processor_after=successor.history,
        digest=digest,
    )


def _successor(state: RequestState, decision: Decision, rows: int, draws: int) -> RequestState:
    """S after the decision: `rows` more K/V rows committed, `draws` more draws consumed."""
    history = state.history
    if decision.emitted:
        history = extend_history(history, decision.emitted)
    rng = state.rng
    return RequestState(
        tokens=tokens_of(state.tokens).extended(decision.emitted),
        prompt_length=state.prompt_length,
        kv_rows=state.kv_rows + rows,
        text=state.text if decision.text is None else decision.text.state,
        history=history,
        rng=RngState(seed=rng.seed, choice=rng.choice, consumed=rng.consumed + draws),
        generation=state.generation + 1,
    )


def check_addressee(group: Group, result: GroupResult) -> None:
    """Raises CommitRejected for a result of another request, or of another generation of it."""
    for field in ("request", "generation"):
        found, expected = getattr(result, field), getattr(group, field)
        if found != expected:
            raise CommitRejected(f"stale result: {field} {found}, expected {expected}")


def check_postconditions(
    state: RequestState, record: CommitRecord, successor: RequestState
) -> None:
    """Token identity of the output and of every committed row. Raises CommitRejected."""
    added = successor.tokens[state.kv_rows : successor.kv_rows]
    emits = bool(record.emitted_token_ids)
    retains = record.layout is Layout.RETAINED_FRONTIER
    checks = {
        "output": tokens_of(successor.tokens).continues(state.tokens, record.emitted_token_ids),
        "kv_identity": record.committed_kv_token_ids == added,
        "kv_rows": successor.kv_rows == state.kv_rows + len(added),
        "start": not emits or not retains or state.retained,
        "frontier": not emits or successor.decoding,
        "kv_bound": successor.kv_rows < len(successor.tokens) + (retains and not emits),
        "accepted": record.accepted_draft_count <= len(record.emitted_token_ids),
        "generation": successor.generation == state.generation + 1,
        "expected_generation": record.expected_generation == state.generation,
        "rng_before": record.rng_before == state.rng.consumed,
        "rng_after": record.rng_before <= record.rng_after == successor.rng.consumed,
        "rng_identity": (successor.rng.seed, successor.rng.choice)
        == (state.rng.seed, state.rng.choice),
        "processor_before": record.processor_before == state.history,
        "processor_after": record.processor_after == successor.history,
    }
    broken = [name for name, holds in checks.items() if not holds]
    if broken:
        raise CommitRejected(
            f"round {record.round_id}, request {record.request_id}: {', '.join(broken)}"
        )


class Ledger:
    """Owner of every authoritative state. States change by `publish` and `replace` only."""

    def __init__(self, fault: FaultHook = no_faults) -> None:
        self._states: dict[int, RequestState] = {}
        self._last: dict[int, int] = {}
        self._aborted: dict[int, int] = {}
        self._fault = fault

    def open(self, request_id: int, state: RequestState) -> None:
        """Enter a new request. Raises CommitRejected when the id is in use."""
        if request_id in self._states:
            raise CommitRejected(f"request {request_id} is open already")
        self._states[request_id] = state

    def close(self, request_id: int) -> None:
        """Forget a finished request; a result that comes later is stale."""
        self._states.pop(request_id, None)
        self._last.pop(request_id, None)
        self._aborted.pop(request_id, None)

    def state(self, request_id: int) -> RequestState | None:
        """The published state; None when the request is not open."""
        return self._states.get(request_id)

    @property
    def states(self) -> Mapping[int, RequestState]:
        """All published states, by request id."""
        return self._states

    def publish(self, staged: Staged) -> CommitOutcome:
        """Compare and swap. REPLAYED when this round was published before, STALE when it was
        aborted or when the state has moved on or is gone; none of these changes anything."""
        record = staged.record
        if self.has_published(record):
            return CommitOutcome.REPLAYED
        state = self._states.get(record.request_id)
        if state is None or state.generation != record.expected_generation:
            return CommitOutcome.STALE
        if self.has_aborted(record.request_id, record.round_id):
            return CommitOutcome.STALE
        if not staged.holds_on(state):
            check_postconditions(state, record, staged.successor)
        self._fault(FaultPoint.BEFORE_PUBLICATION, record.request_id)
        advance(staged.phase, Phase.PUBLISHED)
        self._states[record.request_id] = staged.successor
        self._last[record.request_id] = record.round_id
        self._fault(FaultPoint.AFTER_PUBLICATION, record.request_id)
        return CommitOutcome.PUBLISHED

    def has_published(self, record: CommitRecord) -> bool:
        """Whether this round is the last that was published for its request."""
        return self._last.get(record.request_id) == record.round_id

    def awaits(self, request_id: int, generation: int, round_id: int) -> bool:
        """Whether a result of this round, planned at `generation`, may still be published."""
        state = self._states.get(request_id)
        current = state is not None and state.generation == generation
        return current and not self.has_aborted(request_id, round_id)

    def phase(self, request_id: int, round_id: int) -> Phase:
        """At which end this round is, as far as the ledger recalls: the last publication, and all
        that was aborted. Else READY, however far a `Staged` of it has come."""
        if self._last.get(request_id) == round_id:
            return Phase.PUBLISHED
        return Phase.ABORTED if self.has_aborted(request_id, round_id) else Phase.READY

    def has_aborted(self, request_id: int, round_id: int) -> bool:
        """Whether this round, or a later one, ended without publication for the request."""
        return round_id <= self._aborted.get(request_id, 0)

    def abort(self, request_id: int, round_id: int) -> None:
        """End a round without publication: a result of it that comes later is stale. What the
        runner kept for its successor may be gone by then. Again, it changes nothing. Raises
        IllegalTransition for the round that was published last."""
        phase = self.phase(request_id, round_id)
        if phase is not Phase.ABORTED:
            advance(phase, Phase.ABORTED)
            self._aborted[request_id] = round_id

    def replace(self, request_id: int, successor: RequestState) -> None:
        """Install the successor of a preemption: same output, next generation.

        Raises CommitRejected for anything else."""
        state = self._states[request_id]
        same = successor.tokens == state.tokens and successor.rng == state.rng
        if not same or successor.generation != state.generation + 1:
            raise CommitRejected(f"request {request_id}: a preemption may only drop K/V rows")
        self._states[request_id] = successor
