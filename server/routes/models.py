"""GET /v1/models and /v1/models/{id}, POST /tokenize and /detokenize."""

from typing import Any

from fastapi import APIRouter
from starlette.requests import Request

from server.api import Api, served
from server.backend import Serving
from server.errors import refusal
from server.intake import read_body
from server.protocol.tokens import DetokenizeBody, TokenizeBody
from server.tokenizer import ChatInput

__all__ = ["model_routes"]

Json = dict[str, Any]


def model_routes(api: Api) -> APIRouter:
    """The routes over `api`."""
    router = APIRouter()

    @router.get("/v1/models")
    async def models() -> Json:
        """All names of the served model."""
        serving = api.backend.serving()
        return {"object": "list", "data": [_card(serving, name) for name in serving.names]}

    @router.get("/v1/models/{name:path}")
    async def model(name: str) -> Json:
        """One name of the served model."""
        return _card(*served(api, name))

    @router.post("/tokenize")
    async def tokenize(request: Request) -> Json:
        """Ids of a prompt or of a rendered conversation."""
        body = await read_body(request, TokenizeBody, api.options.body_limit)
        serving, _ = served(api, body.model)
        return await _tokenized(body, serving)

    @router.post("/detokenize")
    async def detokenize(request: Request) -> Json:
        """Text of ids."""
        body = await read_body(request, DetokenizeBody, api.options.body_limit)
        serving, _ = served(api, body.model)
        if max(body.tokens, default=0) >= serving.vocabulary:
            limit = serving.vocabulary - 1
            raise refusal("tokens", f"tokens: not all are token ids of 0..{limit}")
        return {"prompt": await serving.tokenizer.text(body.tokens)}

    return router


def _card(serving: Serving, name: str) -> Json:
    return {
        "id": name,
        "object": "model",
        "created": serving.created,
        "owned_by": "fencepost",
        "root": serving.root,
        "parent": None,
        "max_model_len": serving.engine.config.max_model_len,
    }


async def _tokenized(body: TokenizeBody, serving: Serving) -> Json:
    ids = await _ids(body, serving)
    spelled = await serving.tokenizer.spellings(ids) if body.return_token_strs else None
    return {
        "count": len(ids),
        "max_model_len": serving.engine.config.max_model_len,
        "tokens": ids,
        "token_strs": spelled,
    }


async def _ids(body: TokenizeBody, serving: Serving) -> tuple[int, ...]:
    if body.prompt is not None:
        special = body.add_special_tokens is not False
        return (await serving.tokenizer.encode([body.prompt], special=special))[0]
    resume = bool(body.continue_final_message)
    generate = not resume if body.add_generation_prompt is None else body.add_generation_prompt
    return await serving.tokenizer.chat(
        ChatInput(
            messages=[turn.for_template() for turn in body.messages or ()],
            add_generation_prompt=generate,
            continue_final_message=resume,
            add_special_tokens=bool(body.add_special_tokens),
            extra=body.chat_template_kwargs or {},
        )
    )
