"""DeepSpeed on two ranks: ``torchrun --nproc-per-node 2 -m tests.frameworks.deepspeed_worker FOLDER``.

DS_ACCELERATOR has to be "cpu", and TORCH_EXTENSIONS_DIR a folder of this run: DeepSpeed leaves a lock there
when it is killed, and the next run waits for that.
"""

import os
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import deepspeed
import torch
import torch.distributed as dist
from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_grad
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

from torch_bridge import attach

from .deepspeed_program import on_gloo
from .model import Net, batches, loss_of
from .variants import Trained, Variant, compare, copies, write

STEPS, MICRO_BATCHES, SIZE = 3, 2, 4


class Checkpointed(Net):
    """Its layers in DeepSpeed's own checkpointing."""

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = deepspeed.checkpointing.checkpoint(layer, x)
        return self.head(self.norm(x))


class WithLoss(Net):
    """Returns its loss, as models do whose loop calls nothing but the engine."""

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return loss_of(super().forward(tokens), tokens)


RUNS: dict[str, tuple[int, type[Net]]] = {
    "ZeRO-1": (1, Net),
    "ZeRO-2": (2, Net),
    "ZeRO-3": (3, Net),
    "ZeRO-2, checkpointed": (2, Checkpointed),
    "ZeRO-3, checkpointed": (3, Checkpointed),
    "ZeRO-3, attached": (3, WithLoss),
}


def initialize(stage: int, model: nn.Module) -> Any:
    """An engine that gathers what it shards for each layer alone."""
    sharding = {"stage": stage}
    if stage == 3:
        sharding |= {"stage3_param_persistence_threshold": 0, "stage3_max_live_parameters": 0}
        sharding |= {"stage3_prefetch_bucket_size": 0, "stage3_max_reuse_distance": 0}
    config = {
        "train_micro_batch_size_per_gpu": SIZE,
        "gradient_accumulation_steps": MICRO_BATCHES,
        "zero_optimization": sharding,
        "zero_allow_untested_optimizer": True,
    }
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    return engine


def losses_in(engine: Any, model: Net, variant: Variant) -> Callable[[torch.Tensor], torch.Tensor]:
    """What gives the loss of tokens, in the variant's Compressor."""
    if isinstance(model, WithLoss):
        if variant.policy is not None:
            variant.saver = attach(engine, variant.policy, **variant.options)
        return engine
    saver = variant.around(model)

    def loss(tokens: torch.Tensor) -> torch.Tensor:
        with saver:
            return loss_of(engine(tokens), tokens)

    return loss


def train(stage: int, kind: type[Net], variant: Variant) -> Trained:
    torch.manual_seed(0)
    model = kind(layers=2)
    engine = initialize(stage, model)
    seen: list[tuple[StorageWeakRef, int]] = []

    def note(layer: nn.Module, *_: Any) -> None:
        seen.append((StorageWeakRef(layer.weight.untyped_storage()), layer.weight.nbytes))

    if stage == 3:
        for layer in model.modules():
            if isinstance(layer, nn.Linear):
                layer.register_forward_pre_hook(note)  # behind DeepSpeed's, which gathers
    forward, losses, gradients, gathered = losses_in(engine, model, variant), [], [], 0
    for tokens in batches(STEPS * MICRO_BATCHES, SIZE, seed=dist.get_rank()):
        seen.clear()
        loss = forward(tokens)
        gathered = max(gathered, sum(nbytes for storage, nbytes in seen if not storage.expired()))
        engine.backward(loss)
        losses.append(loss.item())
        if engine.is_gradient_accumulation_boundary():
            gradients = gradients or copies(map(safe_get_full_grad, model.parameters()))
        engine.step()
    weights = copies(map(safe_get_full_fp32_param, model.parameters()))
    engine.destroy()
    return Trained(losses, gradients, weights, gathered, {"seen": len(seen)})


if __name__ == "__main__":
    torch.set_num_threads(1)
    on_gloo()
    deepspeed.init_distributed("gloo")
    deepspeed.checkpointing.configure(mpu_=None)
    write(sys.argv[1], {name: compare(partial(train, *run)) for name, run in RUNS.items()})
    dist.barrier()
    os._exit(0)  # threads of the group's caches do not outlive Python
