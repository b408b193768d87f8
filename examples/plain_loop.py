"""Compressed activations in a plain training loop: python examples/plain_loop.py"""

import torch

from bitstash import PlaneFormat, Compressor

fmt = PlaneFormat("fp32", block=64, target=80)  # 256 bytes of activations become 80
model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

for step in range(20):
    x = torch.randn(512, 64)
    with Compressor(model, fmt) as stash:
        loss = (model(x) - x.norm(dim=1, keepdim=True)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(f"step {step}: loss {loss.item():.3f}, activations {stash.report().ratio:.2f}x smaller")
