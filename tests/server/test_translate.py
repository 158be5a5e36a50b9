"""Each field of a body reaches the engine's request as it was meant."""

from dataclasses import replace

import pytest

from scheduler.request import ProposerKind, Verifier
from server.errors import ApiError
from server.protocol.completions import CompletionBody
from server.tokenizer import TokenizerService
from server.translate import Asked, Wishes, build_requests, wanted_times
from tests.server.world import (
    CONTEXT,
    ScriptedRunner,
    Sink,
    engine_over,
    new_tokenizer,
    serving_of,
)

TOKENIZER = new_tokenizer()
SERVICE = TokenizerService(TOKENIZER, frozenset({1}))


def serving(**changes):
    runner = ScriptedRunner(1, len(TOKENIZER))
    return serving_of(engine_over(runner, Sink(), **changes), SERVICE, len(TOKENIZER))


def requests(fields, *, prompts=((5, 6),), max_tokens=16, served=None, **more):
    body = CompletionBody.model_validate({"prompt": "x"} | fields)
    limit = {"max_tokens": max_tokens, "token_field": "max_tokens"}
    asked = Asked(body=body, prompts=prompts, logprobs=None, **limit, **more)
    return build_requests(asked, served or serving(), frozenset({"code"}), lambda: 12.5)


@pytest.mark.parametrize(
    ("fields", "attribute", "value"),
    [
        ({}, "temperature", 1.0),
        ({"temperature": 0}, "temperature", 0.0),
        ({}, "top_k", None),
        ({"top_k": 0}, "top_k", None),
        ({"top_k": -1}, "top_k", None),
        ({"top_k": 7}, "top_k", 7),
        ({"top_p": 0.5}, "top_p", 0.5),
        ({"min_p": 0.25}, "min_p", 0.25),
        ({"repetition_penalty": 1.5}, "repetition_penalty", 1.5),
        ({"presence_penalty": -1.5}, "presence_penalty", -1.5),
        ({"frequency_penalty": 0.5}, "frequency_penalty", 0.5),
        ({"logit_bias": {"5": 100, "007": -1}}, "logit_bias", {5: 100.0, 7: -1.0}),
        ({"seed": -(2**63)}, "seed", -(2**63)),
    ],
)
def test_sampling(fields, attribute, value):
    assert getattr(requests(fields)[0].sampling, attribute) == value


@pytest.mark.parametrize(
    ("fields", "attribute", "value"),
    [
        ({}, "token_ids", frozenset({1})),
        ({"ignore_eos": True}, "token_ids", frozenset()),
        ({"stop_token_ids": [7]}, "token_ids", frozenset({1, 7})),
        ({"stop_token_ids": [7], "ignore_eos": True}, "token_ids", frozenset({7})),
        ({"min_tokens": 3}, "min_tokens", 3),
        ({"include_stop_str_in_output": True}, "include_stop", True),
        ({}, "max_tokens", 16),
    ],
)
def test_stopping(fields, attribute, value):
    assert getattr(requests(fields)[0].stop, attribute) == value


@pytest.mark.parametrize(
    ("asked", "length", "given"),
    [(None, 2, CONTEXT - 2), (10**9, 2, CONTEXT - 2), (9, 91, 5), (5, 90, 5), (6, 90, 6)],
)
def test_the_budget_is_cut_to_the_context(asked, length, given):
    found = requests({"min_tokens": 5}, prompts=((5,) * length,), max_tokens=asked)[0].stop
    assert found.max_tokens == given
    assert found.min_tokens == 5


@pytest.mark.parametrize("asked", [None, 6, 10**9])
def test_more_at_least_than_the_context_leaves_is_refused(asked):
    """Of any of the prompts; the most that may come out is cut to it, which breaks no promise."""
    with pytest.raises(ApiError, match="min_tokens: 6 is more than the 5 that") as refused:
        requests({"min_tokens": 6}, prompts=((5,), (5,) * (CONTEXT - 5)), max_tokens=asked)
    assert (refused.value.problem.status, refused.value.problem.param) == (400, "min_tokens")


@pytest.mark.parametrize(
    ("asked", "k", "verifier", "proposer"),
    [
        (None, None, Verifier.TOKEN, ProposerKind.DRAFT_MODEL),
        ({}, None, Verifier.TOKEN, ProposerKind.DRAFT_MODEL),
        ({"k": "auto", "proposer": "auto"}, None, Verifier.TOKEN, ProposerKind.DRAFT_MODEL),
        ({"k": 0}, 0, Verifier.TOKEN, ProposerKind.DRAFT_MODEL),
        ({"k": 8, "verifier": "block"}, 8, Verifier.BLOCK, ProposerKind.DRAFT_MODEL),
        ({"verifier": "shared-noise"}, None, Verifier.SHARED_NOISE, ProposerKind.DRAFT_MODEL),
        ({"proposer": "ngram"}, None, Verifier.TOKEN, ProposerKind.NGRAM),
        ({"enabled": False, "k": 5}, 0, Verifier.TOKEN, ProposerKind.NONE),
        ({"enabled": False, "verifier": "shared-noise"}, 0, Verifier.SHARED_NOISE, None),
    ],
)
def test_speculation(asked, k, verifier, proposer):
    found = requests({"speculation": asked})[0].speculation
    assert (found.k, found.verifier) == (k, verifier)
    assert found.proposer is (proposer or ProposerKind.NONE)


def test_the_confidence_that_a_draft_needs():
    for asked, floor in (
        ({}, 0.0),
        ({"min_confidence": 0.3}, 0.3),
        ({"min_confidence": None}, 0.0),
    ):
        assert requests({"speculation": asked})[0].speculation.min_confidence == floor


def test_the_servers_own_defaults_of_speculation():
    served = serving(verifier=Verifier.SHARED_NOISE, proposer=ProposerKind.NGRAM, draft_pool=None)
    found = requests({}, served=served)[0].speculation
    assert (found.verifier, found.proposer) == (Verifier.SHARED_NOISE, ProposerKind.NGRAM)


def test_a_draft_model_that_is_not_there_is_refused():
    served = serving(proposer=ProposerKind.NGRAM, draft_pool=None)
    with pytest.raises(Exception, match="no draft model") as refused:
        requests({"speculation": {"proposer": "draft_model"}}, served=served)
    assert refused.value.problem.param == "speculation.proposer"


def test_drafts_are_refused_where_nobody_makes_them():
    served = serving(proposer=ProposerKind.NONE)
    for asked in ({"k": 1}, {"k": 8, "proposer": "auto"}):
        with pytest.raises(ApiError, match=r"speculation\.k: \d asks") as refused:
            requests({"speculation": asked}, served=served)
        assert (refused.value.problem.status, refused.value.problem.param) == (400, "speculation.k")
    for asked in (None, {}, {"k": 0}, {"k": "auto"}, {"enabled": False, "k": 8}):
        found = requests({"speculation": asked}, served=served)[0].speculation
        assert found.proposer is ProposerKind.NONE
    for asked in ({"k": 8, "proposer": "ngram"}, {"k": 8, "proposer": "draft_model"}):
        found = requests({"speculation": asked}, served=served)[0].speculation
        assert (found.k, found.proposer.value) == (8, asked["proposer"])


def test_choices_share_seed_and_arrival_and_are_numbered_by_prompt():
    found = requests({"n": 2, "seed": 9, "priority": -3}, prompts=((5,), (6, 7)))
    assert [(r.prompt, r.choice) for r in found] == [((5,), 0), ((5,), 1), ((6, 7), 0), ((6, 7), 1)]
    assert {(r.sampling.seed, r.arrival, r.priority) for r in found} == {(9, 12.5, -3)}
    assert len({r.request_id for r in found}) == 4


def test_a_missing_seed_is_drawn():
    first, second = (requests({"n": 2}) for _ in range(2))
    assert first[0].sampling.seed == first[1].sampling.seed != second[0].sampling.seed
    assert all(-(2**63) <= r[0].sampling.seed < 2**63 for r in (first, second))


def test_prompts_of_one_call_do_not_draw_alike_unless_they_were_told_to():
    """With one seed none of them could be drafted by a controller that has seen the others."""
    found = requests({"n": 2}, prompts=((5,), (6, 7), (8,)))
    seeds = [each.sampling.seed for each in found]
    assert seeds[::2] == seeds[1::2]
    assert len(set(seeds)) == 3


def test_who_chose_the_seed_is_told():
    assert [r.own_seed for r in requests({"n": 2})] == [False, False]
    assert [r.own_seed for r in requests({"n": 2, "seed": 0})] == [True, True]


def test_the_wished_times_reach_every_choice():
    assert (requests({})[0].ttft, requests({})[0].tpot) == (None, None)
    wished = requests({"n": 2}, wishes=Wishes(ttft=0.25, tpot=0.05))
    assert [(r.ttft, r.tpot) for r in wished] == [(0.25, 0.05)] * 2


def test_the_trace_of_a_call_reaches_every_choice():
    assert requests({})[0].trace is None
    assert [r.trace for r in requests({"n": 2}, trace="00-a-b-01")] == ["00-a-b-01"] * 2


@pytest.mark.parametrize(
    ("given", "default", "seconds"),
    [
        (None, None, None),
        (None, 0.02, 0.02),
        ("50", 0.02, 0.05),
        (" 12.5 ", None, 0.0125),
        ("1e3", None, 1.0),
        (".5", None, 0.0005),
    ],
)
@pytest.mark.parametrize("name", ["ttft", "tpot"])
def test_a_wished_time(name, given, default, seconds):
    headers = {} if given is None else {f"x-slo-{name}-ms": given}
    found = wanted_times(headers, Wishes(**{name: default}))
    assert found == Wishes(**{name: seconds})


def test_one_wish_leaves_the_other_to_the_server():
    default = Wishes(ttft=1.0, tpot=0.02)
    assert wanted_times({"x-slo-ttft-ms": "500"}, default) == Wishes(ttft=0.5, tpot=0.02)
    assert wanted_times({"x-slo-tpot-ms": "50"}, default) == Wishes(ttft=1.0, tpot=0.05)


@pytest.mark.parametrize(
    "given",
    [
        *("", "0", "0.0", "-5", "+5", "nan", "inf", "Infinity", "1e999", "1e-400", "1_0", "5ms"),
        *("\u0665", ".", "e3", "1" * 100_000 + "x"),
    ],
)
@pytest.mark.parametrize("name", ["x-slo-ttft-ms", "x-slo-tpot-ms"])
def test_a_wish_that_is_no_positive_number_is_refused_by_name(name, given):
    with pytest.raises(ApiError, match=name) as refused:
        wanted_times({name: given}, Wishes(ttft=0.5, tpot=0.02))
    assert (refused.value.problem.status, refused.value.problem.param) == (400, name)
    assert len(refused.value.problem.message) < 120


@pytest.mark.parametrize(
    ("fields", "refused"),
    [
        ({"stop_token_ids": [0, 2, 3, 4, 5, 6, 7], "min_tokens": 1}, True),
        ({"stop_token_ids": [7, 6, 5, 4, 3, 2, 1, 0], "min_tokens": 1, "ignore_eos": True}, True),
        ({"stop_token_ids": [0, 2, 3, 4, 5, 6], "min_tokens": 1}, False),
        ({"stop_token_ids": [0, 2, 3, 4, 5, 6, 7], "min_tokens": 1, "ignore_eos": True}, False),
        ({"stop_token_ids": [0, 2, 3, 4, 5, 6, 7], "min_tokens": 0}, False),
        ({"stop_token_ids": [0, 2, 3, 4, 5, 6, 7]}, False),
    ],
)
def test_some_token_must_be_left_where_ends_are_forbidden(fields, refused):
    served = replace(serving(), vocabulary=8)
    if not refused:
        assert requests(fields, served=served)
        return
    with pytest.raises(ApiError) as problem:
        requests(fields, served=served)
    assert (problem.value.problem.status, problem.value.problem.param) == (400, "stop_token_ids")


def test_stop_ids_are_checked_and_frozen_once_for_all_prompts():
    found = requests({"stop_token_ids": [9, 7, 9], "n": 2}, prompts=((5,), (6, 7), (8,)))
    assert {r.stop.token_ids for r in found} == {frozenset({1, 7, 9})}
    assert len({id(r.stop.token_ids) for r in found}) == 1


@pytest.mark.parametrize(
    ("metadata", "domain"),
    [(None, "other"), ({}, "other"), ({"domain": "code"}, "code"), ({"domain": "x"}, "other")],
)
def test_domains_come_from_the_list(metadata, domain):
    assert requests({"metadata": metadata})[0].domain == domain


def test_text_rules_reach_the_stager():
    fields = {"stop": "b", "skip_special_tokens": False, "min_tokens": 1}
    stager = requests(fields)[0].text
    a, b = TOKENIZER.encode("a b".replace(" ", ""), add_special_tokens=False)
    staged = stager.stage(stager.start(), (b, 1, a, b), final=True)
    assert (staged.text, staged.stop, staged.kept) == ("b</s>a", "b", 4)
