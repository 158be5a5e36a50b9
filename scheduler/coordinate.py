"""The round coordinate: what a result must match to be committed (contract section 9)."""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import fields

from scheduler.plan import DeviceDraft, Group, HostDraft, Layout
from scheduler.request import SamplingParams, StopRules
from scheduler.runner import Capabilities, ModelIdentity

_Record = ModelIdentity | HostDraft | DeviceDraft | SamplingParams | StopRules

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
    engine: str, round_id: int, layout: Layout, groups: Iterable[tuple[Group, str, str]]
) -> str:
    """Digest of one round: each group with the digests of its request's history and settings."""
    manifest = {
        "engine": engine,
        "round": round_id,
        "layout": layout.value,
        "groups": [_group(*parts) for parts in groups],
    }
    return _sha256(manifest)


def settings_coordinate(sampling: SamplingParams, stop: StopRules) -> str:
    """Digest of what a request's rows are processed and cut by; made once, it never changes."""
    return _sha256(
        {
            "sampling": {**_plain(sampling), "logit_bias": sorted(sampling.logit_bias.items())},
            "stop": {**_plain(stop), "token_ids": sorted(stop.token_ids)},
        }
    )


def _group(group: Group, history: str, settings: str) -> dict[str, object]:
    """Every field of the group; tokens, sampling and stop rules by their digests."""
    return {
        "request": group.request,
        "generation": group.generation,
        "tokens": [len(group.tokens), history],
        "prompt_length": group.prompt_length,
        "start": group.start,
        "rows": group.rows,
        "emits": group.emits,
        "max_emit": group.max_emit,
        "draft": _draft(group.draft),
        "blocks": sorted((role.value, blocks) for role, blocks in group.blocks.items()),
        "settings": settings,
        "verifier": group.verifier.value,
        "choice": group.choice,
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
