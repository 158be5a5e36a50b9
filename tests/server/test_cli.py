"""The command line without its models: help, versions, refusals, exit statuses."""

import io
import json
import subprocess
import sys

import pytest

from server import cli
from server.settings import Settings
from tests.oracles.rig import request
from tests.telemetry.logs import lines_of, served


class FakeMain:
    """Stands where the server process would start."""

    def __init__(self):
        self.settings = None

    def serve(self, settings):
        self.settings = settings
        return 7


@pytest.fixture
def started(monkeypatch):
    fake = FakeMain()
    monkeypatch.setitem(sys.modules, "server.main", fake)
    return fake


def test_flags_become_settings(started):
    status = cli.main(
        ["serve", "--port", "0", "--k", "auto", "--offline", "--served-model-name", "a,b"]
    )
    assert status == 7
    settings = started.settings
    assert (settings.port, settings.k, settings.offline) == (0, "auto", True)
    assert settings.names == ("a", "b")
    cli.main(["serve", "--no-offline"])
    assert started.settings.offline is False


def test_bad_settings_are_told_before_anything_is_loaded(started, capsys):
    assert cli.main(["serve", "--port", "x"]) == 2
    assert "cannot start: port=x" in capsys.readouterr().err
    assert started.settings is None


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["serve", "--enable-lora"], "--enable-lora: LoRA adapters are not supported"),
        (["serve", "--lora-modules", "a=b", "c=d"], "--lora-modules: LoRA adapters"),
        (["serve", "--prot", "1"], "unrecognized arguments: --prot"),
        (["serve", "--max-req", "1"], "unrecognized arguments: --max-req"),
        ([], "required: COMMAND"),
    ],
)
def test_wrong_flags_are_named(arguments, words, capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main(arguments)
    assert ended.value.code == 2
    assert words in capsys.readouterr().err


def test_help_lists_every_setting(capsys):
    with pytest.raises(SystemExit):
        cli.main(["serve", "--help"])
    shown = capsys.readouterr().out
    for name in Settings.model_fields:
        assert f"--{name.replace('_', '-')}" in shown
    assert "lora" not in shown


def test_help_says_what_needs_the_source_tree(capsys):
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    lines = " ".join(capsys.readouterr().out.split())
    assert "on model pairs (source tree only)" in lines
    assert lines.count("source tree") == 1
    assert "embedded pair (from an installed package too)" in lines


@pytest.fixture
def log(tmp_path):
    """A log with a sound round of one request."""
    _, steps = served(request(1, (1, 2), max_tokens=6, temperature=1.0))
    path = tmp_path / "accept.log"
    path.write_bytes(b"".join(lines_of(steps)))
    return path


def test_explain_says_that_a_log_checks(log, capsys):
    assert cli.main(["explain", str(log)]) == 0
    shown = capsys.readouterr().out
    assert "every record checks" in shown
    assert "where acceptance was lost" in shown
    assert cli.main(["explain", str(log), "--json", "--by", "policy"]) == 0
    assert set(json.loads(capsys.readouterr().out)["parts"]) == {"policy=token"}


def test_explain_shows_what_does_not_check(log, capsys):
    lines = log.read_bytes().splitlines(keepends=True)
    lines[2] = lines[2].replace(b'"uniform":0.', b'"uniform":7.')
    log.write_bytes(b"".join(lines))
    assert cli.main(["explain", str(log)]) == 1
    assert f"{log}:3: sampling mismatch (uniform)" in capsys.readouterr().out


def test_explain_reads_standard_input(log, monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(log.read_bytes())))
    assert cli.main(["explain", "-"]) == 0
    assert "1 request in 1 file" in capsys.readouterr().out


def test_explain_names_what_it_cannot_read(log, capsys):
    log.write_text("hello\n")
    assert cli.main(["explain", str(log)]) == 2
    assert cli.main(["explain", f"{log}.9"]) == 2
    shown = capsys.readouterr().err
    assert f"fencepost: cannot explain {log}: no acceptance log: not JSON\n" in shown
    assert f"{log}.9: No such file" in shown


def test_explain_helps(capsys):
    with pytest.raises(SystemExit):
        cli.main(["explain", "--help"])
    shown = " ".join(capsys.readouterr().out.split())
    assert "--by {policy,domain,proposer,k}" in shown
    assert "Exit status: 0 when every record checks, 1 when one does not" in shown


def test_version(capsys):
    assert cli.main(["version"]) == 0
    assert capsys.readouterr().out.startswith("fencepost ")


def test_help_needs_nothing_heavy():
    code = (
        "import sys, server.cli; print([m for m in ('torch', 'transformers') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_tools_of_the_source_tree_are_run_as_programs(tmp_path, monkeypatch, capsys):
    package = tmp_path / "toolbox"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text("import sys; print(sys.argv)")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(cli, "_TOOLS", {"bench": "toolbox", "pair": "no.such.place"})
    monkeypatch.setattr(sys, "argv", ["fencepost"])
    assert cli.main(["bench", "--fast"]) == 0
    assert "'--fast'" in capsys.readouterr().out
    assert cli.main(["pair"]) == 2
    assert "needs the source tree" in capsys.readouterr().err
