"""Jobs side by side, each in a process of its own."""

from __future__ import annotations

import multiprocessing
import os
import signal
import tempfile
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import TypeVar

from rich.console import Console
from rich.progress import track

from .toolchain import ToolError

K = TypeVar("K")
T = TypeVar("T")


def run(jobs: Mapping[K, Callable[[], T]], processes: int, text: str, folder: Path) -> dict[K, T]:
    """Run jobs side by side, the first ones first, and return their results under the same names.

    When one fails, or the caller is interrupted, those under way end at once with all that they have started.

    Args:
        jobs: functions that can be pickled, by name.
        processes: how many run at a time.
        text: what stands before the progress bar.
        folder: for their temporary files; made if it is not there.

    Raises:
        gen.toolchain.ToolError: a job's process was killed; or whatever the job raises.
    """
    folder.mkdir(parents=True, exist_ok=True)
    spawn = multiprocessing.get_context("spawn")
    with (
        tempfile.TemporaryDirectory(dir=folder, prefix="work-") as work,
        ProcessPoolExecutor(processes, spawn, initializer=_lead_a_group, initargs=(work,)) as pool,
    ):
        names: dict[Future[T], K] = {pool.submit(job): name for name, job in jobs.items()}
        ended = track(as_completed(names), text, len(names), console=Console(stderr=True), transient=True)
        try:
            found = {names[future]: future.result() for future in ended}
        except BrokenProcessPool:
            raise ToolError(f"a process was killed while {text}") from None
        finally:
            if not all(future.done() for future in names):
                for child in multiprocessing.active_children():
                    child.terminate()
    return {name: found[name] for name in jobs}


def _lead_a_group(work: str) -> None:
    """Make a worker's end the end of what it started, and ``work`` the place of all temporary files.

    Ctrl-C does not reach the workers: the parent ends them.
    """
    os.setsid()
    signal.signal(signal.SIGTERM, lambda *_: os.killpg(0, signal.SIGKILL))
    os.environ["TMPDIR"] = tempfile.tempdir = str(Path(work).resolve())
