"""A started engine over tables, with the sink, the runner and the subscriptions a test looks at."""

import asyncio
import threading
import time
from contextlib import asynccontextmanager

from scheduler.assembly import build_engine
from tests.oracles.rig import BLOCK, NGRAM, NOISE, NONE, config, request, tabular_runner


class Sink:
    """Keeps what it is told."""

    def __init__(self):
        self.steps = []
        self.loads = []
        self.ended = []

    def step(self, stats):
        self.steps.append(stats)

    def load(self, load):
        self.loads.append(load)

    def finished(self, finished):
        self.ended.append(finished)


class Gate:
    """A runner that waits in its thread until it may go on, once it is closed."""

    def __init__(self, runner):
        self._runner = runner
        self.entered = threading.Semaphore(0)
        self.open = threading.Event()
        self.open.set()
        self.rounds = 0

    def capabilities(self):
        return self._runner.capabilities()

    def memory_bytes(self):
        return self._runner.memory_bytes()

    def failure(self):
        return self._runner.failure()

    def run(self, plan):
        self.rounds += 1
        self.entered.release()
        assert self.open.wait(60)
        return self._runner.run(plan)

    async def reached(self):
        """Wait, off the loop, until a round is inside."""
        assert await asyncio.to_thread(self.entered.acquire, timeout=60)


class Poisoned(Gate):
    """A runner that cannot run one request."""

    def __init__(self, runner, number):
        super().__init__(runner)
        self._number = number

    def run(self, plan):
        if any(group.request == self._number for group in plan.groups):
            raise RuntimeError("this request breaks the kernel")
        return super().run(plan)


class Breaks(Gate):
    """A runner that breaks in one round, by its number."""

    def __init__(self, runner, number):
        super().__init__(runner)
        self._number = number

    def run(self, plan):
        if plan.round_id == self._number:
            raise RuntimeError("out of memory")
        return super().run(plan)


class Narrow(Gate):
    """A runner without the memory for rounds of more than `most` requests."""

    def __init__(self, runner, most):
        super().__init__(runner)
        self._most = most
        self.sizes = []

    def run(self, plan):
        self.sizes.append(len(plan.groups))
        if len(plan.groups) > self._most:
            raise RuntimeError("out of memory")
        return super().run(plan)


class Gone(Gate):
    """A runner whose device is lost once it is told: no further round can run."""

    lost = None

    def failure(self):
        return self.lost

    def run(self, plan):
        result = super().run(plan)
        if self.lost is not None:
            raise RuntimeError("the device does not answer")
        return result


class Paced(Gate):
    """A runner whose rounds take what `seconds(result)` says on a clock of its own."""

    def __init__(self, runner, seconds):
        super().__init__(runner)
        self._seconds = seconds
        self.now = 0.0

    def clock(self):
        """Seconds of the rounds so far."""
        return self.now

    def run(self, plan):
        result = super().run(plan)
        self.now += self._seconds(result)
        return result


class Desk:
    """An engine with what a test looks at."""

    def __init__(self, settings=None, *, runner=None, fault=None, controller=None, **tables):
        self.settings = settings or config()
        self.sink = Sink()
        self.tabular, self.target, self.draft = tabular_runner(self.settings, **tables)
        self.runner = (runner or Gate)(self.tabular)
        clock = getattr(self.runner, "clock", time.monotonic)
        options = {} if fault is None else {"fault": fault}
        self.engine = build_engine(
            self.settings,
            self.runner,
            sink=self.sink,
            clock=clock,
            controller=controller,
            **options,
        )

    def ask(self, *requests):
        return self.engine.submit(requests)

    @property
    def stats(self):
        return [group for step in self.sink.steps for group in step.groups]


@asynccontextmanager
async def desk(*args, **kwargs):
    """A started engine, stopped afterwards."""
    made = Desk(*args, **kwargs)
    await made.engine.start()
    try:
        yield made
        assert made.engine.health().error is None
    finally:
        made.runner.open.set()
        await asyncio.wait_for(made.engine.stop(), 60)


async def read(subscription):
    """All events of one subscription."""
    return [event async for event in subscription]


async def outcome(subscription):
    """(tokens, text, finish) of one subscription."""
    events = await asyncio.wait_for(read(subscription), 60)
    tokens = [token.token for event in events for token in event.tokens]
    finish = events[-1].finish if events else None
    return tokens, "".join(event.text for event in events), finish


async def outcomes(subscriptions):
    return await asyncio.gather(*map(outcome, subscriptions))


MIXED = [
    request(1, (1, 2, 3), max_tokens=20),
    request(2, (4,), max_tokens=12, temperature=0.8, verifier=NOISE, k=8),
    request(3, [5, 6] * 12, max_tokens=9, proposer=NGRAM),
    request(4, (7, 8), max_tokens=14, k=0, temperature=0.8, verifier=NOISE),
    request(5, (9,) * 9, max_tokens=11, verifier=BLOCK, proposer=NONE),
]
