"""Runs the benchmark on a tiny pair and checks what it counts. It never looks at a speed."""

import json
from itertools import pairwise

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from scheduler.stats import SpeculationStats
from tests.bench.__main__ import main
from tests.bench.options import read_options
from tests.bench.prompts import text_prompts
from tests.bench.reduction import percentile, positions
from tests.bench.synthetic import Shape, build_pair
from tests.bench.table import aligned

TINY = Shape(
    hidden=64,
    layers=4,
    draft_layers=1,
    intermediate=96,
    heads=4,
    kv_heads=2,
    vocabulary=256,
    positions=512,
    logit_spread=2.0,
)
K = 3
TOKENS = 10
ROUNDS = 2


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield build_pair(tmp_path_factory.mktemp("pair"), TINY, seed=3)
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def told(built, tmp_path_factory):
    """The data of one whole run of the program."""
    file = tmp_path_factory.mktemp("report") / "figures.json"
    flags = f"--k {K} --tokens {TOKENS} --rounds {ROUNDS} --concurrency 1,3 --prompt-tokens 12"
    pair = ["--pair", f"{built.target},{built.draft}", "--json", str(file)]
    assert main([*pair, *flags.split(), "--repeats", "2", "--threads", "1"]) == 0
    return json.loads(file.read_text("utf-8"))


@pytest.fixture
def figures(told):
    (pair,) = told["pairs"]
    return pair


def test_says_what_ran_and_where(told):
    assert told["machine"]["usable_cores"] >= 1
    assert told["machine"]["memory_gib"] > 0
    assert told["versions"]["torch"] == torch.__version__
    assert told["settings"]["k"] == K
    assert told["settings"]["threads"] == 1


def test_counts_every_token_of_every_run(figures):
    assert [level["concurrency"] for level in figures["levels"]] == [1, 3]
    for level in figures["levels"]:
        for arm in (level["on"], level["off"]):
            assert arm["tokens"] == ROUNDS * level["concurrency"] * TOKENS
            assert len(arm["rate"]["values"]) == ROUNDS
            assert arm["rate"]["lowest"] <= arm["rate"]["median"] <= arm["rate"]["highest"]
            assert 0.0 < arm["host_share"] < 1.0


def test_one_request_without_drafts_takes_one_row_and_one_round_a_token(figures):
    off = figures["levels"][0]["off"]
    assert off["rounds"] == ROUNDS * TOKENS
    assert off["rows_per_call"] == 1.0
    assert off["positions"] == []
    assert off["committed_per_round"] is None


def test_positions_are_reached_by_accepting_the_one_before(figures):
    for level in figures["levels"]:
        places = level["on"]["positions"]
        assert 1 <= len(places) <= K
        for earlier, later in pairwise(places):
            assert 0 < later["reached"] <= earlier["accepted"] <= earlier["reached"]
        assert all(0.0 < place["mass_acceptance"] <= 1.0 for place in places)
        assert 1.0 <= level["on"]["committed_per_round"] <= K + 1


def test_every_token_is_an_accepted_draft_or_the_one_that_ends_a_round(figures):
    on = figures["levels"][0]["on"]
    assert on["tokens"] == on["rounds"] + sum(place["accepted"] for place in on["positions"])


def test_the_ledger_predicts_by_its_formula(figures):
    ledger, prediction = figures["ledger"], figures["prediction"]
    costs = {(cost["model"], cost["rows"]): cost["milliseconds"] for cost in ledger["costs"]}
    assert set(costs) == {("draft", 1), *(("target", rows) for rows in (1, 2, 3, 4, 16))}
    c = costs["draft", 1] / costs["target", 1]
    reach = np.cumprod([p["acceptance"] for p in figures["levels"][0]["on"]["positions"]])
    assert ledger["c"] == pytest.approx(c)
    assert prediction["flat"] == pytest.approx((1 + reach.sum()) / (1 + K * c))
    verify = costs["target", K + 1] / costs["target", 1]
    assert prediction["with_verify"] == pytest.approx((1 + reach.sum()) / (verify + K * c))


def test_the_peer_runs_both_ways_in_both_types(figures):
    arms = {(arm["mode"], arm["dtype"]): arm["rate"]["median"] for arm in figures["peer"]["arms"]}
    assert set(arms) == {
        (mode, dtype) for mode in ("assisted", "plain") for dtype in ("bfloat16", "float32")
    }
    best = figures["peer"]["best_assisted"]
    assert arms["assisted", best] == max(arms["assisted", each] for each in ("bfloat16", "float32"))


def test_the_synthetic_pair_shares_layers_and_has_the_wanted_acceptance(built):
    target = AutoModelForCausalLM.from_pretrained(built.target, dtype=torch.float32)
    draft = AutoModelForCausalLM.from_pretrained(built.draft, dtype=torch.float32)
    whole = target.state_dict()
    assert all(torch.equal(weight, whole[name]) for name, weight in draft.state_dict().items())
    ids = torch.from_numpy(np.random.default_rng(11).integers(0, 256, size=(8, 48)))
    with torch.no_grad():
        p, q = (np.exp(_log_laws(model(ids).logits.numpy())) for model in (target, draft))
    assert np.minimum(p, q).sum(-1).mean() == pytest.approx(TINY.acceptance, abs=0.08)


def _log_laws(logits):
    shifted = logits - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def test_unreached_positions_say_nothing():
    def stats(k, accepted, reached):
        return SpeculationStats(
            k=k, accepted=accepted, reached=reached, mass=(0.5,) * reached, base=(1.0,) * reached
        )

    # A fully accepted round of one draft and a rejection at once do not count at position 2.
    first, second = positions([stats(1, 1, 1), stats(2, 0, 1), stats(2, 2, 2), stats(2, 1, 2)])
    assert (first.reached, first.accepted) == (4, 3)
    assert (second.reached, second.accepted) == (2, 1)
    assert second.mass_acceptance == 0.5


def test_masses_of_unreached_positions_count_where_they_are_booked():
    """Block verification books all drafts, for those of the reached ones alone are too good."""
    well = SpeculationStats(k=2, accepted=2, reached=2, mass=(1.0, 1.0), base=(1.0, 1.0))
    ill = SpeculationStats(k=2, accepted=0, reached=1, mass=(0.25, 0.0), base=(1.0, 0.25))
    _, second = positions([well, ill])
    assert (second.reached, second.acceptance, second.mass_acceptance) == (1, 1.0, 0.8)


def test_percentile_takes_a_value_that_occurred():
    assert percentile(range(100, 0, -1), 0.99) == 99
    assert percentile([], 0.99) == 0.0


def test_quick_leaves_other_flags_alone():
    options = read_options(["--quick", "--rounds", "5", "--pair", "embedded"])
    assert (options.rounds, options.pairs, options.concurrency) == (5, ("embedded",), (1, 8))
    assert read_options([]).pairs == ("embedded", "synthetic")


@pytest.mark.parametrize("flags", ["--pair nowhere", "--tokens 1", "--k 0", "--temperature 9"])
def test_bad_flags_end_the_command(flags, capsys):
    with pytest.raises(SystemExit) as ended:
        read_options(flags.split())
    assert ended.value.code == 2
    assert flags.split()[0] in capsys.readouterr().err


def test_a_pair_that_is_not_there_is_said_plainly(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("tests.bench.__main__.in_new_process", lambda work, *args: work(*args))
    assert main(["--pair", f"{tmp_path / 'a'},{tmp_path / 'b'}"]) == 2
    assert f"bench: {tmp_path / 'a'}: " in capsys.readouterr().err


def test_text_prompts_are_windows_of_one_length(built):
    class Letters:
        def encode(self, text, *, add_special_tokens, verbose):
            return [ord(letter) for letter in text]

    prompts = text_prompts(5, 40, Letters())
    assert [len(prompt) for prompt in prompts] == [40] * 5
    assert len(set(prompts)) == 5


def test_columns_line_up():
    assert aligned([("", "n"), ("ab", "1.50")]) == "       n\nab  1.50"
