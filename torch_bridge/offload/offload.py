"""What the user makes: where tensors go, and how many."""

from __future__ import annotations

import os
from collections import deque
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

import torch

from .file import File
from .order import Order
from .pace import Pace
from .step import Step
from .transfers import Transfers

# Steps whose backward pass may still come, and be measured.
_REMEMBERED = 16


def _is_count(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


class Offload:
    """Where tensors go, and what moves them; made once for a training run and used in each of its steps.

    Args:
        directory: of the file, on the SSD; None if there is only the host's memory.
        amount: what goes there in each step. "all": everything, and the forward pass waits for the disk where
            it must. A number of bytes: what is saved first, until one tensor more would be too many, with
            the same waiting; what the last modules save, and the backward pass needs at once, stays.
            "adaptive": at first everything that the disk takes without waiting, then so many bytes that the
            backward pass hardly waits for them; how long it does is measured in every step.
        host_bytes: of the host's memory (on CUDA pinned), for tensors of an accelerator. They stay there, and
            go to the disk only when it is full; 16 MB, or four of the largest tensor, are left for those on
            their way to the disk or back, which need so much also if this is less. A CPU's tensors are
            there already: it does nothing for them.
        store_threads: threads that write.
        load_threads: threads that read.

    Raises:
        FileNotFoundError: there is no such directory.
        OSError: no file can be made in it.
        ValueError: an argument is none of the above, or there is neither a directory nor an accelerator.

    Examples:
        >>> from torch_bridge import Policy, Compressor
        >>> model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU(), torch.nn.Linear(64, 64))
        >>> with Offload("/tmp", amount="all") as disk:
        ...     with Compressor(model, Policy([]), offload=disk) as saver:
        ...         loss = model(torch.randn(64, 64)).square().mean()
        ...     loss.backward()
        >>> saver.offloaded_bytes == saver.original_bytes
        True
    """

    def __init__(
        self,
        directory: str | Path | None,
        *,
        amount: int | Literal["all", "adaptive"] = "adaptive",
        host_bytes: int = 0,
        store_threads: int = 1,
        load_threads: int = 1,
    ) -> None:
        if amount not in ("all", "adaptive") and not _is_count(amount, 0):
            raise ValueError(f"amount must be 'all', 'adaptive' or a number of bytes, not {amount!r}")
        if not _is_count(host_bytes, 0):
            raise ValueError(f"host_bytes must be a number of bytes, from 0, not {host_bytes!r}")
        for name, threads in (("store_threads", store_threads), ("load_threads", load_threads)):
            if not _is_count(threads, 1):
                raise ValueError(f"{name} must be a number, from 1, not {threads!r}")
        if directory is not None and not isinstance(directory, (str, os.PathLike)):
            raise ValueError(f"directory must name a directory, or be None, not {directory!r}")
        if directory == "" or (directory is None and not host_bytes):
            raise ValueError(f"directory must name a directory if host_bytes is 0, not {directory!r}")
        if directory is None and not torch.accelerator.is_available():
            raise ValueError(
                "directory must name a directory where there is no accelerator, whose tensors could go to "
                "the host's memory, not None"
            )
        self.directory, self.amount = directory, amount
        self._transfers = Transfers(
            File(directory) if directory is not None else None,
            host_bytes,
            waits=amount != "adaptive",
            store_threads=store_threads,
            load_threads=load_threads,
        )
        self._pace = Pace() if amount == "adaptive" else None
        self._steps: deque[Step] = deque(maxlen=_REMEMBERED)
        self._order = Order()

    @property
    def plan(self) -> str:
        """What goes in the next step."""
        if self._pace is not None:
            return self._pace.plan
        return "everything" if self.amount == "all" else f"{self.amount} bytes a step"

    @property
    def stored_bytes(self) -> int:
        """Written to the disk so far."""
        self._transfers.poll()
        return self._transfers.stored_bytes

    @property
    def loaded_bytes(self) -> int:
        """Read from it so far."""
        self._transfers.poll()
        return self._transfers.loaded_bytes

    @property
    def forwarded_bytes(self) -> int:
        """That were needed before they were written, and came from memory."""
        return self._transfers.forwarded_bytes

    @property
    def failed_bytes(self) -> int:
        """That could not be written, and stayed in memory."""
        self._transfers.poll()
        return self._transfers.failed_bytes

    def begin(self) -> Step:
        """A step begins; what it saves goes through the result.

        Raises:
            OffloadError: this is closed, or the process was forked since it was made.
        """
        self._transfers.check_open()
        if self._pace is None:
            return Step(self._transfers, self.amount if isinstance(self.amount, int) else None, self._order)
        steps = list(self._steps)
        self._steps.clear()
        for step in steps:
            if (measured := step.measured) is not None:
                self._pace.learn(measured)
            else:
                self._steps.append(step)
        step = Step(self._transfers, self._pace.limit, self._order)
        self._steps.append(step)
        return step

    def close(self) -> None:
        """Give the file and the threads back; closing again does nothing.

        What is being written or read is waited for; what has not begun to be written stays in memory. A
        backward pass that comes later finds what is in memory. What is in the file only is gone, and an
        ``OffloadError`` that names the tensor. So is a new step.
        """
        self._transfers.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
