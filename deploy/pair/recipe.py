"""The numbers that decide what the two models are and how they are trained."""

from dataclasses import dataclass

__all__ = ["DRAFT_RECIPE", "SEED", "SMOKE_RECIPE", "TARGET_RECIPE", "Recipe"]

SEED = 20261129


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """One training run; lengths are in tokens, shares in parts of `steps`.

    The learning rates are the plateau's: they rise linearly for `warmup` steps, stay, and fall
    linearly to 0 over the last `decay_share`. The last `long_share` of the steps see
    `long_shape` windows, so that every position of the context is trained.
    """

    layers: int
    steps: int
    shape: tuple[int, int] = (8, 512)
    long_shape: tuple[int, int] = (2, 2048)
    warmup: int = 50
    decay_share: float = 0.6
    long_share: float = 0.1
    muon_rate: float = 0.02
    adam_rate: float = 0.003
    weight_decay: float = 0.05
    clip: float = 1.0
    seed: int = SEED

    def rate_factor(self, step: int) -> float:
        """Give the learning rates' factor, between 0 and 1, at a 0-based step."""
        decay_steps = max(1, round(self.steps * self.decay_share))
        rise = (step + 1) / max(1, self.warmup)
        fall = (self.steps - step) / decay_steps
        return min(1.0, rise, fall)

    def shape_at(self, step: int) -> tuple[int, int]:
        """Give (sequences, length) at a 0-based step."""
        is_long = step >= self.steps - round(self.steps * self.long_share)
        return self.long_shape if is_long else self.shape


TARGET_RECIPE = Recipe(layers=12, steps=1200)
DRAFT_RECIPE = Recipe(layers=1, steps=1300, shape=(4, 512), long_shape=(1, 2048), long_share=0.15)
SMOKE_RECIPE = Recipe(layers=1, steps=12, shape=(2, 128), long_shape=(1, 256), warmup=2)
