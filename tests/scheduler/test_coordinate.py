"""The coordinate of a round changes with every field of everything that it names, and says which."""

import json
from dataclasses import fields, replace

import pytest

from scheduler.coordinate import (
    difference,
    digest_of,
    engine_manifest,
    round_coordinate,
    settings_manifest,
)
from scheduler.errors import CommitRejected
from scheduler.landing import stage_round
from scheduler.plan import Coordinate, DeviceDraft, Group, HostDraft, Layout, Role
from scheduler.request import SamplingParams, StopRules
from scheduler.state import RngState, initial_state
from tests.oracles.rig import BLOCK, TOKEN, Rig, capabilities, config, identity, request

ENGINE = {
    "target": identity(name="other"),
    "draft": None,
    "vocabulary": 17,
    "max_positions": 5,
    "draft_max_positions": 5,
    "device": "cuda",
    "software": "newer",
    "event_space": "others",
    "mapping": "by text",
    "numerics": "rows of 16",
}
MODEL = {
    "name": "other",
    "revision": "2",
    "architecture": "llama",
    "dtype": "bf16",
    "parameters": 1,
    "adapter": "fine",
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
    "retains": True,
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
    DeviceDraft(depth=2, rows=1, catch_up=2, min_confidence=0.5),
    GROUP.draft,
]


STATE = initial_state(GROUP.tokens, RngState(seed=1, choice=0), None)
STARTS = {
    "history": replace(STATE, history="00"),
    "drawn": replace(STATE, rng=replace(STATE.rng, consumed=3)),
}


def names(record):
    return {each.name for each in fields(record)}


def coordinate(group=GROUP, *, state=STATE, engine=None, number=1, layout=Layout.REPLAY_FRONTIER):
    engine = engine_manifest(capabilities()) if engine is None else engine
    return round_coordinate(engine, number, layout, [named(group, state)])


def named(group, state=STATE):
    return group, state, settings_manifest(group.sampling, group.stop)


def assert_named(found, field):
    """The digest differs, and the first difference is told as a path that ends in `field`."""
    assert found.digest != coordinate().digest
    told = difference(found, coordinate())
    assert ", expected " in told
    path = told.split(" ")[0]
    assert path.startswith(field) or f".{field}" in path, told


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
def test_the_tables_above_name_every_field(changes, record):
    assert set(changes) == names(record)


@pytest.mark.parametrize("name", ENGINE)
def test_what_the_runner_is(name):
    changed = engine_manifest(capabilities(**{name: ENGINE[name]}))
    assert_named(coordinate(engine=changed), f"engine.{name}")


@pytest.mark.parametrize("role", ["target", "draft"])
@pytest.mark.parametrize("name", MODEL)
def test_what_each_model_is(role, name):
    changed = capabilities(**{role: replace(getattr(capabilities(), role), **{name: MODEL[name]})})
    assert_named(coordinate(engine=engine_manifest(changed)), f"engine.{role}.{name}")


@pytest.mark.parametrize("part", ["draws", "processors"])
def test_randomness_and_the_order_of_processors(part):
    manifest = json.loads(engine_manifest(capabilities()))
    value = manifest[part]
    manifest[part] = value[::-1] if isinstance(value, str) else {**value, "draft": ["bias"]}
    assert_named(coordinate(engine=json.dumps(manifest)), f"engine.{part}")


# What stands in the manifest under another name than the field's.
RENAMED = {"tokens": "length", "sampling": "settings.seed", "stop": "settings.max_tokens"}


@pytest.mark.parametrize("name", CHANGES)
def test_every_field_of_a_group(name):
    changed = replace(GROUP, **{name: CHANGES[name]})
    assert_named(coordinate(changed), f"groups[0].{RENAMED.get(name, name)}")


@pytest.mark.parametrize("name", SAMPLING)
def test_every_sampling_setting(name):
    sampling = replace(GROUP.sampling, **{name: SAMPLING[name]})
    assert_named(coordinate(replace(GROUP, sampling=sampling)), f"groups[0].settings.{name}")


@pytest.mark.parametrize("name", STOP)
def test_every_stop_rule(name):
    stop = replace(GROUP.stop, **{name: STOP[name]})
    assert_named(coordinate(replace(GROUP, stop=stop)), f"groups[0].settings.{name}")


@pytest.mark.parametrize("name", STARTS)
def test_every_part_of_the_start_state(name):
    assert_named(coordinate(state=STARTS[name]), f"groups[0].{name}")


def test_the_round_its_layout_and_its_company():
    assert_named(coordinate(number=2), "round")
    assert_named(coordinate(layout=Layout.RETAINED_FRONTIER), "layout")
    engine = engine_manifest(capabilities())
    pair = [named(GROUP), named(replace(GROUP, request=2))]
    two, swapped = (
        round_coordinate(engine, 1, Layout.REPLAY_FRONTIER, each) for each in (pair, pair[::-1])
    )
    assert_named(two, "groups")
    assert difference(swapped, two) == "groups[0].request 2, expected 1"


def test_every_way_to_draft():
    digests = {coordinate(replace(GROUP, draft=draft)).digest for draft in DRAFTS}
    assert len(digests) == len(DRAFTS)


def test_equal_coordinates_are_equal():
    first = {1: 0.5, 2: 1.0}
    second = dict(reversed(first.items()))
    one, other = (
        coordinate(replace(GROUP, sampling=replace(GROUP.sampling, logit_bias=bias)))
        for bias in (first, second)
    )
    assert one == other
    assert difference(one, other) is None


def test_the_digest_is_that_of_the_manifest_which_is_json():
    found = coordinate()
    assert found.digest == digest_of(found.manifest)
    assert json.loads(found.manifest)["groups"][0]["settings"]["temperature"] == 1.0


def test_a_number_is_not_the_flag_that_equals_it():
    changed = replace(GROUP, emits=1)
    assert difference(coordinate(changed), coordinate()) == "groups[0].emits 1, expected true"


def test_a_digest_that_no_field_explains_is_told_as_such():
    found = replace(coordinate(), digest="0" * 64)
    assert difference(found, coordinate()).startswith("digest 000000000000, expected ")


@pytest.mark.parametrize("layout", Layout)
def test_a_stale_result_is_refused_by_the_field_that_differs(layout):
    rig = Rig(config(layout=layout))
    rig.submit(request(1), request(2, (4, 5)))
    plan, jobs = rig.plan()
    result = rig.runner.run(plan)
    manifest = json.loads(plan.coordinate.manifest)
    manifest["groups"][1]["start"] = 1
    text = json.dumps(manifest)
    stale = Coordinate(manifest=text, digest=digest_of(text))
    with pytest.raises(CommitRejected, match=r"groups\[1\]\.start 1, expected 0"):
        stage_round(plan, jobs, replace(result, coordinate=stale))
    assert stage_round(plan, jobs, result)
