"""Shape-invariant mode on the embedded pair, end to end: texts and logprob bits do not depend on
how requests are served. `tests/prove/identity.py` does the same at scale."""

from dataclasses import replace

import pytest
import torch

from server import assembly
from server.settings import load_settings
from tests.identity.cases import LAWS, PENALISED, make_cases
from tests.identity.ways import ALONE, WAYS, serve
from tests.prove import identity
from tests.prove.identity import bitwise, near_ties
from tests.prove.proof import Scope


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def _few(monkeypatch, *ways):
    """A short case of every law, in some ways only."""
    monkeypatch.setitem(identity._CASES, Scope.FAST, 9)
    monkeypatch.setattr(identity, "_FAST_TOKENS", 12)
    monkeypatch.setitem(identity._FAST_WAYS, "float32", ways)


@pytest.mark.parametrize("layout", ["few blocks", "retained frontier, few blocks"])
def test_every_bit_is_the_same_after_preemption_too(layout, monkeypatch):
    _few(monkeypatch, layout, "drafters by request")
    found = bitwise("float32", Scope.FAST)
    assert found.holds
    assert found.worst == 0
    assert found.cases == 2 * 9 * 12


def test_plain_arithmetic_would_be_found_out(monkeypatch):
    """The same comparison sees the bits that plain float32 changes from batch to batch."""
    plain = identity.load
    monkeypatch.setattr(identity, "load", lambda dtype, invariant: plain(dtype, invariant=False))
    _few(monkeypatch, "few blocks")
    found = bitwise("float32", Scope.FAST)
    assert not found.holds
    assert found.worst > 50


def test_a_wrong_token_in_plain_arithmetic_is_no_near_tie(monkeypatch):
    _few(monkeypatch, "few blocks")
    monkeypatch.setattr(identity, "_FAST_TOKENS", 24)  # with less nobody has to yield its blocks
    assert near_ties("float32", Scope.FAST).holds

    def tampered(pair, cases, way, seed=0):
        served = serve(pair, cases, way, seed)
        if way is not ALONE:
            ids = served.outputs[0].ids
            ids[3] = (ids[3] + 1) % pair.vocabulary
        return served

    monkeypatch.setattr(identity, "serve", tampered)
    found = near_ties("float32", Scope.FAST)
    assert not found.holds
    assert found.worst > 4


def test_the_ways_differ_in_what_they_say():
    pair = identity.load("float32", invariant=True)
    cases = [
        replace(case, prompt=case.prompt[:20], stop=replace(case.stop, max_tokens=16))
        for case in make_cases(pair.tokenizer, 9, (*LAWS, *PENALISED))
    ]
    assert len({(case.sampling.seed, case.prompt) for case in cases}) == len(cases)
    alone = serve(pair, cases, ALONE)
    assert alone.accepted == 0
    (restarts,) = [way for way in WAYS if way.forgetful]
    found = serve(pair, cases, restarts)
    assert found.accepted > 0
    assert [output.ids for output in found.outputs] == [output.ids for output in alone.outputs]


@pytest.mark.parametrize("asked", [False, True])
def test_the_setting_reaches_the_runner(asked, monkeypatch):
    seen = []
    monkeypatch.setattr(assembly, "create_runner", lambda options, clock: seen.append(options))
    monkeypatch.setenv("FENCEPOST_BATCH_INVARIANT", str(asked).lower())
    assembly.build_runner(load_settings({}))
    assert [options.batch_invariant for options in seen] == [asked]
