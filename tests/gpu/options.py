"""Reads the command line of the check. Knows flags and the sizes that go with them."""

import argparse
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tests.bench.options import at_least_1, at_least_2, counts
from tests.bench.synthetic import Shape

STAGES = ("contracts", "throughput", "vllm")

# The widths of the usual 8 B Llama; two of its layers with the embedding make 0.96 B.
LARGE = Shape(
    hidden=4096,
    layers=32,
    draft_layers=2,
    intermediate=14336,
    heads=32,
    kv_heads=8,
    vocabulary=128256,
)
TINY = Shape(
    hidden=256,
    layers=6,
    draft_layers=1,
    intermediate=512,
    heads=8,
    kv_heads=4,
    vocabulary=2048,
    positions=512,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What to run. `seconds` is the budget of everything together, `profile_seconds` the part of it
    that auto's start-up profile may take. `stages` None are all that fit the device; `vllm` is
    stock vLLM, then its layers under our engine. `out` is the
    folder for the data."""

    tiny: bool = False
    seconds: float = 440.0
    stages: tuple[str, ...] | None = None
    shape: Shape = LARGE
    requests: tuple[int, ...] = (1, 8, 32, 128)
    k: int = 4
    k_max: int = 8
    prompt_tokens: int = 128
    tokens: int = 96
    repeats: int = 9
    profile_seconds: float = 20.0
    seed: int = 0
    enforce_eager: bool = False
    out: Path | None = None

    @property
    def max_model_len(self) -> int:
        """Tokens of one request, drafts past its last one included."""
        return self.prompt_tokens + self.tokens + self.k_max


_TINY = Options(
    tiny=True,
    seconds=55.0,
    shape=TINY,
    prompt_tokens=24,
    tokens=8,
    repeats=2,
    profile_seconds=2.0,
)


def read_options(arguments: Sequence[str]) -> Options:
    """Options from flags; --tiny changes what other flags leave open. Exits on a bad flag."""
    given = vars(_parser().parse_args(arguments))
    start = _TINY if given.pop("tiny") else Options()
    if given["out"] is None and os.environ.get("OUT"):
        given["out"] = Path(os.environ["OUT"])
    return replace(start, **{name: value for name, value in given.items() if value is not None})


def _parser() -> argparse.ArgumentParser:
    start = Options()
    parser = argparse.ArgumentParser(
        prog="tests/gpu/check.sh",
        description="Checks this checkout on one large NVIDIA GPU; --tiny does so on a CPU.",
    )
    add = parser.add_argument
    add("--tiny", action="store_true", help="a pair of some million weights, on a CPU if need be")
    add("--seconds", type=float, help=f"what no longer fits is skipped (default {start.seconds:g})")
    add("--stages", type=_stages, metavar="NAME,NAME", help=f"of {', '.join(STAGES)}")
    add("--requests", type=counts, metavar="N,N", help="at once; default 1,8,32,128")
    add("--k", type=at_least_1, help=f"the fixed number of drafts (default {start.k})")
    add("--prompt-tokens", type=at_least_1, help=f"default {start.prompt_tokens}")
    add("--tokens", type=at_least_2, help=f"output tokens a request (default {start.tokens})")
    add("--enforce-eager", action="store_true", default=None, help="record no model calls")
    add("--seed", type=int, help=f"default {start.seed}")
    add("--out", type=Path, metavar="DIR", help="where the data go (default: the variable OUT)")
    return parser


def _stages(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    for name in names:
        if name not in STAGES:
            raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(STAGES)}")
    return names
