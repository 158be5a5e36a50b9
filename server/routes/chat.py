"""POST /v1/chat/completions."""

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from server.api import Api, answer, reply_options, served
from server.backend import Serving
from server.intake import read_body
from server.protocol.chat import ChatBody
from server.replies.piece import ReplyOptions
from server.replies.writers import ChatWriter
from server.tokenizer import ChatInput
from server.translate import Asked, check_width, truncated, wanted_times

__all__ = ["chat_routes"]


def chat_routes(api: Api) -> APIRouter:
    """The route over `api`."""
    router = APIRouter()

    @router.post("/v1/chat/completions")
    async def chat_completions(request: Request) -> Response:
        """Answer a conversation."""
        body = await read_body(request, ChatBody, api.options.body_limit)
        serving, _ = served(api, body.model)
        wishes = wanted_times(request.headers, api.options.wishes)
        check_width(body, 1, serving.engine.config)
        tokenizer = serving.tokenizer
        ids = tokenizer.begun(await tokenizer.chat(_input(body)))
        field, most = _budget(body)
        top = (body.top_logprobs or 0) if body.logprobs else None
        asked = Asked(
            body=body,
            prompts=(truncated(ids, body, serving),),
            max_tokens=most,
            token_field=field,
            logprobs=top,
            wishes=wishes,
            trace=request.headers.get("traceparent"),
        )
        options = reply_options(asked, echo=None, top=top)
        return await answer(api, request, asked, options, _writer)

    return router


def _input(body: ChatBody) -> ChatInput:
    resume = bool(body.continue_final_message)
    generate = not resume if body.add_generation_prompt is None else body.add_generation_prompt
    return ChatInput(
        messages=[turn.for_template() for turn in body.messages],
        add_generation_prompt=generate,
        continue_final_message=resume,
        add_special_tokens=bool(body.add_special_tokens),
        extra=body.chat_template_kwargs or {},
    )


def _budget(body: ChatBody) -> tuple[str, int | None]:
    """The field that limits the answer, and its value; the newer field goes first."""
    if body.max_completion_tokens is not None:
        return "max_completion_tokens", body.max_completion_tokens
    return "max_tokens", body.max_tokens


def _writer(options: ReplyOptions, serving: Serving) -> ChatWriter:
    return ChatWriter(options, serving.tokenizer.pieces)
