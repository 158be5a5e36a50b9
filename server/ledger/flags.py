"""The flags of `fencepost ledger` and the values they may have; knows no formula."""

import argparse
import math
from dataclasses import dataclass
from pathlib import Path

__all__ = ["LONGEST_TIME", "SHORTEST_TIME", "BadFlag", "VerifyCost", "parser"]

SHORTEST_TIME, LONGEST_TIME = 1e-9, 1e12
"""Bounds of a time in milliseconds, or of a ratio; within them no figure overflows."""
_MOST_DRAFTS = 64
_MOST_COUNT = 10**9
_EPILOG = """examples:
  fencepost ledger --alpha 0.8 --c 0.1
  fencepost ledger --alpha 0.6 --k 0..4 --draft-ms 1 --verify-ms 6+0.2k --other-ms 1
  fencepost ledger --profile 0.95,0.9,0.6,0.4 --draft-ms 0.5 --verify-ms 6,6.2,6.4,6.7,7.5
  fencepost ledger --from-metrics http://127.0.0.1:8000/metrics --where policy=token

K is the number of drafts in a round, A how many of them are accepted, G = A + 1 the tokens that the
round commits, s_K the chance that all K are accepted. K = 0 is plain decoding. The figures are
those of one request at a time whose rounds all cost the same; no stop token is near."""


class BadFlag(Exception):
    """A flag whose value cannot be used; the text says why."""

    def __init__(self, flag: str, why: str) -> None:
        super().__init__(f"argument {flag}: {why}")


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyCost:
    """Time of the target's call: one number a listed K, or `base` + `slope` for each draft."""

    table: tuple[float, ...] = ()
    base: float = 0.0
    slope: float = 0.0


def parser() -> argparse.ArgumentParser:
    """The parser of every flag."""
    made = argparse.ArgumentParser(
        prog="fencepost ledger",
        usage="fencepost ledger (--alpha A | --profile A,A,... | --from-metrics SOURCE) [FLAG ...]",
        description="Says what speculative decoding is worth at each draft length K, and which K "
        "is best, from acceptance and costs.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    _acceptance(made)
    _costs(made)
    _memory(made)
    _output(made)
    return made


def _acceptance(made: argparse.ArgumentParser) -> None:
    group = made.add_argument_group("acceptance")
    one = group.add_mutually_exclusive_group(required=True)
    one.add_argument(
        "--alpha", type=_share, metavar="A", help="one acceptance, 0 to 1, for every position"
    )
    one.add_argument(
        "--profile",
        type=_shares,
        metavar="A,A,...",
        help="acceptance of each position among the rounds that reach it",
    )
    one.add_argument(
        "--from-metrics",
        metavar="SOURCE",
        help="URL or file of a server's /metrics: profile and costs as measured; flags win",
    )
    group.add_argument(
        "--where",
        type=_labels,
        default={},
        metavar="LABEL=VALUE,...",
        help="with --from-metrics, only acceptance with these labels (policy, proposer, domain, "
        "prefix)",
    )
    group.add_argument(
        "--k",
        type=_lengths,
        metavar="K",
        help="draft lengths: 0..8, or 1,2,4 (default: 0..8, or as far as the profile goes)",
    )


def _costs(made: argparse.ArgumentParser) -> None:
    group = made.add_argument_group("costs in milliseconds")
    group.add_argument("--draft-ms", type=_time, metavar="MS", help="one draft step")
    group.add_argument(
        "--verify-ms",
        type=_verify,
        metavar="MS",
        help="the target's call over K + 1 rows: one number, one for each K listed, or a line "
        "such as 6+0.2k",
    )
    group.add_argument(
        "--other-ms", type=_time, metavar="MS", help="the rest of a speculative round (default: 0)"
    )
    group.add_argument(
        "--baseline-ms",
        type=_duration,
        metavar="MS",
        help="a plain decoding step, all in (default: the target's call at K = 0)",
    )
    ratios = made.add_argument_group(
        "costs as ratios, to a plain decoding step (with --baseline-ms also shown in milliseconds)"
    )
    ratios.add_argument("--c", type=_time, metavar="RATIO", help="one draft step")
    ratios.add_argument(
        "--verify-ratio",
        type=_verify,
        metavar="RATIO",
        help="the target's call, in the forms of --verify-ms (default: 1)",
    )
    ratios.add_argument(
        "--other-ratio", type=_time, metavar="RATIO", help="the rest of the round (default: 0)"
    )


def _memory(made: argparse.ArgumentParser) -> None:
    group = made.add_argument_group("bytes a round (give the first four)")
    for flag, text in (
        ("--layers", "layers of the target"),
        ("--kv-heads", "key/value heads of a layer"),
        ("--head-dim", "numbers of a head"),
        ("--vocab", "tokens in the vocabulary"),
    ):
        group.add_argument(flag, type=_count, metavar="N", help=text)
    group.add_argument(
        "--kv-bytes", type=_count, default=2, metavar="N", help="bytes of a K/V number (default: 2)"
    )
    group.add_argument(
        "--row-bytes", type=_count, default=4, metavar="N", help="bytes of a p or q (default: 4)"
    )


def _output(made: argparse.ArgumentParser) -> None:
    group = made.add_argument_group("output")
    group.add_argument("--law", action="store_true", help="also P(G = g) at every K")
    group.add_argument(
        "--sensitivity",
        action="store_true",
        help="also the speed-up at other acceptances, and what each position is worth",
    )
    group.add_argument(
        "--plot", type=_picture, metavar="FILE", help="draw a picture: FILE.png or FILE.svg"
    )
    group.add_argument("--json", action="store_true", help="everything as JSON, no table")


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"{text!r} is not a finite number")
    return value


def _share(text: str) -> float:
    value = _number(text)
    if not 0.0 <= value <= 1.0:
        raise argparse.ArgumentTypeError(f"{text} does not lie in 0 .. 1")
    return value


def _shares(text: str) -> tuple[float, ...]:
    shares = tuple(map(_share, text.split(",")))
    if len(shares) > _MOST_DRAFTS:
        raise argparse.ArgumentTypeError(f"more than {_MOST_DRAFTS} positions")
    return shares


def _time(text: str) -> float:
    value = _number(text)
    if value < 0.0:
        raise argparse.ArgumentTypeError(f"{text} is negative")
    if value and not SHORTEST_TIME <= value <= LONGEST_TIME:
        raise argparse.ArgumentTypeError(
            f"{text} does not lie in {SHORTEST_TIME:g} .. {LONGEST_TIME:g}"
        )
    return value


def _duration(text: str) -> float:
    value = _time(text)
    if value == 0.0:
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return value


def _whole(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 0")
    return int(text)


def _count(text: str) -> int:
    value = _whole(text)
    if value == 0:
        raise argparse.ArgumentTypeError("must be at least 1")
    if value > _MOST_COUNT:
        raise argparse.ArgumentTypeError(f"more than {_MOST_COUNT}")
    return value


def _lengths(text: str) -> tuple[int, ...]:
    first, dots, last = text.partition("..")
    if dots:
        low, high = _whole(first), _whole(last)
        found = tuple(range(low, min(high, _MOST_DRAFTS + 1) + 1))
    else:
        found = tuple(map(_whole, text.split(",")))
    if not found or list(found) != sorted(set(found)):
        raise argparse.ArgumentTypeError(f"{text} does not rise")
    if found[-1] > _MOST_DRAFTS:
        raise argparse.ArgumentTypeError(f"more than {_MOST_DRAFTS} drafts")
    return found


def _verify(text: str) -> VerifyCost:
    base, plus, slope = text.partition("+")
    if not plus:
        return VerifyCost(table=tuple(map(_duration, text.split(","))))
    if not slope.endswith("k"):
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form 6+0.2k")
    return VerifyCost(base=_duration(base), slope=_time(slope[:-1]))


def _labels(text: str) -> dict[str, str]:
    pairs = [part.partition("=") for part in text.split(",")]
    if not all(name and value for name, _, value in pairs):
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form LABEL=VALUE,...")
    return {name: value for name, _, value in pairs}


def _picture(text: str) -> Path:
    path = Path(text)
    if path.suffix.lower() not in {".png", ".svg"}:
        raise argparse.ArgumentTypeError(f"{text!r} ends neither with .png nor with .svg")
    return path
