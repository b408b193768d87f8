"""Training on the ranks of torchrun, once with each kind of hooks; test_bridge_distributed.py starts it.

    torchrun --standalone --nproc-per-node 2 -m tests.distributed_worker FOLDER

Every rank writes FOLDER/RANK.json: for each parallelism and each kind of hooks the losses of some steps, the
bytes of two matrices between the last forward and backward pass, and the rows of the bridge's last report;
as "gathered" what recompute_from_gathered found, and as "tensor parallel" what train_split found.
"""

import json
import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

from torch_bridge import Compressor, Policy, Rule

from .plain_hooks import COARSE, is_log_softmax, reference, stored, untouched

STEPS, BATCH, LENGTH, WIDTH, HEADS, CLASSES = 4, 3, 40, 64, 4, 33


class Net(nn.Module):
    """A small transformer. Two ranks cannot share 33 classes equally, so what FSDP gathers has padding."""

    def __init__(self, norm_first: bool = True) -> None:
        super().__init__()
        self.embedding = nn.Embedding(CLASSES, WIDTH)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, HEADS, 96, dropout=0.0, batch_first=True, norm_first=norm_first)
            for _ in range(2)
        )
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        logits = self.head(x).flatten(0, 1)
        return nn.functional.cross_entropy(logits, tokens.roll(-1, 1).flatten())


def shard(net: nn.Module, **how: Any) -> nn.Module:
    """FSDP2, on the CPU even where there is a GPU."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in net.layers:
        fully_shard(layer, mesh=mesh, **how)
    return fully_shard(net, mesh=mesh, **how)


PARALLEL: dict[str, Callable[[nn.Module], nn.Module]] = {
    "ddp": DistributedDataParallel,
    "fsdp": shard,
    "fsdp, bf16": lambda net: shard(net, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16)),
    "fsdp, kept after forward": lambda net: shard(net, reshard_after_forward=False),
}


def is_exact(tensor: torch.Tensor) -> bool:
    """Log-softmaxes, norm statistics and log-sum-exps."""
    return is_log_softmax(tensor) or tensor.shape[-1:] == (1,) or tensor.shape == (BATCH, HEADS, LENGTH)


# Recomputes what it can, and keeps the rest as it is.
FIXED = [rule for rule in stored(COARSE).rules if rule.keep == "exact"]
EXACT = Policy([Rule("recompute", op="*attention*"), *FIXED, Rule("recompute")])

HOOKS: dict[str, Callable[[nn.Module], AbstractContextManager[Any]]] = {
    "bridge": lambda model: Compressor(model, stored(COARSE), min_values=2),
    "reference": lambda model: reference(model, COARSE, is_exact, min_values=2),
    "exact": lambda model: untouched(),
    "recomputed": lambda model: Compressor(model, EXACT, min_values=2),
}


def train(parallel: str, hooks: str) -> dict[str, Any]:
    torch.manual_seed(0)
    net = Net()
    model = PARALLEL[parallel](net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batches = torch.Generator().manual_seed(dist.get_rank())
    losses = []
    weights: list[torch.UntypedStorage] = []
    for layer in net.layers:
        layer.linear1.register_forward_pre_hook(lambda part, _: weights.append(part.weight.untyped_storage()))
    for _ in range(STEPS):
        weights.clear()
        tokens = torch.randint(CLASSES, (BATCH, LENGTH), generator=batches)
        with HOOKS[hooks](model) as saver:
            loss = model(tokens)
        bytes_between = sum(storage.nbytes() for storage in weights)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    rows = [asdict(row) for row in saver.report().rows] if hooks in ("bridge", "recomputed") else []
    return {"losses": losses, "rows": rows, "bytes_between": bytes_between}


def recompute_from_gathered(gathered_before: bool) -> list[list[float]]:
    """A layer's norm comes last and the next layer saves it: needed when its weights are freed again.

    The loss and the gradients' norms: without hooks, then recomputed.
    """
    found = []
    for hooks in ("exact", "recomputed"):
        torch.manual_seed(0)
        model = shard(Net(norm_first=False))
        if gathered_before:
            for layer in model.layers:
                layer.unshard()
        tokens = torch.randint(CLASSES, (BATCH, LENGTH))
        with HOOKS[hooks](model):
            loss = model(tokens)
        loss.backward()
        found.append([loss.item(), *(p.grad.full_tensor().norm().item() for p in model.parameters())])
    return found


class Feedforward(nn.Module):
    """A block that a tensor-parallel plan splits."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 96), nn.Linear(96, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


def split(net: nn.Module, mesh: DeviceMesh) -> nn.Module:
    """Columns, then rows; between blocks a rank has half of every sequence. All of it are DTensors."""
    plan = {
        "norm": SequenceParallel(use_local_output=False),
        "up": ColwiseParallel(input_layouts=Shard(1), use_local_output=False),
        "down": RowwiseParallel(output_layouts=Shard(1), use_local_output=False),
    }
    for block in net:
        parallelize_module(block, mesh, plan)
    return net


def local_reference(model: nn.Module) -> torch.autograd.graph.saved_tensors_hooks:
    """The plain hooks for what this rank has of DTensors."""
    weights = nn.ParameterList([nn.Parameter(local(parameter)) for parameter in model.parameters()])
    plain = reference(weights, COARSE, lambda tensor: tensor.shape[-1] == 1, min_values=2)

    def pack(tensor: torch.Tensor) -> Any:
        if not isinstance(tensor, DTensor):
            return plain.pack_hook(tensor), None
        rest = (tensor.device_mesh, tensor.placements)
        return plain.pack_hook(local(tensor)), (rest, {"shape": tensor.shape, "stride": tensor.stride()})

    def unpack(packed: Any) -> torch.Tensor:
        found, whole = plain.unpack_hook(packed[0]), packed[1]
        return found if whole is None else DTensor.from_local(found, *whole[0], run_check=False, **whole[1])

    return torch.autograd.graph.saved_tensors_hooks(pack, unpack)


def local(tensor: DTensor) -> torch.Tensor:
    with torch.no_grad():
        found = tensor.to_local()
        return found.trigger_wait() if hasattr(found, "trigger_wait") else found


def train_split() -> dict[str, Any]:
    """By kind of hooks: each parameter's gradient, summed in parts; and the rows of the bridge's report."""
    mesh, found = init_device_mesh("cpu", (dist.get_world_size(),)), {}
    for hooks in ("bridge", "reference", "exact"):
        torch.manual_seed(0)
        model = split(nn.Sequential(Feedforward(), Feedforward()), mesh)
        x = distribute_tensor(torch.randn(BATCH, LENGTH, WIDTH), mesh, [Shard(1)])
        with local_reference(model) if hooks == "reference" else HOOKS[hooks](model) as saver:
            loss = model(x).redistribute(placements=[Replicate()]).to_local().square().mean()
        loss.backward()
        found[hooks] = [local(parameter.grad).flatten().tolist() for parameter in model.parameters()]
        if hooks == "bridge":
            found["rows"] = [asdict(row) for row in saver.report().rows]
    return found


if __name__ == "__main__":
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    results = {p: {h: train(p, h) for h in HOOKS} for p in PARALLEL}
    results["gathered"] = [recompute_from_gathered(gathered_before) for gathered_before in (False, True)]
    results["tensor parallel"] = train_split()
    Path(sys.argv[1], f"{os.environ['RANK']}.json").write_text(json.dumps(results))
    dist.barrier()
    # Caches of DTensors hold the group, so that its threads live on and abort if they need Python's lock when
    # Python is gone.
    os._exit(0)
