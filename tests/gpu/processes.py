"""Runs a command with an end: with all that it started, it is gone when its seconds are over."""

import os
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """`status` is None when the command was cut off; `lines` are of both its outputs."""

    status: int | None
    lines: tuple[str, ...]


def run_within(seconds: float, command: Sequence[str]) -> Ended:
    """Run `command` from the root of the checkout for at most `seconds`."""
    # Children of its own may hold the output open, so it goes to a file and not through a pipe.
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            command, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            status: int | None = process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            _end_session(process)
        output.seek(0)
        text = output.read().decode(errors="replace")
    return Ended(status=status, lines=tuple(text.strip().splitlines()))


def _end_session(process: subprocess.Popen[bytes]) -> None:
    """End what is left of the command and of what it started."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    process.wait()
