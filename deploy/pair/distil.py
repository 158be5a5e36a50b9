"""The draft's loss and start: it learns the target's distribution, from the target's own start."""

import torch
from torch import Tensor
from torch.nn import functional
from transformers import LlamaForCausalLM

from deploy.pair.train import Loss, logits_of

__all__ = ["distillation", "start_from"]

_TEXT_SHARE = 0.1


def distillation(target: LlamaForCausalLM) -> Loss:
    """Make the loss that pulls a draft towards `target` at temperature 1.

    Nine parts are KL(target || draft) in nats per token, one part is the cross-entropy of the
    text itself.
    """
    target.eval()

    def loss(draft: LlamaForCausalLM, ids: Tensor) -> Tensor:
        with torch.no_grad():
            wanted = logits_of(target, ids[:, :-1]).log_softmax(-1).flatten(0, 1)
        got = logits_of(draft, ids[:, :-1]).log_softmax(-1).flatten(0, 1)
        text = functional.nll_loss(got, ids[:, 1:].flatten())
        divergence = functional.kl_div(got, wanted, reduction="batchmean", log_target=True)
        return (1 - _TEXT_SHARE) * divergence + _TEXT_SHARE * text

    return loss


def start_from(draft: LlamaForCausalLM, target: LlamaForCausalLM) -> None:
    """Copy into `draft` every tensor it shares by name: embeddings, first layers, last norm."""
    shared = {name: t for name, t in target.state_dict().items() if name in draft.state_dict()}
    draft.load_state_dict(shared)
