"""The round coordinate: what a result must match to be committed (contract section 9).

A manifest is canonical JSON text: keys in one fixed order, no spaces, sets sorted. Parts that do
not change are written once and spliced in. Knows records; nothing of where they come from.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, fields

from scheduler.plan import Coordinate, DeviceDraft, Group, HostDraft, Layout, Role
from scheduler.request import SamplingParams, StopRules
from scheduler.runner import Capabilities
from scheduler.state import RequestState, extend_history

Start = tuple[Group, RequestState, str, Mapping[Role, str]]
"""A group with what it starts from: the state, the `settings_manifest` of its request, and the
digest of each of its block tables (`extend_table`)."""

_ROLES = (Role.DRAFT, Role.TARGET)
_DRAWS = "splitmix64 over (seed, choice, stream, position, offset)"
_PROCESSORS = ("bias", "penalties", "masks", "temperature", "top-k", "top-p", "min-p")


def engine_manifest(capabilities: Capabilities) -> str:
    """What is fixed for the engine's life: models, event space, numerics, device, software."""
    return _canonical(
        {
            **asdict(capabilities),
            "draws": _DRAWS,
            "processors": {"target": _PROCESSORS, "draft": _PROCESSORS},
        }
    )


def settings_manifest(sampling: SamplingParams, stop: StopRules) -> str:
    """What a request's rows are processed and cut by; made once, it never changes.

    The bias and the stop ids may be long: they stand in it as digests.
    """
    return _canonical(
        {
            **_plain(sampling),
            "logit_bias": digest_of(_canonical(sorted(sampling.logit_bias.items()))),
            **_plain(stop),
            "token_ids": digest_of(_canonical(sorted(stop.token_ids))),
        }
    )


def extend_table(digest: str, blocks: Iterable[int]) -> str:
    """Digest of a block table that had `digest`, with `blocks` behind it; "" is an empty one's.

    It depends on the table alone, not on how it grew.
    """
    for block in blocks:
        digest = extend_history(digest, (block,))
    return digest


def round_coordinate(
    engine: str,
    round_id: int,
    layout: Layout,
    groups: Iterable[Start],
) -> Coordinate:
    """The coordinate of one round; `engine` is the `engine_manifest`."""
    parts = ",".join(_group(*parts) for parts in groups)
    head = f'"layout":"{layout.value}","round":{round_id}'
    manifest = f'{{"engine":{engine},"groups":[{parts}],{head}}}'
    return Coordinate(manifest=manifest, digest=digest_of(manifest))


def digest_of(manifest: str) -> str:
    """SHA-256 of a manifest, in hexadecimal."""
    return hashlib.sha256(manifest.encode()).hexdigest()


def difference(found: Coordinate, expected: Coordinate) -> str | None:
    """The first field that differs, with both values; None when the coordinates are equal."""
    if found.digest == expected.digest:
        return None
    return _first_difference("", _parsed(found), _parsed(expected)) or (
        f"digest {found.digest[:12]}, expected {expected.digest[:12]}"
    )


def _group(group: Group, state: RequestState, settings: str, tables: Mapping[Role, str]) -> str:
    """Every field of the group and of its start state; tokens by the digest of their history, block
    tables by their own: what is written grows with the rows of a round, not with contexts. Spelt
    out, since it is written for every request of every round."""
    blocks = ",".join(f'"{role.value}":"{tables[role]}"' for role in _ROLES if role in group.blocks)
    return (
        f'{{"request":{group.request},"generation":{group.generation},'
        f'"length":{len(group.tokens)},"history":"{state.history}",'
        f'"prompt_length":{group.prompt_length},"start":{group.start},"rows":{group.rows},'
        f'"emits":{_canonical(group.emits)},"retains":{_canonical(group.retains)},'
        f'"max_emit":{group.max_emit},"draft":{_canonical(_draft(group.draft))},'
        f'"blocks":{{{blocks}}},"verifier":"{group.verifier.value}","choice":{group.choice},'
        f'"drawn":{state.rng.consumed},"settings":{settings}}}'
    )


def _draft(draft: HostDraft | DeviceDraft | None) -> dict[str, object]:
    if draft is None:
        return {}
    return {"kind": type(draft).__name__, **_plain(draft)}


def _plain(record: HostDraft | DeviceDraft | SamplingParams | StopRules) -> dict[str, object]:
    return {each.name: getattr(record, each.name) for each in fields(record)}


def _canonical(value: object) -> str:
    if value is True or value is False:
        return "true" if value else "false"
    return _ENCODER.encode(value)


def _refused(value: object) -> object:
    raise TypeError(f"{value!r} has no canonical form")


_ENCODER = json.JSONEncoder(separators=(",", ":"), default=_refused)


def _parsed(coordinate: Coordinate) -> object:
    value: object = json.loads(coordinate.manifest or "{}")
    return value


def _first_difference(path: str, found: object, expected: object) -> str | None:
    """Walk two manifests in order; name the first leaf that differs."""
    if isinstance(found, Mapping) and isinstance(expected, Mapping):
        dot = "." if path else ""
        pairs = [
            (f"{path}{dot}{key}", found.get(key), expected.get(key))
            for key in dict.fromkeys((*expected, *found))
        ]
    elif isinstance(found, list) and isinstance(expected, list) and len(found) == len(expected):
        pairs = [
            (f"{path}[{place}]", one, other)
            for place, (one, other) in enumerate(zip(found, expected, strict=True))
        ]
    else:
        same = found == expected and type(found) is type(expected)
        return None if same else f"{path} {_shown(found)}, expected {_shown(expected)}"
    return next(filter(None, (_first_difference(*each) for each in pairs)), None)


def _shown(value: object) -> str:
    text = _canonical(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
