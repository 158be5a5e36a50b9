"""Text to ids and back for one model, and its chat template; knows no request body.

Calls go to the tokenizer's immutable core, so that they may run in several threads at once.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from jinja2 import TemplateError

from server.errors import capped, refusal
from server.text.pieces import Pieces, read_pieces

if TYPE_CHECKING:  # takes seconds, and the server listens before models are loaded
    from transformers import PreTrainedTokenizerFast

__all__ = ["ChatInput", "TokenizerService"]

# Longer texts are tokenized in a thread: this many characters take some milliseconds.
_OFF_LOOP_CHARS = 4096
# Arguments of the template call that are the server's to give.
_RESERVED = frozenset(
    {"chat_template", "tokenize", "conversation", "messages", "tools", "documents"}
    | {"add_generation_prompt", "continue_final_message", "return_dict", "return_tensors"}
    | {"padding", "truncation", "max_length", "tokenizer_kwargs", "return_assistant_tokens_mask"}
)


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
        self.end_ids = end_ids
        self.pieces: Pieces = read_pieces(tokenizer)

    async def encode(self, texts: Sequence[str], *, special: bool) -> list[tuple[int, ...]]:
        """Ids of each text, with the tokenizer's own begin mark (if it has one) when `special`.

        Raises ApiError when nothing is left to start from.
        """
        if sum(map(len, texts)) > _OFF_LOOP_CHARS:
            encoded = await asyncio.to_thread(self._encode, texts, special)
        else:
            encoded = self._encode(texts, special)
        return [ids or self._begin() for ids in encoded]

    async def chat(self, chat: ChatInput) -> tuple[int, ...]:
        """Ids of the rendered conversation. The template writes its own begin mark.

        Raises ApiError for a model without a template and for what the template refuses.
        """
        size = sum(len(text) for turn in chat.messages for text in turn.values())
        if size > _OFF_LOOP_CHARS:
            text = await asyncio.to_thread(self._render, chat)
        else:
            text = self._render(chat)
        return (await self.encode([text], special=chat.add_special_tokens))[0]

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
        taken = sorted(_RESERVED & chat.extra.keys())
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
        except (TemplateError, TypeError, ValueError, KeyError, ArithmeticError) as problem:
            raise refusal("messages", capped(f"messages: {problem}")) from None
        return str(text)
