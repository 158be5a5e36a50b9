"""What is the business of forwards that vLLM runs alone: contexts, threads, its K/V memory."""

import threading

import pytest
import torch
from transformers import AutoModelForCausalLM

from scheduler.config import PoolConfig
from scheduler.errors import ConfigRefused, ModelRefused
from scheduler.runtime.loading import ModelSource
from scheduler.runtime.vllm_choice import VllmOptions
from tests.contracts.test_forward import POOLS, checkpoints
from tests.oracles.forwards import Kind, make_forward, need_vllm
from tests.oracles.packed_calls import RELATIVE, Oracle, Requests

__all__ = ["checkpoints"]

FLOAT32 = Kind("vllm", "cpu", "float32")


@pytest.fixture(scope="module")
def forwards(checkpoints):
    need_vllm()
    return {name: _forward(checkpoints, name) for name in POOLS}


def _forward(checkpoints, name):
    return make_forward(FLOAT32, _source(checkpoints, name), POOLS[name])


def _source(checkpoints, name):
    return ModelSource(path_or_id=str(checkpoints[name]), offline=True)


def test_a_model_under_the_configuration_of_another_raises(forwards):
    from vllm.forward_context import set_forward_context  # noqa: PLC0415

    from scheduler.runtime.vllm_loading import WrongContext  # noqa: PLC0415

    target, draft = forwards["target"], forwards["draft"]
    with (
        torch.inference_mode(),
        set_forward_context(None, target.model.config, num_tokens=1),
        pytest.raises(WrongContext, match=r"draft\S* was run under the configuration of another"),
    ):
        draft.model.module(input_ids=torch.tensor([1]), positions=torch.tensor([0]))


def test_two_threads_at_once_are_refused(forwards):
    requests = Requests(forwards["target"], (3,))
    caught = []

    def meddle(*_):
        other = threading.Thread(target=attempt)
        other.start()
        other.join()

    def attempt():
        with pytest.raises(RuntimeError, match="two threads"):
            Requests(forwards["draft"], (3,)).call({0: (0, 3)})
        caught.append(True)

    hook = forwards["target"].model.module.register_forward_pre_hook(meddle)
    requests.call({0: (0, 3)})
    hook.remove()
    assert caught == [True]
    requests.call({0: (0, 3)})


@pytest.mark.parametrize("name", POOLS)
def test_cleared_rows_are_zeros_and_the_others_stay(name, forwards, checkpoints):
    """Rows that are not finite stand in the rest of a block, where a masked key is read."""
    requests = Requests(forwards[name], (90, 90), seed=9)
    requests.call({0: (0, 40), 1: (0, 40)})
    table = requests.tables[0]
    size = forwards[name].block_size
    slots = [table[at // size] * size + at % size for at in range(40, len(table) * size)]
    _fill(forwards[name].kv, torch.tensor(slots), float("nan"))
    forwards[name].clear_blocks(table, 40)
    oracle = Oracle(checkpoints[name])
    for number, found in requests.call({0: (40, 41), 1: (40, 41)}).items():
        wanted = oracle.logits(requests.tokens[number][:41], 40)
        assert (found - wanted).abs().max().item() <= RELATIVE * wanted.abs().max().item()


def _fill(kv, slots, value):
    for layer in kv.layers.values():
        rows = torch.full((len(slots), layer.num_kv_heads, layer.head_size), value)
        rows = rows.to(layer.kv_cache.dtype)
        layer.impl.do_kv_cache_update(layer, rows, rows, layer.kv_cache, slots)


def test_a_pool_starts_as_zeros_and_is_the_model_s_only_one(checkpoints):
    need_vllm()
    forward = _forward(checkpoints, "draft")
    assert all(not layer.kv_cache.any() for layer in forward.kv.layers.values())
    kept = POOLS["draft"].blocks * POOLS["draft"].block_size
    row = 2 * 2 * 4 * 32 * 4
    assert forward.model.kv_shape.bytes_per_token() == row
    assert sum(layer.kv_cache.nbytes for layer in forward.kv.layers.values()) == kept * row
    whole = AutoModelForCausalLM.from_pretrained(checkpoints["draft"])
    assert forward.memory_bytes() == 4 * whole.num_parameters() + kept * row
    assert forward.identity.parameters == whole.num_parameters()
    with pytest.raises(ValueError, match="has K/V memory already"):
        type(forward)(forward.model, POOLS["draft"])
    with pytest.raises(ValueError, match=r"blocks of 32 rows, but .* blocks of 64"):
        type(forward)(forward.model, POOLS["target"])


def test_another_device_and_a_broken_checkpoint_are_refused_by_name(checkpoints, tmp_path):
    need_vllm()
    from scheduler.runtime.vllm_loading import load_vllm_model  # noqa: PLC0415

    source = _source(checkpoints, "draft")
    options = VllmOptions(dtype="auto", block_size=16)
    said = "device=cuda, runtime=vllm: the vLLM that is installed runs models on cpu"
    with pytest.raises(ConfigRefused, match=said):
        load_vllm_model(source, device=torch.device("cuda"), options=options)
    (tmp_path / "config.json").write_bytes((checkpoints["draft"] / "config.json").read_bytes())
    bare = ModelSource(path_or_id=str(tmp_path), offline=True)
    with pytest.raises(ModelRefused, match=rf"{tmp_path}: vLLM: \w+: "):
        make_forward(FLOAT32, bare, PoolConfig(blocks=1, block_size=32))


def test_a_process_is_made_a_worker_once(checkpoints, monkeypatch):
    """What vLLM's own workers do before they load, before the first of two models."""
    need_vllm()
    from vllm.v1.worker import workspace  # noqa: PLC0415

    from scheduler.runtime import vllm_loading  # noqa: PLC0415

    done = []
    workspace.reset_workspace_manager()
    for place, name in (
        (vllm_loading, "load_general_plugins"),
        (vllm_loading.current_platform, "register_triton_kernel_overrides"),
    ):
        real = getattr(place, name)
        monkeypatch.setattr(place, name, lambda real=real, name=name: done.append((name, real())))
    for _ in range(2):
        _forward(checkpoints, "draft")
    assert [name for name, _ in done] == [
        "load_general_plugins",
        "register_triton_kernel_overrides",
    ]
    assert workspace.current_workspace_manager()._device == torch.device("cpu")


def test_kernels_that_did_not_load_are_told(forwards, monkeypatch):
    from scheduler.runtime import vllm_loading  # noqa: PLC0415

    vllm_loading.check_device(torch.device("cpu"))
    monkeypatch.setattr(vllm_loading, "_CPU_KERNEL", "a_kernel_of_no_release")
    with pytest.raises(ConfigRefused, match="its kernels cannot be loaded; they need libnuma"):
        vllm_loading.check_device(torch.device("cpu"))
