"""Tensor parallelism in FSDP2: ``torchrun --nproc-per-node 4 -m tests.frameworks.mesh_worker FOLDER``."""

import os
import sys
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from .model import Net, batches, loss_of
from .variants import Trained, Variant, compare, copies, local, write

STEPS, SIZE = 3, 4


def distributed(mesh: DeviceMesh) -> Net:
    """Each layer's matrices over two ranks, and what each has of them over two more."""
    torch.manual_seed(0)
    model = Net(layers=2)
    for layer in model.layers:
        parts = {name: ColwiseParallel() for name in ("query", "key", "value")}
        parallelize_module(layer.attention, mesh["tensor"], {**parts, "out": RowwiseParallel()})
        plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
        parallelize_module(layer.feedforward, mesh["tensor"], plan)
        fully_shard(layer, mesh=mesh["data"])
    fully_shard(model, mesh=mesh["data"])
    return model


def train(mesh: DeviceMesh, variant: Variant) -> Trained:
    model = distributed(mesh)
    weights: list[torch.UntypedStorage] = []  # that FSDP2 gathers, and empties again

    def note(layer: nn.Module, *_: object) -> None:
        weights.append(local(layer.weight).untyped_storage())

    for layer in model.layers:
        for part in layer.modules():
            if isinstance(part, nn.Linear):
                part.register_forward_pre_hook(note)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    saver, losses, gradients, gathered = variant.around(model), [], [], 0
    for tokens in batches(STEPS, SIZE, seed=mesh["data"].get_local_rank()):
        weights.clear()
        with saver:
            loss = loss_of(model(tokens), tokens)
        gathered = max(gathered, sum(storage.nbytes() for storage in weights))
        loss.backward()
        gradients = gradients or copies(parameter.grad for parameter in model.parameters())
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return Trained(losses, gradients, copies(model.parameters()), gathered, {"seen": len(weights)})


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(minutes=5))
    whole = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    write(sys.argv[1], {"TP x FSDP2": compare(lambda variant: train(whole, variant))})
    dist.barrier()
    os._exit(0)  # threads of the group's caches do not outlive Python
