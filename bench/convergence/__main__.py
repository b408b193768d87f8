"""The command: what is missing is trained, and the page written."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import active_children, get_context

import torch
from rich.console import Console
from rich.progress import Progress

from gen.arguments import at_least

from .. import smollm2
from .page import document
from .rows import STUDIES, finished, wanted
from .runs import run


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.convergence", description="Loss by scheme.")
    parser.add_argument("--model", nargs="+", choices=STUDIES, default=None, help="only these")
    parser.add_argument("--jobs", type=at_least(1), default=1, help="runs at a time (default: 1)")
    parser.add_argument("--threads", type=at_least(0), default=0, help="of each (default: cores over jobs)")
    parser.add_argument("--document", action="store_true", help="run nothing, write docs/ from what there is")
    given = parser.parse_args()
    models = given.model or [model for model in STUDIES if STUDIES[model].config or smollm2.installed()]
    names = (("RANK", 0), ("WORLD_SIZE", 1), ("LOCAL_WORLD_SIZE", 1))
    rank, ranks, ranks_here = (int(os.environ.get(name, number)) for name, number in names)
    device = f"cuda:{os.environ.get('LOCAL_RANK', '0')}" if torch.cuda.is_available() else None
    done = {(row["model"], row["scheme"], row["seed"], row["steps"]) for row in finished()}
    left = [key for key in wanted(models)[rank::ranks] if key not in done]
    threads = given.threads or max(1, (os.cpu_count() or 1) // (given.jobs * ranks_here))
    failed = interrupted = False
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if left and not given.document:
        # A process for each run, which then depends on nothing that another did.
        with (
            ProcessPoolExecutor(given.jobs, get_context("spawn"), max_tasks_per_child=1) as pool,
            Progress(console=Console(stderr=True)) as bar,
        ):
            task = bar.add_task("training", total=len(left))
            futures = {pool.submit(run, *key[:3], threads, device): key for key in left}
            try:
                for future in as_completed(futures):
                    name = "{}, {}, seed {}".format(*futures[future])
                    try:
                        if (row := future.result()) is not None:
                            bar.print(f"{name}: {row['val_loss']:.4f}")
                    except BrokenProcessPool:
                        failed = True
                        bar.print("a process that trained was killed")
                        break
                    except Exception as error:
                        failed = True
                        bar.print(f"{name} failed: {error!r}")
                    bar.advance(task)
            except KeyboardInterrupt:
                interrupted = True
                pool.shutdown(wait=False, cancel_futures=True)
                for child in active_children():
                    child.terminate()
    if rank == 0:
        document(finished())
    sys.exit(130 if interrupted else int(failed))


if __name__ == "__main__":
    main()
