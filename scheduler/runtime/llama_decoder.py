"""A lean decoder for the Llama family, built from the weights of a loaded model.

It computes what the modules of Llama, Qwen2, Qwen3 and Mistral compute, with about a third of the
operations: small models are bound by the number of operations, not by arithmetic. It knows their
layer equations; it does not know pools, requests or sampling.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch.nn.functional import embedding, silu
from transformers import PreTrainedConfig, PreTrainedModel

from scheduler.runtime.attention import Attention, LayerAttention
from scheduler.runtime.decoder import chosen
from scheduler.runtime.linear import STACKED_WEIGHTS, LinearLayer, build_linear, linear

LLAMA_FAMILY = frozenset(
    {"LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM", "MistralForCausalLM"}
)
FIRST_ROTATIONS = 1024


class RmsNorm:
    """`x * weight / sqrt(mean(x^2) + eps)` over the last axis, in float32.

    Computed as `x / hypot(|x|, sqrt(n eps)) * (weight sqrt(n))`: four operations, not seven.
    """

    def __init__(self, weight: torch.Tensor, eps: float) -> None:
        size = weight.shape[-1]
        self._weight = weight.float() * size**0.5
        self._floor = torch.full((), (size * eps) ** 0.5, device=weight.device)
        self._dtype = weight.dtype
        self._wide = weight.dtype == torch.float32

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """Normalise `rows` [.., n]; the result has the dtype of the weights."""
        wide = rows if self._wide else rows.float()
        length: torch.Tensor = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)
        scaled = (wide / torch.hypot(length, self._floor)).mul_(self._weight)
        return scaled if self._wide else scaled.to(self._dtype)

    def bytes(self) -> int:
        """Bytes of the weight."""
        return int(self._weight.nbytes)


class Rotation:
    """Rotary embedding as complex factors: pair i of a head turns by `position * inv_freq[i]`.

    The table grows on demand; a factor depends on its own position only.
    """

    def __init__(self, inverse_frequencies: torch.Tensor, scale: float) -> None:
        self._frequencies = inverse_frequencies.float()
        self._scale = scale
        self._table = self._factors(FIRST_ROTATIONS)

    def reach(self, positions: int) -> None:
        """Have factors for all positions below `positions`."""
        while positions > len(self._table):
            self._table = self._factors(2 * len(self._table))

    def factors(self, positions: torch.Tensor) -> torch.Tensor:
        """Complex [N, 1, head_dim / 2] for int64 `positions` [N] that it reaches."""
        return self._table.index_select(0, positions)

    def bytes(self) -> int:
        """Bytes of the table so far."""
        return int(self._table.nbytes)

    def _factors(self, count: int) -> torch.Tensor:
        positions = torch.arange(count, device=self._frequencies.device, dtype=torch.float32)
        angles = positions[:, None, None] * self._frequencies
        return torch.polar(torch.full_like(angles, self._scale), angles)


def rotate_(heads: torch.Tensor, factors: torch.Tensor) -> None:
    """Turn `heads` [N, h, head_dim], whose pairs are neighbours, by complex `factors`, in place."""
    if heads.dtype == torch.float32:
        torch.view_as_complex(heads.view(*heads.shape[:-1], -1, 2)).mul_(factors)
        return
    pairs = torch.view_as_complex(heads.float().view(*heads.shape[:-1], -1, 2))
    heads.copy_(torch.view_as_real(pairs * factors).flatten(-2))


def grouped_order(heads: int, kv_heads: int) -> torch.Tensor:
    """Which query head of the model stands at each place of `Attention`'s order."""
    return torch.arange(heads).view(kv_heads, -1).t().reshape(-1)


def pair_order(head_dim: int) -> torch.Tensor:
    """Where each element of a head comes from when (i, i + head_dim / 2) become neighbours.

    Scores do not change when queries and keys are permuted alike.
    """
    return torch.arange(head_dim).view(2, -1).t().reshape(-1)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layer:
    attention_norm: RmsNorm
    qkv: LinearLayer
    head_norm: RmsNorm | None
    attention: LayerAttention
    output: LinearLayer
    mlp_norm: RmsNorm
    gate_up: tuple[LinearLayer, ...]
    down: LinearLayer

    def bytes(self) -> int:
        linears = (self.qkv, self.output, *self.gate_up, self.down)
        norms = (self.attention_norm, self.head_norm, self.mlp_norm)
        return sum(part.bytes() for part in (*linears, *norms) if part is not None)


class LlamaDecoder:
    """Fused q/k/v (and where it pays gate/up) products, rotary pairs side by side, no module calls.

    Raises ValueError for a model whose layers are not of the family.
    """

    def __init__(self, model: PreTrainedModel, *, half: bool) -> None:
        config = model.config
        name = type(model).__name__
        if name not in LLAMA_FAMILY or config.hidden_act != "silu":
            raise ValueError(f"{name} has no lean decoder: not of the family, or not SiLU")
        body = model.get_submodule(model.base_model_prefix)
        weights = {name: weight.detach() for name, weight in body.named_parameters()}
        embeddings = weights["embed_tokens.weight"]
        self._dtype = embeddings.dtype
        self._embeddings = narrow(embeddings) if half else embeddings
        self._heads: int = config.num_attention_heads
        self._kv_heads: int = config.num_key_value_heads
        # The modules keep the attention scaling of YaRN as a plain attribute.
        scale: float = vars(body.get_submodule("rotary_emb"))["attention_scaling"]
        self._rotation = Rotation(body.get_buffer("rotary_emb.inv_freq"), scale)
        build = _LayerBuilder(config, weights, half=half)
        self._layers = tuple(build.layer(number) for number in range(config.num_hidden_layers))
        self._norm = RmsNorm(weights["norm.weight"], config.rms_norm_eps)

    def reach(self, positions: int) -> None:
        """Have rotary factors for all positions below `positions`."""
        self._rotation.reach(positions)

    def hidden(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        attention: Attention,
        wanted: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Final hidden states [N, H] of int64 `token_ids` [N] at int64 `positions` [N].

        The last layer finishes the `wanted` rows alone: the others are there for their K/V.
        """
        states = embedding(token_ids, self._embeddings).to(self._dtype)
        factors = self._rotation.factors(positions)
        for layer in self._layers:
            attended = self._attend(layer, states, factors, attention)
            if layer is self._layers[-1]:
                states, attended = chosen(states, wanted), chosen(attended, wanted)
            states += linear(attended, layer.output)
            states += _feed_forward(layer, states)
        return self._norm(states)

    def _attend(
        self,
        layer: _Layer,
        states: torch.Tensor,
        factors: torch.Tensor,
        attention: Attention,
    ) -> torch.Tensor:
        fused = linear(layer.attention_norm(states), layer.qkv)
        heads = fused.view(len(fused), self._heads + 2 * self._kv_heads, -1)
        turned = heads[:, : self._heads + self._kv_heads]
        if layer.head_norm is not None:
            turned.copy_(layer.head_norm(turned))
        rotate_(turned, factors)
        query, new = heads[:, : self._heads], heads[:, self._heads :]
        return attention.attend(layer.attention, query, new)

    def weight_bytes(self) -> int:
        """Bytes that the weights take."""
        own = self._embeddings.nbytes + self._norm.bytes() + self._rotation.bytes()
        return int(own) + sum(layer.bytes() for layer in self._layers)


def _feed_forward(layer: _Layer, states: torch.Tensor) -> torch.Tensor:
    gate, up = _gate_and_up(layer, layer.mlp_norm(states))
    return linear(silu(gate, inplace=True).mul_(up), layer.down)


def _gate_and_up(layer: _Layer, rows: torch.Tensor) -> Sequence[torch.Tensor]:
    if len(layer.gate_up) == 1:
        return linear(rows, layer.gate_up[0]).chunk(2, dim=-1)
    return [linear(rows, each) for each in layer.gate_up]


class _LayerBuilder:
    """Makes lean layers from a model's named weights."""

    def __init__(
        self, config: PreTrainedConfig, weights: Mapping[str, torch.Tensor], *, half: bool
    ) -> None:
        self._config = config
        self._weights = weights
        self._half = half
        heads = config.num_attention_heads
        self._groups = grouped_order(heads, config.num_key_value_heads)
        self._pairs = pair_order(len(weights["layers.0.self_attn.q_proj.weight"]) // heads)

    def layer(self, number: int) -> _Layer:
        """Layer `number` of the model."""
        prefix, config = f"layers.{number}.", self._config
        return _Layer(
            attention_norm=self._norm(prefix + "input_layernorm.weight"),
            qkv=self._qkv(prefix + "self_attn."),
            head_norm=self._head_norm(prefix + "self_attn."),
            attention=LayerAttention(
                layer=number, scale=len(self._pairs) ** -0.5, window=layer_window(config, number)
            ),
            output=self._output(prefix + "self_attn.o_proj."),
            mlp_norm=self._norm(prefix + "post_attention_layernorm.weight"),
            gate_up=self._gate_up(prefix + "mlp."),
            down=self._linear(prefix + "mlp.", ("down_proj",)),
        )

    def _norm(self, name: str) -> RmsNorm:
        return RmsNorm(self._weights[name], self._config.rms_norm_eps)

    def _gate_up(self, prefix: str) -> tuple[LinearLayer, ...]:
        """Both projections as one layer where that pays, else apart."""
        names = ("gate_proj", "up_proj")
        weights = sum(self._weights[f"{prefix}{name}.weight"].numel() for name in names)
        if self._half and weights > STACKED_WEIGHTS:
            return tuple(self._linear(prefix, (name,)) for name in names)
        return (self._linear(prefix, names),)

    def _linear(self, prefix: str, names: Sequence[str]) -> LinearLayer:
        return build_linear(
            [self._weights[f"{prefix}{name}.weight"] for name in names],
            [self._weights.get(f"{prefix}{name}.bias") for name in names],
            half=self._half,
        )

    def _qkv(self, prefix: str) -> LinearLayer:
        """Queries in grouped order, keys, values; rotary pairs of the first two side by side."""

        def arranged(name: str) -> list[torch.Tensor | None]:
            found = [self._weights.get(f"{prefix}{name}.{kind}") for kind in ("weight", "bias")]
            return [None if part is None else self._arrange(name, part) for part in found]

        parts = [arranged(name) for name in ("q_proj", "k_proj", "v_proj")]
        weights = [weight for weight, _ in parts if weight is not None]
        return build_linear(weights, [bias for _, bias in parts], half=self._half)

    def _arrange(self, name: str, stacked: torch.Tensor) -> torch.Tensor:
        """Permute `stacked` [heads * head_dim, ..] as its projection needs."""
        heads = stacked.view(-1, len(self._pairs), *stacked.shape[1:])
        if name == "q_proj":
            heads = heads[self._groups]
        if name != "v_proj":
            heads = heads[:, self._pairs]
        return heads.reshape(stacked.shape)

    def _output(self, prefix: str) -> LinearLayer:
        """The output projection, its columns in the grouped order of the heads."""
        weight = self._weights[prefix + "weight"]
        heads = weight.view(len(weight), len(self._groups), -1)[:, self._groups]
        bias = self._weights.get(prefix + "bias")
        return build_linear([heads.reshape(weight.shape)], [bias], half=self._half)

    def _head_norm(self, prefix: str) -> RmsNorm | None:
        """One norm over query and key heads together, [heads + kv_heads, head_dim] (Qwen3)."""
        query = self._weights.get(prefix + "q_norm.weight")
        if query is None:
            return None
        key = self._weights[prefix + "k_norm.weight"]
        queries = query[self._pairs].expand(len(self._groups), -1)
        keys = key[self._pairs].expand(self._config.num_key_value_heads, -1)
        return RmsNorm(torch.cat((queries, keys)), self._config.rms_norm_eps)


def layer_window(config: PreTrainedConfig, number: int) -> int | None:
    """The sliding window of layer `number` of a model of the family, None for full attention."""
    window: int | None = getattr(config, "sliding_window", None)
    if config.model_type == "mistral":
        return window
    types: Sequence[str] = getattr(config, "layer_types", None) or ()
    return window if types and types[number] == "sliding_attention" else None


def narrow(table: torch.Tensor) -> torch.Tensor:
    """`table` in a 16-bit type that holds it exactly, or as it is."""
    for dtype in (torch.bfloat16, torch.float16):
        small = table.to(dtype)
        if torch.equal(small.to(table.dtype), table):
            return small
    return table
