"""One stage of the pipelines; ``python -m bench.offload`` starts two of these under torchrun.

torchrun --standalone --nproc-per-node 2 -m bench.offload.ranks OUT.json ROUNDS STEPS
"""

from __future__ import annotations

import hashlib
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import timedelta
from itertools import product
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

from golden import HadamardFormat
from torch_bridge import Compressor, Offload, Policy
from torch_bridge.job import peak
from torch_bridge.offload import transfers
from torch_bridge.schemes.checkpointing import checkpoint_activations

from .models import LENGTH, NAMES, SHAPES, VOCABULARY, Model, loss_of

SCHEDULES = {"1F1B": Schedule1F1B, "GPipe": ScheduleGPipe}
SEQUENCES = 4  # of a micro-batch
IN_FLIGHT = 1 << 19  # bytes, in place of 8 MB: scaled down as the models are
WARM = 4  # steps until the adaptive amount has settled

# The policy, None for plain hooks; whether blocks are checkpointed; how much goes to the disk.
EXACT, FOUR_BITS = Policy([]), Policy.default(HadamardFormat(target=64))
METHODS: dict[str, tuple[Policy | None, bool, Any]] = {
    "baseline": (None, False, None),
    "checkpointing": (None, True, None),
    "offload all": (EXACT, False, "all"),
    "offload adaptive": (EXACT, False, "adaptive"),
    "compress to 4 bits": (FOUR_BITS, False, None),
    "compress, offload all": (FOUR_BITS, False, "all"),
}


@dataclass(frozen=True)
class Case:
    """A row, but for the method."""

    model: str
    paper_width: int
    schedule: str
    micro_batches: int


def cases() -> list[Case]:
    """Each shape in 1F1B, and for the curves the shallowest in GPipe with more micro-batches in flight."""
    table = [Case(name, width, "1F1B", 4) for name, width in product(NAMES, SHAPES)]
    return [*table, *(Case(name, max(SHAPES), "GPipe", number) for name, number in product(NAMES, (2, 4, 8)))]


class Run:
    """A stage that trains in one way."""

    def __init__(self, case: Case, method: str, folder: str) -> None:
        rank, (policy, checkpoints, amount) = dist.get_rank(), METHODS[method]
        self.case, self.rank = case, rank
        self.disk = Offload(folder, amount=amount) if amount is not None else None
        self.part = Model(case.model, case.paper_width).stage(rank)
        if policy is not None:
            around = Compressor(self.part, policy, offload=self.disk)
            self.part.forward = around(self.part.forward)  # type: ignore[method-assign]
        if checkpoints:
            self.part.forward = _recomputed(self.part)  # type: ignore[method-assign]
        stage = PipelineStage(self.part, rank, 2, torch.device("cpu"))
        self.schedule = SCHEDULES[case.schedule](stage, case.micro_batches, loss_fn=loss_of)
        self.data = torch.Generator().manual_seed(3)
        self.seconds: list[float] = []
        self.peak = 0
        for parameter in self.part.parameters():
            parameter.grad = torch.zeros_like(parameter)  # gradients are no activations: they stay allocated

    def step(self) -> Iterator[None]:
        """As :func:`torch_bridge.job.peak.measure` wants it."""
        shape = (SEQUENCES * self.case.micro_batches, LENGTH)
        tokens, target = (torch.randint(VOCABULARY, shape, generator=self.data) for _ in range(2))
        for parameter in self.part.parameters():
            parameter.grad.zero_()  # type: ignore[union-attr]
        if self.rank == 0:
            self.schedule.step(tokens)
        else:
            decoded = {"decoded": target.roll(1, 1)} if self.case.model == "t5" else {}
            self.schedule.step(target=target, return_outputs=False, **decoded)
        yield

    def train(self, steps: int) -> None:
        for _ in range(steps):
            dist.barrier()
            began = time.perf_counter()
            for _between in self.step():
                pass
            self.seconds.append(time.perf_counter() - began)

    def row(self, method: str) -> dict[str, Any]:
        written = self.disk.stored_bytes if self.disk else 0
        read = self.disk.loaded_bytes if self.disk else 0
        self.train(1)
        found = {
            "method": method,
            "rank": self.rank,
            "seconds_per_step": statistics.median(self.seconds[WARM:-1]),
            "bytes_written": self.disk.stored_bytes - written if self.disk else 0,
            "bytes_read": self.disk.loaded_bytes - read if self.disk else 0,
            "gradients": self._digest(),
            "activation_peak_bytes": peak.measure(self.step, torch.device("cpu")).peak,
        }
        if self.disk is not None:
            self.disk.close()
        return asdict(self.case) | found

    def _digest(self) -> str:
        digest = hashlib.sha256()
        for parameter in self.part.parameters():
            assert parameter.grad is not None
            digest.update(parameter.grad.numpy().tobytes())
        return digest.hexdigest()[:16]


def _recomputed(part: torch.nn.Module) -> Any:
    forward = part.forward

    def run(*args: Any, **kwargs: Any) -> Any:
        with checkpoint_activations(part):
            return forward(*args, **kwargs)

    return run


def main() -> None:
    out, rounds, steps = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    dist.init_process_group("gloo", timeout=timedelta(seconds=300))
    torch.set_num_threads(1)
    transfers.IN_FLIGHT = IN_FLIGHT
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(dir=out.parent) as folder:
        for case in cases():
            runs = {method: Run(case, method, folder) for method in METHODS}
            for run in runs.values():
                run.train(WARM)
            for _ in range(
                rounds
            ):  # methods take turns, so that what else a machine does is no method's cost
                for run in runs.values():
                    run.train(steps)
            gathered: list[Any] = [None, None]
            dist.all_gather_object(gathered, [run.row(method) for method, run in runs.items()])
            if dist.get_rank() == 0:
                rows += [row for pair in zip(*gathered, strict=True) for row in pair]
                out.write_text(json.dumps(rows))
                print(f"{case.model}, {case.paper_width}, {case.schedule}, {case.micro_batches}", flush=True)
    dist.barrier()
    os._exit(0)  # the group's threads would outlive Python


if __name__ == "__main__":
    main()
