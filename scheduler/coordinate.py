"""The round coordinate: what a result must match before it may be committed (contract section 9)."""

import hashlib
import json
from collections.abc import Iterable

from scheduler.plan import DeviceDraft, Group, Layout
from scheduler.runner import Capabilities


def engine_coordinate(capabilities: Capabilities) -> str:
    """Digest of what is fixed for the engine's life: models, dtypes, device, software."""
    manifest = {
        "target": _identity(capabilities.target),
        "draft": None if capabilities.draft is None else _identity(capabilities.draft),
        "vocabulary": capabilities.vocabulary,
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


def _identity(model: object) -> list[str]:
    fields = ("name", "revision", "architecture", "dtype", "parameters")
    return [str(getattr(model, field)) for field in fields]


def _group(group: Group, history: str) -> list[object]:
    draft: list[object] = []
    if isinstance(group.draft, DeviceDraft):
        draft = ["device", group.draft.depth, group.draft.rows]
    elif group.draft is not None:
        draft = ["host", *group.draft.token_ids]
    return [
        group.request,
        group.generation,
        history,
        len(group.tokens),
        group.start,
        group.rows,
        group.sampling.seed,
        group.choice,
        group.verifier.value,
        draft,
    ]


def _sha256(manifest: object) -> str:
    text = json.dumps(manifest, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
