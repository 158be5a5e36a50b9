"""What is loaded, how it is named, and what happens when a fast path disagrees."""

import logging

import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.utils import logging as transformers_logging

from scheduler.errors import ModelRefused
from scheduler.runtime import llama_decoder, loading
from scheduler.runtime.decoder import ATTENTION_NAME, ModuleDecoder
from scheduler.runtime.linear import build_linear, half_available
from scheduler.runtime.llama_decoder import LlamaDecoder, layer_window
from scheduler.runtime.loading import ModelSource, load_model, load_tokenizer
from tests.scheduler.runtime.conftest import CONFIGS

CPU = torch.device("cpu")
# Embedding and head, final norm; per layer two norms, q and o, k and v, and the feed-forward.
LLAMA_PARAMETERS = (
    97 * 48 * 2
    + 48
    + 3 * (2 * 48 + 48 * 48 * 2 + 2 * 48 + 2 * (48 * 16 + 16) + 3 * 48 * 80 + 2 * 80 + 48)
)
HALF = "-half" if half_available() else ""


@pytest.mark.parametrize(
    ("name", "dtype", "label"),
    [
        ("llama", "auto", "float32+lean"),
        ("llama-bfloat16", "auto", f"float32+lean{HALF}"),
        ("llama-bfloat16", "float32", f"float32+lean{HALF}"),
        ("llama-bfloat16", "bfloat16", "bfloat16+lean"),
        ("gemma3-bfloat16", "auto", f"float32+modules{HALF}"),
        ("gemma2", "bfloat16", "bfloat16+modules"),
    ],
)
def test_the_identity_says_how_a_model_is_computed(name, dtype, label, source):
    model = load_model(source(name), device=CPU, dtype=dtype)
    assert model.identity.dtype == label
    assert model.kv_shape.dtype is (torch.bfloat16 if dtype == "bfloat16" else torch.float32)
    assert model.identity.revision.startswith("sha256:")
    assert model.max_positions == 320


@pytest.mark.parametrize("name", CONFIGS)
def test_the_cache_has_the_heads_and_layers_of_the_configuration(name, source):
    model, config = load_model(source(name), device=CPU), CONFIGS[name]
    dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    assert (model.kv_shape.layers, model.kv_shape.kv_heads) == (3, 2)
    assert (model.kv_shape.head_dim, model.heads) == (dim, 6)
    assert model.head.vocabulary == 97


def test_packing_can_be_turned_off(source):
    model = load_model(source("llama-bfloat16"), device=CPU, pack=False)
    assert model.identity.dtype == "float32+lean"


def test_windows_follow_the_layers():
    assert [layer_window(CONFIGS["qwen2"], n) for n in range(3)] == [None, 11, 11]
    assert [layer_window(CONFIGS["qwen3"], n) for n in range(3)] == [None] * 3
    assert [layer_window(CONFIGS["mistral"], n) for n in range(3)] == [7] * 3
    assert [layer_window(CONFIGS["llama"], n) for n in range(3)] == [None] * 3


def test_a_changed_file_is_another_revision(source, edited):
    before = load_model(source("llama"), device=CPU).identity
    folder = edited("llama", rope_parameters={"rope_type": "default", "rope_theta": 5e3})
    after = load_model(ModelSource(path_or_id=str(folder)), device=CPU).identity
    assert before.revision != after.revision
    assert before.parameters == after.parameters == LLAMA_PARAMETERS


def _wrong_linear(weights, biases, *, half):
    return build_linear([weight * 1.01 for weight in weights], biases, half=half)


@pytest.mark.skipif(not half_available(), reason="no FBGEMM on this processor")
def test_packing_that_changes_logits_is_dropped_with_a_line(source, monkeypatch, caplog):
    def _wrong_when_packed(weights, biases, *, half):
        make = _wrong_linear if half else build_linear
        return make(weights, biases, half=half)

    monkeypatch.setattr(llama_decoder, "build_linear", _wrong_when_packed)
    with caplog.at_level(logging.WARNING, loading.__name__):
        model = load_model(source("llama-bfloat16"), device=CPU)
    assert model.identity.dtype == "float32+lean"
    assert "float32+lean-half dropped" in caplog.text


def test_a_lean_decoder_that_changes_logits_gives_way_to_the_modules(source, monkeypatch, caplog):
    monkeypatch.setattr(llama_decoder, "build_linear", _wrong_linear)
    with caplog.at_level(logging.WARNING, loading.__name__):
        model = load_model(source("llama"), device=CPU)
    assert isinstance(model.decoder, ModuleDecoder)
    assert "float32+lean dropped" in caplog.text


def test_a_model_that_no_path_reproduces_is_refused(source, monkeypatch):
    monkeypatch.setattr(loading, "TOLERANCE", {torch.float32: -1.0})
    with pytest.raises(ModelRefused, match=r"packed logits are .* off the model's own"):
        load_model(source("llama"), device=CPU)


def test_the_lean_decoder_refuses_other_layers(checkpoints):
    model = loading.AutoModelForCausalLM.from_pretrained(checkpoints["gemma2"])
    with pytest.raises(ValueError, match="Gemma2ForCausalLM has no lean decoder"):
        LlamaDecoder(model, half=False)


def test_the_module_path_leaves_the_model_as_it_was(checkpoints):
    model = loading.AutoModelForCausalLM.from_pretrained(
        checkpoints["gemma3"], attn_implementation="eager"
    )
    before = [type(module) for module in model.modules()]
    ModuleDecoder(model, half=True)
    assert [type(module) for module in model.modules()] == before
    assert model.config._attn_implementation == "eager"


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"scaling": 0.5, "chunk": 7}, "chunk"),
        ({"scaling": 0.5, "dropout": 0.1}, "dropout"),
        ({}, "a scale"),
        ({"scaling": 0.5}, "without its rows"),
    ],
)
def test_attention_refuses_keywords_that_it_does_not_know(keywords, message):
    attend = ALL_ATTENTION_FUNCTIONS[ATTENTION_NAME]
    module = torch.nn.Module()
    module.layer_idx = 0
    heads = torch.zeros(1, 2, 3, 4)
    with pytest.raises(TypeError, match=message):
        attend(module, heads, heads, heads, None, **keywords)


def test_transformers_keeps_its_own_verbosity(source):
    transformers_logging.set_verbosity_info()
    try:
        load_model(source("llama"), device=CPU)
        assert transformers_logging.get_verbosity() == logging.INFO
    finally:
        transformers_logging.set_verbosity_error()


def test_a_tokenizer_is_loaded_or_refused_by_name(byte_tokenizer, tmp_path):
    byte_tokenizer("<end>").save_pretrained(tmp_path / "with")
    tokenizer = load_tokenizer(ModelSource(path_or_id=str(tmp_path / "with"), offline=True))
    assert tokenizer.decode(tokenizer.encode("héllo")) == "héllo"
    missing = str(tmp_path / "without")
    with pytest.raises(ModelRefused, match="without"):
        load_tokenizer(ModelSource(path_or_id=missing, offline=True))


def test_a_token_is_never_shown():
    assert "secret" not in repr(ModelSource(path_or_id="a/b", token="secret"))


@pytest.mark.parametrize(
    ("device", "choice", "stored", "computed"),
    [
        ("cpu", "auto", torch.bfloat16, torch.float32),
        ("cuda", "auto", torch.bfloat16, torch.bfloat16),
        ("cuda", "auto", torch.float16, torch.float16),
        ("cuda", "auto", None, torch.float32),
        ("cuda", "float32", torch.bfloat16, torch.float32),
        ("cuda", "bfloat16", torch.float32, torch.bfloat16),
    ],
)
def test_the_compute_type_follows_device_and_choice(device, choice, stored, computed):
    config = LlamaConfig(dtype=stored)
    assert loading.compute_dtype(config, torch.device(device), choice) is computed
