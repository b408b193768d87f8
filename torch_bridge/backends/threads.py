"""Chunks of one tensor worked on side by side, each by one CPU thread.

PyTorch would split every operation among its threads and have them wait for each other hundreds of times
a tensor; when cores are shared with other programs that is many times slower than one thread alone.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from threading import Barrier, Lock

import torch

_making_a_pool = Lock()


def for_each(work: Callable[[int], None], items: Iterable[int]) -> None:
    """Call ``work`` with every item, on as many threads as ``torch.get_num_threads()`` says.

    Raises what the first of the items that fail raised.
    """
    threads = torch.get_num_threads()
    if threads == 1:
        for item in items:
            work(item)
    else:
        with _making_a_pool:
            pool = _pool(threads, os.getpid())
        for _ in pool.map(work, items):
            pass


@cache
def _pool(threads: int, process: int) -> ThreadPoolExecutor:
    """Threads that run each operation alone. A forked process has none of its parent's."""
    pool = ThreadPoolExecutor(threads, thread_name_prefix="bitstash")
    all_started = Barrier(threads)

    def start(_: int) -> None:
        torch.set_num_threads(1)  # of this thread, and of those that have not asked yet
        all_started.wait()

    list(pool.map(start, range(threads)))
    torch.set_num_threads(threads)
    return pool
