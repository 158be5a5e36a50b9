"""Reads the command line of the benchmark. Knows flags, nothing of what they do."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from scheduler.request import Verifier

NAMED_PAIRS = ("embedded", "synthetic")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What to measure. `threads` None leaves the number to torch; `repeats` are timings of one
    forward each."""

    pairs: tuple[str, ...] = NAMED_PAIRS
    concurrency: tuple[int, ...] = (1, 4, 8, 16)
    k: int = 4
    temperature: float = 1.0
    verifier: Verifier = Verifier.TOKEN
    rounds: int = 3
    tokens: int = 128
    prompt_tokens: int = 128
    repeats: int = 25
    threads: int | None = None
    seed: int = 0
    peer: bool = True
    json: Path | None = None


def read_options(arguments: Sequence[str]) -> Options:
    """Options from flags; --quick changes what other flags leave open. Exits on a bad flag."""
    given = vars(_parser().parse_args(arguments))
    quick, pairs = given.pop("quick"), given.pop("pairs")
    start = Options()
    if quick:
        start = replace(start, concurrency=(1, 8), rounds=1, tokens=24, prompt_tokens=32, repeats=5)
    if pairs:
        start = replace(start, pairs=tuple(pairs))
    return replace(start, **{name: value for name, value in given.items() if value is not None})


def _parser() -> argparse.ArgumentParser:
    start = Options()
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench",
        description="Measures this engine on model pairs, with speculation on and off.",
    )
    add = parser.add_argument
    add(
        "--pair",
        dest="pairs",
        type=pair_name,
        action="append",
        metavar="embedded|synthetic|TARGET,DRAFT",
        help="may be given more than once (default: embedded and synthetic)",
    )
    add("--concurrency", type=counts, metavar="N,N", help=f"default {listed(start.concurrency)}")
    add("--k", type=at_least_1, help=f"drafts a round (default {start.k})")
    add("--temperature", type=temperature, help=f"default {start.temperature:g}")
    add("--verifier", type=Verifier, help="token (default), block or shared-noise")
    add("--rounds", type=at_least_1, help=f"interleaved repetitions (default {start.rounds})")
    add("--tokens", type=at_least_2, help=f"output tokens a request (default {start.tokens})")
    add("--prompt-tokens", type=at_least_1, help=f"default {start.prompt_tokens}")
    add("--repeats", type=at_least_1, help=f"timings of a forward (default {start.repeats})")
    add("--threads", type=at_least_1, help="threads of one tensor operation (default: torch's)")
    add("--seed", type=int, help=f"default {start.seed}")
    add("--json", type=Path, metavar="FILE", help="write the figures as data too")
    add(
        "--skip-peer",
        dest="peer",
        action="store_const",
        const=False,
        help="leave out transformers' own generation",
    )
    add("--quick", action="store_true", help="a smoke run; its figures mean little")
    return parser


def pair_name(text: str) -> str:
    if text not in NAMED_PAIRS and len(text.split(",")) != 2:
        raise argparse.ArgumentTypeError(f"{text!r} is neither a known pair nor TARGET,DRAFT")
    return text


def at_least_1(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} must be at least 1")
    return value


def at_least_2(text: str) -> int:
    value = at_least_1(text)
    if value < 2:
        raise argparse.ArgumentTypeError("a rate needs 2 tokens at least")
    return value


def counts(text: str) -> tuple[int, ...]:
    return tuple(at_least_1(part) for part in text.split(","))


def temperature(text: str) -> float:
    value = float(text)
    if not 0.0 <= value <= 2.0:
        raise argparse.ArgumentTypeError(f"{value} must lie in 0..2")
    return value


def listed(values: Sequence[int]) -> str:
    return ",".join(map(str, values))
