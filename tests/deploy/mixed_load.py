"""A bounded load that uses every rule, drafter and draft length, and keeps its own account."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import product

import httpx

_TOKENS = 40
_AT_ONCE = 4
_VERIFIERS = ("token", "block", "shared-noise")
_QUESTION = "What does os.path.join do? "


def load(url: str, rounds: int) -> int:
    """Ask every kind of question `rounds` times; the completion tokens that came."""
    bodies = [body for turn in range(rounds) for body in _kinds(turn)]
    with (
        httpx.Client(base_url=url, timeout=60) as client,
        ThreadPoolExecutor(_AT_ONCE) as askers,
    ):
        return sum(askers.map(lambda body: _tokens(client, body), bodies))


def _kinds(turn: int) -> Iterator[dict]:
    for verifier, proposer in product(_VERIFIERS, ("draft_model", "ngram")):
        for k in (1, 3, 8):
            yield _body(turn, verifier=verifier, proposer=proposer, k=k)
    yield _body(turn, enabled=False)
    yield _body(turn, 0.0, k=8)
    # K as the controller chooses it.
    yield from (_body(turn) for _ in range(6))
    # A prompt of the next prefix bucket.
    yield _body(turn, repeat=60)


def _body(turn: int, temperature: float = 0.7, repeat: int = 1, **speculation: object) -> dict:
    body = {
        "messages": [{"role": "user", "content": _QUESTION * repeat + str(turn)}],
        "max_tokens": _TOKENS,
        "temperature": temperature,
        "ignore_eos": True,
    }
    return body | ({"speculation": speculation} if speculation else {})


def _tokens(client: httpx.Client, body: dict) -> int:
    answer = client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()["usage"]["completion_tokens"]
