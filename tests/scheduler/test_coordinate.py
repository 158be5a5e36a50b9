"""The digest of a round changes with every field of everything that it names."""

from dataclasses import fields, replace

import pytest

from scheduler.coordinate import engine_coordinate, round_coordinate, settings_coordinate
from scheduler.plan import DeviceDraft, Group, HostDraft, Layout, Role
from scheduler.request import SamplingParams, StopRules
from tests.oracles.rig import BLOCK, TOKEN, capabilities, identity

ENGINE = {
    "target": identity(name="other"),
    "draft": None,
    "vocabulary": 17,
    "max_positions": 5,
    "draft_max_positions": 5,
    "device": "cuda",
    "software": "newer",
}
MODEL = {
    "name": "other",
    "revision": "2",
    "architecture": "llama",
    "dtype": "bf16",
    "parameters": 1,
}
SAMPLING = {
    "temperature": 0.5,
    "top_k": 3,
    "top_p": 0.5,
    "min_p": 0.1,
    "repetition_penalty": 1.1,
    "presence_penalty": 0.1,
    "frequency_penalty": 0.1,
    "logit_bias": {2: 1.0},
    "seed": 2,
    "logprobs": 1,
}
STOP = {"token_ids": frozenset({3}), "max_tokens": 9, "min_tokens": 1, "include_stop": True}
GROUP = Group(
    request=1,
    generation=2,
    tokens=(1, 2, 3),
    prompt_length=2,
    start=2,
    rows=1,
    emits=True,
    max_emit=4,
    draft=DeviceDraft(depth=2, rows=1, catch_up=2),
    blocks={Role.TARGET: (0,), Role.DRAFT: (1,)},
    sampling=SamplingParams(seed=1),
    verifier=TOKEN,
    stop=StopRules(token_ids=frozenset(), max_tokens=8),
    choice=0,
)
CHANGES = {
    "request": 9,
    "generation": 9,
    "tokens": (1, 2, 3, 4),
    "prompt_length": 1,
    "start": 1,
    "rows": 2,
    "emits": False,
    "max_emit": 9,
    "draft": HostDraft(token_ids=(2, 1)),
    "blocks": {Role.TARGET: (1,), Role.DRAFT: (1,)},
    "sampling": SamplingParams(seed=2),
    "verifier": BLOCK,
    "stop": StopRules(token_ids=frozenset(), max_tokens=9),
    "choice": 1,
}
DRAFTS = [
    None,
    HostDraft(token_ids=()),
    HostDraft(token_ids=(2, 1, 2)),
    HostDraft(token_ids=(2, 1)),
    DeviceDraft(depth=1, rows=1, catch_up=2),
    DeviceDraft(depth=2, rows=2, catch_up=2),
    DeviceDraft(depth=2, rows=1, catch_up=1),
    GROUP.draft,
]


def names(record):
    return {each.name for each in fields(record)}


def digest(group=GROUP, history="h", engine="e", number=1):
    return round_coordinate(engine, number, Layout.REPLAY_FRONTIER, [named(group, history)])


def named(group, history="h"):
    return group, history, settings_coordinate(group.sampling, group.stop)


@pytest.mark.parametrize(
    ("changes", "record"),
    [
        (ENGINE, capabilities()),
        (MODEL, identity()),
        (SAMPLING, GROUP.sampling),
        (STOP, GROUP.stop),
        (CHANGES, GROUP),
    ],
)
def test_the_tables_below_name_every_field(changes, record):
    assert set(changes) == names(record)


@pytest.mark.parametrize("name", ENGINE)
def test_what_the_runner_is(name):
    changed = engine_coordinate(capabilities(**{name: ENGINE[name]}))
    assert changed != engine_coordinate(capabilities())


@pytest.mark.parametrize("role", ["target", "draft"])
@pytest.mark.parametrize("name", MODEL)
def test_what_each_model_is(role, name):
    changed = capabilities(**{role: replace(getattr(capabilities(), role), **{name: MODEL[name]})})
    assert engine_coordinate(changed) != engine_coordinate(capabilities())


@pytest.mark.parametrize("name", CHANGES)
def test_every_field_of_a_group(name):
    assert digest(replace(GROUP, **{name: CHANGES[name]})) != digest()


@pytest.mark.parametrize("name", SAMPLING)
def test_every_sampling_setting(name):
    sampling = replace(GROUP.sampling, **{name: SAMPLING[name]})
    assert digest(replace(GROUP, sampling=sampling)) != digest()


@pytest.mark.parametrize("name", STOP)
def test_every_stop_rule(name):
    assert digest(replace(GROUP, stop=replace(GROUP.stop, **{name: STOP[name]}))) != digest()


def test_every_way_to_draft():
    digests = {digest(replace(GROUP, draft=draft)) for draft in DRAFTS}
    assert len(digests) == len(DRAFTS)


def test_history_engine_round_and_company():
    assert len({digest(), digest(history="g"), digest(engine="f"), digest(number=2)}) == 4
    other = replace(GROUP, request=2)
    pair = [named(GROUP), named(other)]
    swapped = round_coordinate("e", 1, Layout.REPLAY_FRONTIER, pair[::-1])
    assert round_coordinate("e", 1, Layout.REPLAY_FRONTIER, pair) not in {swapped, digest()}


def test_equal_coordinates_are_equal():
    first = {1: 0.5, 2: 1.0}
    second = dict(reversed(first.items()))
    digests = {
        digest(replace(GROUP, sampling=replace(GROUP.sampling, logit_bias=bias)))
        for bias in (first, second)
    }
    assert len(digests) == 1
    assert engine_coordinate(capabilities()) == engine_coordinate(capabilities())
