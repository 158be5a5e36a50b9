"""Turns documents and conversations into one stream of token ids for each split."""

import json
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from transformers import PreTrainedTokenizerFast

from deploy.pair.chat import Conversation, conversations
from deploy.pair.corpus import Document
from deploy.pair.tokenizer import SPECIALS

__all__ = [
    "CHAT_SOURCE",
    "Ids",
    "Streams",
    "block_batch",
    "build_streams",
    "load_streams",
    "save_streams",
]

Ids = npt.NDArray[np.uint16]

CHAT_SOURCE = "conversations"


@dataclass(frozen=True, slots=True, kw_only=True)
class Streams:
    """Framed documents one after the other, as uint16 ids of shape (tokens,).

    `counts` gives the tokens of each source, held-out ones included; conversations count
    together under `CHAT_SOURCE`.
    """

    train: Ids
    heldout: Ids
    counts: dict[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Framed:
    source: str
    heldout: bool
    ids: Ids


def build_streams(
    documents: list[Document], tokenizer: PreTrainedTokenizerFast, seed: int
) -> Streams:
    """Encode every document and conversation, shuffled, each framed by its own bos and eos."""
    framed = [*_encode_documents(documents, tokenizer)]
    framed += _encode_talks(conversations(documents, seed), tokenizer)
    random.Random(seed).shuffle(framed)
    counts: Counter[str] = Counter()
    for row in framed:
        counts[row.source] += len(row.ids)
    return Streams(
        train=_joined(row for row in framed if not row.heldout),
        heldout=_joined(row for row in framed if row.heldout),
        counts=dict(sorted(counts.items())),
    )


def block_batch(stream: Ids, step: int, shape: tuple[int, int], seed: int) -> torch.Tensor:
    """Cut the step's windows: int64 ids of shape (sequences, length + 1).

    Steps of one shape walk over shuffled, disjoint blocks of the stream, so that an epoch sees
    every token once; each epoch has an order and an offset of its own.
    """
    count, length = shape
    blocks = (len(stream) - 1) // length - 1
    rows = []
    for position in range(step * count, (step + 1) * count):
        epoch, index = divmod(position, blocks)
        offset, order = _epoch(seed, epoch, blocks, length)
        start = offset + int(order[index]) * length
        rows.append(stream[start : start + length + 1])
    return torch.from_numpy(np.stack(rows).astype(np.int64))


def save_streams(streams: Streams, folder: Path) -> None:
    """Write the ids so that a resumed run need not encode again."""
    np.save(folder / "train.npy", streams.train)
    np.save(folder / "heldout.npy", streams.heldout)
    (folder / "counts.json").write_text(json.dumps(streams.counts), encoding="utf-8")


def load_streams(folder: Path) -> Streams:
    """Read what `save_streams` wrote."""
    return Streams(
        train=np.load(folder / "train.npy"),
        heldout=np.load(folder / "heldout.npy"),
        counts=json.loads((folder / "counts.json").read_text(encoding="utf-8")),
    )


def _joined(rows: Iterator[_Framed]) -> Ids:
    # A small trial may hold nothing out; the empty array keeps that legal.
    return np.concatenate([np.empty(0, dtype=np.uint16), *(row.ids for row in rows)])


@lru_cache(maxsize=4)
def _epoch(seed: int, epoch: int, blocks: int, length: int) -> tuple[int, npt.NDArray[np.int64]]:
    generator = np.random.default_rng([seed, epoch])
    return int(generator.integers(length)), generator.permutation(blocks)


def _encode_documents(
    documents: list[Document], tokenizer: PreTrainedTokenizerFast
) -> Iterator[_Framed]:
    bos, eos = SPECIALS.index("<s>"), SPECIALS.index("</s>")
    for document in documents:
        # The text may mention a special token; it must not become one.
        ids = tokenizer.encode(
            document.text, add_special_tokens=False, split_special_tokens=True, verbose=False
        )
        source = document.name.split("/", maxsplit=1)[0]
        yield _framed(source, [bos, *ids, eos], heldout=document.heldout)


def _encode_talks(
    talks: list[Conversation], tokenizer: PreTrainedTokenizerFast
) -> Iterator[_Framed]:
    for talk in talks:
        contents = "".join(turn["content"] for turn in talk.messages)
        if any(special in contents for special in SPECIALS):
            continue
        text = tokenizer.apply_chat_template(list(talk.messages), tokenize=False)
        ids = tokenizer.encode(str(text), add_special_tokens=False)
        yield _framed(CHAT_SOURCE, ids, heldout=talk.heldout)


def _framed(source: str, ids: list[int], *, heldout: bool) -> _Framed:
    return _Framed(source=source, heldout=heldout, ids=np.asarray(ids, dtype=np.uint16))
