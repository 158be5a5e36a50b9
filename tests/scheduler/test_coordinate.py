"""Every field of everything that a round names changes its coordinate, and is told by name."""

import json
from dataclasses import fields, replace

import pytest

from scheduler.coordinate import (
    difference,
    digest_of,
    engine_manifest,
    extend_table,
    round_coordinate,
)
from scheduler.errors import CommitRejected
from scheduler.plan import Layout
from scheduler.staging import stage_round
from tests.oracles.coordinates import (
    CHANGES,
    DRAFTS,
    ENGINE,
    GROUP,
    MODEL,
    SAMPLING,
    STOP,
    coordinate,
    elsewhere,
    mutations,
    named,
)
from tests.oracles.rig import Rig, capabilities, config, identity, request


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
def test_the_tables_of_changes_name_every_field(changes, record):
    assert set(changes) == {each.name for each in fields(record)}


@pytest.mark.parametrize(("path", "changed"), [pytest.param(*m, id=m[0]) for m in mutations()])
def test_every_field_changes_the_digest_and_is_named(path, changed):
    assert changed.digest != coordinate().digest
    told = difference(changed, coordinate())
    # A field that holds a record or a list is told down to the first leaf that differs.
    assert told.split(" ")[0].startswith(path), told
    assert ", expected " in told


def test_the_company_of_a_group():
    engine = engine_manifest(capabilities())
    pair = [named(GROUP), named(replace(GROUP, request=2))]
    two, swapped = (
        round_coordinate(engine, 1, Layout.REPLAY_FRONTIER, each) for each in (pair, pair[::-1])
    )
    assert difference(two, coordinate()).startswith("groups [")
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
    stale = elsewhere(plan.coordinate, ("groups", 1, "start"), 1)
    with pytest.raises(CommitRejected, match=r"groups\[1\]\.start 1, expected 0"):
        stage_round(plan, jobs, replace(result, coordinate=stale))
    assert stage_round(plan, jobs, result)


@pytest.mark.parametrize("layout", Layout)
def test_what_is_written_does_not_grow_with_the_context(layout):
    sizes = []
    for length in (11, 45, 91):
        rig = Rig(config(layout=layout, k=0, max_batched_tokens=96))
        rig.submit(request(1, [3] * length, max_tokens=4))
        rig.step()
        plan, _ = rig.plan()
        sizes.append(len(plan.coordinate.manifest))
    assert len(set(sizes)) == 1


def test_the_digest_of_a_table_is_that_of_its_blocks_however_it_grew():
    whole = extend_table("", (4, 2, 7))
    assert extend_table(extend_table("", (4,)), (2, 7)) == whole
    others = [(), (4,), (4, 2), (2, 4, 7), (4, 27), (4, 2, 7, 0), (4, 2, 8)]
    assert len({whole, *(extend_table("", blocks) for blocks in others)}) == len(others) + 1
