"""Makes prompts of a fixed number of tokens: from real text, or of random ids."""

import argparse
import asyncio
import collections
import datetime
import difflib
import inspect
import json
import logging
import pathlib
import random
import statistics
import string
import subprocess
import threading
from pathlib import Path
from types import ModuleType

import numpy as np
from transformers import PreTrainedTokenizerBase

import deploy.pair

Prompt = tuple[int, ...]

_HELD_OUT = Path(deploy.pair.__file__).with_name("heldout.txt")
_MODULES: tuple[ModuleType, ...] = (
    argparse,
    asyncio,
    collections,
    datetime,
    difflib,
    inspect,
    json,
    logging,
    pathlib,
    random,
    statistics,
    string,
    subprocess,
    threading,
)
_SHORT_TEXT = 80


def random_prompts(count: int, length: int, vocabulary: int, seed: int) -> list[Prompt]:
    """`count` prompts of `length` ids each, uniform over the vocabulary."""
    table = np.random.default_rng(seed).integers(0, vocabulary, size=(count, length))
    return [tuple(row) for row in table.tolist()]


def text_prompts(count: int, length: int, tokenizer: PreTrainedTokenizerBase) -> list[Prompt]:
    """`count` windows of `length` ids, evenly spread over the text that was held out from
    training or, without one, over docstrings of the standard library."""
    text = _HELD_OUT.read_text("utf-8") if _HELD_OUT.exists() else _docstrings()
    ids = list(tokenizer.encode(text, add_special_tokens=False, verbose=False))
    while len(ids) < length:
        ids += ids
    starts = np.linspace(0, len(ids) - length, count).astype(int).tolist()
    return [tuple(ids[start : start + length]) for start in starts]


def _docstrings() -> str:
    """Longer docstrings of public names, each module's in order of name."""
    return "\n\n".join(
        text
        for module in _MODULES
        for _, member in inspect.getmembers(module)
        if inspect.isclass(member) or inspect.isroutine(member)
        if len(text := inspect.getdoc(member) or "") > _SHORT_TEXT
    )
