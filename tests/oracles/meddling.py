"""Cancels requests of a running engine while its worker is at a chosen place, and names what broke.

The worker waits until the loop has cancelled: before and after the model runs, and at the points of
staging, where it may then break. Knows engines and subscriptions; the texts are the serial ones.
"""

import asyncio
import random

from scheduler.commit import FaultPoint
from scheduler.config import PoolConfig
from scheduler.plan import Layout
from scheduler.request import FinishReason
from tests.oracles.desk import Gate, desk, outcome
from tests.oracles.rig import MODEL, NGRAM, NOISE, NONE, TOKEN, config, expected, letters, request

STAGING = set(FaultPoint) - {FaultPoint.BEFORE_PUBLICATION, FaultPoint.AFTER_PUBLICATION}


class Meddler(Gate):
    """A runner, and a fault hook, during which clients give up and staging breaks."""

    def __init__(self, runner, dice):
        super().__init__(runner)
        self.loop = asyncio.get_running_loop()
        self.dice = dice
        self.engine = None
        self.live = set()
        self.cancelled = set()
        self.alone = True

    def run(self, plan):
        self.alone = len(plan.groups) == 1
        self._perhaps_cancel()
        result = super().run(plan)
        self._perhaps_cancel()
        return result

    def fault(self, point, number):
        """A hook of the engine. A round that is one request's retry never breaks: it would end."""
        if point in STAGING:
            self._perhaps_cancel()
            if not self.alone and self.dice.random() < 0.02:
                raise RuntimeError(point.value)

    def _perhaps_cancel(self):
        """In the worker: one request is cancelled on the loop before the worker goes on."""
        if self.live and self.dice.random() < 0.04:
            number = self.dice.choice(sorted(self.live))
            asyncio.run_coroutine_threadsafe(self._cancel(number), self.loop).result(60)

    async def _cancel(self, number):
        self.live.discard(number)
        if number in self.engine._book.entries:
            self.cancelled.add(number)
        self.engine.abort(number)
        self.engine.abort(number)


def arrivals(dice, count):
    """Requests whose texts are known."""
    asked = []
    for number in range(1, count + 1):
        warm = dice.random() < 0.5
        asked.append(
            request(
                number,
                [dice.randrange(16) for _ in range(dice.randint(1, 24))],
                temperature=0.8 if warm else 0.0,
                verifier=NOISE if warm else TOKEN,
                proposer=dice.choice([MODEL, MODEL, NGRAM, NONE]),
                k=dice.choice([None, 0, 2, 8]),
                max_tokens=dice.randint(1, 16),
                priority=dice.randint(0, 1),
            )
        )
    return asked


async def _meddle(seed, layout):
    dice = random.Random(seed)
    settings = config(
        layout=layout,
        max_model_len=40,
        draft_max_len=40,
        max_requests=5,
        max_batched_tokens=dice.randint(12, 40),
        target_pool=PoolConfig(blocks=dice.randint(12, 30), block_size=4),
        draft_pool=PoolConfig(blocks=dice.randint(0, 12), block_size=8),
    )
    meddlers = []

    def runner(tabular):
        meddlers.append(Meddler(tabular, dice))
        return meddlers[0]

    def hook(point, number):
        meddlers[0].fault(point, number)

    async with desk(settings, runner=runner, fault=hook) as d:
        (meddler,) = meddlers
        meddler.engine = d.engine
        asked = arrivals(dice, 12)
        meddler.live = {each.request_id for each in asked}
        found = await asyncio.gather(*map(outcome, d.ask(*asked)))
        meddler.live = set()
        wrong = _wrong_texts(asked, found, meddler.cancelled)
        later = request(99, (1, 2, 3), max_tokens=5)
        (last,) = d.ask(later)
        wrong += _wrong_texts([later], [await outcome(last)], ())
        wrong += _left_over(d)
        return len(meddler.cancelled), wrong


def _wrong_texts(asked, found, cancelled):
    """Whole texts of those that stayed; beginnings, and no end, of those that were cancelled."""
    wrong = []
    for each, (tokens, text, finish) in zip(asked, found, strict=True):
        number, whole = each.request_id, expected(each, context=40)
        gone = number in cancelled
        if tokens != (whole[: len(tokens)] if gone else whole) or text != letters(tokens):
            wrong.append(f"text of {number}")
        if gone != (finish is None) or (not gone and finish.reason is not FinishReason.LENGTH):
            wrong.append(f"end of {number}")
    return wrong


def _left_over(d):
    """What an idle engine still holds, and ends that were not told exactly once."""
    load, book = d.engine.load(), d.engine._book
    rows = set(d.tabular._executor._retained._rows)
    ends = [each.request for step in d.sink.steps for each in step.finished]
    ends += [each.request for each in d.sink.ended]
    checks = {
        "blocks": book.tables.all_free and not load.target_pool.used,
        "requests": not (load.running or load.waiting or book.ledger.states),
        "subscriptions": not d.engine._subscriptions,
        "retained rows": rows <= {99},
        "ends": sorted(ends) == [*range(1, 13), 99],
    }
    return [name for name, holds in checks.items() if not holds]


def meddle(seed, layout=Layout.REPLAY_FRONTIER):
    """(cancels that came in time, names of what is wrong) for one engine's life."""
    return asyncio.run(_meddle(seed, layout))
