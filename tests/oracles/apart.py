"""One controller of its own for each life of a game of `lives.LifeLaw`.

Lives of a game share rounds for speed only: none may learn of another. So each has a controller of
its own, which sees its own requests, numbered from 0, and its own rows. Lives that were told the
same are asked once.
"""

from collections import defaultdict
from dataclasses import replace

from scheduler.controller import LoadView
from scheduler.request import ProposerKind
from scheduler.stats import Decision
from tests.telemetry.rounds import LOAD, step


class Minds:
    """What controllers from `made()` decide after each history, kept for all games.

    A history is a number; `after` gives that of a history and one more event, (method, argument).
    """

    def __init__(self, made):
        self._made = made
        self._numbers = {}
        self._paths = [()]
        self._decisions = {}

    @property
    def count(self):
        """How many histories there are."""
        return len(self._paths)

    def decided(self):
        """(view, decision) of every history that ends with a decision."""
        return [(self._paths[each][-1][1], found) for each, found in self._decisions.items()]

    def after(self, history, event):
        """The number of the history that goes on with `event`."""
        name = (history, event)
        if name not in self._numbers:
            self._numbers[name] = len(self._paths)
            self._paths.append((*self._paths[history], event))
        return self._numbers[name]

    def decision(self, history):
        """The decision of the last event, by a controller that is told all of them."""
        if history not in self._decisions:
            controller, found = self._made(), None
            for method, argument in self._paths[history]:
                found = getattr(controller, method)(argument)
            self._decisions[history] = found
        return self._decisions[history]


class Apart:
    """A controller for a game: each run of `size` requests is a life with a mind of its own.

    A round took each life `seconds(target rows, drafts, draft rows)`. `retained` says whether a
    frontier is computed in the round before the one that verifies.
    """

    def __init__(self, minds, size, seconds, *, retained=False):
        self._minds = minds
        self._size = size
        self._seconds = seconds
        self._retained = retained
        self._told = defaultdict(int)
        self._drafted = defaultdict(int)

    def known(self, life):
        """All that the life's controller knows, as a number."""
        return self._told[life]

    def decide(self, view):
        """Each life's own decision."""
        self._drafted.clear()
        choices = {}
        for life, requests in self._by_life(view.requests):
            self._tell(life, "decide", self._view(requests))
            decision = self._minds.decision(self._told[life])
            for each in requests:
                choice = decision.choices[each.request]
                choices[life * self._size + each.request] = choice
                modelled = each.proposer is ProposerKind.DRAFT_MODEL
                if choice.k and modelled:
                    self._drafted[life] += choice.k + each.lag
        return Decision(choices=choices)

    def learn(self, stats):
        """Each life's own round."""
        for life, groups in self._by_life(stats.groups):
            self._tell(life, "learn", self._stats(life, groups))

    def forget(self, request):
        """The end of a request, told to its life."""
        life, number = divmod(request, self._size)
        self._tell(life, "forget", number)

    def _tell(self, life, method, argument):
        self._told[life] = self._minds.after(self._told[life], (method, argument))

    def _by_life(self, parts):
        found = defaultdict(list)
        for each in sorted(parts, key=lambda part: part.request):
            life, number = divmod(each.request, self._size)
            found[life].append(replace(each, request=number))
        return found.items()

    def _view(self, requests):
        """Nobody is preempted in a game, so that a request emits with its prompt or one row."""
        rows = [1 if each.emitted else each.context for each in requests]
        total = 0 if self._retained else sum(rows)
        return LoadView(requests=tuple(requests), rows=total, prefill_rows=0, spare=512, load=LOAD)

    def _stats(self, life, groups):
        rows = sum(group.prefilled + self._frontier(group) + _k(group) for group in groups)
        drafts, drafted = sum(map(_k, groups)), self._drafted[life]
        return step(
            *groups,
            target_rows=rows,
            draft_rows=drafted,
            round_seconds=self._seconds(rows, drafts, drafted),
        )

    def _frontier(self, group):
        return int(not (self._retained and group.terminal is not None))


def _k(group):
    return 0 if group.speculation is None else group.speculation.k
