"""Compressed activations with Accelerate: accelerate launch examples/accelerate_loop.py

Or, on one process: python examples/accelerate_loop.py
"""

import torch
from accelerate import Accelerator
from torch import nn

from bitstash import Compressor

accelerator = Accelerator(mixed_precision="bf16", gradient_accumulation_steps=2)
model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
batches = torch.utils.data.DataLoader(torch.randn(4096, 64), batch_size=256)
model, optimizer, batches = accelerator.prepare(model, optimizer, batches)
saver = Compressor(model)

for batch in batches:
    with accelerator.accumulate(model):
        with saver:
            loss = (model(batch) - batch.norm(dim=1, keepdim=True)).square().mean()
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
    accelerator.print(f"loss {loss.item():.3f}, activations {saver.ratio:.2f}x smaller")
