"""Controllers that follow what rounds showed, and a runner whose rounds break because of tokens."""

from scheduler.controller import FixedController, fixed


class Follower(FixedController):
    """One draft more after full acceptance, else as many as were accepted; one again after none."""

    def __init__(self):
        self._k = {}

    def decide(self, view):
        """K of each request, from its own last round."""
        return fixed(
            {each.request: min(self.wanted(each.request), each.room) for each in view.requests}
        )

    def learn(self, stats):
        """Take in every published round that drafted."""
        for group in stats.groups:
            seen = group.speculation
            if seen is not None:
                more = seen.k + 1 if seen.accepted == seen.k else seen.accepted
                self._k[group.request] = min(max(more, 1), 3)

    def wanted(self, request):
        """K by the request's own history."""
        return self._k.get(request, 1)


class Partner(Follower):
    """Like `Follower`, but each request of a pair takes the K of the other's history."""

    def wanted(self, request):
        """K by the neighbour's history."""
        return super().wanted(request ^ 1)


class Stumbling:
    """A runner whose round breaks when a draft is token 0, once for each round of a request."""

    def __init__(self, real):
        self._real = real
        self._broken = set()
        self.breaks = 0

    def run(self, plan):
        """The real round, or RuntimeError after all of it ran."""
        result = self._real.run(plan)
        for group, each in zip(plan.groups, result.groups, strict=True):
            name = (group.request, group.generation)
            if name not in self._broken and any(out.token == 0 for out in each.outcomes):
                # All of this round will be tried again, one request at a time.
                self._broken |= {(one.request, one.generation) for one in plan.groups}
                self.breaks += 1
                raise RuntimeError("the round broke")
        return result


class Whim(FixedController):
    """K by a hash of all that it was ever told, the drawn tokens and their uniforms included."""

    def __init__(self, seed):
        self._told = seed

    def decide(self, view):
        """Anything from 0 to the room."""
        return fixed(
            {
                each.request: hash((self._told, each.request)) % (each.room + 1)
                for each in view.requests
            }
        )

    def learn(self, stats):
        """Take in the evidence of every group."""
        seen = [
            (out.token, out.uniform or 0.0, out.choice or 0)
            for group in stats.groups
            if group.evidence is not None
            for out in group.evidence.outcomes
        ]
        self._told = hash((self._told, tuple(seen)))
