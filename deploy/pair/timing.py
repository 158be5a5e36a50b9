"""Measures what one row of the draft costs against one row of the target."""

import statistics
import time

import torch
from torch import Tensor
from transformers import DynamicCache, LlamaForCausalLM

from deploy.pair.evaluate import Pair

__all__ = ["row_costs"]

_CONTEXT = 200
_REPEATS = 150
_WARM_UP = 20


def row_costs(pair: Pair, threads: tuple[int, ...] = (1, 2)) -> dict[str, dict[str, float]]:
    """Time one-token forwards with about 200 cached tokens, for each number of torch threads.

    Gives medians in milliseconds and their ratio c = draft / target.
    """
    before = torch.get_num_threads()
    costs = {}
    for count in threads:
        torch.set_num_threads(count)
        target, draft = _median_rows(pair)
        costs[str(count)] = {
            "target_ms": round(target * 1e3, 3),
            "draft_ms": round(draft * 1e3, 3),
            "c": round(draft / target, 4),
        }
    torch.set_num_threads(before)
    return costs


@torch.inference_mode()
def _median_rows(pair: Pair) -> tuple[float, float]:
    """Alternate the two models, so that a disturbance meets both; medians in seconds."""
    models = (pair.target, pair.draft)
    caches = tuple(_filled_cache(model) for model in models)
    times: tuple[list[float], list[float]] = ([], [])
    row = torch.full((1, 1), 100, dtype=torch.int64)
    for _ in range(_WARM_UP + _REPEATS):
        for model, cache, taken in zip(models, caches, times, strict=True):
            taken.append(_one_row(model, cache, row))
    return statistics.median(times[0][_WARM_UP:]), statistics.median(times[1][_WARM_UP:])


def _filled_cache(model: LlamaForCausalLM) -> DynamicCache:
    cache = DynamicCache(config=model.config)
    ids = torch.arange(100, 100 + _CONTEXT).unsqueeze(0)
    model(input_ids=ids, cache=cache, use_cache=True)
    return cache


def _one_row(model: LlamaForCausalLM, cache: DynamicCache, row: Tensor) -> float:
    start = time.perf_counter()
    model(input_ids=row, cache=cache, use_cache=True)
    seconds = time.perf_counter() - start
    # Dropping the new row keeps the context at the length that is measured.
    cache.crop(-1)
    return seconds
