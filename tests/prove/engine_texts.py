"""Draws texts through the asyncio engine, scheduler, executor and ledger, over tables of logits.

Tables give the same bits in every batch, so a text depends on its seed and its K alone.
"""

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from scheduler.config import EngineConfig, PoolConfig
from scheduler.plan import Layout
from scheduler.request import Request, SamplingParams, Speculation, StopRules
from scheduler.runtime.torch_runner import Pair, TorchRunner
from scheduler.sampling.rng import CounterRandomness, Randomness
from scheduler.stats import StepStats
from tests.oracles.driver import PlainText, run_requests
from tests.oracles.rig import capabilities
from tests.oracles.tabular import Table, TabularForward, near, random_table
from tests.prove.sampled import Draw, Sample

_AT_ONCE = 128
_WAVE = 4000


class TabularEngine:
    """Engines of both layouts over one target table and a draft that is partly like it.

    `drafted` counts rounds of one request by (K, accepted).
    """

    def __init__(self, vocabulary: int, randomness: Randomness | None = None) -> None:
        self.target: Table = random_table(vocabulary, 5, scale=1.2)
        self.drafted: Counter[tuple[int, int]] = Counter()
        self._draft = near(self.target, random_table(vocabulary, 6), 0.5)
        self._vocabulary = vocabulary
        self._randomness = randomness or CounterRandomness()

    def texts(self, draws: Sequence[Draw], layout: Layout) -> Iterator[Sample]:
        """The text of each draw; some thousands share an engine, in the order given.

        Raises RuntimeError when a request ends with an error.
        """
        config = _config(layout)
        runner = self._runner(config)
        for start in range(0, len(draws), _WAVE):
            wave = draws[start : start + _WAVE]
            requests = [_request(draw, number) for number, draw in enumerate(wave, 1)]
            outputs, sink = run_requests(config, runner, requests)
            self.drafted.update(_verified(sink.steps))
            for draw, output in zip(wave, outputs, strict=True):
                if output.finish.error is not None:
                    raise RuntimeError(f"{draw}: {output.finish.error}")
                yield draw, tuple(output.ids)

    def _runner(self, config: EngineConfig) -> TorchRunner:
        pair = Pair(
            target=self._forward(self.target, config.target_pool),
            draft=self._forward(self._draft, config.draft_pool),
            vocabulary=self._vocabulary,
        )
        says = capabilities(vocabulary=self._vocabulary)
        return TorchRunner(pair, says, self._randomness, time.perf_counter)

    def _forward(self, table: Table, pool: PoolConfig) -> TabularForward:
        return TabularForward(table, self._vocabulary, pool.blocks, pool.block_size)


def _verified(steps: Iterable[StepStats]) -> Iterator[tuple[int, int]]:
    for step in steps:
        for group in step.groups:
            if group.speculation is not None:
                yield group.speculation.k, group.speculation.accepted


def _config(layout: Layout) -> EngineConfig:
    return EngineConfig(
        max_model_len=24,
        draft_max_len=24,
        max_batched_tokens=1024,
        max_requests=_AT_ONCE,
        max_waiting=_WAVE,
        layout=layout,
        target_pool=PoolConfig(blocks=_AT_ONCE * 6, block_size=4),
        draft_pool=PoolConfig(blocks=_AT_ONCE * 3, block_size=8),
    )


def _request(draw: Draw, number: int) -> Request:
    law, way = draw.setting.processing, draw.way
    return Request(
        request_id=number,
        prompt=draw.setting.prompt,
        sampling=SamplingParams(
            temperature=law.temperature,
            top_k=law.top_k,
            top_p=law.top_p,
            min_p=law.min_p,
            repetition_penalty=law.repetition,
            presence_penalty=law.presence,
            frequency_penalty=law.frequency,
            logit_bias=law.bias,
            seed=draw.seed,
        ),
        speculation=Speculation(
            k=way.k,
            verifier=way.verifier,
            proposer=way.drafter.proposer,
            min_confidence=way.drafter.min_confidence,
        ),
        stop=StopRules(
            token_ids=draw.setting.stop,
            max_tokens=draw.max_tokens,
            min_tokens=law.min_tokens,
        ),
        text=PlainText(),
        arrival=float(number),
    )
