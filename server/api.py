"""What every route is built from, and the steps that the two generation routes share."""

import logging
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from scheduler.errors import EngineError
from scheduler.request import Request
from server.backend import Backend, Serving
from server.errors import ApiError, Problem, capped, from_engine
from server.event_stream import EventStream
from server.flow import Flow, attended
from server.outcomes import record_of
from server.protocol.generation import StreamOptions
from server.replies.piece import Envelope, ReplyOptions
from server.replies.reply import Reply
from server.replies.writers import Writer
from server.translate import NO_WISHES, Asked, Wishes, build_requests

__all__ = ["Api", "ApiOptions", "answer", "reply_options", "served"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiOptions:
    """The settings that routes need. `body_limit` is in bytes, `domains` an allow-list, `wishes`
    are the times that requests want which do not say."""

    api_keys: tuple[str, ...] = ()
    body_limit: int = 8 << 20
    domains: frozenset[str] = field(default_factory=frozenset)
    wishes: Wishes = NO_WISHES


@dataclass(frozen=True, slots=True, kw_only=True)
class Api:
    """Everything that is injected into the routes. `clock` is the engine's, `now` the calendar."""

    backend: Backend
    options: ApiOptions
    clock: Callable[[], float] = time.monotonic
    now: Callable[[], float] = time.time


def served(api: Api, name: str | None) -> tuple[Serving, str]:
    """The loaded model and the name it was called by. Raises ApiError (404, 503)."""
    serving = api.backend.serving()
    if name is None:
        return serving, serving.names[0]
    if name not in serving.names:
        message = f"The model `{capped(name)}` does not exist."
        raise ApiError(Problem(status=404, message=message, param="model", code="model_not_found"))
    return serving, name


def reply_options(asked: Asked, *, echo: Sequence[str] | None, top: int | None) -> ReplyOptions:
    """What the answer must show; `top` is the number of alternatives, None without logprobs."""
    body = asked.body
    stream = body.stream_options or StreamOptions()
    speculation = body.speculation
    return ReplyOptions(
        prompts=asked.prompts,
        choices=body.n or 1,
        speculated=speculation is None or speculation.enabled,
        logprobs=top is not None,
        top_logprobs=top or 0,
        skip_special=body.skip_special_tokens is not False,
        token_ids=bool(body.return_token_ids),
        provenance=bool(body.return_provenance),
        own_stops=frozenset(body.stop_token_ids or ()),
        echo=None if echo is None else tuple(echo),
        include_usage=bool(stream.include_usage),
        continuous_usage=bool(stream.continuous_usage_stats),
    )


async def answer(
    api: Api,
    http: HttpRequest,
    asked: Asked,
    options: ReplyOptions,
    make_writer: Callable[[ReplyOptions, Serving], Writer],
) -> Response:
    """Submit the call and answer it, streamed or whole.

    The headers wait for the first token, so that what goes wrong before it has its own status.
    Raises ApiError, and ClientGoneError after the requests were aborted.
    """
    serving, name = served(api, asked.body.model)
    writer = make_writer(options, serving)
    head = Envelope(
        id=f"{writer.prefix}-{uuid.uuid4().hex}",
        created=int(api.now()),
        model=name,
        fingerprint=serving.fingerprint,
    )
    requests = build_requests(asked, serving, api.options.domains, api.clock)
    if asked.body.seed is None:
        _tell_seeds(http, requests)
    flow = _submit(serving, requests)
    reply = Reply(flow, writer, options, head, serving.engine.config.k_max)
    streamed = False
    try:
        if asked.body.stream:
            first = await attended(http.receive, reply.first())
            streamed = True
            return EventStream(first, reply.stream(), flow.close)
        body = await attended(http.receive, reply.body())
        return Response(body, media_type="application/json")
    finally:
        if not streamed:
            await flow.close()


def _tell_seeds(http: HttpRequest, requests: Sequence[Request]) -> None:
    """Log the seeds that were drawn, one a prompt."""
    call, first = record_of(http.scope).request_id, requests[0].request_id
    seeds = ",".join(map(str, dict.fromkeys(each.sampling.seed for each in requests)))
    logger.info("request %s, in the engine from %d on: seed=%s", call, first, seeds)


def _submit(serving: Serving, requests: Sequence[Request]) -> Flow:
    engine = serving.engine
    try:
        return Flow(engine, engine.submit(requests))
    except EngineError as problem:
        raise from_engine(problem, engine.config.max_model_len) from problem
