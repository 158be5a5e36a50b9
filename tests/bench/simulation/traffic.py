"""Requests of a simulation: their prompts, their lengths and what of their drafts is accepted.

Every draw belongs to a request and a position of its output, so that all arms meet the same ones:
a position is tested at most once, as an accepted draft or as the first rejected one.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

Profile = tuple[float, ...]
"""Reach acceptance by draft position; positions past the end have that of the last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Domain:
    """What requests of one kind accept: a profile from each start on, in shares of the span or,
    with `by_tokens`, in tokens of the request. `recorded` replays outcomes by output position, one
    string of 0 and 1 a request, in place of draws."""

    phases: tuple[tuple[float, Profile], ...] = ((0.0, (0.0,)),)
    by_tokens: bool = False
    recorded: tuple[str, ...] = ()

    def at(self, share: float, emitted: int) -> Profile:
        """The profile that holds now."""
        reached = emitted if self.by_tokens else share
        found = self.phases[0][1]
        for start, profile in self.phases:
            if reached >= start:
                found = profile
        return found


def steady(*profile: float) -> Domain:
    """A profile that never changes."""
    return Domain(phases=((0.0, profile),))


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Who comes and when. Requests take the domains in turn.

    `prompts` and `outputs` are ranges of tokens; `stop` is the chance of a stop at each token, of
    which nobody knows beforehand. `load` is how many requests are kept going, by share of the span.
    With `rate` they come by themselves instead, so many a second. Every `long_every`-th prompt has
    `long_prompt` tokens.
    """

    domains: tuple[Domain, ...]
    prompts: tuple[int, int] = (64, 192)
    outputs: tuple[int, int] = (96, 256)
    stop: float = 0.002
    load: tuple[tuple[float, int], ...] = ((0.0, 1),)
    rate: float | None = None
    long_every: int = 0
    long_prompt: int = 4000


class Live:
    """One request. `length` is where its output will end, `budget` where it would at the latest.

    `rows` counts its target rows, `draft_rows` those of its draft cache.
    """

    __slots__ = (
        "budget",
        "domain",
        "draft_rows",
        "draws",
        "emitted",
        "first",
        "k",
        "length",
        "number",
        "prompt",
        "recorded",
        "rows",
        "since",
    )

    def __init__(self, number: int, domain: Domain) -> None:
        self.number, self.domain = number, domain
        self.prompt = self.budget = self.length = 1
        self.draws: Sequence[float] = ()
        self.recorded = ""
        self.rows = self.draft_rows = self.emitted = 0
        self.k: int | None = None
        self.first: float | None = None
        self.since = 0

    @property
    def tokens(self) -> int:
        """Prompt and output."""
        return self.prompt + self.emitted

    @property
    def lag(self) -> int:
        """Rows that the draft cache is behind (contract section 6)."""
        return self.tokens - 1 - self.draft_rows

    def accepted(self, k: int, profile: Profile) -> int:
        """How many of `k` drafts are accepted from here."""
        start, last = self.emitted, len(profile) - 1
        for place in range(k):
            if self.recorded:
                if self.recorded[start + place] == "0":
                    return place
            elif self.draws[start + place] >= profile[min(place, last)]:
                return place
        return k


def make_request(traffic: Traffic, number: int, seed: int) -> Live:
    """The request of this number: the same in every arm."""
    chance = random.Random(seed * 1_000_003 + number)
    domain = traffic.domains[number % len(traffic.domains)]
    live = Live(number, domain)
    live.prompt = chance.randint(*traffic.prompts)
    if traffic.long_every and number % traffic.long_every == 0:
        live.prompt = traffic.long_prompt
    live.budget = live.length = chance.randint(*traffic.outputs)
    if traffic.stop:
        live.length = min(live.budget, 1 + int(chance.expovariate(traffic.stop)))
    if domain.recorded:
        live.recorded = domain.recorded[number // len(traffic.domains) % len(domain.recorded)]
        live.budget = len(live.recorded)
        live.length = min(live.length, live.budget)
    live.draws = [chance.random() for _ in range(live.budget)]
    return live


def arrivals(rate: float, seconds: float, seed: int) -> list[float]:
    """Times of a Poisson process."""
    chance = random.Random(seed)
    count = int(rate * seconds * 1.5) + 20
    times = accumulate(chance.expovariate(rate) for _ in range(count))
    return [time for time in times if time < seconds]
