"""A whole server over the real engine, with a model that recites a script. Loopback, port 0."""

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import uvicorn
import uvloop

from deploy.pair.tokenizer import train_tokenizer
from scheduler.book import Book
from scheduler.commit import Ledger
from scheduler.config import EngineConfig, PoolConfig
from scheduler.controller import FixedController
from scheduler.engine import Engine
from scheduler.plan import (
    DeviceDraft,
    DraftOutcome,
    Group,
    GroupResult,
    HostDraft,
    RoundPlan,
    RoundResult,
    RoundTimings,
    TerminalKind,
    TokenLogprobs,
)
from scheduler.proposers.draft_model import DraftModelProposer
from scheduler.proposers.ngram import NgramProposer
from scheduler.request import ProposerKind
from scheduler.scheduler import Scheduler
from server.api import Api, ApiOptions
from server.app import create_app
from server.backend import Backend, Serving
from server.connection import Connection
from server.outcomes import CallOutcome, OutcomeSink
from server.tokenizer import TokenizerService

TEXTS = [
    "The river runs down to the sea. " * 20,
    "def add(a, b):\n    return a + b\n" * 20,
    "Stop here. END of text. Grüße, 東京, emoji 🎉 naïve café. " * 4,
]
CONTEXT = 96
DEFAULT = "The river runs down to the sea, naïve 🎉 and far."


class ScriptedRunner:
    """Says for each prompt what it was told to, then ends; every second round rejects a draft."""

    def __init__(self, end: int, vocabulary: int) -> None:
        self.scripts: dict[tuple[int, ...], tuple[int, ...]] = {}
        self.default: tuple[int, ...] = ()
        self.open = threading.Event()
        self.open.set()
        self.stops_after: int | None = None
        self.before_round: Callable[[], None] = lambda: None
        self._waiting = threading.Event()
        self.breaks_at: dict[tuple[int, ...], int] = {}
        self.plans: list[RoundPlan] = []
        self._end = end
        self._vocabulary = vocabulary
        self.lost: str | None = None

    def failure(self) -> str | None:
        return self.lost

    def run(self, plan: RoundPlan) -> RoundResult:
        self.before_round()
        self.plans.append(plan)
        if len(self.plans) == self.stops_after:
            self.open.clear()
        if not self.open.is_set():
            self._waiting.set()
            self.open.wait(30)
        groups = tuple(self._group(group) for group in plan.groups)
        timings = RoundTimings(draft=0.0, verify=0.0, decide=0.0, forward=0.0)
        return RoundResult(
            round_id=plan.round_id,
            coordinate=plan.coordinate,
            groups=groups,
            timings=timings,
            target_rows=0,
            draft_rows=0,
            logit_rows=0,
            host_syncs=1,
        )

    def waits(self) -> bool:
        """Whether a round is held up by `open`, soon."""
        return self._waiting.wait(10)

    def _group(self, group: Group) -> GroupResult:
        prompt = group.tokens[: group.prompt_length]
        rows = group.tokens[group.start : group.start + group.rows]
        done = len(group.tokens) - group.prompt_length
        if done >= self.breaks_at.get(prompt, done + 1):
            return self._result(group, rows, (), 0, "the model gave no numbers")
        if not group.emits:
            return self._result(group, rows, (), 0, None)
        script = self.scripts.get(prompt, self.default)
        depth = _depth(group.draft)
        left = (*script[done:], *[self._end] * (depth + 1))
        accepted = max(0, depth - len(group.tokens) % 2)
        drafts = left[:accepted] + tuple((t + 1) % self._vocabulary for t in left[accepted:depth])
        return self._result(group, rows + drafts, left[: accepted + 1], accepted, None)

    def _result(self, group, written, emitted, accepted, error):
        depth = _depth(group.draft) if emitted else 0
        full = accepted == depth
        kind = TerminalKind.BONUS if full else TerminalKind.CORRECTION
        kind = kind if depth else TerminalKind.PLAIN
        drafts = written[len(written) - depth :] if depth else ()
        draft_written = ()
        if isinstance(group.draft, DeviceDraft):
            draft_written = (*group.tokens[group.draft.rows :], *drafts[:-1])
        outcomes = tuple(
            DraftOutcome(
                token=token, target_prob=0.5, draft_prob=0.25, uniform=0.5, mass=0.5, base=1.0
            )
            for token in drafts
        )
        wanted = group.sampling.logprobs
        return GroupResult(
            request=group.request,
            generation=group.generation,
            written=written,
            emitted=emitted,
            accepted=accepted,
            terminal=kind if emitted else None,
            outcomes=outcomes,
            draft_written=draft_written,
            logprobs=() if wanted is None else tuple(self._row(t, wanted) for t in emitted),
            error=error,
        )

    def _row(self, token: int, wanted: int) -> TokenLogprobs:
        others = [(token + step) % self._vocabulary for step in range(1, wanted)]
        best = ((token, -0.5), *((other, -1.5 - i) for i, other in enumerate(others)))
        return TokenLogprobs(logprob=-0.5, top=best[:wanted])


def _depth(draft: HostDraft | DeviceDraft | None) -> int:
    if isinstance(draft, DeviceDraft):
        return draft.depth
    return len(draft.token_ids) if draft else 0


class Outcomes(OutcomeSink):
    """Remembers every call."""

    def __init__(self) -> None:
        self.calls: list[CallOutcome] = []
        self.changed = threading.Condition()

    def call(self, outcome: CallOutcome) -> None:
        with self.changed:
            self.calls.append(outcome)
            self.changed.notify_all()

    def wait_for(self, wanted: Callable[[CallOutcome], bool]) -> bool:
        """Whether such a call ends within some seconds."""
        with self.changed:
            return self.changed.wait_for(lambda: any(map(wanted, self.calls)), 10)


class Sink:
    """Remembers all rounds, and how requests ended outside a round."""

    def __init__(self) -> None:
        self.steps = []
        self.ended = []
        self.changed = threading.Condition()

    def step(self, stats) -> None:
        self.steps.append(stats)

    def load(self, load) -> None:
        pass

    def finished(self, finished) -> None:
        with self.changed:
            self.ended.append(finished)
            self.changed.notify_all()


@dataclass(kw_only=True)
class World:
    """A running server and the parts behind it."""

    runner: ScriptedRunner
    tokenizer: object
    service: TokenizerService
    engine: Engine
    backend: Backend
    outcomes: Outcomes
    sink: Sink
    loop: asyncio.AbstractEventLoop
    url: str = ""

    def ids(self, text: str) -> tuple[int, ...]:
        return tuple(self.tokenizer.encode(text, add_special_tokens=False))

    def prompt_ids(self, text: str) -> tuple[int, ...]:
        return tuple(self.tokenizer.encode(text))

    def script(self, prompt: str, answer: str) -> str:
        """Make the model answer `prompt` with `answer`; gives the prompt back."""
        self.runner.scripts[self.prompt_ids(prompt)] = self.ids(answer)
        return prompt

    def call(self, function: Callable[[], object]) -> None:
        """Run `function` on the server's loop and wait for it."""
        done = threading.Event()
        self.loop.call_soon_threadsafe(lambda: (function(), done.set()))
        done.wait(10)


def engine_over(runner, sink, **changes) -> Engine:
    """The real engine over `runner`."""
    settings = {
        "max_model_len": CONTEXT,
        "draft_max_len": CONTEXT,
        "max_batched_tokens": 256,
        "max_requests": 16,
        "max_waiting": 64,
        "target_pool": PoolConfig(blocks=128, block_size=16),
        "draft_pool": PoolConfig(blocks=128, block_size=16),
    }
    config = EngineConfig(**(settings | changes))
    proposers = {
        ProposerKind.DRAFT_MODEL: DraftModelProposer(),
        ProposerKind.NGRAM: NgramProposer(),
    }
    controller = FixedController(config.k)
    book = Book(config, Ledger())
    return Engine(
        scheduler=Scheduler(book, controller, proposers, "test"),
        runner=runner,
        controller=controller,
        sink=sink,
        clock=time.monotonic,
    )


def serving_of(engine, service, vocabulary: int) -> Serving:
    return Serving(
        engine=engine,
        tokenizer=service,
        names=("pair", "pair-alias"),
        root="fencepost/pair",
        created=1_700_000_000,
        vocabulary=vocabulary,
        fingerprint="fencepost-test-0",
    )


async def metrics_page(accept: str) -> tuple[bytes, str]:
    """Stands for the page of metrics: says what was asked for."""
    return accept.encode(), "text/x"


def new_tokenizer():
    return train_tokenizer(TEXTS)


@contextmanager
def running(*, options: ApiOptions | None = None, load: bool = True, **changes) -> Iterator[World]:
    """A server on a free port until the block ends. `changes` go into the engine's config."""
    process = _Process(options or ApiOptions(domains=frozenset({"code"})), load, changes)
    thread = threading.Thread(target=lambda: uvloop.run(process.run()), daemon=True)
    thread.start()
    if not process.started.wait(30):
        raise RuntimeError("the server did not start")
    try:
        yield process.world
    finally:
        process.stop.set()
        thread.join(30)


class _Process:
    """What runs in the server's thread."""

    def __init__(self, options: ApiOptions, load: bool, changes: dict) -> None:
        self.started = threading.Event()
        self.stop = threading.Event()
        self.world: World | None = None
        self._options = options
        self._load = load
        self._changes = changes

    async def run(self) -> None:
        world = self.world = self._build()
        await world.engine.start()
        api = Api(backend=world.backend, options=self._options)
        app = create_app(
            api,
            metrics=metrics_page,
            outcomes=world.outcomes,
            page=True,
        )
        settings = {"lifespan": "off", "ws": "none", "log_config": None, "http": Connection}
        server = uvicorn.Server(uvicorn.Config(app, **settings))
        listener = socket.create_server(("127.0.0.1", 0))
        world.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        # The socket listens already: a client that comes early only waits.
        self.started.set()
        await asyncio.to_thread(self.stop.wait)
        world.runner.open.set()
        server.should_exit = True
        await serving
        await world.engine.stop()

    def _build(self) -> World:
        tokenizer = new_tokenizer()
        service = TokenizerService(tokenizer, frozenset({tokenizer.eos_token_id}))
        runner = ScriptedRunner(tokenizer.eos_token_id, len(tokenizer))
        runner.default = tuple(tokenizer.encode(DEFAULT, add_special_tokens=False))
        sink, backend = Sink(), Backend()
        engine = engine_over(runner, sink, **self._changes)
        if self._load:
            backend.install(serving_of(engine, service, len(tokenizer)))
        return World(
            runner=runner,
            tokenizer=tokenizer,
            service=service,
            engine=engine,
            backend=backend,
            outcomes=Outcomes(),
            sink=sink,
            loop=asyncio.get_running_loop(),
        )
