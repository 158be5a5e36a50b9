"""The optimiser: Muon in float32 for hidden matrices, AdamW for everything else."""

from collections import defaultdict
from typing import Any

import torch
from torch import Tensor, nn

from deploy.pair.recipe import Recipe

__all__ = ["PairOptimizer", "orthogonal"]

_NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
_NEWTON_SCHULZ_STEPS = 5
_MOMENTUM = 0.95
_EPS = 1e-7


class PairOptimizer:
    """Muon and AdamW behind one `step`.

    torch's own Muon orthogonalises in bfloat16, one matrix at a time; a CPU without bfloat16
    instructions spends most of a step there, so this one stacks equal shapes in float32.
    """

    def __init__(self, model: nn.Module, recipe: Recipe) -> None:
        self._recipe = recipe
        hidden: list[nn.Parameter] = []
        others: list[nn.Parameter] = []
        for name, parameter in model.named_parameters():
            is_hidden = parameter.ndim == 2 and "embed" not in name
            (hidden if is_hidden else others).append(parameter)
        self._stacks = _by_shape(hidden)
        self._momenta = [torch.zeros(len(s), *s[0].shape) for s in self._stacks]
        self._adam = torch.optim.AdamW(
            others, lr=recipe.adam_rate, betas=(0.9, 0.95), weight_decay=0.01
        )

    def step(self, factor: float) -> None:
        """Apply the gradients with the plateau's rates times `factor`, and clear them."""
        for group in self._adam.param_groups:
            group["lr"] = self._recipe.adam_rate * factor
        self._adam.step()
        with torch.no_grad():
            for stack, momentum in zip(self._stacks, self._momenta, strict=True):
                self._step_stack(stack, momentum, self._recipe.muon_rate * factor)
        self._adam.zero_grad()
        for stack in self._stacks:
            for parameter in stack:
                parameter.grad = None

    def state_dict(self) -> dict[str, Any]:
        """Give all state needed to go on later."""
        return {"momenta": self._momenta, "adam": self._adam.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` gave."""
        for mine, saved in zip(self._momenta, state["momenta"], strict=True):
            mine.copy_(saved)
        self._adam.load_state_dict(state["adam"])

    def _step_stack(self, stack: list[nn.Parameter], momentum: Tensor, rate: float) -> None:
        gradients = torch.stack([p.grad for p in stack if p.grad is not None])
        momentum.lerp_(gradients, 1 - _MOMENTUM)
        update = orthogonal(gradients.lerp_(momentum, _MOMENTUM))
        rows, columns = stack[0].shape
        scale = rate * max(1.0, rows / columns) ** 0.5
        for parameter, direction in zip(stack, update, strict=True):
            parameter.mul_(1 - rate * self._recipe.weight_decay)
            parameter.add_(direction, alpha=-scale)


def _by_shape(parameters: list[nn.Parameter]) -> list[list[nn.Parameter]]:
    stacks: dict[torch.Size, list[nn.Parameter]] = defaultdict(list)
    for parameter in parameters:
        stacks[parameter.shape].append(parameter)
    return list(stacks.values())


def orthogonal(matrices: Tensor) -> Tensor:
    """Replace each of the (count, rows, columns) matrices by a nearly orthogonal one."""
    a, b, c = _NEWTON_SCHULZ
    is_tall = matrices.shape[1] > matrices.shape[2]
    x = matrices.mT.contiguous() if is_tall else matrices
    x = x / (x.norm(dim=(1, 2), keepdim=True) + _EPS)
    for _ in range(_NEWTON_SCHULZ_STEPS):
        gram = torch.bmm(x, x.mT)
        x = a * x + torch.bmm(b * gram + c * torch.bmm(gram, gram), x)
    result: Tensor = x.mT if is_tall else x
    return result
