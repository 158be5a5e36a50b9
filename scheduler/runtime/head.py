"""The output head: hidden states to float32 logits.

bfloat16 logits would tie exactly in a few per cent of rows, so products are summed and given in
float32.
"""

import torch
from transformers import PreTrainedModel

from scheduler.runtime.linear import (
    HalfLinear,
    LinearLayer,
    WideLinear,
    build_linear,
    linear,
    sums_widely,
)


class OutputHead:
    """The output embedding of a model, with Gemma's final softcapping where it has one."""

    def __init__(self, model: PreTrainedModel, *, half: bool) -> None:
        weight = model.get_submodule("lm_head").get_parameter("weight").detach()
        self._widens = sums_widely(weight)
        self._layer: LinearLayer
        if self._widens:
            self._layer = WideLinear(weight)
        else:
            weight = weight.float()
            self._layer = build_linear([weight], [None], half=half)
        # A tied head that is not packed is the embedding's own memory.
        embeddings = model.get_input_embeddings().get_parameter("weight")
        packed = isinstance(self._layer, HalfLinear)
        self._own = packed or embeddings.data_ptr() != weight.data_ptr()
        self._softcap: float | None = getattr(model.config, "final_logit_softcapping", None)
        self.vocabulary = self._layer.out_features

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[M, V] float32 from [M, H]; capped to `cap * tanh(logit / cap)` where set."""
        logits = linear(hidden if self._widens else hidden.float(), self._layer)
        if self._softcap is None:
            return logits
        return logits.div_(self._softcap).tanh_().mul_(self._softcap)

    def bytes(self) -> int:
        """Bytes that the weights take, beyond the embedding's."""
        return self._layer.bytes() if self._own else 0
