"""vLLM's own options for weights and K/V rows: honoured, or refused by their names."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from scheduler.config import PoolConfig
from scheduler.errors import ModelRefused
from scheduler.runtime.loading import ModelSource, load_model
from tests.oracles.forwards import Kind, make_forward
from tests.oracles.packed_calls import Oracle, Requests

BFLOAT16 = Kind("vllm", "cpu", "bfloat16")
FLOAT32 = Kind("vllm", "cpu", "float32")
POOL = PoolConfig(blocks=8, block_size=32)
EIGHT_BITS = {
    "quant_method": "compressed-tensors",
    "format": "int-quantized",
    "quantization_status": "compressed",
    "ignore": ["lm_head"],
    "config_groups": {
        "all": {
            "targets": ["Linear"],
            "weights": {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel"},
            "input_activations": {
                "num_bits": 8,
                "type": "int",
                "symmetric": True,
                "strategy": "token",
                "dynamic": True,
            },
        }
    },
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """(a checkpoint whose linear weights are whole multiples of a step, the same in 8 bits)."""
    torch.manual_seed(5)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=256,
            hidden_size=128,
            intermediate_size=256,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=32,
            max_position_embeddings=256,
            initializer_range=0.08,
        )
    )
    steps = {}
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith("_proj.weight"):
                # Sums of wider ones overflow in kernels for processors without VNNI.
                step = weight.abs().amax(dim=1, keepdim=True) / 31
                weight.copy_((weight / step).round() * step)
                steps[name] = step
    plain, small = (tmp_path_factory.mktemp(name) for name in ("plain", "small"))
    model.save_pretrained(plain)
    weights = load_file(plain / "model.safetensors")
    for name, step in steps.items():
        weights[name] = (weights[name] / step).round().to(torch.int8)
        weights[f"{name}_scale"] = step
    save_file(weights, small / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((plain / "config.json").read_text("utf-8"))
    config["quantization_config"] = EIGHT_BITS
    (small / "config.json").write_text(json.dumps(config), "utf-8")
    return plain, small


def source(folder):
    return ModelSource(path_or_id=str(folder), offline=True)


def rows(forward):
    """Logits of three sequences, in two calls."""
    requests = Requests(forward, (40, 33, 7))
    requests.call({0: (0, 20), 1: (0, 33)})
    found = requests.call({0: (20, 40), 2: (0, 7)})
    return {number: (logits, requests.tokens[number]) for number, logits in found.items()}


def rounded(module, arguments):
    """Inputs of a linear layer in 8 bits, each row by its own largest value."""
    (values,) = arguments
    step = values.abs().amax(dim=-1, keepdim=True) / 127
    return ((values / step).round() * step,)


def test_a_quantized_checkpoint_gives_what_its_weights_say(folders, monkeypatch):
    """Against float32 sums over the very same weights and inputs, both of which are 8 bits."""
    plain, small = folders
    monkeypatch.setattr(torch.cpu, "_is_vnni_supported", lambda: True)
    forward = make_forward(FLOAT32, source(small), POOL)
    assert forward.identity.dtype == "float32+compressed-tensors+vllm"
    oracle = Oracle(plain)
    for name, module in oracle._model.named_modules():
        if name.endswith("_proj"):
            module.register_forward_pre_hook(rounded)
    for number, (found, tokens) in rows(forward).items():
        wanted = oracle.logits(tokens, 20 if number == 0 else 0)
        error = (found - wanted).square().mean().sqrt() / wanted.square().mean().sqrt()
        assert error < 1e-5
    whole = AutoModelForCausalLM.from_pretrained(plain)
    assert forward.model.weight_bytes < 0.5 * 4 * whole.num_parameters()


def test_sums_that_would_overflow_are_refused_by_name(folders, monkeypatch):
    monkeypatch.setattr(torch.cpu, "_is_vnni_supported", lambda: False)
    said = r"small\S*: quantization_config: .* needs VNNI, which this processor has not"
    with pytest.raises(ModelRefused, match=said):
        make_forward(FLOAT32, source(folders[1]), POOL)


def test_the_other_runtime_knows_none(folders):
    with pytest.raises(ModelRefused, match="quantized checkpoints are not supported"):
        load_model(source(folders[1]), device=torch.device("cpu"))


def test_weights_are_quantized_while_they_load(folders):
    plain, _ = folders
    name = "int8_per_channel_weight_only"
    forward = make_forward(BFLOAT16, source(plain), POOL, quantization=name)
    assert forward.identity.dtype not in {"bfloat16+vllm", "bfloat16+None+vllm"}
    assert forward.identity.dtype.startswith("bfloat16+")
    oracle = Oracle(plain)
    for number, (found, tokens) in rows(forward).items():
        wanted = oracle.logits(tokens, 20 if number == 0 else 0)
        assert (found.argmax(-1) == wanted.argmax(-1)).float().mean() > 0.7


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"quantization": "ninebit"}, "quantization=ninebit: vLLM: "),
        ({"kv_cache_dtype": "ninebit"}, "kv_cache_dtype=ninebit: vLLM: "),
    ],
)
def test_what_vllm_does_not_know_is_refused_by_name(options, said, folders):
    with pytest.raises(ModelRefused, match=f"plain.*, {said}"):
        make_forward(FLOAT32, source(folders[0]), POOL, **options)


def test_eight_bit_rows_are_kept_or_refused_by_name(folders):
    """vLLM's kernels for a CPU take them with AVX-512 only."""
    plain, _ = folders

    def make():
        return make_forward(FLOAT32, source(plain), POOL, kv_cache_dtype="fp8")

    if not torch.cpu._is_avx512_supported():
        with pytest.raises(ModelRefused, match=r"plain\S*, kv_cache_dtype=fp8: vLLM: .*AVX-512"):
            make()
        return
    forward = make()
    assert forward.identity.dtype == "float32+kv-fp8+vllm"
    assert forward.model.kv_shape.dtype.itemsize == 1
    oracle = Oracle(plain)
    for number, (found, tokens) in rows(forward).items():
        wanted = oracle.logits(tokens, 20 if number == 0 else 0)
        assert (found.argmax(-1) == wanted.argmax(-1)).float().mean() > 0.7
    forward.clear_blocks(range(POOL.blocks))
    assert all(not layer.kv_cache.any() for layer in forward.kv.layers.values())
