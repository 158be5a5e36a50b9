"""Reads the command line of the proofs. Knows flags, nothing of what they do."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.prove.proof import Scope


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What to run and where it goes. `only` empty means every proof; `markdown` a file to show
    instead of running anything."""

    scope: Scope
    only: tuple[str, ...]
    merge: tuple[Path, ...]
    detail: bool
    listing: bool
    json: Path | None
    markdown: Path | None


def read_options(arguments: Sequence[str], names: Sequence[str]) -> Options:
    """Options from flags; `names` are the proofs there are. Exits with 2 on a bad flag."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.prove",
        description="Proves the output law, its state and its randomness, and prints one table.",
    )
    add = parser.add_argument
    add("--full", action="store_true", help="run everything, as for the committed table (long)")
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
    given = parser.parse_args(arguments)
    return Options(
        scope=Scope.FULL if given.full else Scope.FAST,
        only=tuple(given.only),
        merge=tuple(given.merge),
        detail=given.detail,
        listing=given.listing,
        json=given.json,
        markdown=given.markdown,
    )
