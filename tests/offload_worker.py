"""Offloading on the ranks of torchrun, beside the same training without; test_offload_ranks.py starts it.

    torchrun --standalone --nproc-per-node 2 -m tests.offload_worker FOLDER

Every rank writes FOLDER/RANK.json: for each way to share the work, and each way to keep activations, what
:func:`train` found.
"""

import errno
import hashlib
import json
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from golden import HadamardFormat
from torch_bridge import Compressor, Offload, Policy
from torch_bridge.offload import file, transfers

from .distributed_worker import local

STEPS, MICRO_BATCHES, BATCH, LENGTH, WIDTH = 3, 6, 12, 24, 64
EXACT, LOSSY = Policy([]), Policy.default(HadamardFormat(target=64))

# The policy, whether it is offloaded and how much, and whether the disk becomes full in mid-run.
METHODS: dict[str, tuple[Policy | None, Any, bool]] = {
    "baseline": (None, None, False),
    "offload": (EXACT, "all", False),
    "adaptive": (EXACT, "adaptive", False),
    "full disk": (EXACT, "all", True),
    "compress": (LOSSY, None, False),
    "compress and offload": (LOSSY, "all", False),
}


class Block(nn.Module):
    """A feedforward block with a residual connection."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 128), nn.Linear(128, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


def blocks() -> nn.Sequential:
    torch.manual_seed(dist.get_rank() if dist.is_initialized() else 0)
    return nn.Sequential(Block(), Block(), Block())


def in_pipeline(schedule: Any) -> Callable[[Any], tuple[nn.Module, Callable[[], float]]]:
    def build(around: Callable[[nn.Module], None]) -> tuple[nn.Module, Callable[[], float]]:
        rank, part = dist.get_rank(), blocks()
        around(part)
        stage = PipelineStage(part, rank, 2, torch.device("cpu"))
        run = schedule(stage, MICRO_BATCHES, loss_fn=lambda out, target: (out - target).square().mean())
        data = torch.Generator().manual_seed(5)

        def step() -> float:
            x, target = (torch.randn(BATCH, LENGTH, WIDTH, generator=data) for _ in range(2))
            losses: list[torch.Tensor] = []
            run.step(*((x,) if rank == 0 else ()), target=target if rank == 1 else None, losses=losses)
            return float(sum(losses))

        return part, step

    return build


def at_once(
    share: Callable[[nn.Module], nn.Module],
) -> Callable[[Any], tuple[nn.Module, Callable[[], float]]]:
    def build(around: Callable[[nn.Module], None]) -> tuple[nn.Module, Callable[[], float]]:
        torch.manual_seed(0)
        model = share(nn.Sequential(Block(), Block(), Block()))
        around(model)
        data = torch.Generator().manual_seed(dist.get_rank() if share is shard else 5)

        def step() -> float:
            loss = model(torch.randn(BATCH, LENGTH, WIDTH, generator=data)).square().mean()
            loss.backward()
            return float(loss.detach())

        return model, step

    return build


def shard(model: nn.Module) -> nn.Module:
    mesh = init_device_mesh("cpu", (2,))
    for block in model:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def split(model: nn.Module) -> nn.Module:
    mesh = init_device_mesh("cpu", (2,))
    for block in model:
        parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    return model


WAYS = {
    "1F1B": in_pipeline(Schedule1F1B),
    "GPipe": in_pipeline(ScheduleGPipe),
    "FSDP2": at_once(shard),
    "tensor parallelism": at_once(split),
}


@contextmanager
def full_after(writes: int) -> Iterator[None]:
    """The disk takes so many writes."""
    real, left = os.pwrite, iter(range(writes))

    def pwrite(*given: Any) -> int:
        if next(left, None) is None:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(*given)

    file.os.pwrite = pwrite
    try:
        yield
    finally:
        file.os.pwrite = real


def train(way: str, method: str, folder: str) -> dict[str, Any]:
    """Losses, a digest of the gradients of all steps, bytes that went, and what a warning said how often."""
    policy, amount, becomes_full = METHODS[method]
    disk = Offload(folder, amount=amount) if amount is not None else None
    savers: list[Compressor] = []

    def around(model: nn.Module) -> None:
        if policy is not None:
            saver = Compressor(model, policy, min_values=2, offload=disk)
            model.forward = saver(model.forward)  # entered for every micro-batch
            savers.append(saver)

    model, step = WAYS[way](around)
    digest, losses = hashlib.sha256(), []
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        with full_after(30 if becomes_full else 1 << 30):
            for _ in range(STEPS):
                losses.append(step())
                for parameter in model.parameters():
                    grad = parameter.grad
                    grad = local(grad) if isinstance(grad, DTensor) else grad
                    digest.update(grad.numpy().tobytes())
                with torch.no_grad():
                    for parameter in model.parameters():
                        parameter -= 0.1 * parameter.grad
                        parameter.grad = None
    texts = [str(one.message) for one in told if "could not be written" in str(one.message)]
    found = {"losses": losses, "gradients": digest.hexdigest(), "told": texts}
    if disk is not None:
        names = ("stored_bytes", "loaded_bytes", "forwarded_bytes", "failed_bytes")
        found |= {name: getattr(disk, name) for name in names}
        found["file"] = os.fstat(disk._transfers._file.number).st_ino
        found["sent"] = savers[0].offloaded_bytes
        disk.close()
    return found


if __name__ == "__main__":
    dist.init_process_group("gloo", timeout=timedelta(seconds=120))
    torch.set_num_threads(1)
    transfers.IN_FLIGHT = 1 << 16  # so that tensors wait for the disk, and are read ahead a few at a time
    results = {way: {method: train(way, method, sys.argv[1]) for method in METHODS} for way in WAYS}
    Path(sys.argv[1], f"{os.environ['RANK']}.json").write_text(json.dumps(results))
    dist.barrier()
    os._exit(0)  # caches of DTensors hold the group, whose threads would outlive Python
