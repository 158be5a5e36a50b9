"""A pair that cannot serve its first requests does not come up."""

from types import SimpleNamespace

import pytest

from scheduler.errors import ModelRefused
from server.assembly import warm_up
from server.errors import ApiError
from server.tokenizer import TokenizerService
from tests.oracles.rig import config, tabular_runner
from tests.oracles.vocabularies import make_byte_tokenizer


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
    tokenizer = TokenizerService(make_byte_tokenizer(), frozenset())
    return SimpleNamespace(config=settings, pair=pair, tokenizer=tokenizer, costs=None)


@pytest.mark.anyio
async def test_a_runner_that_breaks_is_refused():
    with pytest.raises(ModelRefused, match=r"the models cannot run: .*RuntimeError"):
        await warm_up(loaded(Broken))


@pytest.mark.anyio
async def test_a_runner_that_runs_is_taken():
    await warm_up(loaded(lambda runner: runner))


@pytest.mark.anyio
async def test_a_tokenizer_without_a_token_to_begin_with_is_no_obstacle():
    """Its clients have to send a prompt that is not empty; the server comes up."""
    one = loaded(lambda runner: runner)
    with pytest.raises(ApiError, match="no token to begin with"):
        one.tokenizer.begun(())
    await warm_up(one)
