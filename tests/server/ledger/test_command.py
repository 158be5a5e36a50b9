"""`fencepost ledger` as a person meets it: tables, JSON, help, and one real process."""

import json
import shlex
import subprocess
import sys
from dataclasses import asdict

import pytest

from scheduler import speedup
from server import cli
from server.ledger import flags
from tests.server.ledger.conftest import TOY, cells


def test_the_table_has_the_worked_numbers(ledger):
    rows = cells(ledger(TOY))
    assert [row[0] for row in rows] == ["0", "1", "2", "3", "4"]
    # K, s_K, E[A], E[G], discarded rows, ms, tokens/s, speed-up, break-even
    line = "2 0.3600 0.9600 1.9600 1.0400 9.000 217.8 1.307x 0.366 <- best"
    assert " ".join(rows[2]) == line
    assert rows[0][5:7] == ["6.000", "166.7"]
    assert sum("best" in row for row in rows) == 1


def test_a_slow_verify_makes_plain_decoding_the_best(ledger):
    text = ledger("--alpha 0.6 --k 2 --draft-ms 1 --verify-ms 12 --other-ms 1 --baseline-ms 6")
    rows = cells(text)
    assert rows[1][6] == "130.7"
    assert rows[1][-3:] == ["slower", "than", "plain"]
    assert "best: K = 0, plain decoding, 166.7 tokens/s" in text
    assert rows[0][-2:] == ["plain", "decoding"]


def test_the_law_of_committed_tokens(ledger):
    rows = cells(ledger(f"{TOY} --law"), "K     g=1")
    assert rows[2] == ["2", "0.4000", "0.2400", "0.3600"]
    assert rows[0] == ["0", "1.0000"]
    assert "g=1" not in ledger(TOY)


def test_the_next_step_is_weighed_in_tokens(ledger):
    text = ledger(TOY)
    assert (
        "K = 3 would add 0.216 tokens and 1 ms a round; at K = 2 that time commits 0.218 tokens"
        in text
    )


def test_a_best_k_at_the_end_of_the_list_is_not_called_the_best_of_all(ledger):
    hint = "K = 2 is the last one looked at: longer drafts may be better still"
    assert hint in ledger("--alpha 0.9 --k 0..2 --c 0.1")
    assert "last one looked at" not in ledger(TOY)
    assert "last one looked at" not in ledger("--alpha 0.9 --k 0 --c 0.1")


@pytest.mark.parametrize(("front", "expected"), [(True, "3.5232"), (False, "2.0612")])
def test_the_order_of_a_profile_matters(ledger, front, expected):
    profile = "0.95,0.9,0.6,0.4" if front else "0.4,0.6,0.9,0.95"
    rows = cells(ledger(f"--profile {profile} --c 0.1"))
    assert (rows[4][0], rows[4][3]) == ("4", expected)


def test_a_profile_is_cut_at_the_longest_k(ledger):
    found = json.loads(ledger("--profile 0.95,0.9,0.6,0.4 --k 1,2 --c 0.1 --json"))
    assert found["inputs"]["profile"] == [0.95, 0.9]
    assert found["leverage"] == pytest.approx([1.9, 0.95])


def test_ratios_need_no_milliseconds(ledger):
    text = ledger("--alpha 0.8 --k 0..5 --c 0.05")
    assert "tokens/s" not in text
    assert cells(text)[5][6] == f"{speedup.ratio_speedup((0.8,) * 5, 0.05):.3f}x"
    timed = cells(ledger("--alpha 0.8 --k 0..5 --c 0.05 --baseline-ms 8"))
    assert timed[5][5:8] == ["10.000", f"{368.928:.1f}", cells(text)[5][6]]


def test_bars_stand_in_proportion_and_plain_decoding_is_marked(ledger):
    lines = ledger("--alpha 1 --k 0,1,3 --draft-ms 0 --verify-ms 5").splitlines()
    bars = [line for line in lines if "|" in line and line.startswith("K ")]
    assert [bar.count("#") + bar.count("|") for bar in bars] == [14, 28, 56]
    assert len({bar.index("|") for bar in bars}) == 1
    assert bars[0].index("|") == len("K  0  ") + 13
    assert bars[2].endswith("4.00x  <- best")


def test_all_of_it_is_ascii(ledger):
    sizes = "--layers 2 --kv-heads 2 --head-dim 8 --vocab 100"
    assert ledger(f"{TOY} --law --sensitivity {sizes}").isascii()


def test_sensitivity_shows_other_acceptances_and_what_a_position_is_worth(ledger):
    text = ledger(f"{TOY} --sensitivity")
    rows = cells(text, "acceptance  ")
    assert rows[3][0] == "0.60"
    assert rows[3][3] == "1.307*"
    assert [row[-1][-1] for row in rows[-2:]] == ["*", "*"]
    worth = speedup.leverage((0.6,) * 4)
    assert f"1: +{worth[0] / 10:.3f}  2: +{worth[1] / 10:.3f}" in text


def test_bytes_come_with_the_sizes(ledger):
    sizes = "--layers 24 --kv-heads 8 --head-dim 128 --vocab 32000"
    rows = cells(ledger(f"{TOY} {sizes}"), "K  branch K/V")
    assert rows[2][:5] == ["2", "192", "KiB", "625", "KiB"]
    assert rows[2][-1] == f"{(2 * 96 + 625) / (1.96 * 96):.2f}"


@pytest.mark.parametrize(
    ("cost", "times"),
    [
        ("6", [6, 6, 6]),
        ("6+0.5k", [6, 6.5, 7]),
        ("6,6.1,7.2", [6, 6.1, 7.2]),
    ],
)
def test_the_target_call_may_depend_on_k(ledger, cost, times):
    found = json.loads(ledger(f"--alpha 0.5 --k 0..2 --draft-ms 1 --verify-ms {cost} --json"))
    assert [row["verify_time"] for row in found["rows"]] == times
    assert [row["round_time"] for row in found["rows"]] == [times[0], times[1] + 1, times[2] + 2]


def test_json_holds_what_the_functions_say(ledger):
    sizes = "--layers 2 --kv-heads 3 --head-dim 4 --vocab 10"
    profile, times = (0.9, 0.5, 0.8), {0: 6.0, 1: 7.5, 3: 9.5}
    found = json.loads(
        ledger(
            "--profile 0.9,0.5,0.8 --k 1,3 --draft-ms 1 --verify-ms 6 --other-ms 0.5 "
            f"--baseline-ms 6 {sizes} --json"
        )
    )
    assert found["best"] == asdict(speedup.best_k(profile, times))
    assert found["inputs"]["profile"] == list(profile)
    assert found["sensitivity"]["k"] == [0, 1, 3]
    assert found["leverage"] == list(speedup.leverage(profile))
    last = found["rows"][2]
    rate = speedup.goodput(profile[:1], 7.5)
    tokens = speedup.expected_accepted(profile) - 0.9
    assert last == {
        "k": 3,
        "survival": pytest.approx(0.36),
        "expected_accepted": speedup.expected_accepted(profile),
        "expected_committed": speedup.expected_committed(profile),
        "discarded_rows": speedup.discarded_rows(profile),
        "law": list(speedup.committed_law(profile)),
        "draft_time": 3.0,
        "verify_time": 6.0,
        "other_time": 0.5,
        "round_time": 9.5,
        "tokens_per_second": 1e3 * speedup.goodput(profile, 9.5),
        "speedup": speedup.speedup(profile, 9.5, 6.0),
        "break_even": speedup.break_even_acceptance(3, 9.5, 6.0),
        "step": {
            "tokens": tokens,
            "time": 2.0,
            "gain": speedup.marginal_gain(tokens, 2.0, rate),
        },
        "bytes": asdict(speedup.round_bytes(profile, row_bytes=96, vocabulary=10)),
    }
    assert found["rows"][0]["step"] is None


def test_every_example_of_the_help_works(ledger, capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main(["ledger", "--help"])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    examples = [
        line.split("ledger ")[1] for line in shown.splitlines() if line[:11] == "  fencepost"
    ]
    assert len(examples) == 4
    for example in examples:
        if "--from-metrics" not in example:
            assert "best: K = " in ledger(example)
    for action in flags.parser()._actions:
        assert action.option_strings[-1] in shown


def test_as_a_process_it_is_quick_to_start_and_clean():
    program = (
        "import sys; from server.cli import main; status = main(); "
        "print({'torch', 'transformers', 'fastapi', 'matplotlib'} & set(sys.modules)); "
        "sys.exit(status)"
    )
    command = [sys.executable, "-c", program, "ledger", *shlex.split(TOY)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert lines[-1] == "set()"
    assert "best: K = 2, 1.307 times plain decoding, 217.8 tokens/s" in lines


def test_the_command_is_listed(capsys):
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    assert "ledger" in capsys.readouterr().out
