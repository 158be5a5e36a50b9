"""Says which models this runtime serves exactly, by configuration, and refuses the rest by name.

It reads configurations and loading reports. It loads no weights and runs no model.
"""

from collections.abc import Mapping
from typing import TypedDict

from transformers import PreTrainedConfig

from scheduler.errors import ModelRefused

ARCHITECTURES = frozenset(
    {
        "LlamaForCausalLM",
        "Qwen2ForCausalLM",
        "Qwen3ForCausalLM",
        "MistralForCausalLM",
        "Gemma2ForCausalLM",
        "Gemma3ForCausalLM",
    }
)
# `dynamic` and `longrope` choose frequencies by the longest position of the packed call, so that
# a long neighbour would change a short request.
ROPE_TYPES = frozenset({"default", "linear", "llama3", "yarn"})
LAYER_TYPES = frozenset({"full_attention", "sliding_attention"})

QUANTIZATION = "quantization_config"
# Settings that change the function a model computes and that no code here honours, with the one
# value besides None that leaves it alone.
_UNSUPPORTED: Mapping[str, tuple[object, str]] = {
    QUANTIZATION: (None, "quantized checkpoints are not supported"),
    "use_bidirectional_attention": (False, "bidirectional attention is not supported"),
    "attention_chunk_size": (None, "chunked attention is not supported"),
    "num_kv_shared_layers": (0, "sharing K/V between layers is not supported"),
    "logits_scaling": (1.0, "scaled logits are not supported"),
    "logit_scale": (1.0, "scaled logits are not supported"),
    "embedding_multiplier": (1.0, "scaled embeddings are not supported"),
    "residual_multiplier": (1.0, "scaled residuals are not supported"),
    "attention_multiplier": (1.0, "scaled attention is not supported"),
}


class LoadingReport(TypedDict):
    """What transformers says of the weights it found."""

    missing_keys: set[str]
    unexpected_keys: set[str]
    mismatched_keys: set[tuple[str, object, object]]


def check_config(
    name: str, config: PreTrainedConfig, honoured: frozenset[str] = frozenset()
) -> str:
    """The architecture of a model that can be served. Raises ModelRefused with the reason.

    `honoured` are settings that whoever runs the model takes care of.
    """
    if config.is_encoder_decoder:
        raise ModelRefused(f"{name}: encoder-decoder models are not supported")
    architecture = _architecture(name, config)
    _check_settings(name, config, honoured)
    _check_rotary(name, config)
    types = set(getattr(config, "layer_types", None) or ())
    for kind in sorted(types - LAYER_TYPES):
        raise ModelRefused(
            f"{name}: layer type {kind!r} is not supported (supported: {_list(LAYER_TYPES)})"
        )
    return architecture


def rounds_activations(config: PreTrainedConfig) -> bool:
    """Whether a quantized checkpoint (compressed-tensors) has its activations in whole numbers."""
    settings = getattr(config, QUANTIZATION, None) or {}
    groups = settings.get("config_groups", {}).values() if isinstance(settings, Mapping) else ()
    inputs = [group.get("input_activations") or {} for group in groups]
    return any(each.get("type") == "int" for each in inputs)


def check_report(name: str, report: LoadingReport) -> None:
    """Refuse a checkpoint whose weights are not exactly those of the architecture."""
    mismatched = {str(entry[0]) for entry in report["mismatched_keys"]}
    found = (
        ("missing", report["missing_keys"]),
        ("unexpected", report["unexpected_keys"]),
        ("of another shape", mismatched),
    )
    for kind, keys in found:
        if keys:
            raise ModelRefused(
                f"{name}: {len(keys)} weights are {kind} in the checkpoint, {min(keys)} first"
            )


def _architecture(name: str, config: PreTrainedConfig) -> str:
    architectures = list(config.architectures or ())
    if len(architectures) != 1:
        raise ModelRefused(f"{name}: the configuration names no single architecture")
    architecture = str(architectures[0])
    if not architecture.endswith("ForCausalLM"):
        raise ModelRefused(f"{name}: {architecture} is not a causal language model")
    if architecture not in ARCHITECTURES:
        raise ModelRefused(
            f"{name}: architecture {architecture} is not supported "
            f"(supported: {_list(ARCHITECTURES)})"
        )
    return architecture


def _check_settings(name: str, config: PreTrainedConfig, honoured: frozenset[str]) -> None:
    for field, (neutral, reason) in _UNSUPPORTED.items():
        value = getattr(config, field, None)
        if field not in honoured and value is not None and value != neutral:
            raise ModelRefused(f"{name}: {field}={value!r}: {reason}")


def _check_rotary(name: str, config: PreTrainedConfig) -> None:
    parameters = getattr(config, "rope_parameters", None) or {}
    nested = [entry for entry in parameters.values() if isinstance(entry, Mapping)]
    for entry in nested or [parameters]:
        kind = entry.get("rope_type", "default")
        if kind not in ROPE_TYPES:
            raise ModelRefused(
                f"{name}: rope type {kind!r} is not supported (supported: {_list(ROPE_TYPES)})"
            )
        share = entry.get("partial_rotary_factor", 1.0)
        if share != 1.0:
            raise ModelRefused(
                f"{name}: partial_rotary_factor={share}: partial rotary embeddings "
                "are not supported"
            )


def _list(names: frozenset[str]) -> str:
    return ", ".join(sorted(names))
