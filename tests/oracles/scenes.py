"""Small worlds in which one request's coming round is of a chosen kind, and pictures of them.

A picture is everything authoritative about a request, by name, so that two moments are compared
field by field. Knows rigs and their books; nothing of what is done to them.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass, fields

from scheduler.commit import no_faults
from scheduler.plan import DeviceDraft, Group, HostDraft, Layout, Role
from scheduler.proposers.ngram import NgramProposer
from scheduler.request import ProposerKind, Verifier
from tests.oracles.rig import (
    BLOCK,
    MODEL,
    NGRAM,
    NOISE,
    TOKEN,
    Rig,
    config,
    expected,
    letters,
    request,
)

VICTIM = 2
PROMPT = (*range(16), 2, 3, 1, 4)


def depth(draft):
    """Drafts that a plan gives a group."""
    if isinstance(draft, HostDraft):
        return len(draft.token_ids)
    return draft.depth if isinstance(draft, DeviceDraft) else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of round in one layout; `fits` knows it by the plan's group."""

    name: str
    layout: Layout
    fits: Callable[[Group], bool]
    k: int | None = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Style:
    """How the request is drafted and verified. Greedy and noise have texts known beforehand."""

    name: str
    temperature: float
    verifier: Verifier
    proposer: ProposerKind = MODEL


def _drafts(group):
    return group.emits and depth(group.draft) > 0


def _plain(group):
    return group.emits and group.rows < 2 and not depth(group.draft) and group.max_emit > 1


def _last(group):
    return group.emits and group.max_emit == 1


REPLAY, RETAINED = Layout.REPLAY_FRONTIER, Layout.RETAINED_FRONTIER
KINDS = (
    Kind(name="chunk", layout=REPLAY, fits=lambda g: not g.emits),
    Kind(name="reaching", layout=REPLAY, fits=lambda g: g.emits and g.rows > 1),
    Kind(name="plain", layout=REPLAY, fits=_plain, k=0),
    Kind(name="verification", layout=REPLAY, fits=_drafts),
    Kind(name="last", layout=REPLAY, fits=_last, k=0),
    Kind(name="chunk", layout=RETAINED, fits=lambda g: not g.emits and not g.retains),
    Kind(name="reaching", layout=RETAINED, fits=lambda g: g.retains and g.rows > 1),
    Kind(name="plain", layout=RETAINED, fits=_plain, k=0),
    Kind(name="append", layout=RETAINED, fits=lambda g: g.retains and g.rows == 1),
    Kind(name="verification", layout=RETAINED, fits=_drafts),
    Kind(name="last", layout=RETAINED, fits=_last, k=0),
)
STYLES = (
    Style(name="greedy", temperature=0.0, verifier=TOKEN),
    Style(name="noise", temperature=0.8, verifier=NOISE),
    Style(name="token", temperature=0.8, verifier=TOKEN),
    Style(name="block", temperature=0.8, verifier=BLOCK),
    Style(name="ngram", temperature=0.8, verifier=TOKEN, proposer=NGRAM),
)


@dataclass(slots=True, kw_only=True)
class Scene:
    """A rig with a round planned but not run: `plan` and `jobs`. `asked` are its requests."""

    rig: Rig
    asked: dict
    plan: object
    jobs: object

    @property
    def group(self):
        """The victim's share of the planned round."""
        return next(group for group in self.plan.groups if group.request == VICTIM)

    def execute(self):
        """Run and stage the planned round."""
        return self.rig.execute(self.plan, self.jobs)

    def land(self, result, staged):
        """Publish it."""
        return self.rig.land(self.jobs, staged, result)


def requests(kind, style):
    """The victim between a greedy request and one on shared noise."""
    victim = request(
        VICTIM,
        PROMPT,
        k=kind.k,
        max_tokens=4 if kind.k == 0 else 6,
        temperature=style.temperature,
        verifier=style.verifier,
        proposer=style.proposer,
    )
    first = request(1, (1, 3, 1), max_tokens=8, k=1)
    third = request(3, (5, 6), max_tokens=8, k=2, temperature=0.8, verifier=NOISE)
    return {each.request_id: each for each in (first, victim, third)}


def scene(kind, style, fault=no_faults):
    """Plays until the victim's coming round is of `kind`, and some other request's is in it too.

    Raises LookupError when that never comes.
    """
    rig = Rig(config(layout=kind.layout, max_batched_tokens=16, k_max=4), fault=fault)
    # One token that occurred before is enough: every round has something to look up.
    rig.scheduler._drafts._proposers[NGRAM] = NgramProposer(shortest=1)
    asked = requests(kind, style)
    rig.submit(*asked.values())
    while (work := rig.plan()) is not None:
        plan, jobs = work
        mine = [group for group in plan.groups if group.request == VICTIM]
        if mine and len(plan.groups) > 1 and kind.fits(mine[0]):
            return Scene(rig=rig, asked=asked, plan=plan, jobs=jobs)
        result, staged = rig.execute(plan, jobs)
        rig.land(jobs, staged, result)
    raise LookupError(f"no {kind.name} round of {style.name}")


def picture(rig, number):
    """All that is authoritative about one request, by name; blocks of its entry while it lives."""
    found = {}
    state, entry = rig.book.ledger.state(number), rig.book.entries.get(number)
    if state is not None:
        found |= {each.name: getattr(state, each.name) for each in fields(state)}
    if entry is not None:
        counters = asdict(entry.counters)
        found |= {f"counters.{name}": value for name, value in counters.items()}
        found |= {"status": entry.status, "blocks": dict(entry.blocks), "request": entry.request}
        found |= {"draft_rows": entry.draft_rows, "place": places(rig, entry)}
    output = rig.outputs[number]
    ends = tuple(each for each in rig.finished if each.request == number)
    events = tuple((each.tokens, each.text, each.finish is None) for each in output.events)
    told = {"events": events, "text": output.text, "emitted": tuple(output.tokens)}
    return found | told | {"finish": output.finish, "ends": ends}


def places(rig, entry):
    """Where the book keeps an entry."""
    return (entry in rig.book.waiting, entry in rig.book.running)


NOT_REPEATED = frozenset(
    {"blocks", "finish", "ends"}
    | {f"counters.{name}" for name in ("admitted", "first_token", "last_token")}
)
"""What a retry need not give as the first try would have: where blocks lie, and times."""


def pictures(rig, numbers):
    """Pictures of several requests."""
    return {number: picture(rig, number) for number in numbers}


def differing(found, wanted, leaving=frozenset()):
    """Names whose values differ between two pictures, except those in `leaving`."""
    names = (found.keys() | wanted.keys()) - leaving
    absent = object()
    return sorted(n for n in names if found.get(n, absent) != wanted.get(n, absent))


def leaks(rig):
    """What is still held, or not accounted for, when no request is left."""
    found = [] if not rig.book.entries else ["entries"]
    for role in Role:
        pool = rig.book.tables.pool(role)
        stats = pool.stats()
        if stats.used or stats.used + stats.free != pool.blocks:
            found.append(f"{role.value} pool")
    return found + (["states"] if rig.book.ledger.states else [])


def retained_by(rig):
    """Requests whose rows the runner holds."""
    return set(rig.runner._executor._retained._rows)


def wrong_texts(rig, texts):
    """Requests whose tokens are not `texts[n]`, or whose text is not that of their tokens."""
    outputs = {number: rig.outputs[number] for number in texts}
    return [
        f"text of {number}"
        for number, each in outputs.items()
        if each.tokens != texts[number] or each.text != letters(each.tokens)
    ]


def serial_texts(asked):
    """Texts that are known without a draft: those of greedy requests and on shared noise."""
    known = {
        number: each
        for number, each in asked.items()
        if each.sampling.greedy or each.speculation.verifier is NOISE
    }
    return {number: expected(each) for number, each in known.items()}
