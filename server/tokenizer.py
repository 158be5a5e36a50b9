"""Text to ids and back for one model, and its chat template; knows no request body.

Calls go to the tokenizer's immutable core, so that they may run in several threads at once.
"""

import asyncio
import inspect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from jinja2 import TemplateError

from server.errors import capped, refusal
from server.text.pieces import Pieces, read_pieces

if TYPE_CHECKING:  # takes seconds, and the server listens before models are loaded
    from transformers import PreTrainedTokenizerFast

__all__ = ["ChatInput", "TokenizerService"]

# Longer texts and lists of ids go to a thread: this many take some milliseconds.
_OFF_LOOP = 4096
# What the library's renderer passes to the template, beside its own arguments and special tokens.
_RESERVED = frozenset(
    {"self", "conversations", "messages", "raise_exception", "strftime_now", "namespace", "dict"}
    | {"range", "lipsum", "cycler", "joiner"}
    | {"bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"}
    | {"additional_special_tokens"}
)
_BROKEN = "messages: the model's chat template cannot render this conversation"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatInput:
    """A conversation to render. `extra` are further variables of the template."""

    messages: Sequence[Mapping[str, str]]
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    add_special_tokens: bool = False
    extra: Mapping[str, Any]


class TokenizerService:
    """The tokenizer of the served model. `end_ids` are the ids that end its texts."""

    def __init__(self, tokenizer: "PreTrainedTokenizerFast", end_ids: frozenset[int]) -> None:
        """Raises ModelRefused for a tokenizer whose pieces are not known."""
        self._tokenizer = tokenizer
        self._core = tokenizer.backend_tokenizer
        self._core.no_truncation()
        self._core.no_padding()
        self._reserved = (
            _RESERVED
            | inspect.signature(tokenizer.apply_chat_template).parameters.keys()
            | tokenizer.special_tokens_map.keys()
        )
        self.end_ids = end_ids
        self.pieces: Pieces = read_pieces(tokenizer)

    async def encode(self, texts: Sequence[str], *, special: bool) -> list[tuple[int, ...]]:
        """Ids of each text, with the tokenizer's own begin mark (if it has one) when `special`."""
        if sum(map(len, texts)) > _OFF_LOOP:
            return await asyncio.to_thread(self._encode, texts, special)
        return self._encode(texts, special)

    def begun(self, ids: tuple[int, ...]) -> tuple[int, ...]:
        """`ids`, or the id that begins a text when there are none: a model needs one to start from.

        Raises ApiError when the model has no such id.
        """
        return ids or self._begin()

    async def chat(self, chat: ChatInput) -> tuple[int, ...]:
        """Ids of the rendered conversation. The template writes its own begin mark.

        Raises ApiError for a model without a template and for what the template refuses.
        """
        size = sum(len(text) for turn in chat.messages for text in turn.values())
        if size > _OFF_LOOP:
            text = await asyncio.to_thread(self._render, chat)
        else:
            text = self._render(chat)
        return (await self.encode([text], special=chat.add_special_tokens))[0]

    async def text(self, tokens: Sequence[int]) -> str:
        """What `decode` gives; long lists do not hold up the loop."""
        if len(tokens) > _OFF_LOOP:
            return await asyncio.to_thread(self.decode, tokens)
        return self.decode(tokens)

    async def spellings(self, tokens: Sequence[int]) -> list[str | None]:
        """What `names` gives; long lists do not hold up the loop."""
        if len(tokens) > _OFF_LOOP:
            return await asyncio.to_thread(self.names, tokens)
        return self.names(tokens)

    def decode(self, tokens: Iterable[int]) -> str:
        """Text of `tokens`, special ones written out."""
        return self.pieces.join(tokens, skip_special=False)

    def names(self, tokens: Iterable[int]) -> list[str | None]:
        """The vocabulary's own spelling of each token."""
        return [self._core.id_to_token(token) for token in tokens]

    def _encode(self, texts: Sequence[str], special: bool) -> list[tuple[int, ...]]:
        # The batch call lets other threads run meanwhile, a single one does not.
        found = self._core.encode_batch(list(texts), add_special_tokens=special)
        return [tuple(one.ids) for one in found]

    def _begin(self) -> tuple[int, ...]:
        for token in (self._tokenizer.bos_token_id, self._tokenizer.eos_token_id):
            if isinstance(token, int):
                return (token,)
        raise refusal("prompt", "prompt: empty, and this model has no token to begin with")

    def _render(self, chat: ChatInput) -> str:
        if not self._tokenizer.chat_template:
            raise refusal("messages", "messages: this model has no chat template")
        taken = sorted(self._reserved & chat.extra.keys())
        if taken:
            name = f"chat_template_kwargs.{taken[0]}"
            raise refusal(
                name, f"{name}: not supported by this server", code="unsupported_parameter"
            )
        try:
            text = self._tokenizer.apply_chat_template(
                [dict(turn) for turn in chat.messages],
                tokenize=False,
                add_generation_prompt=chat.add_generation_prompt,
                continue_final_message=chat.continue_final_message,
                **chat.extra,
            )
        except (TemplateError, ValueError) as problem:
            raise refusal("messages", capped(f"messages: {problem}")) from None
        except (TypeError, AttributeError, LookupError, ArithmeticError):
            raise refusal("messages", _BROKEN) from None
        return str(text)
