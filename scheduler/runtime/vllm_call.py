"""Makes one call of a model that vLLM runs: its layers under its own configuration and metadata.

vLLM keeps the call that is being made in a variable of its module, so there is one at a time,
whichever of the models it is of. It knows tensors; not where their rows come from.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock

import torch
from torch import Tensor
from vllm.config import CUDAGraphMode
from vllm.forward_context import set_forward_context

from scheduler.runtime.vllm_kv import VllmKv
from scheduler.runtime.vllm_loading import VllmModel

_CALLING = Lock()


@dataclass(frozen=True, slots=True, kw_only=True)
class CallInputs:
    """What layers read of N rows, int64 [N]. A slot of -1 keeps no K/V row. `padding` [N] says
    which rows are nobody's; None where none are."""

    token_ids: Tensor
    positions: Tensor
    slots: Tensor
    padding: Tensor | None = None


@contextmanager
def one_call(model: VllmModel) -> Iterator[None]:
    """Around everything that runs layers of `model`. Raises RuntimeError when another thread is
    inside a call of any model."""
    if not _CALLING.acquire(blocking=False):
        raise RuntimeError("two threads run vLLM models at once")
    try:
        with model.inside(), torch.inference_mode():
            yield
    finally:
        _CALLING.release()


def run_layers(
    model: VllmModel, kv: VllmKv, metadata: Mapping[str, object], inputs: CallInputs
) -> Tensor:
    """Final hidden states [N, H]; writes K/V. `metadata` is by layer name. Within `one_call`."""
    with set_forward_context(
        metadata,
        model.config,
        num_tokens=len(inputs.token_ids),
        cudagraph_runtime_mode=CUDAGraphMode.NONE,
        slot_mapping=dict.fromkeys(kv.layers, inputs.slots),
        is_padding=inputs.padding,
    ):
        return model.module(input_ids=inputs.token_ids, positions=inputs.positions)
