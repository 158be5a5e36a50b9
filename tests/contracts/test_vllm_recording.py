"""What the recording of vLLM's calls rests on: its builders, its configuration, its own context.

Builders for GPUs run on a CPU too, all but their kernels.
"""

from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch

from scheduler.runtime import create
from scheduler.runtime.create import PairOptions
from scheduler.runtime.graphs import GraphedForward
from scheduler.runtime.loading import ModelSource
from scheduler.runtime.vllm_choice import VllmChoices
from tests.contracts.test_forward import POOLS, checkpoints
from tests.contracts.test_vllm_fixed import CPU, POSITIONS, forwards, packed, vllm
from tests.oracles.forwards import Kind, make_forward, need_vllm
from tests.oracles.rig import capabilities

__all__ = ["checkpoints", "forwards"]


@pytest.mark.parametrize(
    ("support", "thresholds", "ragged", "widest"),
    [
        ("ALWAYS", (None,), True, None),
        ("UNIFORM_BATCH", (None, None), False, None),
        ("UNIFORM_BATCH", (None, 9, 4), False, 4),
        ("UNIFORM_SINGLE_TOKEN_DECODE", (8,), False, 1),
        ("NEVER", (None,), False, 0),
    ],
)
def test_what_backends_say_of_their_recordings(
    support, thresholds, ragged, widest, checkpoints, monkeypatch
):
    kv = vllm("scheduler.runtime.vllm_kv")
    said = vllm("vllm.v1.attention.backend").AttentionCGSupport[support]
    groups = [
        SimpleNamespace(get_metadata_builder=lambda each=each: each)
        for each in (SimpleNamespace(reorder_batch_threshold=each) for each in thresholds)
    ]
    monkeypatch.setattr(
        kv,
        "init_attn_backend",
        lambda *_: ([groups], SimpleNamespace(min_cg_support=said), [32]),
    )
    monkeypatch.setattr(kv, "init_kv_cache", lambda *_, **__: None)
    source = ModelSource(path_or_id=str(checkpoints["draft"]), offline=True)
    forward = make_forward(Kind("vllm", "cpu", "float32"), source, POOLS["draft"])
    assert (forward.kv.ragged, forward.kv.widest) == (ragged, widest)


@contextmanager
def built_by(forward, name, cls):
    """Have a backend's own builder make the metadata of a forward, which runs no layers then."""
    builder_of = getattr(vllm(f"vllm.v1.attention.backends.{name}"), cls)
    config = vllm("vllm.config")
    (group,) = forward.kv.groups
    before = group.metadata_builders
    with config.set_current_vllm_config(forward.model.config):
        builder = builder_of(group.kv_cache_spec, group.layer_names, forward.model.config, CPU)
    group.metadata_builders = [builder]
    yield builder
    group.metadata_builders = before


def filled(forward, call, spans):
    """(metadata, addresses of all its tensors) of a call."""
    ours = packed(spans)
    with torch.inference_mode():
        call.fill(torch.zeros(len(ours.positions), dtype=torch.int64), ours)
    made = next(iter(call._metadata.values()))
    tensors = {name: value for name, value in vars(made).items() if torch.is_tensor(value)}
    return made, {name: value.data_ptr() for name, value in tensors.items()}


def test_the_triton_backend_expects_recordings_and_reads_buffers_only(forwards):
    forward = forwards["ragged"]
    with built_by(forward, "triton_attn", "TritonAttentionMetadataBuilder") as builder:
        assert builder.decode_cudagraph_enabled
        # One of the sizes that are recorded: each size takes one kernel, whatever is replayed.
        assert builder.seq_threshold_3D in vllm("scheduler.runtime.vllm_fixed").SIZES
        call = forward.fixed(forward.shape_of(packed([(9, 4), (3, 1), (0, 2)])))
        made, places = filled(forward, call, [(9, 4), (3, 1), (0, 2)])
        assert (made.max_query_len, made.num_actual_tokens, made.max_seq_len) == (8, 8, POSITIONS)
        assert made.seq_lens.tolist() == [13, 4, 2, 0, 0, 0, 0, 0]
        again, same = filled(forward, call, [(70, 5), (0, 1)])
        assert same == places
        assert again.seq_lens.tolist() == [75, 1, 0, 0, 0, 0, 0, 0]
        assert again.query_start_loc.tolist() == [0, 5, 6, 6, 6, 6, 6, 6, 6]


def test_flash_attention_writes_every_call_s_schedule_to_one_place(forwards, monkeypatch):
    """As version 3 does on Hopper."""
    flash = vllm("vllm.v1.attention.backends.flash_attn")
    asked = []

    def schedule(**sizes):
        asked.append(sizes)
        return sizes["cache_seqlens"].clone()

    monkeypatch.setattr(flash, "get_flash_attn_version", lambda **_: 3)
    monkeypatch.setattr(flash, "get_scheduler_metadata", schedule, raising=False)
    forward = forwards["ragged"]
    with built_by(forward, "flash_attn", "FlashAttentionMetadataBuilder") as builder:
        assert builder.use_full_cuda_graph
        call = forward.fixed(forward.shape_of(packed([(9, 4), (3, 1)])))
        made, places = filled(forward, call, [(9, 4), (3, 1)])
        assert made.scheduler_metadata.data_ptr() == builder.scheduler_metadata.data_ptr()
        assert made.scheduler_metadata.tolist() == [13, 4, 0, 0, 0, 0]
        # More splits than these have no room in a recording.
        assert made.max_num_splits == builder.max_num_splits > 0
        again, same = filled(forward, call, [(20, 2), (0, 3)])
        assert same == places
        assert again.scheduler_metadata.tolist() == [22, 3, 0, 0, 0, 0]
        kept = [{k: v for k, v in each.items() if not torch.is_tensor(v)} for each in asked]
        assert kept[0] == kept[1]


def test_without_recordings_the_configuration_stays_as_it_was(checkpoints):
    need_vllm()
    source = ModelSource(path_or_id=str(checkpoints["draft"]), offline=True)
    forward = make_forward(Kind("vllm", "cpu", "float32"), source, POOLS["draft"])
    compilation = forward.model.config.compilation_config
    assert not compilation.cudagraph_mode.has_full_cudagraphs()
    ours = packed([(0, 1)])
    assert forward.shape_of(ours) is None
    with pytest.raises(ValueError, match="no buffers for"):
        forward.fixed("any")


def test_scratch_memory_that_a_recording_writes_is_kept(monkeypatch):
    """Layers that ask for more get another piece, and the one they had is let go of."""
    workspace = vllm("vllm.v1.worker.workspace")
    loading = vllm("scheduler.runtime.vllm_loading")
    monkeypatch.setattr(torch.accelerator, "empty_cache", lambda: None)
    monkeypatch.setattr(workspace, "_manager", workspace.WorkspaceManager(CPU))
    get = workspace.current_workspace_manager().get_simultaneous
    (before,) = get(((4096,), torch.uint8))
    kept = loading.shared_scratch(torch.device("cuda"))
    assert kept.untyped_storage().data_ptr() == before.untyped_storage().data_ptr()
    assert kept.untyped_storage().nbytes() >= 4096
    get(((1 << 20,), torch.uint8))
    assert loading.shared_scratch(torch.device("cuda")).data_ptr() != kept.data_ptr()
    assert loading.shared_scratch(CPU) is None


def test_processes_record_within_vllm_s_own_context(monkeypatch):
    """On one stream of its own: what is recorded on another one shares no memory."""
    worker = vllm("scheduler.runtime.vllm_worker")
    within, streams = [], []

    class Group:
        cpu_group = None

        @contextmanager
        def graph_capture(self, context):
            streams.append(context.stream)
            within.append(True)
            yield
            within.pop()

    def record(launch):
        assert within
        return lambda: launch() + 1

    monkeypatch.setattr(worker.groups, "get_tp_group", Group)
    monkeypatch.setattr(worker.torch.distributed, "all_reduce", lambda *_: None)
    monkeypatch.setattr(worker, "GraphRecorder", lambda device: record)
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: object())
    recorder = worker.GroupRecorder(torch.device("cuda"))
    assert [recorder(lambda: 1)(), recorder(lambda: 2)()] == [2, 3]
    assert not within
    assert len(set(streams)) == 1


@pytest.mark.parametrize("enforce_eager", [False, True])
def test_processes_record_unless_they_are_told_not_to(enforce_eager, forwards, monkeypatch):
    worker = vllm("scheduler.runtime.vllm_worker")
    made = []
    forward = GraphedForward(forwards["ragged"], lambda launch: launch)
    monkeypatch.setattr(worker, "GroupRecorder", lambda device: "recorder")
    monkeypatch.setattr(worker, "vllm_forward", lambda *given: made.append(given) or forward)
    each = worker.RoundWorker()
    each.device, each._target, each._draft = torch.device("cuda"), "target", "draft"
    started = each.round_start(POOLS["draft"], capabilities(), enforce_eager)
    record = None if enforce_eager else "recorder"
    assert made == [(name, record, POOLS["draft"]) for name in ("target", "draft")]
    assert started == worker.Started(memory=2 * forward.memory_bytes(), numerics="plain, padded")


@pytest.mark.parametrize("enforce_eager", [False, True])
def test_a_split_pair_is_told_whether_to_record(enforce_eager):
    parallel = vllm("scheduler.runtime.vllm_parallel")
    options = PairOptions(
        target=ModelSource(path_or_id="none"),
        draft=None,
        runtime="vllm",
        vllm=VllmChoices(tensor_parallel=2),
        device="cpu",
        enforce_eager=enforce_eager,
    )
    pair = create._runtime(options, CPU, lambda: 0.0)
    asked = []
    pair._ask = lambda *given: asked.append(given) or [parallel.Started(memory=5, numerics="x")] * 2
    pair._executor = SimpleNamespace(is_failed=False)
    runner = pair.start(POOLS["draft"], capabilities())
    assert asked == [("round_start", POOLS["draft"], capabilities(), enforce_eager)]
    assert (runner.memory_bytes(), runner.capabilities().numerics) == (10, "x")
