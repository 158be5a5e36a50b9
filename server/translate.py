"""From a checked body and its prompts to the engine's requests; sends nothing."""

import math
import re
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from scheduler.config import EngineConfig
from scheduler.request import (
    ProposerKind,
    Request,
    SamplingParams,
    Speculation,
    StopRules,
    Verifier,
)
from server.backend import Serving
from server.errors import overflow, refusal
from server.protocol.generation import GenerationBody, SpeculationBody
from server.text.stager import Stager, TextRules

__all__ = [
    "NO_WISHES",
    "Asked",
    "Wishes",
    "build_requests",
    "check_width",
    "truncated",
    "wanted_times",
]

OTHER_DOMAIN = "other"
_TTFT = "x-slo-ttft-ms"
_TPOT = "x-slo-tpot-ms"
_NUMBER = re.compile(r"(\d+(\.\d*)?|\.\d+)(e[+-]?\d+)?", re.ASCII | re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """The most seconds that the first token should take, and each one after it; None: no wish."""

    ttft: float | None = None
    tpot: float | None = None


NO_WISHES = Wishes()


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One API call after tokenization.

    `max_tokens` None means the rest of the context; `token_field` is what the body calls it.
    `logprobs` counts alternatives to report (None: no logprobs). `trace` is the call's traceparent
    header.
    """

    body: GenerationBody
    prompts: tuple[tuple[int, ...], ...]
    max_tokens: int | None
    token_field: str
    logprobs: int | None
    wishes: Wishes = NO_WISHES
    trace: str | None = None


def build_requests(
    asked: Asked, serving: Serving, domains: frozenset[str], clock: Callable[[], float]
) -> list[Request]:
    """All choices of all prompts: index = prompt index * n + choice. Raises ApiError (400).

    `clock` is the engine's. Without a seed in the body each prompt gets 64 bits from the operating
    system: prompts of one call would draw alike with one seed.
    """
    body, config = asked.body, serving.engine.config
    choices = body.n or 1
    seeds = [_seed(body) for _ in asked.prompts]
    sampling = _sampling(asked, serving.vocabulary, seeds[0])
    speculation = _speculation(body.speculation or SpeculationBody(), config)
    stager = Stager(serving.tokenizer.pieces, _text_rules(body))
    ends = _ends(body, serving)
    context = config.max_model_len
    rules = [_stop_rules(asked, len(prompt), context, ends) for prompt in asked.prompts]
    arrival = clock()
    return [
        Request(
            request_id=serving.engine.next_request_id(),
            choice=choice,
            prompt=prompt,
            sampling=replace(sampling, seed=seed),
            speculation=speculation,
            stop=rule,
            text=stager,
            arrival=arrival,
            priority=body.priority or 0,
            domain=_domain(body.metadata or {}, domains),
            ttft=asked.wishes.ttft,
            tpot=asked.wishes.tpot,
            own_seed=body.seed is not None,
            trace=asked.trace,
        )
        for prompt, rule, seed in zip(asked.prompts, rules, seeds, strict=True)
        for choice in range(choices)
    ]


def truncated(prompt: tuple[int, ...], body: GenerationBody, serving: Serving) -> tuple[int, ...]:
    """The last `truncate_prompt_tokens` ids of `prompt`; for -1 as many as fit the context."""
    keep = body.truncate_prompt_tokens
    if keep is None:
        return prompt
    return prompt[-(serving.engine.config.max_model_len - 1 if keep == -1 else keep) :]


def wanted_times(headers: Mapping[str, str], default: Wishes) -> Wishes:
    """What a call wants: its headers' milliseconds, each else the server's `default`.

    Raises ApiError (400) for anything but a positive number.
    """
    return Wishes(
        ttft=_seconds(headers, _TTFT, default.ttft), tpot=_seconds(headers, _TPOT, default.tpot)
    )


def check_width(body: GenerationBody, prompts: int, config: EngineConfig) -> None:
    """Raise ApiError (400) for more choices of `prompts` prompts than could ever wait and run.

    To be asked before tokenizing, which is what costs time.
    """
    most = config.max_waiting + config.max_requests
    choices = body.n or 1
    width = prompts * choices
    if width > most:
        field = "prompt" if choices == 1 else "n"
        raise refusal(field, f"{field}: {width} choices in one request, this server takes {most}")


def _seconds(headers: Mapping[str, str], name: str, default: float | None) -> float | None:
    given = headers.get(name)
    if given is None:
        return default
    seconds = float(given) / 1000 if _NUMBER.fullmatch(given.strip()) else 0.0
    if not 0 < seconds < math.inf:
        raise refusal(name, f"{name}: {given[:40]!r} is no positive number of milliseconds")
    return seconds


def _sampling(asked: Asked, vocabulary: int, seed: int) -> SamplingParams:
    body = asked.body
    return SamplingParams(
        temperature=_given(body.temperature, 1.0),
        top_k=body.top_k if body.top_k is not None and body.top_k > 0 else None,
        top_p=_given(body.top_p, 1.0),
        min_p=_given(body.min_p, 0.0),
        repetition_penalty=_given(body.repetition_penalty, 1.0),
        presence_penalty=_given(body.presence_penalty, 0.0),
        frequency_penalty=_given(body.frequency_penalty, 0.0),
        logit_bias=_logit_bias(body.logit_bias or {}, vocabulary),
        seed=seed,
        logprobs=asked.logprobs,
    )


def _seed(body: GenerationBody) -> int:
    return secrets.randbits(64) - (1 << 63) if body.seed is None else body.seed


def _given(value: float | None, default: float) -> float:
    return default if value is None else float(value)


def _logit_bias(biases: Mapping[str, float], vocabulary: int) -> dict[int, float]:
    found: dict[int, float] = {}
    for key, bias in biases.items():
        if not (key.isascii() and key.isdigit() and len(key) <= 10 and int(key) < vocabulary):
            raise refusal(
                "logit_bias", f"logit_bias: {key[:40]!r} is no token id of 0..{vocabulary - 1}"
            )
        if int(key) in found:
            raise refusal("logit_bias", f"logit_bias: {key[:40]!r} names a token id a second time")
        found[int(key)] = float(bias)
    return found


def _speculation(asked: SpeculationBody, config: EngineConfig) -> Speculation:
    verifier = config.verifier if asked.verifier is None else Verifier(asked.verifier)
    if not asked.enabled:
        return Speculation(k=0, verifier=verifier, proposer=ProposerKind.NONE)
    length = asked.k if isinstance(asked.k, int) else None
    if length is not None and length > config.k_max:
        name = "speculation.k"
        raise refusal(name, f"{name}: {length} is more than this server's {config.k_max}")
    proposer = _proposer(asked.proposer, config)
    if length and proposer is ProposerKind.NONE:
        name = "speculation.k"
        raise refusal(name, f"{name}: {length} asks for drafts, and this server's proposer is none")
    return Speculation(
        k=length,
        min_confidence=asked.min_confidence or 0.0,
        verifier=verifier,
        proposer=proposer,
    )


def _proposer(asked: str | None, config: EngineConfig) -> ProposerKind:
    if asked is None or asked == "auto":
        return config.proposer
    if asked == "draft_model" and config.draft_pool is None:
        name = "speculation.proposer"
        raise refusal(name, f"{name}: this server has no draft model")
    return ProposerKind(asked)


def _text_rules(body: GenerationBody) -> TextRules:
    return TextRules(
        stops=tuple(body.stop or ()),
        include_stop=bool(body.include_stop_str_in_output),
        skip_special=body.skip_special_tokens is not False,
        min_tokens=body.min_tokens or 0,
    )


def _ends(body: GenerationBody, serving: Serving) -> frozenset[int]:
    """The ids that end an answer. Raises ApiError when `min_tokens` would forbid all there are."""
    field = "stop_token_ids"
    own = frozenset(body.stop_token_ids or ())
    _check_ids(field, own, serving.vocabulary)
    ends = own if body.ignore_eos else own | serving.tokenizer.end_ids
    if body.min_tokens and len(ends) >= serving.vocabulary:
        raise refusal(field, f"{field}: with min_tokens={body.min_tokens} no token is left")
    return ends


def _stop_rules(asked: Asked, prompt_length: int, context: int, ends: frozenset[int]) -> StopRules:
    body = asked.body
    max_tokens = _max_tokens(asked, prompt_length, context)
    return StopRules(
        token_ids=ends,
        max_tokens=max_tokens,
        min_tokens=body.min_tokens or 0,
        include_stop=bool(body.include_stop_str_in_output),
    )


def _max_tokens(asked: Asked, prompt_length: int, context: int) -> int:
    """What may come out: what was asked for, or what the context leaves if that is less.

    Raises ApiError (400) where it is less than `min_tokens`.
    """
    room = context - prompt_length
    if room < 1:
        raise overflow(
            context,
            f"Your prompt has {prompt_length} tokens, which leaves no room for an answer.",
        )
    most = asked.max_tokens
    least = asked.body.min_tokens or 0
    if most is not None and least > most:
        raise refusal("min_tokens", f"min_tokens: {least} is more than {asked.token_field}={most}")
    if least > room:
        message = f"min_tokens: {least} is more than the {room} that the context leaves"
        raise refusal("min_tokens", message)
    return room if most is None else min(most, room)


def _check_ids(field: str, ids: frozenset[int], vocabulary: int) -> None:
    for token in ids:
        if token >= vocabulary:
            raise refusal(field, f"{field}: {token} is no token id of 0..{vocabulary - 1}")


def _domain(metadata: Mapping[str, str], domains: frozenset[str]) -> str:
    domain = metadata.get("domain", OTHER_DOMAIN)
    return domain if domain in domains else OTHER_DOMAIN
