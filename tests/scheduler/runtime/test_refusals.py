"""Every model that would not be served exactly is refused, and the message says why."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from scheduler.errors import ModelRefused
from scheduler.runtime.loading import ModelSource, load_model

CPU = torch.device("cpu")


def _refusal(folder) -> str:
    with pytest.raises(ModelRefused) as caught:
        load_model(ModelSource(path_or_id=str(folder), offline=True), device=CPU)
    message = str(caught.value)
    assert str(folder) in message
    return message


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"architectures": ["PhiForCausalLM"]}, "architecture PhiForCausalLM is not supported"),
        ({"architectures": ["LlamaForTokenClassification"]}, "not a causal language model"),
        ({"architectures": ["LlamaModel"]}, "LlamaModel is not a causal language model"),
        ({"architectures": None}, "names no single architecture"),
        ({"is_encoder_decoder": True}, "encoder-decoder"),
        ({"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}, "rope type 'dynamic'"),
        (
            {
                "rope_parameters": {
                    "rope_type": "longrope",
                    "short_factor": [1.0] * 4,
                    "long_factor": [2.0] * 4,
                    "original_max_position_embeddings": 64,
                }
            },
            "rope type 'longrope'",
        ),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "rope type 'dynamic'"),
        ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, "quantized checkpoints"),
        ({"use_bidirectional_attention": True}, "bidirectional attention"),
        ({"attention_chunk_size": 64}, "chunked attention"),
        ({"num_kv_shared_layers": 1}, "sharing K/V between layers"),
        ({"partial_rotary_factor": 0.5}, "partial rotary"),
        ({"logits_scaling": 8.0}, "scaled logits"),
        ({"residual_multiplier": 0.2}, "scaled residuals"),
    ],
)
def test_a_configuration_is_refused_by_field(fields, reason, edited):
    assert reason in _refusal(edited("llama", **fields))


@pytest.mark.parametrize("kind", ["chunked_attention", "linear_attention"])
def test_a_layer_type_is_refused_by_name(kind, edited):
    types = ["full_attention", "full_attention", kind]
    assert kind in _refusal(edited("qwen3", layer_types=types))


def test_a_rope_type_of_one_layer_type_is_found(edited):
    ropes = {
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        "full_attention": {"rope_type": "dynamic", "rope_theta": 1e6, "factor": 4.0},
    }
    assert "rope type 'dynamic'" in _refusal(edited("gemma3", rope_parameters=ropes))


def _rewrite(folder, change) -> None:
    path = folder / "model.safetensors"
    weights = load_file(path)
    change(weights)
    save_file(weights, path, metadata={"format": "pt"})


def test_a_missing_weight_is_named(edited):
    folder = edited("llama")
    _rewrite(folder, lambda weights: weights.pop("model.layers.1.mlp.up_proj.weight"))
    message = _refusal(folder)
    assert "1 weights are missing" in message
    assert "model.layers.1.mlp.up_proj.weight" in message


def test_an_unexpected_weight_is_named(edited):
    folder = edited("llama")
    _rewrite(folder, lambda w: w.update({"model.layers.1.extra.weight": torch.ones(3)}))
    message = _refusal(folder)
    assert "unexpected" in message
    assert "model.layers.1.extra.weight" in message


def test_a_weight_of_another_shape_is_named(edited):
    message = _refusal(edited("llama", vocab_size=101))
    assert "2 weights are of another shape" in message
    assert "lm_head.weight" in message


def test_rotary_frequencies_of_old_checkpoints_are_no_surprise(edited):
    folder = edited("llama")
    key = "model.layers.1.self_attn.rotary_emb.inv_freq"
    _rewrite(folder, lambda weights: weights.update({key: torch.ones(4)}))
    load_model(ModelSource(path_or_id=str(folder), offline=True), device=CPU)


def test_a_tied_head_is_not_a_missing_weight(edited):
    folder = edited("qwen3", tie_word_embeddings=True)
    _rewrite(folder, lambda weights: weights.pop("lm_head.weight"))
    load_model(ModelSource(path_or_id=str(folder), offline=True), device=CPU)


def test_an_adapter_is_refused_by_name(edited):
    folder = edited("llama")
    adapter = {"peft_type": "LORA", "base_model_name_or_path": "base"}
    (folder / "adapter_config.json").write_text(json.dumps(adapter))
    assert "adapter (LoRA/PEFT)" in _refusal(folder)


def test_a_folder_without_weights_is_refused(edited):
    folder = edited("llama")
    (folder / "model.safetensors").unlink()
    assert "model.safetensors" in _refusal(folder)


def test_an_empty_folder_is_refused(tmp_path):
    assert "config.json" in _refusal(tmp_path) or "model_type" in _refusal(tmp_path)


def test_code_of_the_checkpoint_is_never_run(edited):
    folder = edited("llama", model_type="own", auto_map={"AutoConfig": "own.OwnConfig"})
    (folder / "own.py").write_text("raise SystemExit('the code of the checkpoint ran')\n")
    _refusal(folder)
