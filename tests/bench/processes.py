"""Calls a function in a fresh process, so that peak memory and start-up time are its own."""

import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def in_new_process(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """What `work` gives for arguments that can be pickled. Raises what it raises."""
    spawning = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawning) as pool:
        return pool.submit(work, *args, **kwargs).result()
