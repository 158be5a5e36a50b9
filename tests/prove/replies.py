"""What single answers over HTTP must say: the same text for the same seed, and true logprobs."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import httpx
import numpy as np

from scheduler.plan import Layout
from scheduler.request import Verifier
from tests.prove.http_texts import Call, body_of, post
from tests.prove.proof import Finding
from tests.prove.sampled import DRAFTERS, NONE, Draw, Setting, Tokens, Way
from tests.prove.tiny_pair import LETTERS, VOCABULARY

_BUDGET = 10
_LOGPROB_LIMIT = 1e-4


def repeated_seeds(
    url: str, settings: Sequence[Setting], layout: Layout, depths: Iterable[int], width: int
) -> Finding:
    """Calls for `width` texts made twice, one at a time: each text must come again. With shared
    noise it must also be that of every other K and drafter."""
    texts = differing = 0
    with httpx.Client(base_url=url, timeout=60, trust_env=False) as client:
        for number, (setting, verifier) in enumerate(product(settings, Verifier)):
            answers = []
            for way in _ways(verifier, layout, depths):
                draw = Draw(setting=setting, way=way, seed=number, max_tokens=_BUDGET)
                first, again = (_ids(post(client, _asked(draw, width))) for _ in range(2))
                answers.append((first, again))
            if verifier is Verifier.SHARED_NOISE:
                answers += [(answers[0][0], first) for first, _ in answers[1:]]
            texts += width * len(answers)
            differing += sum(a != b for pair in answers for a, b in zip(*pair, strict=True))
    return Finding(
        cases=texts,
        unit="pairs of texts",
        worst=float(differing),
        limit="0 differ",
        holds=texts > 0 and differing == 0,
        note="with shared noise also between drafters and K",
    )


def true_logprobs(
    url: str,
    settings: Sequence[Setting],
    logits: Callable[[Tokens], Sequence[float]],
    way: Way,
    width: int,
) -> Finding:
    """Every logprob of every answer beside the log softmax of the reference's raw logits, in
    float64."""
    errors: list[float] = []
    with httpx.Client(base_url=url, timeout=60, trust_env=False) as client:
        for number, setting in enumerate(settings):
            draw = Draw(setting=setting, way=way, seed=number, max_tokens=_BUDGET)
            answer = post(client, _asked(draw, width) | {"logprobs": VOCABULARY})
            for choice in answer["choices"]:
                errors += _errors(choice, setting.prompt, logits)
    worst = max(errors, default=math.inf)
    return Finding(
        cases=len(errors),
        unit="logprobs",
        worst=worst,
        limit=f"{_LOGPROB_LIMIT:g}",
        holds=worst < _LOGPROB_LIMIT,
        note="the model's own law, before temperature and filters; float32 beside float64",
    )


def _ways(verifier: Verifier, layout: Layout, depths: Iterable[int]) -> list[Way]:
    one = Way(verifier=verifier, k=0, drafter=NONE, layout=layout)
    drafted = [replace(one, k=k, drafter=drafter) for k, drafter in product(depths, DRAFTERS)]
    return [one, *drafted]


def _asked(draw: Draw, width: int) -> dict[str, Any]:
    return body_of(Call(draw=draw, choices=width))


def _ids(answer: dict[str, Any]) -> list[Tokens]:
    return [tuple(choice["token_ids"]) for choice in answer["choices"]]


def _errors(
    choice: dict[str, Any], prompt: Tokens, logits: Callable[[Tokens], Sequence[float]]
) -> list[float]:
    columns, ids = choice["logprobs"], choice["token_ids"]
    found = []
    for place, token in enumerate(ids):
        row = np.array(logits((*prompt, *ids[:place])))
        law = row - np.logaddexp.reduce(row)
        found.append(abs(columns["token_logprobs"][place] - law[token]))
        table = columns["top_logprobs"][place]
        if len(table) != VOCABULARY:
            raise RuntimeError(f"{len(table)} alternatives of {VOCABULARY}")
        found += [abs(table[text] - law[place]) for place, text in enumerate(LETTERS)]
    return found
