"""Says whether a draft and a target speak of the same events: equal ids must be equal tokens.

It compares tokenizers and logit widths (contract section 9). It knows nothing of weights.
"""

import hashlib
import json
from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

from scheduler.errors import ModelRefused


@dataclass(frozen=True, slots=True, kw_only=True)
class PairReport:
    """The common event space: logits past `event_space` belong to no token and are masked."""

    event_space: int
    tokens: int
    target_padding: int
    draft_padding: int


def check_pair(
    target: PreTrainedTokenizerBase,
    draft: PreTrainedTokenizerBase,
    target_vocabulary: int,
    draft_vocabulary: int,
) -> PairReport:
    """Compare two vocabularies by content; the widths are those of the logits.

    Raises ModelRefused naming the first difference: an id with both its strings, an added token's
    flags, or a stage of the text pipeline.
    """
    tokens = _check_tokens(target, draft)
    _check_added(target, draft)
    _check_stages(target, draft)
    event_space = min(target_vocabulary, draft_vocabulary)
    for role, width in (("target", target_vocabulary), ("draft", draft_vocabulary)):
        if width < tokens:
            raise ModelRefused(
                f"the {role} has logits for {width} ids, the tokenizer uses {tokens}: "
                f"id {width} has no logit"
            )
    return PairReport(
        event_space=event_space,
        tokens=tokens,
        target_padding=target_vocabulary - tokens,
        draft_padding=draft_vocabulary - tokens,
    )


def event_space_digest(tokenizer: PreTrainedTokenizerBase) -> str:
    """SHA-256 of what `check_pair` compares: equal digests mean equal events for equal ids."""
    events = {
        "tokens": sorted((number, token) for token, number in tokenizer.get_vocab().items()),
        "added": sorted((n, repr(token)) for n, token in tokenizer.added_tokens_decoder.items()),
        "stages": _stages(tokenizer),
    }
    text = json.dumps(events, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _check_tokens(target: PreTrainedTokenizerBase, draft: PreTrainedTokenizerBase) -> int:
    """Compare id -> string; returns one more than the highest id."""
    ours = {number: token for token, number in target.get_vocab().items()}
    theirs = {number: token for token, number in draft.get_vocab().items()}
    for number in sorted(ours.keys() | theirs.keys()):
        if ours.get(number) != theirs.get(number):
            raise ModelRefused(
                f"vocabularies differ at id {number}: {_show(ours.get(number))} in the target, "
                f"{_show(theirs.get(number))} in the draft"
            )
    return max(ours) + 1


def _check_added(target: PreTrainedTokenizerBase, draft: PreTrainedTokenizerBase) -> None:
    """Compare added tokens with their flags: they decide how text becomes ids and back."""
    ours = {number: repr(token) for number, token in target.added_tokens_decoder.items()}
    theirs = {number: repr(token) for number, token in draft.added_tokens_decoder.items()}
    for number in sorted(ours.keys() | theirs.keys()):
        if ours.get(number) != theirs.get(number):
            raise ModelRefused(
                f"added tokens differ at id {number}: {ours.get(number)} in the target, "
                f"{theirs.get(number)} in the draft"
            )


def _check_stages(target: PreTrainedTokenizerBase, draft: PreTrainedTokenizerBase) -> None:
    ours, theirs = _stages(target), _stages(draft)
    for stage in sorted(ours.keys() & theirs.keys()):
        if ours[stage] != theirs[stage]:
            raise ModelRefused(
                f"tokenizers differ in their {stage.replace('_', '-')}: {ours[stage]} in the "
                f"target, {theirs[stage]} in the draft"
            )


def _stages(tokenizer: PreTrainedTokenizerBase) -> dict[str, str]:
    """The stages of the backend tokenizer that change text before it is split into tokens."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return {}
    pipeline = json.loads(backend.to_str())
    return {
        stage: json.dumps(pipeline.get(stage), sort_keys=True)
        for stage in ("normalizer", "pre_tokenizer")
    }


def _show(token: str | None) -> str:
    return "no token" if token is None else repr(token)
