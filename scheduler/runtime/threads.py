"""How many threads an operation on the CPU may take. Knows torch's setting alone.

Threads that wait passively are woken anew for each operation that torch splits, which takes some
50 us: more than most operations of a decode step take on one thread.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def one_thread() -> Iterator[None]:
    """Run torch's operations of this thread on one thread, and on as many as before after it."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
