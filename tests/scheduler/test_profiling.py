"""A start-up profile gives back what rounds cost, within its time, and leaves the rest sensible."""

import random
import time
from dataclasses import dataclass, field, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from deploy.pair import DRAFT, TARGET
from scheduler import profiling
from scheduler.config import PoolConfig
from scheduler.plan import DeviceDraft, HostDraft, nothing_run
from scheduler.profiling import profile_costs
from scheduler.runtime.create import PairOptions, create_runner
from scheduler.runtime.loading import ModelSource
from tests.oracles.rig import capabilities, config, tabular_runner

WIDE = config(
    max_model_len=2048,
    draft_max_len=2048,
    max_batched_tokens=512,
    max_requests=64,
    target_pool=PoolConfig(blocks=1 << 12, block_size=16),
    draft_pool=PoolConfig(blocks=1 << 12, block_size=16),
)
AMPLE = 1e6


@dataclass
class Machine:
    """A runner whose rounds take just what these prices say, on a clock of its own.

    A round has a price of its own, one for each request, for each target row, and for each row and
    cached token; a draft step likewise. `first` is what the first round of a kind takes longer
    without a word, `preparing` what the first ones do that say so.
    """

    round: float = 0.004
    request: float = 0.0005
    row: float = 0.0003
    row_key: float = 1e-6
    step: float = 0.001
    step_row: float = 0.0002
    step_key: float = 4e-7
    first: float = 0.0
    preparing: tuple = ()
    noise: list = field(default_factory=list)
    draft: bool = True
    now: float = 0.0
    plans: list = field(default_factory=list)

    def capabilities(self):
        return capabilities() if self.draft else capabilities(draft=None)

    def clock(self):
        return self.now

    def run(self, plan):
        kind = [(len(g.tokens), g.draft) for g in plan.groups]
        met = self.plans.count(kind)
        self.plans.append(kind)
        self.now += sum(self.preparing[met : met + 1])
        self.now += self.first * (not met) + self.seconds(plan) * (
            self.noise[len(self.plans) % len(self.noise)] if self.noise else 1.0
        )
        return replace(nothing_run(plan), prepared=met < len(self.preparing))

    def seconds(self, plan):
        groups = plan.groups
        hosts = [len(g.draft.token_ids) for g in groups if isinstance(g.draft, HostDraft)]
        models = [g for g in groups if isinstance(g.draft, DeviceDraft)]
        depths = [g.draft.depth for g in models]
        rows = sum(g.rows for g in groups) + sum(hosts) + sum(depths)
        context = len(groups[0].tokens)
        total = self.plain(len(groups), rows, context)
        for step in range(max(depths, default=0)):
            total += self.drafting(sum(depth > step for depth in depths), context)
        caught = sum(g.draft.catch_up for g in models if not g.draft.depth)
        return total + (self.step + self.step_row * caught if caught else 0.0)

    def plain(self, requests, rows, context):
        own = self.round + self.request * requests
        return own + rows * (self.row + self.row_key * context)

    def drafting(self, requests, context):
        return self.step + requests * (self.step_row + self.step_key * context)


def profile(machine, settings=WIDE, seconds=AMPLE):
    return profile_costs(machine, settings, machine.clock, seconds=seconds)


def same(one, other):
    """Whether two tables say the same, but for the last digits of a clock's readings."""
    pairs = [(one.row_key, other.row_key), (one.draft_row_key, other.draft_row_key)]
    for n in (1, 3, 16, 50, 64):
        pairs += [(one.round(n, n * k, 300), other.round(n, n * k, 300)) for k in (1, 2, 5, 9)]
        pairs += [(one.draft_step(n, 300), other.draft_step(n, 300))]
        pairs += [(one.draft_rows(n), other.draft_rows(n))]
    return all(left == pytest.approx(right, rel=1e-6, abs=1e-12) for left, right in pairs)


TABLE = profile(Machine())


@given(
    requests=st.integers(1, 64),
    rows=st.integers(0, 400),
    context=st.integers(1, 4000),
)
@settings(max_examples=300)
def test_rounds_cost_what_they_were_measured_to_cost(requests, rows, context):
    """Linear prices: exact between measured points and beyond them, for any load and context."""
    found = TABLE.round(requests, requests + rows, context)
    assert found == pytest.approx(Machine().plain(requests, requests + rows, context))


@given(requests=st.integers(1, 64), context=st.integers(1, 4000))
def test_draft_steps_cost_what_they_were_measured_to_cost(requests, context):
    found = TABLE.draft_step(requests, context)
    assert found == pytest.approx(Machine().drafting(requests, context))


def test_catching_up_costs_what_it_was_measured_to_cost():
    assert TABLE.catch_up.at(1) == pytest.approx(Machine().step + Machine().step_row)
    for rows in (0, 1, 5, 40, 127, 500):
        assert TABLE.draft_rows(rows) == pytest.approx(rows * Machine().step_row, abs=1e-9)


def test_stairs_are_kept():
    """Rows in tiles of 16: what fits the tile is free."""

    class Tiled(Machine):
        def plain(self, requests, rows, context):
            return self.round + 0.001 * (-(-rows // 16))

    table = profile(Tiled())
    assert table.round(1, 9, 129) == pytest.approx(0.005)
    assert table.round(4, 16, 129) == pytest.approx(0.005)
    assert table.round(8, 24, 129) == pytest.approx(0.006)
    assert table.round(16, 64, 129) == pytest.approx(0.008)


def test_steepness_is_taken_from_rounds_of_more_requests():
    """One request alone has few rows; beside a prefill chunk it has many."""

    class Bent(Machine):
        def plain(self, requests, rows, context):
            return self.round + 0.001 * max(rows - 16, 0)

    assert profile(Bent()).round(1, 72, 129) == pytest.approx(0.004 + 0.056)


def test_a_second_run_is_enough_to_forget_the_first(monkeypatch):
    monkeypatch.setattr(profiling, "_SAMPLES", 2)
    assert same(profile(Machine(first=0.5)), TABLE)


@pytest.mark.parametrize("samples", [1, 2, 3, 9])
def test_rounds_that_prepare_never_count(samples, monkeypatch):
    """One is met, one recorded; however few samples there are."""
    monkeypatch.setattr(profiling, "_SAMPLES", samples)
    assert same(profile(Machine(preparing=(0.5, 2.0))), TABLE)


def test_what_is_always_measured_is_measured_without_what_prepares():
    machine = Machine(preparing=(0.5, 2.0))
    table = profile(machine, seconds=0.001)
    assert shapes(machine) == [kind for kind in SHAPES_ALWAYS for _ in range(3)]
    for requests, rows in ((1, 1), (1, 4), (64, 64)):
        plain = Machine().plain(requests, rows, 129)
        assert table.round(requests, rows, 129) == pytest.approx(plain)


def test_a_runner_that_never_ends_preparing_is_measured_all_the_same():
    machine = Machine(preparing=(0.0,) * 99)
    table = profile(machine, seconds=0.001)
    assert shapes(machine) == [kind for kind in SHAPES_ALWAYS for _ in range(3)]
    assert table.round(1, 1, 129) == pytest.approx(Machine().plain(1, 1, 129))


def test_first_runs_and_outliers_do_not_count():
    assert same(profile(Machine(first=0.5)), TABLE)
    table = profile(Machine(noise=[1.0] * 10 + [9.0]))
    for requests, rows in ((1, 1), (1, 9), (8, 32), (64, 64), (64, 384)):
        plain = Machine().plain(requests, rows, 129)
        assert table.round(requests, rows, 129) == pytest.approx(plain, rel=0.02)


@pytest.mark.parametrize("seed", range(5))
def test_noise_where_costs_are_flat_is_averaged(seed):
    """Not the highest of all measured so far, which would rise with every shape."""
    dice = random.Random(seed)
    noise = [dice.uniform(0.7, 1.3) for _ in range(1009)]
    flat = Machine(row=0.0, row_key=0.0, request=0.0, noise=noise)
    table = profile(flat)
    for requests in (1, 8, 64):
        assert table.round(requests, 3 * requests, 129) == pytest.approx(0.004, rel=0.1)


SHAPES_ALWAYS = [(1, 0, False), (1, 3, False), (1, 3, True), (64, 0, False)]


def shapes(machine):
    found = []
    for kind in machine.plans:
        draft = kind[0][1]
        modelled = isinstance(draft, DeviceDraft)
        k = draft.depth if modelled else 0 if draft is None else len(draft.token_ids)
        found.append((len(kind), k, modelled))
    return found


@given(
    noise=st.lists(st.floats(0.05, 20.0), min_size=1, max_size=40),
    seconds=st.sampled_from([0.0, 0.05, 0.5]),
)
def test_whatever_the_noise_a_round_takes_time(noise, seconds):
    """A table of rounds that take none would be refused, and the server with it."""
    table = profile(Machine(noise=tuple(noise)), seconds=seconds)
    assert min(table.round(n, n, context) for n in (1, 2, 3, 33, 64) for context in (1, 129)) > 0.0


def test_a_few_shapes_are_always_measured():
    machine = Machine()
    table = profile(machine, seconds=0.001)
    assert shapes(machine) == SHAPES_ALWAYS
    plain = Machine().plain
    assert table.round(1, 1, 129) == pytest.approx(plain(1, 1, 129))
    assert table.round(1, 4, 129) == pytest.approx(plain(1, 4, 129))
    assert table.round(64, 64, 129) == pytest.approx(plain(64, 64, 129))
    # As steep as one request's rounds are.
    assert table.round(64, 256, 129) == pytest.approx(plain(64, 256, 129))
    assert table.draft_step(1, 129) == pytest.approx(Machine().drafting(1, 129))
    assert table.draft_step(64, 129) > 3 * table.draft_step(1, 129)
    assert table.draft_rows(63) == pytest.approx(table.draft_step(64, 129) - table.step.at(1))
    assert (table.row_key, table.draft_row_key) == (0.0, 0.0)


@given(
    seconds=st.floats(2.0, 60.0),
    round=st.floats(0.0001, 0.1),
    row=st.floats(0.00001, 0.011),
    step=st.floats(0.0001, 0.05),
)
@settings(max_examples=20, deadline=None)
def test_the_time_is_kept(seconds, round, row, step):  # noqa: A002
    """No round that is expected to end too late is begun; what always runs may take longer, and
    so may one round of which too little was expected."""
    machine = Machine(round=round, row=row, step=step, step_row=row / 8, row_key=0, step_key=0)
    profile(machine, seconds=seconds)
    always = sum(
        [
            machine.plain(1, 1, 129),
            2 * machine.plain(1, 4, 129),
            3 * machine.drafting(1, 129),
            machine.plain(64, 64, 129),
        ]
    )
    dearest = machine.plain(64, 512, 129) + 3 * machine.drafting(64, 129)
    assert machine.now <= max(seconds, always) + dearest


def test_a_slow_machine_measures_what_it_can():
    """A large pair on two cores: 50 ms alone, 11 ms for each further row."""
    slow = Machine(round=0.039, request=0.0, row=0.011, row_key=0.0, step=0.005, step_row=0.001)
    table = profile(slow, seconds=10.0)
    assert slow.now > 6.0
    for requests, rows in ((1, 1), (1, 9), (8, 40), (16, 64), (64, 64), (64, 256), (32, 96)):
        assert table.round(requests, rows, 129) == pytest.approx(slow.plain(requests, rows, 129))
    for requests in (1, 8, 64):
        found = table.draft_step(requests, 129)
        assert found == pytest.approx(slow.drafting(requests, 129), rel=0.02)


@pytest.mark.parametrize("seconds", [10.0, 20.0, 60.0])
def test_what_is_measured_is_measured_again(seconds):
    """One sample of a shape would be off by whatever the machine did beside it."""
    slow = Machine(round=0.039, request=0.0, row=0.011, row_key=0.0, step=0.005, step_row=0.001)
    profile(slow, seconds=seconds)
    counts = {kind: shapes(slow).count(kind) for kind in shapes(slow)}
    assert min(count for kind, count in counts.items() if kind not in SHAPES_ALWAYS) >= 3


def test_measuring_ends_when_more_is_of_no_use():
    machine = Machine()
    profile(machine)
    counts = {kind: shapes(machine).count(kind) for kind in shapes(machine)}
    assert counts[16, 5, False] == counts[64, 3, True] == counts[1, 1, False] == 9
    assert set(counts.values()) == {9, 18, 9 * 4}  # a distant twin; catching up, by four lengths


def test_without_a_draft_model_it_costs_nothing():
    machine = Machine(draft=False)
    table = profile(machine, replace(WIDE, draft_pool=None, draft_max_len=0))
    assert not any(modelled for _, _, modelled in shapes(machine))
    assert (table.draft_step(8, 500), table.draft_rows(100), table.draft_row_key) == (0.0, 0.0, 0.0)
    assert same(replace(TABLE, step=table.step, catch_up=table.catch_up, draft_row_key=0.0), table)


@pytest.mark.parametrize(
    "changes",
    [
        {"max_requests": 1},
        {"max_requests": 5},
        {"k": 0, "k_max": 0},
        {"k": 1, "k_max": 1},
        {"max_batched_tokens": 9},
        {"max_model_len": 1, "draft_max_len": 1},
        {"max_model_len": 9, "draft_max_len": 9},
        {"draft_max_len": 3},
        {"draft_pool": PoolConfig(blocks=1, block_size=2)},
        {"target_pool": PoolConfig(blocks=24, block_size=4)},
        {"draft_pool": None, "draft_max_len": 0},
        {"max_requests": 128, "max_batched_tokens": 64},
    ],
)
def test_any_engine_can_be_profiled(changes):
    """Over the production runner, which refuses a round that does not fit."""
    small = config(**changes)
    runner = tabular_runner(small)[0]
    if small.draft_pool is None:
        runner._capabilities = capabilities(draft=None)
    ticks = iter(range(10**9))
    table = profile_costs(runner, small, lambda: next(ticks) / 1000, seconds=0.4)
    assert table.rounds[0].emitters == 1
    assert table.round(3, 12, 50) > 0
    assert table.draft_step(3, 50) >= 0


def test_numbers_of_requests_reach_the_most():
    assert [each.emitters for each in TABLE.rounds] == [1, 2, 4, 8, 16, 32, 64]
    table = profile(Machine(), replace(WIDE, max_requests=20))
    assert [each.emitters for each in table.rounds] == [1, 2, 4, 8, 16, 20]
    assert profile(Machine(), replace(WIDE, k=0, k_max=0)).round(64, 70, 129) == pytest.approx(
        Machine().plain(64, 64, 129) + 6 * (0.0005 + 0.0003 + 129e-6)
    )


def test_what_a_round_raises_is_raised():
    class Broken(Machine):
        def run(self, plan):
            raise RuntimeError("no device")

    with pytest.raises(RuntimeError, match="no device"):
        profile(Broken())


def test_the_embedded_pair():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        options = PairOptions(
            target=ModelSource(path_or_id=str(TARGET), offline=True),
            draft=ModelSource(path_or_id=str(DRAFT), offline=True),
            device="cpu",
            max_requests=4,
        )
        pair = create_runner(options, time.perf_counter)
        small = replace(
            config(max_requests=4),
            max_model_len=pair.max_model_len,
            draft_max_len=pair.draft_max_len,
            target_pool=pair.target_pool,
            draft_pool=pair.draft_pool,
        )
        table = profile_costs(pair.runner, small, time.perf_counter, seconds=0.5)
    finally:
        torch.set_num_threads(before)
    assert [each.emitters for each in table.rounds] == [1, 2, 4]
    assert table.context == 129
    assert 0.0 < table.round(1, 1, 129) <= table.round(1, 9, 129)
