"""POST /v1/completions."""

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from server.api import Api, answer, reply_options, served
from server.backend import Serving
from server.errors import refusal
from server.intake import read_body
from server.protocol.completions import CompletionBody
from server.replies.piece import ReplyOptions
from server.replies.writers import CompletionWriter
from server.translate import Asked, check_width, truncated, wanted_times

__all__ = ["completion_routes"]

DEFAULT_MAX_TOKENS = 16


def completion_routes(api: Api) -> APIRouter:
    """The route over `api`."""
    router = APIRouter()

    @router.post("/v1/completions")
    async def completions(request: Request) -> Response:
        """Continue each prompt."""
        body = await read_body(request, CompletionBody, api.options.body_limit)
        serving, _ = served(api, body.model)
        wishes = wanted_times(request.headers, api.options.wishes)
        check_width(body, len(body.prompt), serving.engine.config)
        asked = Asked(
            body=body,
            prompts=await _prompts(body, serving),
            max_tokens=DEFAULT_MAX_TOKENS if body.max_tokens is None else body.max_tokens,
            token_field="max_tokens",  # noqa: S106 - a field's name
            logprobs=body.logprobs,
            wishes=wishes,
            trace=request.headers.get("traceparent"),
        )
        options = reply_options(asked, echo=await _echo(asked, body, serving), top=body.logprobs)
        return await answer(api, request, asked, options, _writer)

    return router


async def _prompts(body: CompletionBody, serving: Serving) -> tuple[tuple[int, ...], ...]:
    """The ids of each prompt, in order, shortened if the body says so."""
    texts = [one for one in body.prompt if isinstance(one, str)]
    special = body.add_special_tokens is not False
    tokenizer = serving.tokenizer
    encoded = iter(await tokenizer.encode(texts, special=special))
    found = []
    for one in body.prompt:
        if isinstance(one, str):
            ids = tokenizer.begun(next(encoded))
        else:
            ids = _known(one, serving.vocabulary)
        found.append(truncated(ids, body, serving))
    return tuple(found)


def _known(ids: tuple[int, ...], vocabulary: int) -> tuple[int, ...]:
    most = max(ids)
    if most >= vocabulary:
        shown = str(most)[:40]
        raise refusal("prompt", f"prompt: {shown} is no token id of 0..{vocabulary - 1}")
    return ids


async def _echo(asked: Asked, body: CompletionBody, serving: Serving) -> list[str] | None:
    """The prompts as text: as they were sent, unless they were ids or were shortened."""
    if not body.echo:
        return None
    kept = body.truncate_prompt_tokens is None
    return [
        one if isinstance(one, str) and kept else await serving.tokenizer.text(ids)
        for one, ids in zip(body.prompt, asked.prompts, strict=True)
    ]


def _writer(options: ReplyOptions, serving: Serving) -> CompletionWriter:
    return CompletionWriter(options, serving.tokenizer.pieces)
