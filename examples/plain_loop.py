"""Compressed activations in a plain training loop: python examples/plain_loop.py"""

import torch

from bitstash import Compressor

model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
saver = Compressor(model)  # 4 bits a value; Compressor(model, bits=2) for fewer

for step in range(20):
    x = torch.randn(512, 64)
    with saver:
        loss = (model(x) - x.norm(dim=1, keepdim=True)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(f"step {step}: loss {loss.item():.3f}, activations {saver.ratio:.2f}x smaller")
