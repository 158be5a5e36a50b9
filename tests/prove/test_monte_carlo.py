"""The Monte Carlo sees planted faults and lets a right engine pass; its parts are right alone."""

from dataclasses import replace
from pathlib import Path

import httpx
import numpy as np
import pytest
import torch

from scheduler.plan import Layout
from scheduler.request import Verifier
from scheduler.sampling import verify
from scheduler.sampling.rng import CounterRandomness, Stream
from server.settings import Settings
from tests.prove import replies
from tests.prove.chance import Fit
from tests.prove.engine_texts import TabularEngine
from tests.prove.http_texts import Call, body_of, texts
from tests.prove.judged import WHOLE, judge
from tests.prove.loopback import serving
from tests.prove.monte_carlo import LEVEL, Size, engine_finding
from tests.prove.replies import repeated_seeds, true_logprobs
from tests.prove.sampled import (
    DRAFTERS,
    LENGTH,
    MODEL,
    NONE,
    Draw,
    Setting,
    Tally,
    Way,
    draws_of,
    serial_law,
    settings_of,
)
from tests.prove.tiny_pair import END, VOCABULARY, make_pair

SMALL = Size(
    vocabulary=3, settings=frozenset({"bias", "late stop", "top-k"}), counts={1: 300, 4: 600}
)
REPLAY = Layout.REPLAY_FRONTIER


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Lenient(CounterRandomness):
    """Acceptance tests pass as if every ratio were `factor` times larger."""

    def __init__(self, factor):
        self.factor = factor

    def uniforms(self, keys):
        accepts = torch.tensor([key.stream is Stream.ACCEPTANCE for key in keys], dtype=torch.bool)
        drawn = super().uniforms(keys)
        return torch.where(accepts, drawn / self.factor, drawn)


class Reused(CounterRandomness):
    """Each draft is drawn with the uniform that then accepts or rejects it."""

    def uniforms(self, keys):
        return super().uniforms(
            [
                replace(key, stream=Stream.ACCEPTANCE) if key.stream is Stream.PROPOSAL else key
                for key in keys
            ]
        )


def raw_target(p, _q, _scale):
    """A residual that is not one."""
    return p, torch.zeros(p.shape[0], dtype=torch.bool)


def test_a_right_engine_passes():
    engine = TabularEngine(SMALL.vocabulary)
    found = engine_finding(SMALL, engine)
    assert found.holds
    assert found.cases == 900 * len(Layout)
    names = {row[0] for row in found.rows}
    assert {f"layout {layout.value}" for layout in Layout} <= names
    assert {f"drafter {each.name}" for each in DRAFTERS} <= names
    assert {(4, 0), (4, 1), (4, 4), (1, 0), (1, 1)} <= engine.drafted.keys()


def drawn(verifier, randomness=None):
    """The finding on texts of one setting, one verifier, 4 drafts of the model."""
    engine = TabularEngine(3, randomness)
    (setting,) = (each for each in settings_of(3, 2) if each.name == "bias")
    way = Way(verifier=verifier, k=4, drafter=MODEL, layout=REPLAY)
    draws = [Draw(setting=setting, way=way, seed=seed, max_tokens=6) for seed in range(1500)]
    tally = Tally({"bias": serial_law(engine.target, setting)})
    tally.add(engine.texts(draws, REPLAY))
    return judge(tally.fits(), LEVEL)


@pytest.mark.parametrize("verifier", Verifier)
def test_each_verifier_passes_where_the_faults_below_do_not(verifier):
    assert drawn(verifier).holds


@pytest.mark.parametrize("verifier", [Verifier.TOKEN, Verifier.BLOCK])
def test_tests_that_pass_too_often_are_rejected(verifier):
    assert drawn(verifier, Lenient(1.4)).worst < LEVEL / 100


def test_a_draft_drawn_with_its_own_test_is_rejected():
    assert drawn(Verifier.TOKEN, Reused()).worst < LEVEL / 100


def test_shared_noise_asks_for_no_acceptance():
    assert drawn(Verifier.SHARED_NOISE, Lenient(1.4)) == drawn(Verifier.SHARED_NOISE)


@pytest.mark.parametrize("verifier", [Verifier.TOKEN, Verifier.BLOCK])
def test_a_residual_that_is_the_target_is_rejected(monkeypatch, verifier):
    monkeypatch.setattr(verify, "residual", raw_target)
    assert drawn(verifier).worst < LEVEL / 100


def constant(_prefix):
    return np.log([0.5, 0.3, 0.2])


def test_a_serial_law_by_hand():
    setting = Setting(name="x", prompt=(0,), stop=frozenset({2}))
    law = serial_law(constant, setting)
    assert law[2,] == pytest.approx(0.2)
    assert law[1, 2] == pytest.approx(0.06)
    assert law[0, 1, 1] == pytest.approx(0.5 * 0.3 * 0.3)
    assert law[0, 1, 2] == pytest.approx(0.5 * 0.3 * 0.2)
    assert sum(law.values()) == pytest.approx(1.0, abs=1e-12)
    assert len(law) == 1 + 2 + 4 * 3


@pytest.mark.parametrize("setting", settings_of(4, 3), ids=lambda each: each.name)
def test_every_setting_has_a_law_with_a_choice(setting):
    law = serial_law(TabularEngine(4).target, setting)
    assert sum(law.values()) == pytest.approx(1.0, abs=1e-12)
    assert sum(chance > 0.01 for chance in law.values()) >= 4
    if setting.name == "late stop":
        assert {len(text) for text, chance in law.items() if chance} == {LENGTH - 1, LENGTH}


def test_draws_have_seeds_of_their_own_and_meet_every_kind():
    settings = settings_of(3, 2)
    draws = draws_of(settings, REPLAY, {0: 60, 4: 180}, seed=1000)
    assert sorted(draw.seed for draw in draws) == list(range(1000, 1240))
    kinds = {(draw.setting.name, draw.way) for draw in draws}
    assert len(kinds) == len(settings) * 3 * (1 + len(DRAFTERS))
    assert {draw.max_tokens for draw in draws} == {LENGTH, 6}
    assert draws == draws_of(settings, REPLAY, {0: 60, 4: 180}, seed=1000)
    assert [draw.seed for draw in draws] != sorted(draw.seed for draw in draws)


def test_a_tally_looks_at_each_dimension_alone():
    setting = Setting(name="x", prompt=(0,))
    good = Way(verifier=Verifier.TOKEN, k=1, drafter=MODEL, layout=REPLAY)
    bad = replace(good, k=4)
    tally = Tally({"x": serial_law(lambda _: [0.0, 0.0], setting)})
    eight = [(i >> 2 & 1, i >> 1 & 1, i & 1) for i in range(8)]
    for way, shown in ((good, eight), (bad, [(0, 0, 0, 1)])):
        draw = Draw(setting=setting, way=way, seed=0, max_tokens=9)
        tally.add((draw, text) for text in shown * 100)
    fits = tally.fits()
    assert fits["K 1"] == Fit(texts=800, statistic=0.0, freedom=7)
    assert fits["K 4"] == Fit(texts=100, statistic=700.0, freedom=7)
    assert fits[WHOLE].texts == fits["layout replay_frontier"].texts == 900


def test_the_verdict_is_the_smallest_adjusted_p():
    good = Fit(texts=30000, statistic=10.0, freedom=10)
    bad = replace(good, statistic=60.0)
    assert judge({WHOLE: good, "K 1": good}, LEVEL).holds
    found = judge({WHOLE: good, "K 1": bad}, LEVEL)
    assert not found.holds
    assert found.worst == pytest.approx(2 * bad.p_value)
    assert "power 0.99" in found.note


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    return make_pair(tmp_path_factory.mktemp("pair"))


@pytest.fixture(scope="module")
def url(pair):
    settings = Settings(
        model=str(pair.target),
        draft_model=str(pair.draft),
        offline=True,
        threads=1,
        k=4,
        max_model_len=32,
        max_batched_tokens=256,
        block_size=4,
    )
    with serving(settings) as address:
        yield address


def plain(**changes):
    fields = {"setting": settings_of(VOCABULARY, END)[0], "seed": 5, "max_tokens": 6}
    way = Way(verifier=Verifier.TOKEN, k=2, drafter=MODEL, layout=REPLAY)
    return Draw(**(fields | {"way": way} | changes))


def test_a_stream_and_an_answer_carry_the_same_texts(url):
    whole = texts(url, [Call(draw=plain(), choices=5)])
    streamed = texts(url, [Call(draw=plain(), choices=5, stream=True)])
    assert whole == streamed
    assert len({text for _, text in whole}) > 1
    assert {len(text) for _, text in whole} == {6}


def test_a_refused_call_is_an_error(url):
    with pytest.raises(RuntimeError, match="400"):
        texts(url, [Call(draw=plain(max_tokens=-1), choices=1)])
    with httpx.Client(base_url=url) as client, pytest.raises(RuntimeError, match="400"):
        replies.post(client, {"prompt": []})


def test_every_setting_reaches_the_body():
    everything = settings_of(VOCABULARY, END)[-1]
    body = body_of(Call(draw=plain(setting=everything), choices=1))
    assert (body["temperature"], body["top_k"], body["top_p"]) == (0.9, VOCABULARY - 1, 0.97)
    assert (body["ignore_eos"], body["stop_token_ids"]) == (False, [])
    assert body["logit_bias"] == {"1": 0.4}
    off = Way(verifier=Verifier.BLOCK, k=0, drafter=NONE, layout=REPLAY)
    body = body_of(Call(draw=plain(way=off), choices=1))
    assert body["speculation"] == {"verifier": "block", "enabled": False}
    assert body["ignore_eos"]


def test_seeds_are_seen_to_be_kept(url, monkeypatch):
    settings = settings_of(VOCABULARY, END)[:1]
    found = repeated_seeds(url, settings, REPLAY, (2,), 3)
    assert found.holds
    # A K of 0 and one of 2 with every drafter, twice each; shared noise compares three more.
    assert found.cases == 3 * ((1 + len(DRAFTERS)) * 3 + len(DRAFTERS))
    numbers = iter(range(10**6))
    monkeypatch.setattr(replies, "body_of", lambda call: body_of(call) | {"seed": next(numbers)})
    assert not repeated_seeds(url, settings, REPLAY, (2,), 3).holds


def test_wrong_logprobs_are_seen(url, pair):
    settings, logits = settings_of(VOCABULARY, END)[-2:], pair.logits()
    way = plain().way
    assert true_logprobs(url, settings, logits, way, 2).holds
    late = true_logprobs(url, settings, lambda prefix: logits(prefix[1:]), way, 2)
    assert not late.holds
    assert late.worst > 1e-3
    assert not true_logprobs(url, (), logits, way, 2).holds


def test_a_server_that_cannot_start_says_why(tmp_path):
    missing = Path(tmp_path) / "nothing"
    with pytest.raises(Exception, match="nothing"), serving(Settings(model=str(missing))):
        pass
