"""Calls of fixed shapes of a model that vLLM runs, over buffers that stay in place.

They are padded as vLLM pads a call that is to be recorded whole: requests that are nobody's have no
rows and a context of none, rows that are nobody's keep no K/V row. Kernels are told the padded
sizes, which a recording holds for good. It does not know who records a call, nor requests.

Some kernels can be replayed for requests of any numbers of rows; those stand one after the other.
Others need as many rows of each: then every request has the rows of the widest one, and what its
surplus rows give is left out.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from vllm.v1.attention.backend import CommonAttentionMetadata

from scheduler.config import PoolConfig
from scheduler.runtime.fixed_rows import FEW_ROWS, MOST_PADDED_ROWS, padded_size
from scheduler.runtime.rows import WIDE_ROWS, Integers, PackedRows
from scheduler.runtime.vllm_call import CallInputs, one_call, run_layers
from scheduler.runtime.vllm_kv import VllmKv
from scheduler.runtime.vllm_loading import VllmModel, shared_scratch
from scheduler.sampling.moving import moved

# Rows of the largest call that has a shape: as many as vLLM records by default on most GPUs.
MOST_ROWS = 512
SIZES = tuple(sorted({padded_size(rows) for rows in range(1, MOST_ROWS + 1)}))
# vLLM's own mark of a row whose K and V are not kept.
NO_SLOT = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmShape:
    """`rows` of up to `requests` requests, `width` at most of each; exactly `width`, where `rows`
    are just as many."""

    rows: int
    requests: int
    width: int

    @property
    def uniform(self) -> bool:
        """Whether every request has the same place for its rows in every call."""
        return self.rows == self.requests * self.width


def shape_of(rows: PackedRows, kv: VllmKv, positions: int) -> VllmShape | None:
    """The shape that holds `rows` for a model of `positions`, None where there is none."""
    widest = int(rows.counts.max())
    shape = _mixed(rows) if kv.ragged and widest > 1 else _equal(rows, widest, positions)
    if shape is None or shape.rows > MOST_ROWS:
        return None
    return shape if kv.ragged or kv.widest is None or widest <= kv.widest else None


def _mixed(rows: PackedRows) -> VllmShape:
    size = padded_size(len(rows.positions))
    return VllmShape(rows=size, requests=size, width=size)


def _equal(rows: PackedRows, widest: int, positions: int) -> VllmShape | None:
    """None for a prompt, which would have a shape of its own, for rows past the model's end, and
    where padding costs more than it saves."""
    requests = padded_size(len(rows.counts))
    padded = requests * widest
    if widest > WIDE_ROWS or int(rows.starts.max()) + widest > positions:
        return None
    if padded > max(FEW_ROWS, MOST_PADDED_ROWS * len(rows.positions)):
        return None
    return VllmShape(rows=padded, requests=requests, width=widest)


class VllmBuffers:
    """What the largest call reads, on `device`; every shape takes the first of each."""

    def __init__(self, positions: int, block_size: int, device: torch.device) -> None:
        self.device = device
        columns = -(-positions // block_size)
        self.token_ids, self.positions, self.slots = torch.zeros(
            (3, MOST_ROWS), dtype=torch.int64, device=device
        )
        self.padding = torch.zeros(MOST_ROWS, dtype=torch.bool, device=device)
        self.bounds = torch.zeros(MOST_ROWS + 1, dtype=torch.int32, device=device)
        self.lengths = torch.zeros(MOST_ROWS, dtype=torch.int32, device=device)
        self.tables = torch.zeros((MOST_ROWS, columns), dtype=torch.int32, device=device)

    def bytes(self) -> int:
        """Bytes of all of them."""
        of_rows = (self.token_ids, self.positions, self.slots, self.padding)
        return sum(each.nbytes for each in (*of_rows, self.bounds, self.lengths, self.tables))


class VllmCall:
    """A `FixedCall` of a model that vLLM runs, in `buffers` that it shares with other shapes."""

    def __init__(
        self, model: VllmModel, kv: VllmKv, pool: PoolConfig, buffers: VllmBuffers, shape: VllmShape
    ) -> None:
        self._model = model
        self._kv = kv
        self._pool = pool
        self._buffers = buffers
        self._shape = shape
        size = shape.rows
        self._inputs = CallInputs(
            token_ids=buffers.token_ids[:size],
            positions=buffers.positions[:size],
            slots=buffers.slots[:size],
            padding=buffers.padding[:size],
        )
        self._places = torch.zeros(0, dtype=torch.int64, device=buffers.device)
        self._metadata: dict[str, object] = {}
        self._scratch: Tensor | None = None

    def fill(self, token_ids: Tensor, rows: PackedRows) -> None:
        """Bring one call's int64 `token_ids` [N] and `rows` into the buffers, padded, and have
        vLLM's builders see them: some keep a schedule in a place of their own.

        Raises ValueError when `rows` do not fit the pool, the context or the tokens.
        """
        rows.check_call(len(token_ids), self._model.max_positions)
        rows.check_pool(self._pool.blocks, self._pool.block_size)
        self._places = moved(torch.from_numpy(self._places_of(rows)), self._buffers.device)
        self._fill_rows(token_ids, rows)
        common = self._fill_requests(rows)
        with one_call(self._model):
            self._metadata = self._kv.metadata(common)

    def launch(self) -> Tensor:
        """Final hidden states [rows of the shape, H]; writes K/V."""
        with one_call(self._model):
            states = run_layers(self._model, self._kv, self._metadata, self._inputs)
            # What is recorded here goes on writing there.
            self._scratch = shared_scratch(self._buffers.device)
        return states

    def pick(self, states: Tensor, rows: PackedRows) -> Tensor:
        """The call's own rows [N, H], in order."""
        return states.index_select(0, self._places[: len(rows.positions)])

    def bytes(self) -> int:
        """0: the buffers are not its own."""
        return 0

    def _places_of(self, rows: PackedRows) -> Integers:
        """Where the call's own rows [N] stand."""
        places = np.arange(len(rows.positions))
        if self._shape.uniform:
            firsts = np.cumsum(rows.counts) - rows.counts
            shifts = np.arange(len(rows.counts)) * self._shape.width - firsts
            places += np.repeat(shifts, rows.counts)
        return places

    def _fill_rows(self, token_ids: Tensor, rows: PackedRows) -> None:
        inputs = self._inputs
        for buffer, values, rest in (
            (inputs.token_ids, token_ids, 0),
            (inputs.positions, rows.positions, 0),
            (inputs.slots, rows.slots, NO_SLOT),
        ):
            buffer.fill_(rest).index_copy_(0, self._places, values)
        torch.eq(inputs.slots, NO_SLOT, out=inputs.padding)

    def _fill_requests(self, rows: PackedRows) -> CommonAttentionMetadata:
        """Bounds, lengths and tables of the call, as vLLM's builders ask for them."""
        shape, buffers, live = self._shape, self._buffers, len(rows.counts)
        counts = np.full(live, shape.width) if shape.uniform else rows.counts
        bounds = np.zeros(shape.requests + 1, dtype=np.int32)
        bounds[1 : live + 1] = counts.cumsum()
        bounds[live + 1 :] = bounds[live]
        lengths = np.zeros(shape.requests, dtype=np.int32)
        lengths[:live] = rows.starts + counts
        tables = _tables(rows, int(lengths.max()))
        for buffer, host in (
            (buffers.bounds[: len(bounds)], bounds),
            (buffers.lengths[: shape.requests], lengths),
            (buffers.tables[:live, : tables.shape[1]], tables),
        ):
            buffer.copy_(moved(torch.from_numpy(host), buffers.device))
        return CommonAttentionMetadata(
            query_start_loc=buffers.bounds[: len(bounds)],
            query_start_loc_cpu=torch.from_numpy(bounds),
            seq_lens=buffers.lengths[: shape.requests],
            seq_lens_cpu_upper_bound=torch.from_numpy(lengths),
            num_reqs=shape.requests,
            num_actual_tokens=shape.rows,
            max_query_len=shape.width,
            max_seq_len=self._model.max_positions,
            block_table_tensor=buffers.tables[: shape.requests],
            slot_mapping=self._inputs.slots,
            causal=True,
        )


def _tables(rows: PackedRows, longest: int) -> Integers:
    """Block tables [S, b] of contexts of up to `longest` tokens. Past its end each repeats its last
    block: surplus rows look there, and kernels read what their masks hide."""
    missing = -(-longest // rows.block_size) - rows.blocks.shape[1]
    return np.pad(rows.blocks.astype(np.int32), ((0, 0), (0, max(0, missing))), mode="edge")
