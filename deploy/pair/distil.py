"""The draft's loss and start: it learns to be accepted by the target, from the target's start."""

import torch
from torch import Tensor
from torch.nn import functional
from transformers import LlamaForCausalLM

from deploy.pair.train import Loss, logits_of

__all__ = ["distillation", "start_from"]

_DIVERGENCE_WEIGHT = 0.25


def distillation(target: LlamaForCausalLM) -> Loss:
    """Make the loss that pulls a draft towards `target` at temperature 1.

    It is the mean over positions of 1 - sum over x of min(p(x), q(x)), which is the chance that
    a drafted token is refused, plus a quarter of KL(target || draft) in nats per token. The
    divergence leads where the two hardly overlap and the first term is flat.
    """
    target.eval()

    def loss(draft: LlamaForCausalLM, ids: Tensor) -> Tensor:
        with torch.no_grad():
            wanted = logits_of(target, ids[:, :-1]).log_softmax(-1).flatten(0, 1)
        got = logits_of(draft, ids[:, :-1]).log_softmax(-1).flatten(0, 1)
        divergence = functional.kl_div(got, wanted, reduction="batchmean", log_target=True)
        refused = 1 - torch.minimum(got, wanted).exp().sum(-1).mean()
        return refused + _DIVERGENCE_WEIGHT * divergence

    return loss


def start_from(draft: LlamaForCausalLM, target: LlamaForCausalLM) -> None:
    """Copy into `draft` every tensor it shares by name: embeddings, first layers, last norm."""
    shared = {name: t for name, t in target.state_dict().items() if name in draft.state_dict()}
    draft.load_state_dict(shared)
