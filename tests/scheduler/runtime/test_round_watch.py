"""Parts of a round by the host's clock and by events of a device behind it (a stand-in)."""

import torch

from scheduler.runtime.round_watch import RoundWatch


class Event:
    """Recorded at 2.0 s, 2.25 s, 2.75 s of the device's time."""

    made = 0

    def __init__(self, *, enable_timing):
        assert enable_timing
        self.at = None

    def record(self):
        self.at = (2.0, 2.25, 2.75)[Event.made]
        Event.made += 1

    def elapsed_time(self, later):
        return (later.at - self.at) * 1e3


def watched(device, host_times):
    watch = RoundWatch(torch.device(device), iter(host_times).__next__)
    watch.part_ended()
    watch.part_ended()
    timings = watch.timings(0.125)
    return timings.draft, timings.verify, timings.decide, timings.forward


def test_on_the_host_parts_are_differences_of_its_clock():
    assert watched("cpu", (1.0, 1.0, 1.5, 2.5, 2.75)) == (0.5, 1.0, 0.25, 0.125)


def test_a_device_behind_the_host_is_timed_by_its_events_and_the_rest_is_decide(monkeypatch):
    monkeypatch.setattr(torch.cuda, "Event", Event)
    assert watched("cuda", (1.0, 2.0)) == (0.25, 0.5, 0.25, 0.75)


def test_parts_add_up_to_the_whole_round():
    draft, verify, decide, _ = watched("cpu", (0.0, 0.5, 1.0, 1.5, 2.0))
    assert draft + verify + decide == 2.0
