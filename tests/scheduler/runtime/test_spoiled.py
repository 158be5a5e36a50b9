"""Rows that are not finite: zeroed before anyone else reads them, kept for the round that retries.

Ids in `poison` stand for K/V rows that are not finite; a table may also give NaN by the prefix, so
that zeroed rows show as a row that has a law again.
"""

import pytest
import torch

from scheduler.commit import FaultPoint
from scheduler.config import PoolConfig
from scheduler.controller import FixedController, fixed
from scheduler.plan import Layout
from scheduler.request import FinishReason
from scheduler.runtime.kv_cache import KvPool, KvShape
from scheduler.runtime.torch_runner import Pair, TorchRunner
from scheduler.sampling.rng import CounterRandomness
from tests.oracles.rig import (
    BLOCK,
    NOISE,
    TARGET,
    TOKEN,
    Rig,
    capabilities,
    config,
    expected,
    request,
)
from tests.oracles.tabular import TabularForward

NAN = [float("nan")] * 16
LAYOUTS = pytest.mark.parametrize("layout", Layout)


def sick(where):
    """The target's table, without a law at the prefixes that `where` says."""
    return lambda prefix: NAN if where(prefix) else TARGET(prefix)


class OneFault:
    """Breaks staging once, for one request from its `emitted`th token on."""

    def __init__(self, number, emitted):
        self.number, self.emitted = number, emitted
        self.rig = None
        self.hits = 0

    def __call__(self, point, number):
        if point is not FaultPoint.AFTER_DECISION or number != self.number or self.hits:
            return
        if self.rig.book.ledger.state(number).emitted >= self.emitted:
            self.hits += 1
            raise RuntimeError(point.value)


def faulty(fault, **options):
    fault.rig = Rig(fault=fault, **options)
    return fault.rig


@LAYOUTS
def test_a_sick_request_is_still_sick_when_its_round_is_run_again(layout):
    """Were its rows zeroed by the round that broke, the retry would publish a token of theirs."""
    table = sick(lambda prefix: prefix[0] == 9 and len(prefix) == 6)
    fault = OneFault(2, 3)
    rig = faulty(fault, settings=config(layout=layout, k=0), target=table)
    ill, well = request(1, (9, 1, 2), max_tokens=9), request(2, (4, 5, 6), max_tokens=9)
    rig.submit(ill, well)
    rig.drain()
    assert fault.hits == 1
    output = rig.outputs[1]
    assert output.tokens == expected(ill)[:3]
    assert output.finish.reason is FinishReason.ERROR
    assert rig.outputs[2].tokens == expected(well)


@LAYOUTS
@pytest.mark.parametrize("verifier", [TOKEN, BLOCK, NOISE])
def test_a_lost_draft_is_lost_in_the_same_way_when_its_round_is_run_again(layout, verifier):
    """The retry finds the draft rows of its first try: the same drafts, the same K."""
    draft = sick(lambda prefix: prefix[0] == 9 and len(prefix) in {7, 9})
    warm = {"temperature": 0.9, "verifier": verifier, "max_tokens": 12, "k": 4}
    texts = []
    for fault in (OneFault(2, 2), OneFault(None, 0)):
        rig = faulty(fault, settings=config(layout=layout), draft=draft)
        rig.submit(request(1, (9, 1, 2), **warm), request(2, (4, 5, 6), **warm))
        rounds = []
        while (work := rig.plan()) is not None:
            plan, jobs = work
            result = rig.runner.run(plan)
            again = rig.runner.run(plan)
            assert again.groups == result.groups
            rounds += [g for g in result.groups if g.request == 1 and g.draft_lost]
            try:
                rig.land(jobs, rig.execute(plan, jobs)[1], result)
            except RuntimeError:
                rig.fail(plan)
        assert rounds
        texts.append([rig.outputs[n].tokens for n in (1, 2)])
        assert fault.hits == (fault.number == 2)
    assert texts[0] == texts[1]


class Split(TabularForward):
    """Tables whose rows gather whole splits of keys up to their own, as split attention does."""

    def hidden(self, token_ids, rows, wanted=None):
        hidden = super().hidden(token_ids, rows)
        at = 0
        for blocks, start, count in zip(rows.blocks, rows.starts, rows.counts, strict=True):
            gathered = self._gather(blocks.tolist())
            for position in range(int(start), int(start + count)):
                seen = gathered[: -(-(position + 1) // 8) * 8]
                poisoned = not self._poison.isdisjoint(seen)
                hidden[at, 1] = torch.nan if poisoned else 0.0
                self._rows[at] = (self._rows[at][0], poisoned)
                at += 1
        return hidden if wanted is None else hidden[wanted]


class Chosen(FixedController):
    """A controller that drafts `k` tokens."""

    k = 4

    def decide(self, view):
        return fixed({each.request: min(self.k, each.room) for each in view.requests})


def fifteen_after_a_rejection(prefix):
    """At 8 tokens what the target likes least, then 15."""
    if len(prefix) == 8:
        return [-value for value in TARGET(prefix)[:15]] + [-50.0]
    return [0.0] * 15 + [50.0] if len(prefix) == 9 else TARGET(prefix)


def never_fifteen(prefix):
    return [*TARGET(prefix)[:15], -50.0]


@LAYOUTS
def test_a_rejected_row_that_is_not_finite_is_not_met_again(layout):
    """Drafts at positions 6 to 9; the one at 8 is rejected, the one at 9 has a row that is not
    finite. The next round writes position 8 and gathers 9, masked."""
    settings, controller = config(layout=layout), Chosen(4)
    runner = TorchRunner(
        Pair(
            target=Split(never_fifteen, 16, 64, 4, poison=frozenset({15})),
            draft=Split(fifteen_after_a_rejection, 16, 64, 8),
            vocabulary=16,
        ),
        capabilities(),
        CounterRandomness(),
        lambda: 0.0,
    )
    rig = Rig(settings, controller=controller, runner=runner)
    asked = request(1, (9, 1, 2, 3, 4), max_tokens=9)
    rig.submit(asked)
    rows = []
    while rig.book.entries:
        controller.k = 4 if len(rig.outputs[1].tokens) < 2 else 0
        plan, jobs = rig.plan()
        result, staged = rig.execute(plan, jobs)
        rig.land(jobs, staged, result)
        rows += [group.written for group in result.groups if 15 in group.written]
    ((*_, last),) = rows
    assert last == 15
    assert rig.outputs[1].tokens == expected(asked, never_fifteen)


@LAYOUTS
def test_rows_of_a_round_that_broke_are_not_met_by_the_next_owner(layout):
    """The model broke after its rows were written, twice; nobody has seen what they hold."""
    rig = Rig(config(layout=layout), target=never_fifteen, draft=never_fifteen, poison={15})
    rig.submit(request(1, (15,) * 4, max_tokens=6))
    whole, rig.target.logits = rig.target.logits, None
    for _ in range(2):
        plan, _ = rig.plan()
        with pytest.raises(TypeError):
            rig.runner.run(plan)
        rig.fail(plan)
    assert rig.outputs[1].finish.reason is FinishReason.ERROR
    rig.target.logits = whole
    later = request(2, (1,), max_tokens=6, k=1)
    assert rig.serve(later) == [expected(later, never_fifteen)]


@pytest.mark.parametrize("place", [0, 1, 2, 3, 4])
def test_block_verifies_up_to_a_row_without_a_law(place):
    """As if that many tokens had been drafted: serial decoding ends there, and not before."""
    table = sick(lambda prefix: len(prefix) == 4 + place)
    ended = 0
    for seed in range(40):
        results = []
        for k in (4, place):
            rig = Rig(target=table)
            options = {"temperature": 0.9, "verifier": BLOCK, "seed": seed, "max_tokens": 30}
            rig.submit(request(1, (1, 2, 3), k=k, **options))
            rig.step()
            plan, _ = rig.plan()
            results.append(rig.runner.run(plan).groups[0])
        long, short = results
        assert (long.accepted, long.emitted, long.error) == (
            short.accepted,
            short.emitted,
            short.error,
        )
        assert (long.error is not None) == (long.accepted == place)
        ended += long.error is not None
    assert ended == 40 if place == 0 else 0 < ended < 40


def test_a_table_is_cleared_from_a_row_on():
    shape = KvShape(layers=2, kv_heads=1, head_dim=2, dtype=torch.float32)
    pool = KvPool(shape, PoolConfig(blocks=4, block_size=3), torch.device("cpu"))
    for layer in pool.layers:
        layer.fill_(1.0)
    pool.clear_blocks((2, 0), first=2)
    kept = [[float(row.sum()) for row in layer] for layer in pool.layers]
    assert kept == [[0, 0, 0, 4, 4, 4, 4, 4, 0, 4, 4, 4]] * 2
    pool.clear_blocks((1,))
    assert [float(row.sum()) for row in pool.layers[1]] == [0, 0, 0, 0, 0, 0, 4, 4, 0, 4, 4, 4]
