"""Draws texts over HTTP: many calls at once, some of them streams, each with many choices.

Knows the protocol, nothing of the server behind it.
"""

import asyncio
import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import httpx

from scheduler.request import ProposerKind
from tests.prove.sampled import Draw, Sample, Tokens
from tests.prove.tiny_pair import END

PATH = "/v1/completions"
_CALLS_AT_ONCE = 8
_PATIENCE = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call for `choices` texts of one draw, which count as so many draws."""

    draw: Draw
    choices: int
    stream: bool = False


def body_of(call: Call) -> dict[str, Any]:
    """The JSON body of a call."""
    draw = call.draw
    law, way, stop = draw.setting.processing, draw.way, draw.setting.stop
    speculation: dict[str, Any] = {"verifier": way.verifier.value}
    if way.drafter.proposer is ProposerKind.NONE:
        speculation |= {"enabled": False}
    else:
        speculation |= {
            "k": way.k,
            "proposer": way.drafter.proposer.value,
            "min_confidence": way.drafter.min_confidence,
        }
    return {
        "prompt": list(draw.setting.prompt),
        "n": call.choices,
        "seed": draw.seed,
        "max_tokens": draw.max_tokens,
        "min_tokens": law.min_tokens,
        "ignore_eos": END not in stop,
        "stop_token_ids": sorted(stop - {END}),
        "temperature": law.temperature,
        "top_k": law.top_k or 0,
        "top_p": law.top_p,
        "min_p": law.min_p,
        "repetition_penalty": law.repetition,
        "presence_penalty": law.presence,
        "frequency_penalty": law.frequency,
        "logit_bias": {str(token): value for token, value in law.bias.items()},
        "speculation": speculation,
        "return_token_ids": True,
        "stream": call.stream,
    }


def texts(url: str, calls: Sequence[Call]) -> list[Sample]:
    """All texts of all calls, several of which are under way at any moment.

    Raises RuntimeError for an answer that is not 200.
    """

    async def run() -> list[Sample]:
        gate = asyncio.Semaphore(_CALLS_AT_ONCE)
        async with httpx.AsyncClient(base_url=url, timeout=_PATIENCE, trust_env=False) as client:
            found = await asyncio.gather(*(_ask(client, gate, call) for call in calls))
        return [
            (call.draw, text)
            for call, choices in zip(calls, found, strict=True)
            for text in choices
        ]

    return asyncio.run(run())


def post(client: httpx.Client, body: dict[str, Any]) -> dict[str, Any]:
    """The answer to one call. Raises RuntimeError when it is not 200."""
    response = client.post(PATH, json=body)
    if response.status_code != 200:
        raise RuntimeError(f"{response.status_code}: {response.text}")
    answer: dict[str, Any] = response.json()
    return answer


async def _ask(client: httpx.AsyncClient, gate: asyncio.Semaphore, call: Call) -> list[Tokens]:
    async with gate:
        response = await client.post(PATH, json=body_of(call))
    if response.status_code != 200:
        raise RuntimeError(f"{response.status_code}: {response.text}")
    parts = _events(response.text) if call.stream else [response.json()]
    ids: dict[int, list[int]] = defaultdict(list)
    for choice in (choice for part in parts for choice in part["choices"]):
        ids[choice["index"]] += choice["token_ids"]
    if sorted(ids) != list(range(call.choices)):
        raise RuntimeError(f"{len(ids)} choices came back, not {call.choices}")
    return [tuple(ids[index]) for index in range(call.choices)]


def _events(text: str) -> list[dict[str, Any]]:
    frames = [line.removeprefix("data: ") for line in text.splitlines() if line]
    if frames.pop() != "[DONE]":
        raise RuntimeError("a stream ended without its mark")
    return [json.loads(frame) for frame in frames]
