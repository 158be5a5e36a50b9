"""Runs `fencepost ledger` in this process."""

import shlex

import pytest

from server import cli

TOY = "--alpha 0.6 --k 0..4 --draft-ms 1 --verify-ms 6 --other-ms 1"


@pytest.fixture
def ledger(capsys):
    """Run the command in this process and give what it printed."""

    def run(arguments):
        assert cli.main(["ledger", *shlex.split(arguments)]) == 0
        shown = capsys.readouterr()
        assert shown.err == ""
        return shown.out

    return run


@pytest.fixture
def refusal(capsys):
    """Run the command in this process and give the line that says why it ended."""

    def run(arguments):
        with pytest.raises(SystemExit) as ended:
            cli.main(["ledger", *shlex.split(arguments)])
        assert ended.value.code == 2
        shown = capsys.readouterr()
        assert shown.out == ""
        return shown.err.splitlines()[-1]

    return run


def cells(text, head="K "):
    """The rows of the table whose head begins so, as lists of words."""
    lines = iter(text.splitlines())
    for line in lines:
        if line.lstrip().startswith(head):
            break
    found = []
    for line in lines:
        if not line:
            break
        found.append(line.split())
    return found
