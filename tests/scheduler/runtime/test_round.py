"""The round executor: its exact law over all draws, and what it does with unusable rows."""

import time
from dataclasses import replace

import pytest

from scheduler.plan import DeviceDraft, Role, TerminalKind
from scheduler.sampling.online import online_law
from scheduler.sampling.processors import law as softmax
from tests.oracles import rounds
from tests.oracles.leaves import client, tables
from tests.oracles.rig import (
    BLOCK,
    DRAFT,
    NOISE,
    TARGET,
    TOKEN,
    Rig,
    config,
    request,
)
from tests.oracles.rounds import REPLAY, RETAINED, RoundLaw
from tests.oracles.worlds import PACKED, ROWS
from tests.scheduler.test_planning import decoding


def by_history(tokens):
    """K from published tokens alone: none, one or two drafts."""
    return (2 * tokens[-1] + len(tokens)) % 3


ANYWHERE = pytest.mark.parametrize("at", [1e-10, 1.0 - 1e-10])
BOTH = (REPLAY, RETAINED)
# What one test can afford: every mechanism once, the longest at one place only.
SHORT = [each for each in PACKED if "row rules" not in each.name and "three" not in each.name]


@ANYWHERE
@pytest.mark.parametrize("verifier", [TOKEN, BLOCK, NOISE])
def test_two_rounds_have_the_serial_law_in_both_layouts(verifier, at):
    logits = tables(3)
    clients = [
        client(verifier, logits, max_tokens=5),
        client(verifier, logits, prompt=(1, 0), token_ids=frozenset({2}), max_tokens=5),
    ]
    law = RoundLaw(clients, logits, 3, at=at, layouts=BOTH)
    assert law.deviation() <= 1e-12
    assert law.groups > 500


@ANYWHERE
def test_the_law_holds_under_filters_penalties_and_a_policy(at):
    logits = tables(3, (5, 6))
    penalties, stop = ROWS["everything"], frozenset({1})
    both = [
        client(TOKEN, logits, settings=penalties, length=by_history, token_ids=stop),
        client(BLOCK, logits, settings=penalties, token_ids=stop, max_tokens=3),
        client(NOISE, logits, settings=penalties, token_ids=stop, max_tokens=3),
        client(BLOCK, logits, settings=ROWS["top-k"], length=by_history),
        client(TOKEN, logits, settings=ROWS["all filters"], max_tokens=3),
    ]
    assert RoundLaw(both, logits, 3, at=at, law=online_law(2)).deviation() <= 1e-12


@pytest.mark.parametrize("each", SHORT, ids=lambda each: each.name)
def test_every_way_to_draft_has_the_serial_law(each):
    law = RoundLaw(*each.parts(), rounds=each.rounds, layouts=BOTH, at=1e-10)
    assert law.deviation() <= 1e-12


def test_a_wrong_law_is_seen_only_next_to_an_end():
    """Probabilities that are off by 1e-9: the middles of all intervals cannot tell."""

    def bent(kept):
        rows = softmax(kept)
        return rows + 1e-9 * rows * (1 - rows)

    logits = tables(3)
    clients = [client(TOKEN, logits), client(BLOCK, logits)]
    seen = [RoundLaw(clients, logits, 3, law=bent, at=at).deviation() for at in (0.5, 1 - 1e-10)]
    assert seen[0] <= 1e-12 < seen[1]


def test_a_shared_draw_shows_in_the_joint_law_alone():
    """Two requests of one seed whose draws do not differ by choice: each has the right law."""
    logits = tables(2)
    pair = (client(TOKEN, logits, length=by_history), client(TOKEN, logits, length=by_history))

    class OneChoice(RoundLaw):
        def _executor(self, names, parts):
            executor, target = super()._executor(names, parts)
            values = executor._randomness.values
            for key in [key for key in values if key.choice]:
                values[key] = values[replace(key, choice=0)]
            return executor, target

    assert RoundLaw([pair], logits, 2).deviation() <= 1e-12
    assert OneChoice([pair], logits, 2, rounds=1).deviation() > 0.01


def test_other_rows_than_a_layout_has_are_seen(monkeypatch):
    logits = tables(2)
    law = RoundLaw([client(TOKEN, logits, length=lambda _: 0)], logits, 2, layouts=BOTH)
    assert law.deviation() <= 1e-12
    monkeypatch.setattr(rounds, "planned_depth", lambda _group: 1)
    assert law.deviation() == float("inf")


# --- rows without a law --------------------------------------------------------------------------


def sick(table, lengths):
    return lambda prefix: [float("nan")] * 16 if len(prefix) in lengths else table(prefix)


def one_round(verifier, temperature, *, target=TARGET, draft=TARGET, k=4):
    """The first round that drafts, for a request of four tokens."""
    rig = Rig(target=target, draft=draft)
    decoding(
        rig, request(1, (1, 2, 3), k=k, temperature=temperature, verifier=verifier, max_tokens=30)
    )
    plan, _ = rig.plan()
    return rig.runner.run(plan).groups[0], rig


def spoiled(rig):
    """The models whose rows the next owner of the blocks will zero."""
    executor, (group,) = rig.runner._executor, rig.plans[-1].groups
    notes = {Role.TARGET: executor._spoiled, Role.DRAFT: executor._spoiled_drafts}
    return {role for role, each in notes.items() if set(group.blocks[role]) <= each._by.keys()}


RULES = pytest.mark.parametrize(
    ("verifier", "temperature"), [(TOKEN, 0.0), (TOKEN, 0.9), (BLOCK, 0.9), (NOISE, 0.9)]
)


@RULES
@pytest.mark.parametrize("place", [0, 1, 3])
def test_a_bad_draft_row_keeps_the_tokens_before_it(verifier, temperature, place):
    """Prefixes have length 4 + place when draft `place` is to be drawn."""
    whole, _ = one_round(verifier, temperature)
    result, rig = one_round(verifier, temperature, draft=sick(TARGET, {4 + place}))
    assert result.error is None
    assert len(result.outcomes) == place
    assert [each.token for each in result.outcomes] == [each.token for each in whole.outcomes][
        :place
    ]
    assert len(result.written) == 5
    assert result.accepted == place
    kind = TerminalKind.BONUS if place else TerminalKind.PLAIN
    assert result.terminal is kind
    assert spoiled(rig) == {Role.DRAFT}


@RULES
def test_a_bad_target_row_that_is_used_is_an_error(verifier, temperature):
    for lengths in ({4}, {5}, {4 + 4}):
        result, rig = one_round(verifier, temperature, target=sick(TARGET, lengths))
        assert "not finite" in result.error
        assert (result.emitted, result.terminal, result.logprobs) == ((), None, ())
        assert Role.TARGET in spoiled(rig)


@pytest.mark.parametrize(("verifier", "temperature"), [(TOKEN, 0.0), (TOKEN, 0.9), (NOISE, 0.9)])
def test_a_bad_target_row_past_the_first_rejection_is_nothing(verifier, temperature):
    contrary = lambda prefix: [-8 * value for value in TARGET(prefix)]  # noqa: E731
    result, _ = one_round(verifier, temperature, target=sick(TARGET, {7, 8}), draft=contrary)
    assert result.accepted < 3
    assert result.error is None


def test_an_empty_law_is_an_error_and_not_a_token():
    rig = Rig()
    rig.submit(
        request(1, token_ids=frozenset(range(16)), min_tokens=1, temperature=0.9),
        request(2, token_ids=frozenset(range(16)), min_tokens=1),
        request(3),
    )
    plan, _ = rig.plan()
    first, second, third = rig.runner.run(plan).groups
    assert first.error
    assert second.error
    assert third.error is None


# --- rows and calls ------------------------------------------------------------------------------


def test_a_round_is_one_target_call_and_one_draft_call_a_step():
    rig = Rig()
    decoding(rig, *(request(n, (n, 1), k=k, max_tokens=30) for n, k in ((1, 3), (2, 0), (3, 5))))
    rig.submit(request(4, [9] * 20, max_tokens=4))
    plan, _ = rig.plan()
    rig.target.calls.clear()
    rig.draft.calls.clear()
    result = rig.runner.run(plan)
    assert rig.target.calls == [result.target_rows]
    assert len(rig.draft.calls) == 5
    assert sum(rig.draft.calls) == result.draft_rows
    assert rig.draft.calls[1:] == [2, 2, 1, 1]
    assert result.logit_rows == 4 + 1 + 6 + 1


def test_a_round_of_prompts_only_decides_nothing():
    rig = Rig(config(max_batched_tokens=9))
    rig.submit(request(1, [1] * 30))
    result = rig.runner.run(rig.plan()[0])
    assert (result.host_syncs, result.logit_rows, result.draft_rows) == (1, 0, 0)
    assert result.groups[0].emitted == ()
    assert result.groups[0].written == (1,) * 9


def test_a_plan_for_a_draft_that_is_not_loaded_is_refused():
    rig = Rig(config(draft_pool=None))
    asked = request(1, (1,), k=2)
    rig.submit(asked)
    plan, _ = rig.plan()
    assert not isinstance(plan.groups[0].draft, DeviceDraft)


def test_seconds_inside_forwards_are_part_of_the_round():
    rig = Rig(draft=DRAFT)
    decoding(rig, request(1))
    plan, _ = rig.plan()
    started = time.perf_counter()
    timings = rig.runner.run(plan).timings
    whole = time.perf_counter() - started
    assert 0 < timings.forward <= timings.draft + timings.verify + timings.decide <= whole
