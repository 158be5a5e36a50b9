"""Requests of every length and law over the embedded pair: what identity is proven on.

Knows prompts and sampling settings, nothing of how they are served.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

from scheduler.request import (
    ProposerKind,
    Request,
    SamplingParams,
    Speculation,
    StopRules,
    Verifier,
)
from tests.bench.prompts import text_prompts
from tests.oracles.driver import PlainText

_LENGTHS = (1, 3, 7, 16, 17, 40, 90, 200)
_QUESTIONS = (
    "What is a decorator?",
    "What does os.path.join do?",
    "Write a Python function `add(a, b)` that returns the sum of a and b.",
    "What is an iterator in Python?",
    "Explain the term garbage collection.",
)
_TOKENS = (48, 64, 80, 96)
# Temperature 0 and the race on shared noise, with and without cuts. Penalties come last: the
# teacher-forced reference does not know them.
LAWS: tuple[dict[str, object], ...] = (
    {"temperature": 0.0},
    {"temperature": 1.0},
    {"temperature": 0.8, "top_p": 0.9},
    {"temperature": 0.0},
    {"temperature": 1.0, "top_k": 20},
    {"temperature": 1.2, "min_p": 0.05},
    {"temperature": 0.7, "top_k": 50, "top_p": 0.95, "min_p": 0.02},
)
PENALISED: tuple[dict[str, object], ...] = (
    {"temperature": 0.0, "repetition_penalty": 1.2, "logit_bias": {7: 2.5, 300: -3.0}},
    {"temperature": 0.9, "frequency_penalty": 0.4, "presence_penalty": 0.3, "top_p": 0.9},
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One request without the way it is served."""

    number: int
    prompt: tuple[int, ...]
    sampling: SamplingParams
    stop: StopRules


def make_cases(
    tokenizer: PreTrainedTokenizerBase, count: int, laws: Sequence[dict[str, object]]
) -> list[Case]:
    """`count` cases: a third of them chats that end at the end of text, the others held-out text
    of 1 to 200 tokens; laws in turn, seeds all different."""
    texts = text_prompts(count, max(_LENGTHS), tokenizer)
    cases = []
    for number in range(count):
        chat = number % 3 == 2
        prompt = texts[number][: _LENGTHS[(number * 5) % len(_LENGTHS)]]
        if chat:
            prompt = _chat(tokenizer, _QUESTIONS[number % len(_QUESTIONS)])
        ends = frozenset({tokenizer.eos_token_id} if chat else ())
        cases.append(
            Case(
                number=number,
                prompt=prompt,
                sampling=SamplingParams(**laws[number % len(laws)], seed=900 + number, logprobs=0),
                stop=StopRules(token_ids=ends, max_tokens=_TOKENS[number % len(_TOKENS)]),
            )
        )
    return cases


def request_of(case: Case, k: int | None, proposer: ProposerKind, arrival: int) -> Request:
    """The case as a request, raced on shared noise where it is not greedy."""
    return Request(
        request_id=case.number + 1,
        prompt=case.prompt,
        sampling=case.sampling,
        speculation=Speculation(k=k, verifier=Verifier.SHARED_NOISE, proposer=proposer),
        stop=case.stop,
        text=PlainText(),
        arrival=float(arrival),
    )


def _chat(tokenizer: PreTrainedTokenizerBase, question: str) -> tuple[int, ...]:
    message = {"role": "user", "content": question}
    text = tokenizer.apply_chat_template([message], tokenize=False, add_generation_prompt=True)
    return tuple(tokenizer.encode(text, add_special_tokens=False))
