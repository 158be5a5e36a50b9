"""A pair that cannot serve its first requests does not come up."""

from types import SimpleNamespace

import pytest

from scheduler.errors import ModelRefused
from server.assembly import warm_up
from server.tokenizer import TokenizerService
from tests.oracles.rig import config, tabular_runner
from tests.oracles.vocabularies import make_byte_tokenizer


class Tokens:
    """What the warm-up asks of a tokenizer."""

    def __init__(self):
        self.pieces = TokenizerService(make_byte_tokenizer(), frozenset()).pieces

    async def encode(self, texts, *, special):
        return [(1, 2, 3) for _ in texts]

    def begun(self, tokens):
        return tokens


class Broken:
    """A runner that cannot run a round."""

    def __init__(self, runner):
        self._runner = runner

    def capabilities(self):
        return self._runner.capabilities()

    def failure(self):
        return self._runner.failure()

    def run(self, plan):
        raise RuntimeError("expected all tensors to be on the same device")


def loaded(wrap):
    settings = config()
    runner, _, _ = tabular_runner(settings)
    pair = SimpleNamespace(runner=wrap(runner))
    return SimpleNamespace(config=settings, pair=pair, tokenizer=Tokens(), costs=None)


@pytest.mark.anyio
async def test_a_runner_that_breaks_is_refused():
    with pytest.raises(ModelRefused, match=r"the models cannot run: .*RuntimeError"):
        await warm_up(loaded(Broken))


@pytest.mark.anyio
async def test_a_runner_that_runs_is_taken():
    await warm_up(loaded(lambda runner: runner))
