"""Asks a server for completions in a closed loop: so many requests at once, each after another.

It knows the protocol, prompts of token ids and clocks. Whose server it is it does not know.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count

import httpx

from tests.bench.prompts import Prompt

_TIMEOUT = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """`at_once` clients, each of which sends `each` requests for `tokens` tokens in turn."""

    at_once: int
    each: int
    tokens: int
    temperature: float


async def serve(
    url: str, loop: Loop, prompts: Sequence[Prompt], more: Mapping[str, object]
) -> float:
    """Tokens per second of the whole loop, prefill and HTTP included.

    Request n takes prompt n of `prompts` and seed n; `more` are further fields of each body.
    Raises RuntimeError when an answer is short, httpx.HTTPError when there is none.
    """
    bodies = (
        {
            "model": "pair",
            "prompt": list(prompts[number]),
            "max_tokens": loop.tokens,
            "temperature": loop.temperature,
            "seed": number,
            "ignore_eos": True,
            **more,
        }
        for number in count()
    )
    started = time.perf_counter()
    async with httpx.AsyncClient(base_url=url, timeout=_TIMEOUT) as client:

        async def ask() -> None:
            for _ in range(loop.each):
                await _complete(client, next(bodies), loop.tokens)

        await asyncio.gather(*(ask() for _ in range(loop.at_once)))
    return loop.at_once * loop.each * loop.tokens / (time.perf_counter() - started)


async def _complete(client: httpx.AsyncClient, body: Mapping[str, object], tokens: int) -> None:
    reply = await client.post("/v1/completions", json=body)
    if reply.status_code != httpx.codes.OK:
        raise RuntimeError(f"status {reply.status_code}: {reply.text[:500]}")
    found = reply.json()["usage"]["completion_tokens"]
    if found != tokens:
        raise RuntimeError(f"{found} tokens instead of {tokens}")
