"""Torch's pipelines on two ranks: ``torchrun --nproc-per-node 2 -m tests.frameworks.pipeline_worker FOLDER``.

Within one step several micro-batches are in flight, and a Compressor that is entered around it sees backward
passes between forward passes.
"""

import os
import sys
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import (
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
    ScheduleZBVZeroBubble,
)

from .model import CLASSES, LENGTH, WIDTH, Layer, batches, loss_of
from .variants import Trained, Variant, compare, copies, write

STEPS, MICRO_BATCHES, SIZE = 3, 4, 8
# Which stages each rank has.
TWO, FOUR, V = ((0,), (1,)), ((0, 2), (1, 3)), ((0, 3), (1, 2))
SCHEDULES: dict[str, tuple[Any, tuple[tuple[int, ...], ...]]] = {
    "GPipe": (ScheduleGPipe, TWO),
    "1F1B": (Schedule1F1B, TWO),
    "Interleaved1F1B": (ScheduleInterleaved1F1B, FOUR),
    "InterleavedZeroBubble": (ScheduleInterleavedZeroBubble, FOUR),
    "ZBVZeroBubble": (ScheduleZBVZeroBubble, V),
}


def part(stage: int, stages: int) -> nn.Module:
    """The layers of a stage; the same whatever rank has it."""
    torch.manual_seed(stage)
    layers: list[nn.Module] = [Layer()]
    if stage == 0:
        layers.insert(0, nn.Embedding(CLASSES, WIDTH))
    if stage == stages - 1:
        layers += [nn.LayerNorm(WIDTH), nn.Linear(WIDTH, CLASSES)]
    return nn.Sequential(*layers)


def train(name: str, variant: Variant) -> Trained:
    schedule_class, placed = SCHEDULES[name]
    rank, stages = dist.get_rank(), sum(map(len, placed))
    parts = nn.ModuleList(part(stage, stages) for stage in placed[rank])
    device = torch.device("cpu")
    made = [PipelineStage(one, i, stages, device) for one, i in zip(parts, placed[rank], strict=True)]
    schedule = schedule_class(made[0] if placed is TWO else made, MICRO_BATCHES, loss_fn=loss_of)
    optimizer = torch.optim.SGD(parts.parameters(), lr=0.1)
    has_first, has_last = 0 in placed[rank], stages - 1 in placed[rank]
    passes: list[str] = []  # the letters of forward and backward passes, in their order
    for one in parts:
        one.register_forward_hook(lambda *_: passes.append("f"))
        next(reversed(list(one.parameters()))).register_post_accumulate_grad_hook(
            lambda _: passes.append("b")
        )
    saver, losses, gradients = variant.around(parts), [], []
    for tokens in batches(STEPS, SIZE):
        found: list[torch.Tensor] = []
        with saver:
            schedule.step(
                *([tokens] if has_first else []),
                **({"target": tokens, "losses": found} if has_last else {}),
            )
        gradients = gradients or copies(parameter.grad for parameter in parts.parameters())
        optimizer.step()
        optimizer.zero_grad()
        turns = "".join(passes).count("fb")
        passes.clear()
        mean = torch.stack(found).mean() if has_last else torch.zeros(())
        dist.all_reduce(mean)
        losses.append(mean.item())
    return Trained(losses, gradients, copies(parts.parameters()), more={"turns": turns})


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(minutes=5))
    assert SIZE * LENGTH % MICRO_BATCHES == 0
    write(sys.argv[1], {name: compare(lambda one, name=name: train(name, one)) for name in SCHEDULES})
    dist.barrier()
    os._exit(0)  # threads of the group's caches do not outlive Python
