"""The `ModelRunner` over torch models: a target, perhaps a draft, and the round above them."""

from collections.abc import Callable
from dataclasses import dataclass

from scheduler.plan import RoundPlan, RoundResult
from scheduler.runner import Capabilities
from scheduler.runtime.forward import Forward
from scheduler.runtime.round import RoundExecutor
from scheduler.runtime.timed import TimedForward
from scheduler.sampling.processors import ToLaw, law
from scheduler.sampling.rng import Randomness


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A loaded target and draft that share an event space of `vocabulary` ids."""

    target: Forward
    draft: Forward | None
    vocabulary: int


class TorchRunner:
    """Runs rounds on the calling thread, one at a time."""

    def __init__(
        self,
        pair: Pair,
        capabilities: Capabilities,
        randomness: Randomness,
        clock: Callable[[], float],
        law: ToLaw = law,
    ) -> None:
        self._pair = pair
        self._capabilities = capabilities
        self._executor = RoundExecutor(
            target=TimedForward(pair.target, clock),
            draft=None if pair.draft is None else TimedForward(pair.draft, clock),
            vocabulary=pair.vocabulary,
            randomness=randomness,
            clock=clock,
            law=law,
        )

    def capabilities(self) -> Capabilities:
        """What was loaded."""
        return self._capabilities

    def run(self, plan: RoundPlan) -> RoundResult:
        """Execute one round."""
        return self._executor.run(plan)

    def failure(self) -> None:
        """None: what breaks in one round is over with it."""

    def memory_bytes(self) -> int:
        """Weights and K/V pools."""
        forwards = [self._pair.target, self._pair.draft]
        return sum(forward.memory_bytes() for forward in forwards if forward is not None)
