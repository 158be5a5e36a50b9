"""What a Monte Carlo asks for and what must come out: settings, ways to draft, serial laws, counts.

Knows the oracle's laws and requests' fields; nothing of engines or of HTTP.
"""

import itertools
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from scheduler.plan import Layout
from scheduler.request import ProposerKind, Verifier
from tests.oracles.rows import Processing, Table
from tests.prove.chance import Fit, fit

Tokens = tuple[int, ...]
PROMPT_TOKENS = 9
LENGTH = 3
"""Tokens of a text that are compared: the prompt's round gives one, drafts come after it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One output law: settings of a request, its prompt and the ids that end it."""

    name: str
    prompt: Tokens
    processing: Processing = field(default_factory=Processing)
    stop: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafter:
    """Where drafts come from, and how sure the draft model must be to go on."""

    name: str
    proposer: ProposerKind
    min_confidence: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """How a text is drafted and verified. None of it may show in the law."""

    verifier: Verifier
    k: int
    drafter: Drafter
    layout: Layout


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """One text to be drawn. No two draws of a run share a seed."""

    setting: Setting
    way: Way
    seed: int
    max_tokens: int


Sample = tuple[Draw, Tokens]

MODEL = Drafter(name="model", proposer=ProposerKind.DRAFT_MODEL)
SURE = Drafter(name="model, early stop", proposer=ProposerKind.DRAFT_MODEL, min_confidence=0.55)
NGRAM = Drafter(name="ngram", proposer=ProposerKind.NGRAM)
NONE = Drafter(name="none", proposer=ProposerKind.NONE)
DRAFTERS = (MODEL, SURE, NGRAM)

_CHANCE = 11


def settings_of(vocabulary: int, end: int) -> tuple[Setting, ...]:
    """The laws that are tried, each after a prompt of its own."""
    last = frozenset({end})
    laws: list[tuple[str, Processing, frozenset[int]]] = [
        ("plain", Processing(), frozenset()),
        ("cool", Processing(temperature=0.6), frozenset()),
        ("top-k", Processing(temperature=1.4, top_k=2), frozenset()),
        ("top-p", Processing(top_p=0.8), frozenset()),
        ("min-p", Processing(temperature=1.2, min_p=0.2), frozenset()),
        ("penalties", Processing(repetition=1.3, presence=0.4, frequency=0.3), frozenset()),
        ("bias", Processing(bias={0: 1.0, 2: -0.7}), frozenset()),
        ("stop", Processing(), last),
        ("late stop", Processing(late=(end,), min_tokens=1), last),
        ("all", _everything(vocabulary), last),
    ]
    chance = random.Random(_CHANCE)
    return tuple(
        Setting(
            name=name,
            prompt=tuple(chance.randrange(vocabulary) for _ in range(PROMPT_TOKENS + place % 4)),
            stop=stop,
            processing=processing,
        )
        for place, (name, processing, stop) in enumerate(laws)
    )


def _everything(vocabulary: int) -> Processing:
    return Processing(
        temperature=0.9,
        top_k=vocabulary - 1,
        top_p=0.97,
        min_p=0.05,
        repetition=1.1,
        presence=0.3,
        frequency=0.1,
        bias={1: 0.4},
    )


def serial_law(
    logits: Callable[[Tokens], Sequence[float]], setting: Setting
) -> dict[Tokens, float]:
    """Probability of every text of LENGTH tokens, or fewer up to a stop id, one token at a
    time, in float64."""
    table = Table(logits, prompt_length=len(setting.prompt), settings=setting.processing)
    law: dict[Tokens, float] = {}
    open_texts: dict[Tokens, float] = {(): 1.0}
    for _ in range(LENGTH):
        grown: dict[Tokens, float] = {}
        for text, weight in open_texts.items():
            row = table.expected(setting.prompt + text)
            for token, chance in enumerate(row):
                home = law if token in setting.stop else grown
                home[*text, token] = weight * float(chance)
        open_texts = grown
    return law | open_texts


def draws_of(
    settings: Sequence[Setting], layout: Layout, counts: Mapping[int, int], seed: int
) -> list[Draw]:
    """`counts[k]` draws of each K, seeds from `seed` on, in an order that mixes everything.

    They spread as evenly as they can over settings, verifiers and drafters. Budgets leave room
    for K drafts after the first token, which the prompt's own round gives.
    """
    chance = random.Random(seed + _CHANCE)
    seeds = itertools.count(seed)
    draws = []
    for k, count in counts.items():
        kinds = list(itertools.product(settings, Verifier, DRAFTERS if k else (NONE,)))
        chance.shuffle(kinds)
        for setting, verifier, drafter in itertools.islice(itertools.cycle(kinds), count):
            way = Way(verifier=verifier, k=k, drafter=drafter, layout=layout)
            draws.append(
                Draw(setting=setting, way=way, seed=next(seeds), max_tokens=max(LENGTH, k + 2))
            )
    chance.shuffle(draws)
    return draws


class Tally:
    """Counts of texts, by setting and way, beside the serial laws."""

    def __init__(self, laws: Mapping[str, Mapping[Tokens, float]]) -> None:
        self._laws = laws
        self._counts: dict[tuple[str, Way], Counter] = defaultdict(Counter)

    def add(self, samples: Iterable[Sample]) -> None:
        """Count the first tokens of each text."""
        for draw, tokens in samples:
            self._counts[draw.setting.name, draw.way][tokens[:LENGTH]] += 1

    def fits(self) -> dict[str, Fit]:
        """The fit of everything together, and of each value of each dimension alone."""
        slices: dict[str, list[tuple[str, Way]]] = defaultdict(list)
        for setting, way in self._counts:
            for name in (
                "everything",
                f"setting {setting}",
                f"verifier {way.verifier.value}",
                f"K {way.k}",
                f"drafter {way.drafter.name}",
                f"layout {way.layout.value}",
            ):
                slices[name].append((setting, way))
        return {name: self._fit(members) for name, members in sorted(slices.items())}

    def _fit(self, members: Sequence[tuple[str, Way]]) -> Fit:
        """One fit a setting, over all its ways in `members`, added up."""
        counts: dict[str, Counter] = defaultdict(Counter)
        for setting, way in members:
            counts[setting] += self._counts[setting, way]
        return sum((fit(seen, self._laws[name]) for name, seen in counts.items()), Fit())
