"""The bench of telemetry's cost measures what it says, on the embedded pair and on fakes."""

import json

import pytest
import torch

from tests.bench import telemetry
from tests.telemetry.rounds import LOAD, drafted, ended, step


class Told:
    """A sink that counts what it was told."""

    def __init__(self):
        self.seen = []

    def step(self, stats):
        self.seen.append("step")

    def load(self, load):
        self.seen.append("load")

    def finished(self, finished):
        self.seen.append("finished")


@pytest.mark.parametrize("on", [False, True])
def test_the_switch_passes_on_only_while_it_is_on(on):
    told = Told()
    switch = telemetry.Switch(told)
    switch.on = on
    switch.step(step(drafted(4, 2)))
    switch.load(LOAD)
    switch.finished(ended())
    assert told.seen == (["step", "load", "finished"] if on else [])
    assert switch.spent.calls == len(switch.spent.each) == on


@pytest.mark.slow
def test_a_short_run_says_everything(tmp_path, capsys):
    path = tmp_path / "figures.json"
    threads = str(torch.get_num_threads())
    flags = ["--rounds", "2", "--tokens", "12", "--threads", threads, "--json", str(path)]
    assert telemetry.main(flags) == 0
    found = json.loads(path.read_text())
    assert [level["concurrency"] for level in found["levels"]] == [1, 8]
    for level in found["levels"]:
        ratios = [
            full / none
            for full, none in zip(level["full"]["values"], level["none"]["values"], strict=True)
        ]
        assert level["ratio"]["values"] == pytest.approx(ratios)
        assert 0 < level["sink_share"] < 1
    scrape = found["scrape"]
    assert scrape["running"] == 64
    assert scrape["page_bytes"] > 100_000
    assert len(scrape["busy_seconds"]["values"]) >= 1
    printed = capsys.readouterr().out
    assert printed.count("of processor time") == 2
    assert "scrape with 64 running" in printed
