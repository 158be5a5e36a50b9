"""The round executor: its exact law over all draws, and what it does with unusable rows."""

import functools
import time

import pytest

from scheduler.plan import DeviceDraft, TerminalKind
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
from tests.oracles.rounds import Client, RoundLaw
from tests.oracles.rows import Processing, Table, random_logits
from tests.scheduler.test_planning import decoding


def client(number, verifier, logits, *, settings=None, length=lambda tokens: 2, host=None, **stop):
    """A request over raw `logits` (target, draft), with the oracle's tables under `settings`."""
    settings = settings or Processing()
    prompt = (number % 2, number // 2)
    stop = {"max_tokens": 4, **stop}
    asked = request(
        number,
        prompt,
        verifier=verifier,
        temperature=settings.temperature,
        top_k=settings.top_k,
        top_p=settings.top_p,
        min_p=settings.min_p,
        repetition_penalty=settings.repetition,
        presence_penalty=settings.presence,
        frequency_penalty=settings.frequency,
        logit_bias=dict(settings.bias),
        min_tokens=settings.min_tokens,
        **stop,
    )
    target, draft = (Table(rows, prompt_length=2, settings=settings) for rows in logits)
    return Client(asked=asked, target=target, draft=draft, length=length, host=host)


def tables(vocabulary, seeds=(3, 4)):
    return tuple(functools.cache(random_logits(seed, vocabulary)) for seed in seeds)


def by_history(tokens):
    """K from published tokens alone: none, one or two drafts."""
    return (2 * tokens[-1] + len(tokens)) % 3


ANYWHERE = pytest.mark.parametrize("at", [1e-10, 0.5, 1.0 - 1e-10])


@ANYWHERE
def test_two_rounds_of_token_and_block_have_the_serial_law(at):
    logits = tables(3)
    law = RoundLaw(
        [
            client(0, TOKEN, logits, max_tokens=5),
            client(1, BLOCK, logits, max_tokens=5),
            client(2, BLOCK, logits, token_ids=frozenset({2})),
        ],
        logits,
        3,
        at=at,
    )
    assert law.deviation() <= 1e-12
    assert law.groups > 500


@ANYWHERE
def test_the_law_holds_under_filters_penalties_and_a_policy(at):
    logits = tables(3, (5, 6))
    penalties = Processing(
        temperature=0.8,
        repetition=1.3,
        presence=0.4,
        frequency=0.3,
        bias={1: 0.5},
        late=(2,),
        min_tokens=1,
    )
    law = RoundLaw(
        [
            client(
                0, TOKEN, logits, settings=penalties, length=by_history, token_ids=frozenset({2})
            ),
            client(1, BLOCK, logits, settings=penalties, token_ids=frozenset({2}), max_tokens=3),
            client(2, BLOCK, logits, settings=Processing(top_k=2), length=by_history),
            client(3, TOKEN, logits, settings=Processing(top_p=0.8, min_p=0.1), max_tokens=3),
        ],
        logits,
        3,
        at=at,
    )
    assert law.deviation() <= 1e-12


@pytest.mark.parametrize("verifier", [TOKEN, BLOCK])
def test_the_law_holds_for_drafts_of_the_text(verifier):
    logits = tables(3, (7, 8))
    lookup = {0: (1, 2), 1: (0,), 2: (2, 2, 0)}
    law = RoundLaw(
        [
            client(
                n,
                verifier,
                logits,
                settings=Processing(presence=0.5),
                host=lambda tokens: lookup[tokens[-1]],
                token_ids=frozenset({0}),
            )
            for n in (0, 1)
        ],
        logits,
        3,
        rounds=3,
    )
    assert law.deviation() <= 1e-12


def test_three_rounds_of_one_draft_over_two_tokens():
    logits = tables(2, (9, 10))
    law = RoundLaw(
        [
            client(n, verifier, logits, length=lambda _: 3)
            for n, verifier in enumerate([TOKEN, BLOCK])
        ],
        logits,
        2,
        rounds=3,
    )
    assert law.deviation() <= 1e-12


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
    blocks = rig.plans[-1].groups[0].blocks
    assert rig.draft._slots[8 * blocks[next(r for r in blocks if r.value == "draft")][0]] is None


@RULES
def test_a_bad_target_row_that_is_used_is_an_error(verifier, temperature):
    for lengths in ({4}, {5}, {4 + 4}):
        result, rig = one_round(verifier, temperature, target=sick(TARGET, lengths))
        assert "not finite" in result.error
        assert (result.emitted, result.terminal, result.logprobs) == ((), None, ())
        assert set(rig.target._slots[:16]) == {None}


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
