"""Puts the engine core together over tables, with a driver that runs one round at a time.

The driver is the engine's loop without asyncio: plan, run, stage, land, release.
"""

import time
from dataclasses import dataclass, field

import torch

from scheduler.book import Book
from scheduler.commit import Ledger, no_faults
from scheduler.config import EngineConfig, PoolConfig
from scheduler.controller import FixedController
from scheduler.errors import CommitRejected
from scheduler.landing import Landing
from scheduler.proposers.draft_model import DraftModelProposer
from scheduler.proposers.ngram import NgramProposer
from scheduler.request import (
    FinishReason,
    ProposerKind,
    Request,
    SamplingParams,
    Speculation,
    StagedText,
    StopRules,
    Verifier,
)
from scheduler.runner import Capabilities, ModelIdentity
from scheduler.runtime.torch_runner import Pair, TorchRunner
from scheduler.sampling.rng import CounterRandomness, noise_key
from scheduler.scheduler import Scheduler
from scheduler.staging import Unstaged, stage_round
from tests.oracles.serial import greedy_text, noise_text
from tests.oracles.tabular import TabularForward, near, random_table

VOCABULARY = 16
_REFUSED = CommitRejected.__name__
TARGET = random_table(VOCABULARY, 1)
DRAFT = near(TARGET, random_table(VOCABULARY, 2), 0.4)


def letters(tokens):
    """The text of token ids: one letter each."""
    return "".join(chr(ord("a") + token) for token in tokens)


@dataclass(frozen=True)
class Letters:
    """A `TextStager`: one letter a token, cut before the first stop string, nothing held back.

    The state is all text so far.
    """

    stops: tuple[str, ...] = ()

    def start(self):
        return ""

    def stage(self, state, token_ids, *, final):
        text = state
        for kept, token in enumerate(token_ids, 1):
            text += letters([token])
            for stop in self.stops:
                if text.endswith(stop):
                    shown = text[len(state) : max(len(state), len(text) - len(stop))]
                    return StagedText(state=text, text=shown, kept=kept, stop=stop)
        return StagedText(state=text, text=text[len(state) :], kept=len(token_ids), stop=None)


def request(request_id=1, prompt=(1, 2, 3), **changes):
    """A greedy request for 8 tokens, unless said otherwise.

    `changes` may name any field of the request, its sampling, its speculation or its stop rules.
    """
    parts = {
        "sampling": {"temperature": 0.0, "seed": request_id},
        "speculation": {"k": None},
        "stop": {"token_ids": frozenset(), "max_tokens": 8},
    }
    kinds = {"sampling": SamplingParams, "speculation": Speculation, "stop": StopRules}
    own = {"text": Letters(), "arrival": float(request_id)}
    for name, value in changes.items():
        home = next((p for p, kind in kinds.items() if name in kind.__dataclass_fields__), None)
        (own if home is None else parts[home])[name] = value
    built = {part: kind(**parts[part]) for part, kind in kinds.items()}
    return Request(request_id=request_id, prompt=tuple(prompt), **built, **own)


def noise_of(asked, vocabulary=VOCABULARY):
    """The shared noise that a request's tokens are raced on, by absolute position."""

    def noise(position):
        key = noise_key(asked.sampling.seed, asked.choice, position)
        return CounterRandomness().gumbel([key], vocabulary, torch.device("cpu"))[0].numpy()

    return noise


def expected(asked, table=TARGET, context=96):
    """The serial text of a greedy or shared-noise request: tokens up to its stop or its budget."""
    count = min(asked.stop.max_tokens, context - len(asked.prompt))
    if asked.sampling.greedy:
        tokens = greedy_text(table, asked.prompt, count)
    else:
        if asked.speculation.verifier is not Verifier.SHARED_NOISE:
            raise ValueError("only greedy and shared-noise texts are known")
        tokens = noise_text(table, asked.prompt, count, noise_of(asked), asked.sampling.temperature)
    for length, token in enumerate(tokens, 1):
        stops = getattr(asked.text, "stops", ())
        if token in asked.stop.token_ids or letters(tokens[:length]).endswith(tuple(stops)):
            return tokens[:length]
    return tokens


def config(**changes):
    """A small engine: 96 tokens of context, blocks of 4 (target) and 8 (draft) rows."""
    settings = {
        "max_model_len": 96,
        "draft_max_len": 96,
        "max_batched_tokens": 48,
        "k": 4,
        "target_pool": PoolConfig(blocks=64, block_size=4),
        "draft_pool": PoolConfig(blocks=64, block_size=8),
    }
    return EngineConfig(**{**settings, **changes})


def tabular_runner(settings, *, target=TARGET, draft=DRAFT, randomness=None, **options):
    """The production runner over tables. `options` go to both tables' forwards."""
    one = _forward(target, settings.target_pool, options)
    two = None if settings.draft_pool is None else _forward(draft, settings.draft_pool, options)
    runner = TorchRunner(
        Pair(target=one, draft=two, vocabulary=VOCABULARY),
        capabilities(),
        randomness or CounterRandomness(),
        time.perf_counter,
    )
    return runner, one, two


def _forward(table, pool, options):
    return TabularForward(table, VOCABULARY, pool.blocks, pool.block_size, **options)


def identity(**changes):
    """A model's identity."""
    fields = {"name": "t", "revision": "1", "architecture": "table", "dtype": "f32"}
    return ModelIdentity(**{**fields, "parameters": 0, **changes})


def capabilities(**changes):
    """What the tabular runner says of itself."""
    fields = {
        "target": identity(),
        "draft": identity(name="d"),
        "vocabulary": VOCABULARY,
        "max_positions": 4096,
        "draft_max_positions": 4096,
        "device": "cpu",
        "software": "tables",
    }
    return Capabilities(**{**fields, **changes})


def book_and_scheduler(settings, *, controller=None, fault=no_faults):
    """A scheduler with both proposers over an empty book."""
    book = Book(settings, Ledger(fault))
    proposers = {NGRAM: NgramProposer()}
    if settings.draft_pool is not None:
        proposers[MODEL] = DraftModelProposer()
    return book, Scheduler(book, controller or FixedController(settings.k), proposers, '"engine"')


@dataclass
class Output:
    """What one request was told."""

    tokens: list = field(default_factory=list)
    text: str = ""
    finish: object = None
    events: list = field(default_factory=list)


class Rig:
    """The synchronous engine. `outputs` holds what each request was told."""

    def __init__(self, settings=None, *, controller=None, fault=no_faults, runner=None, **tables):
        self.config = settings or config()
        self.book, self.scheduler = book_and_scheduler(
            self.config, controller=controller, fault=fault
        )
        self.landing = Landing(self.book)
        self.runner, self.target, self.draft = runner, None, None
        if runner is None:
            self.runner, self.target, self.draft = tabular_runner(self.config, **tables)
        self.fault = fault
        self.now = 0.0
        self.outputs = {}
        self.plans = []
        self.landed = []
        self.finished = []
        # Whether rounds have ever been too large: who waits for a turn holds its blocks already.
        self.bounded = False
        self._cancelled = []

    def submit(self, *requests):
        """Queue requests, as the engine does."""
        self.scheduler.check(requests)
        for each in requests:
            self.outputs[each.request_id] = Output()
            self.scheduler.add(each)

    def cancel(self, request_id):
        """End a request; its blocks go before the next plan."""
        entry = self.book.entries.get(request_id)
        if entry is not None:
            self.finished.append(self.landing.cancel(entry, self.now, FinishReason.ABORT))
            self._cancelled.append(entry)

    def plan(self):
        """Release what was cancelled, then plan; the plan with its frozen jobs, or None."""
        self.now += 1.0
        for entry in self._cancelled:
            self.book.tables.release(entry)
            self.scheduler.forget(entry.request.request_id)
        self._cancelled.clear()
        plan = self.scheduler.plan(self.now)
        if plan is None:
            return None
        self.plans.append(plan)
        return plan, self.landing.jobs(plan)

    def execute(self, plan, jobs):
        """Run and stage, as the worker thread does."""
        result = self.runner.run(plan)
        return result, self.stage(plan, jobs, result)

    def stage(self, plan, jobs, result):
        """Stage, as the worker thread does after the run. Raises CommitRejected where a group was
        refused: no fault that is planted does that."""
        staged = stage_round(plan, jobs, result, self.fault)
        if any(isinstance(each, Unstaged) and each.problem == _REFUSED for each in staged):
            raise CommitRejected(f"round {plan.round_id}: a postcondition does not hold")
        return staged

    def land(self, jobs, staged, result):
        """Publish and take note of the events."""
        return self._note(self.landing.land(jobs, staged, result, self.now))

    def fail(self, plan):
        """The round broke."""
        return self._note(self.landing.fail(plan, self.now, "it broke"))

    def step(self):
        """One whole round; None when there was nothing to run."""
        work = self.plan()
        if work is None:
            return None
        plan, jobs = work
        try:
            result, staged = self.execute(plan, jobs)
        except RuntimeError:
            return self.fail(plan)
        return self.land(jobs, staged, result)

    def drain(self, rounds=2000):
        """Run until nothing is left. Raises when it takes more than `rounds`."""
        for _ in range(rounds):
            if self.step() is None:
                if self.book.entries:
                    raise RuntimeError("requests are left, but nothing can run")
                self.book.tables.check_integrity(())
                return
        raise RuntimeError("the requests do not come to an end")

    def serve(self, *requests):
        """Submit, drain, and give the tokens of each request."""
        self.submit(*requests)
        self.drain()
        return [self.outputs[each.request_id].tokens for each in requests]

    def _note(self, landed):
        self.landed.append(landed)
        for event in landed.events:
            output = self.outputs[event.request]
            output.events.append(event)
            output.tokens += [each.token for each in event.tokens]
            output.text += event.text
            output.finish = event.finish
        self.finished += landed.finished
        for each in landed.finished:
            self.scheduler.forget(each.request)
        return landed


NGRAM, MODEL, NONE = ProposerKind.NGRAM, ProposerKind.DRAFT_MODEL, ProposerKind.NONE
TOKEN, BLOCK, NOISE = Verifier.TOKEN, Verifier.BLOCK, Verifier.SHARED_NOISE
