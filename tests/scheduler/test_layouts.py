"""Both layouts publish one successor and give one text (contract section 4)."""

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scheduler.config import PoolConfig
from tests.oracles import rounds
from tests.oracles.rig import (
    BLOCK,
    MODEL,
    NGRAM,
    NOISE,
    NONE,
    TOKEN,
    Letters,
    Rig,
    config,
    expected,
    request,
)
from tests.oracles.rounds import REPLAY, RETAINED, RoundLaw
from tests.oracles.watchers import Whim
from tests.prove.layouts import CUT, UNDRAFTED

SETTINGS = settings(
    deadline=None, max_examples=15, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)
ways = {
    "k": st.sampled_from([None, 0, 1, 3, 8]),
    "proposer": st.sampled_from([MODEL, MODEL, NGRAM, NONE]),
    "min_confidence": st.sampled_from([0.0, 0.3]),
    "max_tokens": st.integers(1, 14),
    "token_ids": st.sampled_from([frozenset(), frozenset({5, 9})]),
    "text": st.sampled_from([(), ("ab",), ("b", "ca")]).map(Letters),
    "seed": st.integers(-(2**63), 2**63 - 1),
    "temperature": st.sampled_from([0.0, 0.7, 1.0]),
}
filters = {
    "top_k": st.sampled_from([None, 3]),
    "top_p": st.sampled_from([1.0, 0.9]),
    "presence_penalty": st.sampled_from([0.0, 0.5]),
    "min_tokens": st.sampled_from([0, 2]),
}
# After one token the replay layout drafts at once; with token and block another K is another text.
prompts = st.lists(st.integers(0, 15), min_size=2, max_size=12)


def asked(verifiers, **more):
    """Up to four requests of any kind."""
    one = st.fixed_dictionaries(
        {**ways, **more, "verifier": st.sampled_from(verifiers), "prompt": prompts}
    )
    return st.lists(one, min_size=1, max_size=4).map(
        lambda found: [request(n, **fields) for n, fields in enumerate(found)]
    )


@pytest.mark.parametrize("each", [CUT, UNDRAFTED], ids=lambda each: each.name)
def test_successors_are_equal_on_every_branch(each):
    law = RoundLaw(*each.parts(), rounds=each.rounds, layouts=(REPLAY, RETAINED))
    assert law.deviation() <= 1e-12
    assert law.groups > 30


def test_a_successor_that_differs_in_one_field_is_seen(monkeypatch):
    right = rounds.stage

    def miscounted(plan, *args):
        staged = right(plan, *args)
        if plan[1] is REPLAY or not staged.record.emitted_token_ids:
            return staged
        after = staged.successor
        consumed = replace(after.rng, consumed=after.rng.consumed + 1)
        record = replace(staged.record, rng_after=consumed.consumed)
        return replace(staged, record=record, successor=replace(after, rng=consumed))

    law = RoundLaw(*UNDRAFTED.parts(), layouts=(REPLAY, RETAINED))
    law.found()
    assert law.differing == []
    monkeypatch.setattr(rounds, "stage", miscounted)
    law.found()
    assert law.differing
    assert law.deviation() == float("inf")


def outputs(requests, layout):
    rig = Rig(config(layout=layout, max_batched_tokens=400))
    rig.submit(*requests)
    rig.drain()
    found = [rig.outputs[each.request_id] for each in requests]
    return [(each.tokens, each.text, each.finish.reason, each.finish.stop) for each in found]


@SETTINGS
@given(asked([TOKEN, BLOCK, NOISE], **filters))
def test_every_verifier_gives_one_text_in_both_layouts(requests):
    assert outputs(requests, REPLAY) == outputs(requests, RETAINED)


@pytest.mark.parametrize("layout", [REPLAY, RETAINED])
@SETTINGS
@given(
    asked([NOISE]),
    st.integers(9, 40),
    st.integers(12, 16),
    st.integers(0, 10_000),
)
def test_promised_texts_survive_small_pools_and_any_policy(layout, requests, budget, blocks, seed):
    pools = {
        "target_pool": PoolConfig(blocks=blocks, block_size=4),
        "draft_pool": PoolConfig(blocks=5, block_size=8),
        "max_model_len": 48,
        "max_batched_tokens": budget,
    }
    rig = Rig(config(layout=layout, **pools), controller=Whim(seed))
    assert rig.serve(*requests) == [expected(each, context=48) for each in requests]


def test_no_drafts_make_no_target_row_in_the_retained_layout():
    rig = Rig(config(layout=RETAINED))
    rig.submit(request(1, k=0, max_tokens=6))
    rig.drain()
    # The prompt, and one append after each token but the last.
    assert rig.target.calls == [3, 1, 1, 1, 1, 1]
    assert len(rig.outputs[1].tokens) == 6
