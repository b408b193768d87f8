"""Compressed activations in DeepSpeed: deepspeed --num_gpus 2 examples/deepspeed_zero.py

Or, on CPUs: DS_ACCELERATOR=cpu torchrun --standalone --nproc-per-node 2 examples/deepspeed_zero.py
"""

import deepspeed
import torch
from torch import nn

from bitstash import Compressor

CONFIG = {
    "train_micro_batch_size_per_gpu": 64,
    "gradient_accumulation_steps": 2,
    "zero_optimization": {"stage": 3},
    "zero_allow_untested_optimizer": True,
}

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=CONFIG)
saver = Compressor(engine)

for step in range(8):
    x = torch.randn(64, 64, device=engine.device)
    with saver:
        loss = (engine(x) - x.norm(dim=1, keepdim=True)).square().mean()
    engine.backward(loss)
    engine.step()
    if engine.global_rank == 0:
        print(f"step {step}: loss {loss.item():.3f}, activations {saver.ratio:.2f}x smaller", flush=True)
engine.destroy()
deepspeed.comm.destroy_process_group()
