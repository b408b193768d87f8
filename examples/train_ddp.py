"""Compressed activations on several processes: DDP, or FSDP2 with --fsdp.

On one machine: torchrun --standalone --nproc-per-node 2 examples/train_ddp.py --fsdp
"""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from bitstash import Compressor
from torch_bridge.job.train import draw, read_text

LENGTH, WIDTH = 64, 64


class Net(nn.Module):
    """Two layers of a transformer that predict the next byte."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(256, WIDTH)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, 4, dim_feedforward=256, dropout=0.0, batch_first=True)
            for _ in range(2)
        )
        self.head = nn.Linear(WIDTH, 256)

    def forward(self, tokens):
        causal = nn.Transformer.generate_square_subsequent_mask(LENGTH - 1, device=tokens.device)
        x = self.embedding(tokens[:, :-1])
        for layer in self.layers:
            x = layer(x, src_mask=causal, is_causal=True)
        return nn.functional.cross_entropy(self.head(x).flatten(0, 1), tokens[:, 1:].flatten())


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fsdp", action="store_true", help="shard parameters with FSDP2")
    parser.add_argument("--steps", type=int, default=10)
    options = parser.parse_args()

    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.is_available() else "cpu"
    if device != "cpu":
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device != "cpu" else "gloo")
    torch.manual_seed(0)
    model = Net().to(device)
    if options.fsdp:
        for layer in model.layers:
            fully_shard(layer)
        fully_shard(model)
    else:
        model = DistributedDataParallel(model)

    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    text = read_text(None)  # what Python's own documentation says, as bytes
    batches = torch.Generator().manual_seed(dist.get_rank())
    saver = Compressor(model)
    for step in range(options.steps):
        tokens = draw(text, 16, LENGTH, batches).to(device)
        with saver:
            loss = model(tokens)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        total = loss.detach()
        dist.all_reduce(total)
        if dist.get_rank() == 0:
            mean, ratio = total.item() / dist.get_world_size(), saver.ratio
            print(f"step {step}: loss {mean:.3f}, activations {ratio:.2f}x smaller", flush=True)
    # A DDP that outlives its group ends it with Python's lock held, which a thread of gloo may wait for.
    del model, optimizer, saver, loss
    dist.barrier()  # FSDP's caches hold the group: have its threads idle before Python ends
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
