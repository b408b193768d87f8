"""Compressed activations in a pipeline of PyTorch.

On one machine: torchrun --standalone --nproc-per-node 2 examples/pipeline.py
"""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

from bitstash import Compressor

if torch.cuda.is_available():
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
else:
    device = torch.device("cpu")
dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()
torch.manual_seed(rank)
last = rank == ranks - 1
part = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 1 if last else 64)).to(device)
stage = PipelineStage(part, rank, ranks, device)
schedule = Schedule1F1B(stage, n_microbatches=4, loss_fn=nn.functional.mse_loss)
optimizer = torch.optim.AdamW(part.parameters(), lr=1e-2)
saver = Compressor(part)
batches = torch.Generator().manual_seed(0)

for step in range(10):
    x = torch.randn(256, 64, generator=batches).to(device)
    losses: list[torch.Tensor] = []
    with saver:  # forward and backward passes of all micro-batches
        schedule.step(
            *([x] if rank == 0 else []),
            **({"target": x.norm(dim=1, keepdim=True), "losses": losses} if last else {}),
        )
    optimizer.step()
    optimizer.zero_grad()
    if last:
        mean = torch.stack(losses).mean().item()
        print(f"step {step}: loss {mean:.3f}, activations {saver.ratio:.2f}x smaller", flush=True)
dist.barrier()
dist.destroy_process_group()
