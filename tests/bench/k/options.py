"""Reads the command line of the benchmark of dynamic K. Knows flags, nothing of what they do."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from scheduler.plan import Layout
from scheduler.request import Verifier
from tests.bench.options import at_least_1, at_least_2, counts, listed, pair_name, temperature


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What to measure; `threads` None leaves the number to torch. See `figures.Settings`."""

    pair: str = "synthetic"
    concurrency: tuple[int, ...] = (1, 2, 4, 8, 16, 32)
    ks: tuple[int, ...] = (1, 2, 3, 4, 6, 8)
    rounds: int = 3
    ramps: int = 1
    tokens: int = 48
    prompt_tokens: int = 128
    per_client: int = 16
    least: int = 96
    temperature: float = 1.0
    verifier: Verifier = Verifier.TOKEN
    threads: int | None = None
    seed: int = 0
    profile_seconds: float = 20.0
    turn: float = 0.05
    layout: Layout = Layout.REPLAY_FRONTIER
    json: Path | None = None
    plot: Path | None = None

    @property
    def k_max(self) -> int:
        """The longest draft that auto may choose: the server's default, or the longest fixed K."""
        return max(8, *self.ks)


_QUICK = Options(
    concurrency=(1, 4),
    ks=(2, 4),
    rounds=1,
    tokens=16,
    prompt_tokens=32,
    per_client=6,
    least=24,
    profile_seconds=1.0,
)
_EMBEDDED = Options(pair="embedded", least=768, per_client=96)
"""Its runs take some seconds with these, and hardly any with the others."""


def read_options(arguments: Sequence[str]) -> Options:
    """Options from flags; --quick changes what other flags leave open. Exits on a bad flag."""
    given = vars(_parser().parse_args(arguments))
    start = _EMBEDDED if given["pair"] == _EMBEDDED.pair else Options()
    if given.pop("quick"):
        start = _QUICK
    return replace(start, **{name: value for name, value in given.items() if value is not None})


def _parser() -> argparse.ArgumentParser:
    start = Options()
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.k",
        description="Measures K = auto beside every fixed K, no speculation and no draft model.",
    )
    add = parser.add_argument
    add(
        "--pair",
        type=pair_name,
        metavar="synthetic|embedded|TARGET,DRAFT",
        help=f"default {start.pair}",
    )
    add("--concurrency", type=counts, metavar="N,N", help=f"default {listed(start.concurrency)}")
    add("--ks", type=_lengths, metavar="K,K", help=f"besides 0; default {listed(start.ks)}")
    add("--rounds", type=at_least_1, help=f"interleaved repetitions (default {start.rounds})")
    add("--ramps", type=_count, help=f"traces of rising and falling load (default {start.ramps})")
    add("--tokens", type=at_least_2, help=f"output tokens a request (default {start.tokens})")
    add("--prompt-tokens", type=at_least_1, help=f"default {start.prompt_tokens}")
    add(
        "--per-client",
        type=at_least_1,
        metavar="TOKENS",
        help=f"a run ends after as many for each request at once (default {start.per_client})",
    )
    add(
        "--least",
        type=at_least_1,
        metavar="TOKENS",
        help=f"but never before these; one step of a ramp (default {start.least})",
    )
    _add_settings(parser)
    return parser


def _add_settings(parser: argparse.ArgumentParser) -> None:
    """Flags that leave the number of runs alone."""
    start, add = Options(), parser.add_argument
    add("--temperature", type=temperature, help=f"default {start.temperature:g}")
    add(
        "--verifier",
        type=Verifier,
        help="token (default), block, or shared-noise: equal texts at any K, so less chance in "
        "the ratios",
    )
    add("--threads", type=at_least_1, help="threads of one tensor operation (default: torch's)")
    add("--seed", type=int, help=f"default {start.seed}")
    add("--profile-seconds", type=float, help=f"default {start.profile_seconds:g}")
    add("--turn", type=float, metavar="SECONDS", help=f"of one way (default {start.turn:g})")
    add(
        "--layout",
        type=Layout,
        help=f"replay_frontier or retained_frontier (default {start.layout.value})",
    )
    add("--json", type=Path, metavar="FILE", help="write the figures as data too")
    add("--plot", type=Path, metavar="FILE.png", help="draw them")
    add("--quick", action="store_true", help="a smoke run; its figures mean little")


def _lengths(text: str) -> tuple[int, ...]:
    """Rising lengths, each once: 0 is always measured."""
    return tuple(sorted({*counts(text)}))


def _count(text: str) -> int:
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"{value} must be at least 0")
    return value
