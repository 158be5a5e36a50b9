"""What must be true of each request after each outcome, reckoned from its serial text alone.

It sees what a test sees: which requests wait, what a plan asks for, which drafts were verified,
which rounds broke. It keeps counters of its own and reads none of the product's.
"""

from dataclasses import dataclass, field

from scheduler.plan import DeviceDraft, HostDraft, Role
from scheduler.request import FinishReason
from tests.oracles.rig import DRAFT, TARGET, expected, noise_of
from tests.oracles.scenes import depth
from tests.oracles.serial import greedy_text, noise_text

K_MAX = 8
SIZES = {Role.TARGET: 4, Role.DRAFT: 8}
NO_LAW = 14
LOST = 13


def ends_at(prefix):
    """Whether the target has no law there: requests whose prompt starts with NO_LAW end so."""
    return prefix[0] == NO_LAW and len(prefix) % 9 == 8


def is_lost_at(prefix):
    """Whether the draft has no law there: requests whose prompt starts with LOST."""
    return prefix[0] == LOST and len(prefix) % 7 == 5


def target(prefix):
    """The target's table, with its holes."""
    return [float("nan")] * 16 if ends_at(prefix) else TARGET(prefix)


def draft(prefix):
    """The draft's table, with its holes."""
    return [float("nan")] * 16 if is_lost_at(prefix) else DRAFT(prefix)


def blocks_for(role, rows):
    """Blocks of one model that hold `rows` rows."""
    return (rows + SIZES[role] - 1) // SIZES[role]


@dataclass(slots=True, kw_only=True)
class Effect:
    """What a round does to one request once it is published; nothing is emitted where it ends by
    a row without a law (`fails`)."""

    k: int = 0
    accepted: int = 0
    emitted: tuple = ()
    rows: int = 0
    draft_rows: int | None = None
    fails: bool = False


@dataclass(slots=True, kw_only=True)
class Life:
    """One request: all that is to be known about it."""

    asked: object
    whole: tuple
    hole: int | None
    most: int
    out: int = 0
    kv: int = 0
    generation: int = 0
    drawn: int = 0
    draft_rows: int = 0
    reach: int = 0
    failures: int = 0
    retry: object = None
    running: bool = False
    last_round: int = 0
    given_up: int = 0
    rounds: int = 0
    steps: int = 0
    drafted: int = 0
    accepted: int = 0
    histogram: list = field(default_factory=lambda: [0] * (K_MAX + 1))
    admitted: float | None = None
    first_token: float | None = None
    reason: FinishReason | None = None

    @property
    def tokens(self):
        """O: the prompt and what is published."""
        return self.asked.prompt + self.whole[: self.out]

    @property
    def budget(self):
        """Tokens that may still come out."""
        return self.most - self.out

    @property
    def retained(self):
        """Whether the runner must hold its next row."""
        return self.kv == len(self.tokens)

    def preempt(self):
        """Its rows and blocks are gone; its output and its draws ahead are not."""
        self.kv = self.draft_rows = self.reach = 0
        self.generation += 1
        self.running, self.retry = False, None

    def admit(self, now):
        """It may run."""
        self.running = True
        if self.admitted is None:
            self.admitted = now

    def abort(self, group, round_id):
        """A round of it was given up and is to be run again as it was."""
        self.failures += 1
        self.retry = group
        self.given_up = round_id

    def effect(self, group, found):
        """What publishing `group` does; `found` are the ids of the drafts that were verified."""
        if not group.emits:
            return Effect(rows=group.rows)
        left = self.whole[self.out :]
        matches = 0
        while matches < min(len(found), len(left)) and found[matches] == left[matches]:
            matches += 1
        length = len(self.tokens)
        lost = len(found) < depth(group.draft)
        if self.hole is not None and length + matches >= self.hole:
            return Effect(k=len(found), fails=True)
        emitted = left[: matches + 1]
        return Effect(
            k=len(found),
            accepted=min(matches, len(emitted)),
            emitted=emitted,
            rows=length + len(emitted) - 1 - self.kv,
            draft_rows=self._draft_rows(group, matches, len(emitted), lost),
        )

    def _draft_rows(self, group, matches, emitted, lost):
        """Rows of the draft that are then a prefix of O; None when its cache was not touched."""
        if not isinstance(group.draft, DeviceDraft):
            return None
        if lost:
            return 0
        if not group.draft.depth:
            return self.draft_rows + group.draft.catch_up
        length = len(self.tokens)
        return min(length + min(matches, group.draft.depth - 1), length + emitted - 1)

    def publish(self, effect, round_id, now):
        """Take an effect in; it may end the request."""
        self.out += len(effect.emitted)
        self.kv += effect.rows
        self.drawn += 0 if self.asked.sampling.greedy else len(effect.emitted)
        self.generation += 1
        self.failures, self.retry = 0, None
        self.last_round = round_id
        self.rounds += 1
        if effect.draft_rows is not None:
            self.draft_rows = effect.draft_rows
        if effect.k:
            self.steps += 1
            self.drafted += effect.k
            self.accepted += effect.accepted
            self.histogram[effect.accepted] += 1
        if effect.emitted and self.first_token is None:
            self.first_token = now
        if effect.emitted and self.out == len(self.whole) and self.hole is None:
            self.reason = FinishReason.STOP if self.stopped else FinishReason.LENGTH

    @property
    def stopped(self):
        """Whether the text ends in a stop id or a stop string."""
        text = "".join(chr(ord("a") + token) for token in self.whole)
        last = self.whole[-1] if self.whole else None
        return last in self.asked.stop.token_ids or text.endswith(tuple(self.asked.text.stops))


def life_of(asked, context):
    """A request that has just arrived; its budget is cut to the context."""
    most = min(asked.stop.max_tokens, context - len(asked.prompt))
    whole = tuple(expected(asked, context=context))
    hole = None
    for count in range(len(whole) + 1):
        if ends_at(asked.prompt + whole[:count]) and count < len(whole):
            whole, hole = whole[:count], len(asked.prompt) + count
            break
    return Life(asked=asked, whole=whole, hole=hole, most=most)


def drafts_of(life, group):
    """The drafts that a round must verify: known beforehand, or the draft model's own serial text
    up to a row without a law."""
    if group.draft is None or not group.emits:
        return ()
    if isinstance(group.draft, HostDraft):
        return group.draft.token_ids
    tokens, found = list(life.tokens), []
    noise = noise_of(life.asked)
    for _ in range(group.draft.depth):
        if is_lost_at(tuple(tokens)):
            break
        if life.asked.sampling.greedy:
            (token,) = greedy_text(draft, tokens, 1)
        else:
            (token,) = noise_text(draft, tokens, 1, noise, life.asked.sampling.temperature)
        tokens.append(token)
        found.append(token)
    return tuple(found)
