"""Chunks of one tensor worked on side by side, each by one CPU thread.

PyTorch would split every operation among its threads and have them wait for each other hundreds of times
a tensor; when cores are shared with other programs that is many times slower than one thread alone.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from threading import Barrier, Lock

import torch

# Items, of 65,536 values or more, for which another thread is worth waking: PyTorch's own threads, which wait
# for the next operation without going to sleep, are in its way.
_LEAST_SHARE = 16

_making_a_pool = Lock()


def for_each(work: Callable[[int], None], items: Sequence[int]) -> None:
    """Call ``work`` with every item, on up to ``torch.get_num_threads()`` threads.

    Each thread gets an equal share of neighbours, if there are enough for all. Raises what the first of the
    items that fail raised.
    """

    def work_on(share: Sequence[int]) -> None:
        for item in share:
            work(item)

    threads = min(torch.get_num_threads(), len(items) // _LEAST_SHARE)
    if threads <= 1:
        work_on(items)
    else:
        with _making_a_pool:
            pool = _pool(torch.get_num_threads(), os.getpid())
        size = -(-len(items) // threads)
        for _ in pool.map(work_on, [items[i : i + size] for i in range(0, len(items), size)]):
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
