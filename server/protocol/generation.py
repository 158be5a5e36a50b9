"""The fields that /v1/completions and /v1/chat/completions have in common."""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from server.protocol.fields import (
    Body,
    Int64,
    Penalty,
    StopStrings,
    TokenId,
    Unsupported,
    disagreement,
    only,
)

__all__ = ["GenerationBody", "ResponseFormat", "SpeculationBody", "StreamOptions"]

MAX_CHOICES = 128
MAX_METADATA = 16
MAX_STOP_IDS = 256
MAX_BIASES = 1024


Metadata = Annotated[
    dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]],
    Field(max_length=MAX_METADATA, fail_fast=True),
]
StopIds = Annotated[list[TokenId], Field(max_length=MAX_STOP_IDS, fail_fast=True)]
Biases = Annotated[
    dict[str, Annotated[float, Field(ge=-100, le=100)]],
    Field(max_length=MAX_BIASES, fail_fast=True),
]


class SpeculationBody(Body):
    """How this request is drafted. `k` auto or null leaves the draft length to the server.

    A draft ends before a token of which the draft model is less sure than `min_confidence`; tokens
    known beforehand (n-grams) are certain.
    """

    enabled: bool = True
    k: Annotated[int, Field(ge=0)] | Literal["auto"] | None = None
    min_confidence: Annotated[float, Field(ge=0, lt=1)] | None = None
    verifier: Literal["token", "block", "shared-noise"] | None = None
    proposer: Literal["auto", "draft_model", "ngram"] | None = None


class StreamOptions(Body):
    """What a stream carries beside the text."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: Annotated[bool | None, only(False)] = None


class ResponseFormat(Body):
    """Free text only."""

    type: Annotated[object, only("text")]


class GenerationBody(Body):
    """Sampling, stopping, streaming and speculation, with OpenAI's defaults and limits.

    A field annotated `Unsupported` or `only(...)` is known and refused (but for null and values
    that ask for nothing).
    """

    model: str | None = None
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    stop: StopStrings | None = None
    stop_token_ids: StopIds | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    seed: Int64 | None = None
    ignore_eos: bool | None = None
    min_tokens: Annotated[int, Field(ge=0)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    # In single precision a much smaller one would make scores infinite.
    repetition_penalty: Annotated[float, Field(ge=0.01, le=10)] | None = None
    logit_bias: Biases | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = None
    metadata: Metadata | None = None
    priority: Int64 | None = None
    truncate_prompt_tokens: Literal[-1] | Annotated[int, Field(ge=1)] | None = None
    return_token_ids: bool | None = None
    return_provenance: bool | None = None
    speculation: SpeculationBody | None = None
    response_format: ResponseFormat | None = None

    # No prefix is shared between requests, so that a salt has nothing to keep apart.
    cache_salt: str | None = None
    # Labels and hints that change nothing in what this server would do.
    safety_identifier: str | None = None
    session_id: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    prompt_cache_options: dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    add_special_tokens: bool | None = None

    allowed_token_ids: Unsupported = None
    bad_words: Unsupported = None
    prompt_logprobs: Unsupported = None
    logprob_token_ids: Unsupported = None
    structured_outputs: Unsupported = None
    guided_json: Unsupported = None
    guided_regex: Unsupported = None
    guided_choice: Unsupported = None
    guided_grammar: Unsupported = None
    regex: Unsupported = None
    ebnf: Unsupported = None
    json_schema: Unsupported = None
    logits_processors: Unsupported = None
    use_beam_search: Annotated[object, only(False)] = None
    length_penalty: Annotated[object, only(1, 1.0)] = None
    return_tokens_as_token_ids: Annotated[object, only(False)] = None
    spaces_between_special_tokens: Annotated[object, only(True)] = None
    truncation_side: Annotated[object, only("left")] = None
    thinking_token_budget: Unsupported = None
    stream_interval: Annotated[object, only(1)] = None
    lora_path: Unsupported = None
    audio: Unsupported = None
    chat_template: Unsupported = None
    documents: Unsupported = None
    function_call: Annotated[object, only("none")] = None
    functions: Unsupported = None
    mm_processor_kwargs: Unsupported = None
    modalities: Annotated[object, only(["text"])] = None
    moderation: Unsupported = None
    prediction: Unsupported = None
    prompt_embeds: Unsupported = None
    reasoning_effort: Annotated[object, only("none")] = None
    service_tier: Annotated[object, only("auto", "default")] = None
    store: Annotated[object, only(False)] = None
    suffix: Annotated[object, only("")] = None
    tool_choice: Annotated[object, only("none")] = None
    tools: Unsupported = None
    verbosity: Annotated[object, only("medium")] = None
    web_search_options: Unsupported = None
    ec_transfer_params: Unsupported = None
    include_reasoning: Annotated[object, only(True)] = None
    kv_transfer_params: Unsupported = None
    media_io_kwargs: Unsupported = None
    # What a picture becomes; there are none.
    mm_payload: Annotated[object, only("tensors", "none")] = None
    return_mm_kwargs: Annotated[object, only(True, False)] = None
    repetition_detection: Unsupported = None
    request_id: Unsupported = None
    return_prompt_text: Annotated[object, only(False)] = None
    return_token_offsets: Annotated[object, only(False)] = None
    routed_experts_prompt_start: Annotated[object, only(0)] = None
    vllm_xargs: Unsupported = None
    watermarking: Annotated[object, only(False)] = None

    @model_validator(mode="after")
    def _fields_agree(self) -> Self:
        if self.stream_options is not None and not self.stream:
            raise disagreement("stream_options", "only allowed when stream is true")
        options = self.stream_options
        if options is not None and options.continuous_usage_stats and not options.include_usage:
            name = "stream_options.continuous_usage_stats"
            raise disagreement(name, "only allowed when include_usage is true")
        return self
