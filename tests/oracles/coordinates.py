"""Round coordinates that differ from one in a single field, for every field there is."""

import json
from dataclasses import replace

from scheduler.coordinate import (
    digest_of,
    engine_manifest,
    extend_table,
    round_coordinate,
    settings_manifest,
)
from scheduler.plan import Coordinate, DeviceDraft, Group, HostDraft, Layout, Role
from scheduler.request import SamplingParams, StopRules
from scheduler.state import RngState, initial_state
from tests.oracles.rig import BLOCK, TOKEN, capabilities, identity

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


# What stands in the manifest under another name than the field's.
RENAMED = {"tokens": "length", "sampling": "settings.seed", "stop": "settings.max_tokens"}


def coordinate(group=GROUP, *, state=STATE, engine=None, number=1, layout=Layout.REPLAY_FRONTIER):
    """The coordinate of a round of one group."""
    engine = engine_manifest(capabilities()) if engine is None else engine
    return round_coordinate(engine, number, layout, [named(group, state)])


def named(group, state=STATE):
    """A group with what it starts from, as `round_coordinate` takes it."""
    tables = {role: extend_table("", blocks) for role, blocks in group.blocks.items()}
    return group, state, settings_manifest(group.sampling, group.stop), tables


def mutations():
    """(path of the one field that differs, the coordinate), for every field."""
    yield from _of_the_engine()
    for name, value in CHANGES.items():
        yield f"groups[0].{RENAMED.get(name, name)}", coordinate(replace(GROUP, **{name: value}))
    for part, table in (("sampling", SAMPLING), ("stop", STOP)):
        for name, value in table.items():
            changed = replace(getattr(GROUP, part), **{name: value})
            yield f"groups[0].settings.{name}", coordinate(replace(GROUP, **{part: changed}))
    for name, state in STARTS.items():
        yield f"groups[0].{name}", coordinate(state=state)
    yield "round", coordinate(number=2)
    yield "layout", coordinate(layout=Layout.RETAINED_FRONTIER)


def _of_the_engine():
    for name, value in ENGINE.items():
        changed = capabilities(**{name: value})
        yield f"engine.{name}", coordinate(engine=engine_manifest(changed))
    for role in ("target", "draft"):
        for name, value in MODEL.items():
            model = replace(getattr(capabilities(), role), **{name: value})
            changed = capabilities(**{role: model})
            yield f"engine.{role}.{name}", coordinate(engine=engine_manifest(changed))
    told = json.loads(engine_manifest(capabilities()))
    processors = {**told["processors"], "draft": ["bias"]}
    for name, value in (("draws", "another generator"), ("processors", processors)):
        yield f"engine.{name}", coordinate(engine=json.dumps({**told, name: value}))


def elsewhere(found, path, value):
    """`found` with another value at a path of its manifest."""
    manifest = json.loads(found.manifest)
    place = manifest
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    text = json.dumps(manifest)
    return Coordinate(manifest=text, digest=digest_of(text))
