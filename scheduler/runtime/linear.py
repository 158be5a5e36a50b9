"""The one entry for every linear layer, head included.

It knows weights and rows. It knows nothing of layers' roles, models or requests.
"""

import functools
import warnings
from collections.abc import Sequence
from typing import Protocol

import torch
from torch.nn.functional import linear as dense_linear

# Half precision holds any |w| up to this; its spacing near zero is 2^-24.
HALF_LARGEST = 65504.0
HALF_ERROR = 2.0**-25
# From about this many weights on, a second thread saves more than it costs to wake.
THREADED_WEIGHTS = 1 << 20
# Up to about this many, layers that take the same rows are one: fewer operations. Past it a few
# rows are multiplied in passes over weights that no cache holds, so that smaller ones are faster.
STACKED_WEIGHTS = 1 << 22
# Rows that are tried, and how near to float32: rounding to 16 bits is off by 100 times as much.
_TRIED = 64
_CLOSE = 2e-5


class LinearLayer(Protocol):
    """Weights ready to multiply with: `product(x [.., in]) -> [.., out]`."""

    out_features: int

    def product(self, rows: torch.Tensor) -> torch.Tensor:
        """`rows @ weight.T + bias` in the dtype of `rows`."""
        ...

    def bytes(self) -> int:
        """Bytes that the weights take."""
        ...


class DenseLinear:
    """Weights as torch keeps them, [out, in] in the compute dtype."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self._weight = weight
        self._bias = bias
        self.out_features = weight.shape[0]

    def product(self, rows: torch.Tensor) -> torch.Tensor:
        """`rows @ weight.T + bias`."""
        return dense_linear(rows, self._weight, self._bias)

    def bytes(self) -> int:
        """Bytes of weight and bias."""
        return self._weight.nbytes + (0 if self._bias is None else self._bias.nbytes)


class HalfLinear:
    """Weights packed to float16, activations and sums in float32 (FBGEMM, x86 only).

    A decode step is bound by the bytes of its weights; this reads half of them. Small weights are
    multiplied on the calling thread, which costs 15 us less a call; large ones by all threads.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self._threaded = weight.numel() >= THREADED_WEIGHTS
        if self._threaded:
            self._packed = torch.ops.quantized.linear_prepack_fp16(weight, bias)
        else:
            self._packed = _pack_half(weight)
        self._bias = bias
        self._bytes = 2 * weight.numel() + (0 if bias is None else bias.nbytes)
        self.out_features = weight.shape[0]

    def product(self, rows: torch.Tensor) -> torch.Tensor:
        """`rows @ weight.T + bias`, float32 in and out."""
        if self._threaded:
            product: torch.Tensor = torch.ops.quantized.linear_dynamic_fp16(rows, self._packed)
            return product
        return torch.fbgemm_linear_fp16_weight_fp32_activation(rows, self._packed, self._bias)

    def bytes(self) -> int:
        """Bytes of weight and bias."""
        return self._bytes


class WideLinear:
    """16-bit weights on a CUDA device whose products are summed and given in float32.

    It reads half the bytes that the same weights take in float32, and uses the units for 16-bit
    products: what it gives differs from float32 by the order of sums alone.
    """

    def __init__(self, weight: torch.Tensor) -> None:
        self._transposed = weight.t()
        self._bytes = weight.nbytes
        self.out_features = weight.shape[0]

    def product(self, rows: torch.Tensor) -> torch.Tensor:
        """`rows @ weight.T`, float32 [N, out] from 16-bit [N, in]."""
        return torch.mm(rows, self._transposed, out_dtype=torch.float32)

    def bytes(self) -> int:
        """Bytes of the weight."""
        return self._bytes


class LinearModule(torch.nn.Module):
    """A linear layer in the place of a `torch.nn.Linear` of a model that calls modules."""

    def __init__(self, layer: LinearLayer) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """`rows` [.., in] to [.., out]."""
        return linear(rows, self.layer)


def linear(rows: torch.Tensor, layer: LinearLayer) -> torch.Tensor:
    """Multiply `rows` [.., N, in] with `layer`: the only way a product with weights is taken."""
    return layer.product(rows)


def build_linear(
    weights: Sequence[torch.Tensor], biases: Sequence[torch.Tensor | None], *, half: bool
) -> LinearLayer:
    """One layer from weights [out_i, in] stacked along `out`; a missing bias counts as zeros.

    With `half`, float32 weights are packed when float16 holds them to 2^-25 absolute; otherwise
    they stay as they are.
    """
    weight = torch.cat(list(weights)) if len(weights) > 1 else weights[0]
    bias = _stack_biases(weights, biases)
    if half and packs_exactly(weight):
        return HalfLinear(weight, bias)
    return DenseLinear(weight, bias)


def packs_exactly(weight: torch.Tensor) -> bool:
    """Whether float16 holds a float32 CPU `weight` [out, in] to 2^-25 absolute.

    Every bfloat16 or float16 value of magnitude up to 65504 passes: only bfloat16 values below
    2^-14 lose bits, and half the float16 spacing there is 2^-25.
    """
    if weight.dtype != torch.float32 or weight.device.type != "cpu" or not half_available():
        return False
    # By slices, so that a head of a large vocabulary needs no second copy of itself.
    for first in range(0, len(weight), 4096):
        part = weight[first : first + 4096]
        if not bool((part.abs() <= HALF_LARGEST).all()):
            return False
        if bool(((part - part.half().float()).abs() > HALF_ERROR).any()):
            return False
    return True


def sums_widely(weight: torch.Tensor) -> bool:
    """Whether products with a 16-bit `weight` [out, in] can be had in float32, tried on some."""
    if weight.dtype not in {torch.bfloat16, torch.float16}:
        return False
    part = weight[:_TRIED]
    rows = part[:1]
    exact = dense_linear(rows.float(), part.float())
    try:
        found = WideLinear(part).product(rows)
        return torch.allclose(found, exact, rtol=_CLOSE, atol=_CLOSE * float(exact.abs().max()))
    except RuntimeError:  # no such kernel, or not on this device
        return False


@functools.cache
def half_available() -> bool:
    """Whether this build and processor can pack weights to float16."""
    try:
        probe = HalfLinear(torch.eye(8), None)
    except RuntimeError:
        return False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return bool(torch.equal(probe.product(torch.eye(8)), torch.eye(8)))


def _pack_half(weight: torch.Tensor) -> torch.Tensor:
    # The operators are marked deprecated, which they say once in a process; no other spelling of
    # the same kernel costs as little a call, and torch is pinned.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.fbgemm_pack_gemm_matrix_fp16(weight)


def _stack_biases(
    weights: Sequence[torch.Tensor], biases: Sequence[torch.Tensor | None]
) -> torch.Tensor | None:
    if all(bias is None for bias in biases):
        return None
    parts = [
        weight.new_zeros(weight.shape[0]) if bias is None else bias
        for weight, bias in zip(weights, biases, strict=True)
    ]
    return torch.cat(parts) if len(parts) > 1 else parts[0]
