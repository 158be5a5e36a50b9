"""What the forward needs of a decoder, and the decoder that runs transformers' own modules.

It knows a loaded `transformers` model and hands its attention to ours. It does not know pools,
requests or sampling.
"""

import copy
from typing import Protocol

import torch
from transformers import AttentionInterface, PreTrainedModel

from scheduler.runtime.attention import Attention, LayerAttention
from scheduler.runtime.linear import LinearModule, build_linear

# transformers builds no mask for an attention name that its mask functions do not know.
ATTENTION_NAME = "packed_rows"

# What the supported models pass to an attention function without changing what it computes.
_INERT_KEYWORDS = frozenset({"position_ids", "use_cache"})


class Decoder(Protocol):
    """The layers of a model between token ids and the output head."""

    def reach(self, positions: int) -> None:
        """Make ready for positions below `positions`, so that `hidden` has nothing to prepare."""
        ...

    def hidden(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        attention: Attention,
        wanted: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Final hidden states [N, H] of int64 `token_ids` [N] at int64 `positions` [N], which
        `reach` was told of; every layer attends by `attention`. With int64 `wanted` [M] those
        rows' alone, [M, H]."""
        ...

    def weight_bytes(self) -> int:
        """Bytes that the weights take."""
        ...


def chosen(states: torch.Tensor, wanted: torch.Tensor | None) -> torch.Tensor:
    """The `wanted` rows of `states`, or all of them."""
    return states if wanted is None else states.index_select(0, wanted)


class ModuleDecoder:
    """Runs the modules of a supported `transformers` model, linear layers replaced by ours."""

    def __init__(self, model: PreTrainedModel, *, half: bool) -> None:
        # A copy of the modules that shares the weights: the model itself stays as it was loaded.
        shared = {id(weight): weight for weight in (*model.parameters(), *model.buffers())}
        private = copy.deepcopy(model, shared)
        private.set_attn_implementation(ATTENTION_NAME)
        self._body = private.get_submodule(private.base_model_prefix)
        self._packed_bytes = _replace_linears(self._body, half=half)

    def reach(self, positions: int) -> None:
        """Nothing to do: the modules take angles of positions as they come."""

    def hidden(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        attention: Attention,
        wanted: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Final hidden states [N, H] of int64 `token_ids` [N] at int64 `positions` [N], or of the
        `wanted` rows alone."""
        output = self._body(
            input_ids=token_ids[None],
            position_ids=positions[None],
            use_cache=False,
            packed_attention=attention,
        )
        states: torch.Tensor = output.last_hidden_state
        return chosen(states[0], wanted)

    def weight_bytes(self) -> int:
        """Bytes that the weights take."""
        return self._packed_bytes + sum(weight.nbytes for weight in self._body.parameters())


def _replace_linears(body: torch.nn.Module, *, half: bool) -> int:
    """Put our linear entry in the place of every linear module; returns their bytes."""
    total = 0
    for parent in list(body.modules()):
        for name, module in list(parent.named_children()):
            if isinstance(module, torch.nn.Linear):
                layer = build_linear([module.weight], [module.bias], half=half)
                setattr(parent, name, LinearModule(layer))
                total += layer.bytes()
    return total


def _attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **keywords: object,
) -> tuple[torch.Tensor, None]:
    """The attention function that transformers calls: [1, heads, N, head_dim] in, [1, N, ..] out.

    Raises TypeError on a keyword that could change the result and is not known here.
    """
    attention = keywords.pop("packed_attention", None)
    spec = _layer_attention(module, keywords)
    if not isinstance(attention, Attention) or attention_mask is not None:
        raise TypeError("packed attention was called without its rows, or with a mask")
    kv_heads = key.shape[1]
    new = torch.cat((key[0], value[0])).transpose(0, 1)
    # [1, kv_heads * share, N, dim] to the order of `Attention`, [N, share * kv_heads, dim].
    grouped = query[0].unflatten(0, (kv_heads, -1)).permute(2, 1, 0, 3).flatten(1, 2)
    attended = attention.attend(spec, grouped, new)
    heads = attended.view(len(new), -1, kv_heads, query.shape[-1]).transpose(1, 2)
    return heads.reshape(1, len(new), -1), None


def _layer_attention(module: torch.nn.Module, keywords: dict[str, object]) -> LayerAttention:
    layer, scale = vars(module)["layer_idx"], keywords.pop("scaling", None)
    window, softcap = keywords.pop("sliding_window", None), keywords.pop("softcap", None)
    dropout = keywords.pop("dropout", 0.0)
    unknown = sorted(keywords.keys() - _INERT_KEYWORDS)
    if unknown or dropout:
        raise TypeError(f"attention keywords that are not supported: {unknown or ['dropout']}")
    if not isinstance(layer, int) or not isinstance(scale, float):
        raise TypeError("attention was called without a layer number or a scale")
    return LayerAttention(
        layer=layer,
        scale=scale,
        window=window if isinstance(window, int) else None,
        softcap=softcap if isinstance(softcap, float) else None,
    )


AttentionInterface.register(ATTENTION_NAME, _attend)
