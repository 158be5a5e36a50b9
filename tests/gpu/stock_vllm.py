"""The same load on stock vLLM: its own engine, scheduler and sampler, with and without its own
draft-model speculation.

Each way runs in a process of its own, as `python -m tests.gpu.stock_vllm`. It knows folders of
checkpoints and counts of tokens, nothing of this project's engine.
"""

import argparse
import json
import os
import re
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path

from tests.bench.options import counts
from tests.bench.prompts import random_prompts
from tests.gpu.budget import Budget, say
from tests.gpu.figures import StockCell
from tests.gpu.options import Options
from tests.gpu.processes import run_within

_LEAST = 90.0
"""Seconds that it takes to start and to compile on a large GPU, about."""
_WARM_UP_TOKENS = 8


def have_vllm() -> bool:
    """Whether vLLM is installed."""
    return find_spec("vllm") is not None


def measure_stock(options: Options, folder: Path, budget: Budget) -> tuple[StockCell, ...]:
    """Cells without and with speculation, for checkpoints in `folder`/target and `folder`/draft."""
    cells: list[StockCell] = []
    for k in (0, options.k):
        name = f"stock vLLM, K {k}"
        if not budget.affords(name, 0.0 if options.tiny else _LEAST):
            continue
        with tempfile.TemporaryDirectory() as scratch:
            file = Path(scratch) / "cells.jsonl"
            say(name)
            ended = run_within(
                budget.left(), [sys.executable, *_arguments(options, folder, k, file)]
            )
            lines = file.read_text("utf-8").splitlines() if file.exists() else []
        cells += [StockCell(**json.loads(line)) for line in lines]
        if ended.status:
            say("\n".join(_telling(ended.lines)))
        if ended.status != 0:
            left = len(options.requests) - len(lines)
            reason = "cut off at the end of the budget" if ended.status is None else "it broke"
            budget.skip(f"{name}, {left} of {len(options.requests)} loads", reason)
    return tuple(cells)


def _telling(lines: Sequence[str]) -> list[str]:
    """What names an error, and the end: the cause stands far above it."""
    named = [line for line in lines if re.search(r"\w(Error|Exception)\b", line)]
    return [*named[:10], *lines[-3:]]


def _arguments(options: Options, folder: Path, k: int, file: Path) -> list[str]:
    return [
        *("-m", "tests.gpu.stock_vllm", str(folder), str(file), "--k", str(k)),
        *("--requests", ",".join(map(str, options.requests))),
        *("--prompt-tokens", str(options.prompt_tokens), "--tokens", str(options.tokens)),
        *("--vocabulary", str(options.shape.vocabulary), "--seed", str(options.seed)),
        *("--max-model-len", str(options.max_model_len)),
    ]


def main(arguments: Sequence[str]) -> int:
    """Serve every load once for nothing and once for its time; a line of JSON each."""
    parser = argparse.ArgumentParser(prog="python -m tests.gpu.stock_vllm", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("file", type=Path)
    parser.add_argument("--requests", type=counts, required=True)
    for name in ("--k", "--prompt-tokens", "--tokens", "--vocabulary", "--seed", "--max-model-len"):
        parser.add_argument(name, type=int, required=True)
    given = parser.parse_args(arguments)
    # On a CPU it would take a share of all memory, whatever others hold.
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    model = _model(given)
    with given.file.open("a", encoding="utf-8") as file:
        for requests in given.requests:
            _serve(model, given, requests, _WARM_UP_TOKENS)
            cell = _serve(model, given, requests, given.tokens)
            file.write(json.dumps(asdict(cell)) + "\n")
            file.flush()
    return 0


def _model(given: argparse.Namespace):
    from vllm import LLM  # noqa: PLC0415

    speculation = None
    if given.k:
        speculation = {
            "method": "draft_model",
            "model": str(given.folder / "draft"),
            "num_speculative_tokens": given.k,
            # The default drafts by argmax, which is accepted less often at temperature 1.
            "draft_sample_method": "probabilistic",
        }
    return LLM(
        model=str(given.folder / "target"),
        skip_tokenizer_init=True,
        max_model_len=given.max_model_len,
        max_num_seqs=max(given.requests),
        enable_prefix_caching=False,
        speculative_config=speculation,
        seed=given.seed,
    )


def _serve(model, given: argparse.Namespace, requests: int, tokens: int) -> StockCell:
    from vllm import SamplingParams  # noqa: PLC0415

    prompts = random_prompts(requests, given.prompt_tokens, given.vocabulary, given.seed)
    law = SamplingParams(
        temperature=1.0, max_tokens=tokens, ignore_eos=True, detokenize=False, seed=given.seed
    )
    started = time.perf_counter()
    outputs = model.generate(
        [{"prompt_token_ids": list(prompt)} for prompt in prompts], law, use_tqdm=False
    )
    seconds = time.perf_counter() - started
    committed = sum(len(output.outputs[0].token_ids) for output in outputs)
    return StockCell(
        requests=requests,
        k=given.k,
        tokens=committed,
        seconds=seconds,
        rate=committed / seconds,
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
