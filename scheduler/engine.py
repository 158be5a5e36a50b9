"""The asyncio loop: take commands, plan, run in the worker thread, publish, deliver.

While a round runs in its thread, the event loop delivers what the previous one published. One
round is in flight at a time; a cancel that comes meanwhile is honoured before the next plan.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from scheduler.commit import FaultHook, no_faults
from scheduler.controller import Controller
from scheduler.entry import Entry
from scheduler.errors import EngineBusy, EngineError
from scheduler.events import OutputEvent
from scheduler.landing import Landed, Landing
from scheduler.plan import RoundPlan, RoundResult, nothing_run
from scheduler.request import FinishReason, Request
from scheduler.runner import ModelRunner
from scheduler.scheduler import Scheduler
from scheduler.staging import Job, StagedGroup, stage_round
from scheduler.stats import LoadStats, StatsSink, StepStats, without_evidence

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineHealth:
    """`heartbeat_age` is seconds since the loop last came round; long rounds count, rest with
    nothing to do does not."""

    alive: bool
    error: str | None
    heartbeat_age: float


@dataclass(frozen=True, slots=True)
class _Executed:
    """What the worker thread hands back."""

    result: RoundResult
    staged: tuple[StagedGroup, ...]
    finished: float


class Subscription:
    """The events of one request, in order; ends after the one that carries `finish`."""

    def __init__(self, request_id: int) -> None:
        self.request_id = request_id
        self._events: asyncio.Queue[OutputEvent | None] = asyncio.Queue()
        self._ended = False

    def put(self, event: OutputEvent) -> None:
        """Deliver one event. Never blocks: the queue is bounded by the request's own budget."""
        self._events.put_nowait(event)

    def close(self) -> None:
        """End the iteration without a further event (after an abort)."""
        self._events.put_nowait(None)

    def __aiter__(self) -> AsyncIterator[OutputEvent]:
        """The subscription itself: it can be read once."""
        return self

    async def __anext__(self) -> OutputEvent:
        """The next event. Raises StopAsyncIteration after the last."""
        if self._ended:
            raise StopAsyncIteration
        event = await self._events.get()
        if event is None:
            self._ended = True
            raise StopAsyncIteration
        self._ended = event.finish is not None
        return event


class Engine:
    """Serves requests over one scheduler and one runner. All methods belong to the event loop.

    What `controller` or `sink` raises ends the loop: `assembly` gives it such as raise nothing.
    """

    def __init__(
        self,
        *,
        scheduler: Scheduler,
        runner: ModelRunner,
        controller: Controller,
        sink: StatsSink,
        clock: Callable[[], float],
        fault: FaultHook = no_faults,
    ) -> None:
        self.config = scheduler.book.config
        self._scheduler = scheduler
        self._book = scheduler.book
        self._landing = Landing(scheduler.book)
        self._runner = runner
        self._controller = controller
        self._sink = sink
        self._clock = clock
        self._fault = fault
        self._subscriptions: dict[int, Subscription] = {}
        self._cancelled: list[Entry] = []
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="fencepost-runner")
        self._draining = False
        self._error: str | None = None
        self._heartbeat = clock()
        self._last_id = 0

    async def start(self) -> None:
        """Start the loop. Raises EngineBusy when it runs already."""
        if self._task is not None:
            raise EngineBusy("the engine runs already")
        self._heartbeat = self._clock()
        self._task = asyncio.create_task(self._run(), name="fencepost-engine")

    async def stop(self, *, grace: float = 0.0) -> None:
        """Refuse new requests, wait up to `grace` seconds for those that run, end the rest."""
        self._draining = True
        if self._book.entries and grace > 0 and self._task is not None:
            try:
                await asyncio.wait_for(self._idle.wait(), grace)
            except TimeoutError:
                logger.warning("draining ended with %d requests left", len(self._book.entries))
        self._end_all()
        if self._task is not None:
            self._wake.set()
            await self._task
        self._worker.shutdown(wait=True)

    @property
    def accepting(self) -> bool:
        """Whether `submit` would take a request, were there room."""
        return self._task is not None and not self._draining and self._ended() is None

    def next_request_id(self) -> int:
        """A fresh id for a Request."""
        self._last_id += 1
        return self._last_id

    def submit(self, requests: Sequence[Request]) -> list[Subscription]:
        """Queue all of them or none. Raises RequestRefused, ContextOverflow or EngineBusy."""
        if not self.accepting:
            raise EngineBusy("the server is not accepting requests")
        self._scheduler.check(requests)
        if not self._book.entries:
            self._heartbeat = self._clock()
        subscriptions = []
        for request in requests:
            self._scheduler.add(request)
            subscription = Subscription(request.request_id)
            self._subscriptions[request.request_id] = subscription
            subscriptions.append(subscription)
        self._idle.clear()
        self._wake.set()
        self._sink.load(self._book.load())
        return subscriptions

    def abort(self, request_id: int) -> None:
        """End a request that its client gave up now; its blocks are free before the next round.
        Idempotent."""
        entry = self._book.entries.get(request_id)
        if entry is not None:
            self._end(entry, FinishReason.ABORT)

    def health(self) -> EngineHealth:
        """Whether the loop is alive, and when it last came round."""
        task, error = self._task, self._ended()
        return EngineHealth(
            alive=task is not None and not task.done() and error is None,
            error=error,
            heartbeat_age=self._clock() - self._heartbeat if self._book.entries else 0.0,
        )

    def load(self) -> LoadStats:
        """The load at this moment."""
        return self._book.load()

    def _end(self, entry: Entry, reason: FinishReason) -> None:
        """End a request between rounds or during one."""
        self._cancelled.append(entry)
        subscription = self._subscriptions.pop(entry.request.request_id, None)
        if subscription is not None:
            subscription.close()
        self._wake.set()
        self._sink.finished(self._landing.cancel(entry, self._clock(), reason))

    def _end_all(self) -> None:
        """End what is left, by no wish of its clients: that is an error."""
        for entry in list(self._book.entries.values()):
            self._end(entry, FinishReason.ERROR)

    def _ended(self) -> str | None:
        """Why no request can be served any more."""
        return self._error or self._runner.failure()

    async def _run(self) -> None:
        try:
            while True:
                self._heartbeat = self._clock()
                self._release_cancelled()
                if self._draining and not self._book.entries:
                    break
                if not await self._round():
                    self._idle_now()
                    await self._wake.wait()
                self._wake.clear()
        except Exception as problem:
            self._error = f"{type(problem).__name__}: {problem}"
            logger.exception("the engine loop ended")
            for subscription in self._subscriptions.values():
                subscription.close()
            try:
                self._end_all()
            except Exception:
                logger.exception("requests that ended with the loop could not be counted")
        self._idle.set()

    def _idle_now(self) -> None:
        if not self._book.entries:
            self._idle.set()
            if not self._book.tables.all_free:
                logger.error("idle, but K/V blocks are held: %s", self._book.load())

    def _release_cancelled(self) -> None:
        """Between rounds nothing is in flight, so blocks of cancelled requests can go."""
        if not self._cancelled:
            return
        for entry in self._cancelled:
            self._book.tables.release(entry)
            self._scheduler.forget(entry.request.request_id)
        self._cancelled.clear()
        self._sink.load(self._book.load())

    async def _round(self) -> bool:
        """One round; False when there is nothing to run."""
        started = self._clock()
        preemptions = self._book.preemptions
        plan = self._scheduler.plan(started)
        if plan is None:
            if self._book.running:
                raise EngineError(f"no round for {len(self._book.running)} running requests")
            return False
        jobs = self._landing.jobs(plan)
        planned = self._clock()
        loop = asyncio.get_running_loop()
        try:
            done = await loop.run_in_executor(self._worker, self._execute, plan, jobs)
        except Exception as problem:
            if self._runner.failure() is not None:
                raise
            logger.exception("round %d broke", plan.round_id)
            message = f"the model could not run this request ({type(problem).__name__})"
            failed = self._landing.fail(plan, self._clock(), message)
            self._deliver(failed)
            nothing = nothing_run(plan)
            self._report(plan, nothing, failed, (started, planned, self._clock()), preemptions)
            return True
        landed = self._landing.land(jobs, done.staged, done.result, self._clock())
        self._deliver(landed)
        times = (started, planned, done.finished)
        self._report(plan, done.result, landed, times, preemptions)
        return True

    def _report(
        self,
        plan: RoundPlan,
        result: RoundResult,
        landed: Landed,
        times: tuple[float, float, float],
        preemptions: int,
    ) -> None:
        """Tell controller and sink. `times`: start, end of planning, end of the worker's part;
        `preemptions`: as they stood when the round started."""
        started, planned, executed = times
        ended = self._clock()
        stats = _step_stats(
            plan,
            result,
            landed,
            seconds=(ended - started, planned - started, ended - executed),
            preemptions=self._book.preemptions - preemptions,
            load=self._book.load(),
        )
        stats = replace(stats, decision=self._scheduler.decision)
        self._controller.learn(without_evidence(stats))
        self._sink.step(stats)

    def _execute(self, plan: RoundPlan, jobs: tuple[Job, ...]) -> _Executed:
        """In the worker thread: run the round and stage it, on frozen inputs only."""
        result = self._runner.run(plan)
        staged = stage_round(plan, jobs, result, self._fault)
        return _Executed(result, staged, self._clock())

    def _deliver(self, landed: Landed) -> None:
        for event in landed.events:
            subscription = self._subscriptions.get(event.request)
            if subscription is not None:
                subscription.put(event)
        for finished in landed.finished:
            self._subscriptions.pop(finished.request, None)
            self._scheduler.forget(finished.request)


def _step_stats(
    plan: RoundPlan,
    result: RoundResult,
    landed: Landed,
    *,
    seconds: tuple[float, float, float],
    preemptions: int,
    load: LoadStats,
) -> StepStats:
    """`seconds`: the whole round, planning, and what followed the worker thread."""
    return StepStats(
        round_id=plan.round_id,
        groups=landed.groups,
        finished=landed.finished,
        timings=result.timings,
        round_seconds=seconds[0],
        schedule_seconds=seconds[1],
        commit_seconds=seconds[2],
        target_rows=result.target_rows,
        draft_rows=result.draft_rows,
        logit_rows=result.logit_rows,
        host_syncs=result.host_syncs,
        residual_fallbacks=result.residual_fallbacks,
        preemptions=preemptions,
        load=load,
        itl_seconds=landed.itl_seconds,
        prepared=result.prepared,
    )
