"""Reads the command line of the proofs. Knows flags, nothing of what they do."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.bench.options import at_least_1
from tests.prove.proof import Scope


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What to run and where it goes. `only` empty means every proof; `markdown` a file to show
    instead of running anything; `workers` proofs are run at a time."""

    scope: Scope
    workers: int
    only: tuple[str, ...]
    merge: tuple[Path, ...]
    detail: bool
    listing: bool
    json: Path | None
    markdown: Path | None


def read_options(arguments: Sequence[str], names: Sequence[str]) -> Options:
    """Options from flags; `names` are the proofs there are. Exits with 2 on a bad flag."""
    given = _parser(names).parse_args(arguments)
    return Options(
        scope=Scope.FULL if given.full else Scope.FAST,
        workers=given.workers,
        only=tuple(given.only),
        merge=tuple(given.merge),
        detail=given.detail,
        listing=given.listing,
        json=given.json,
        markdown=given.markdown,
    )


def _parser(names: Sequence[str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.prove",
        description="Proves the output law, its state and its randomness, and prints one table.",
    )
    add = parser.add_argument
    add("--full", action="store_true", help="run everything, as for the committed table (long)")
    add(
        "--workers",
        type=at_least_1,
        default=1,
        metavar="N",
        help="run so many proofs at a time, in processes of their own (default: 1, in this one)",
    )
    add(
        "--only",
        action="append",
        default=[],
        choices=names,
        metavar="NAME",
        help="run this proof; may be given more than once",
    )
    add("--detail", action="store_true", help="print the rows of each finding too")
    add("--json", type=Path, metavar="FILE", help="write everything as data too")
    add("--list", dest="listing", action="store_true", help="name the proofs and run nothing")
    add(
        "--merge",
        type=Path,
        action="extend",
        nargs="+",
        default=[],
        metavar="FILE",
        help="take what these files about the same product found; without --only, only proofs "
        "that they lack are run",
    )
    add("--markdown", type=Path, metavar="FILE", help="show this data file as Markdown")
    return parser
