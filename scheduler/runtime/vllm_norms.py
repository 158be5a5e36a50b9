"""Norms of vLLM's layers on a CPU by the kernels that vLLM itself compiles for one.

Left alone it runs them there as half a dozen torch operations, for its compiler to fuse; layers
that run as they are do not get that. Knows tensors; no models.
"""

import torch
from torch import Tensor
from vllm.ir import ops
from vllm.platforms import current_platform

current_platform.import_kernels()
_KERNELS = torch.ops._C  # noqa: SLF001
_PROVIDER = "compiled"
_NORMS = (ops.rms_norm, ops.fused_add_rms_norm)
# Numbers in one vector of the kernels: rows have to be whole ones.
_VECTOR = 16


def prefer_compiled_norms() -> None:
    """Put the compiled kernels before what is chosen so far, where this build has them."""
    for norm in _NORMS:
        norm.set_default([_PROVIDER, *norm.get_priority()])


def _plain(x: Tensor, weight: Tensor | None, variance_size: int | None) -> bool:
    """Whether a kernel takes these rows: it reads them as one stretch of whole vectors. In 16 bits
    it rounds otherwise than the operations that it stands for, so those are left to them."""
    return (
        variance_size is None
        and weight is not None
        and x.dtype == weight.dtype == torch.float32
        and x.is_contiguous()
        and x.shape[-1] % _VECTOR == 0
    )


# What is registered has the parameters of the operation, used or not.
def _takes(
    x: Tensor,
    weight: Tensor | None,
    epsilon: float,  # noqa: ARG001
    variance_size: int | None = None,
) -> bool:
    return _plain(x, weight, variance_size)


def _takes_sum(
    x: Tensor,
    x_residual: Tensor,
    weight: Tensor | None,
    epsilon: float,  # noqa: ARG001
    variance_size: int | None = None,
) -> bool:
    return _plain(x, weight, variance_size) and x_residual.is_contiguous()


@ops.rms_norm.register_impl(  # type: ignore[untyped-decorator]
    _PROVIDER, supports_args=_takes, supported=hasattr(_KERNELS, "rms_norm")
)
def _norm(
    x: Tensor,
    weight: Tensor | None,
    epsilon: float,
    variance_size: int | None = None,  # noqa: ARG001
) -> Tensor:
    normed = torch.empty_like(x)
    _KERNELS.rms_norm(normed, x, weight, epsilon)
    return normed


@ops.fused_add_rms_norm.register_impl(  # type: ignore[untyped-decorator]
    _PROVIDER,
    supports_args=_takes_sum,
    supported=hasattr(_KERNELS, "fused_add_rms_norm"),
    inplace=True,
)
def _sum_norm(
    x: Tensor,
    x_residual: Tensor,
    weight: Tensor | None,
    epsilon: float,
    variance_size: int | None = None,  # noqa: ARG001
) -> tuple[Tensor, Tensor]:
    _KERNELS.fused_add_rms_norm(x, x_residual, weight, epsilon)
    return x, x_residual
