"""The round coordinate: what a result must match to be committed (contract section 9)."""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import fields

from scheduler.plan import DeviceDraft, Group, HostDraft, Layout
from scheduler.request import SamplingParams, StopRules
from scheduler.runner import Capabilities, ModelIdentity

_Record = ModelIdentity | Group | HostDraft | DeviceDraft | SamplingParams | StopRules

_DRAWS = "splitmix64 over (seed, choice, stream, position, offset)"
_PROCESSORS = "bias, penalties, masks, temperature, top-k, top-p, min-p"


def engine_coordinate(capabilities: Capabilities) -> str:
    """Digest of what is fixed for the engine's life: models, dtypes, device, software."""
    manifest = {
        "target": _plain(capabilities.target),
        "draft": None if capabilities.draft is None else _plain(capabilities.draft),
        "vocabulary": capabilities.vocabulary,
        "positions": [capabilities.max_positions, capabilities.draft_max_positions],
        "draws": _DRAWS,
        "processors": _PROCESSORS,
        "device": capabilities.device,
        "software": capabilities.software,
    }
    return _sha256(manifest)


def round_coordinate(
    engine: str, round_id: int, layout: Layout, groups: Iterable[tuple[Group, str]]
) -> str:
    """Digest of one round: each group with the history digest of its request's state."""
    manifest = {
        "engine": engine,
        "round": round_id,
        "layout": layout.value,
        "groups": [_group(group, history) for group, history in groups],
    }
    return _sha256(manifest)


def _group(group: Group, history: str) -> dict[str, object]:
    """Every field of the group; its tokens by their length and the digest of their history."""
    stop = {**_plain(group.stop), "token_ids": sorted(group.stop.token_ids)}
    bias = sorted(group.sampling.logit_bias.items())
    return {
        **_plain(group),
        "tokens": [len(group.tokens), history],
        "draft": _draft(group.draft),
        "blocks": sorted((role.value, blocks) for role, blocks in group.blocks.items()),
        "sampling": {**_plain(group.sampling), "logit_bias": bias},
        "verifier": group.verifier.value,
        "stop": stop,
    }


def _draft(draft: HostDraft | DeviceDraft | None) -> list[object]:
    if draft is None:
        return []
    return [type(draft).__name__, _plain(draft)]


def _plain(record: _Record) -> dict[str, object]:
    return {each.name: getattr(record, each.name) for each in fields(record)}


def _sha256(manifest: object) -> str:
    text = json.dumps(manifest, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
