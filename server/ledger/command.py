"""Runs `fencepost ledger`: flags in, tables or JSON or a picture out. Knows no formula."""

import dataclasses
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from server.ledger.figures import SHOWN_ALPHAS, Figures, work_out
from server.ledger.flags import BadFlag, parser
from server.ledger.inputs import Inputs, read_inputs
from server.ledger.text import lines

__all__ = ["Draw", "run"]

Draw = Callable[[Inputs, Figures, Path], None]
"""Draws into the file. Raises ModuleNotFoundError without its library, OSError when it cannot
write."""


def run(arguments: Sequence[str], draw: Draw) -> int:
    """Answer one question; returns the exit status. Flags that do not fit end the process with 2.

    `draw` comes from outside because its library is heavy and optional.
    """
    flags = parser()
    given = flags.parse_args(arguments)
    try:
        inputs = read_inputs(given)
        figures = work_out(inputs)
        if given.plot is not None:
            _draw(draw, inputs, figures, given.plot)
    except BadFlag as problem:
        flags.error(str(problem))
    if given.json:
        shown = json.dumps(_document(inputs, figures), indent=2)
    else:
        shown = "\n".join(lines(inputs, figures, law=given.law, sensitivity=given.sensitivity))
    sys.stdout.write(f"{shown}\n")
    return 0


def _draw(draw: Draw, inputs: Inputs, figures: Figures, path: Path) -> None:
    try:
        draw(inputs, figures, path)
    except ModuleNotFoundError as missing:
        raise BadFlag(
            "--plot", f"needs {missing.name}: python -m pip install 'fencepost[plot]'"
        ) from None
    except OSError as problem:
        raise BadFlag("--plot", f"cannot write {path}: {problem.strerror}") from None


def _document(inputs: Inputs, figures: Figures) -> dict[str, Any]:
    """Everything, under the names of the records."""
    found = dataclasses.asdict(figures)
    found["sensitivity"] = {
        "alphas": SHOWN_ALPHAS,
        "k": inputs.ks,
        "speedups": found["sensitivity"],
    }
    return {"inputs": dataclasses.asdict(inputs), **found}
