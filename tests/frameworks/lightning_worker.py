"""Lightning: ``python -m tests.frameworks.lightning_worker FOLDER``."""

import sys
from functools import partial
from typing import Any

import pytorch_lightning as lightning
import torch

from torch_bridge.trainers.lightning import Callback

from .model import Net, batches, loss_of
from .variants import Trained, Variant, compare, copies, write

STEPS, SIZE = 4, 4
RUNS: dict[str, dict[str, Any]] = {
    "Lightning": {"accumulate_grad_batches": 2},
    "Lightning, bf16": {"accumulate_grad_batches": 2, "precision": "bf16-mixed"},
}


class Module(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = Net(layers=2)
        self.losses: list[float] = []
        self.gradients: list[torch.Tensor] = []

    def training_step(self, tokens: torch.Tensor, _: int) -> torch.Tensor:
        loss = loss_of(self.net(tokens), tokens)
        self.losses.append(loss.item())
        return loss

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        self.gradients = self.gradients or copies(part.grad for part in self.parameters())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def train(options: dict[str, Any], variant: Variant) -> Trained:
    module, callbacks = Module(), []
    if variant.policy is not None:
        callbacks.append(Callback(variant.policy, **variant.options))
    trainer = lightning.Trainer(
        max_epochs=1,
        callbacks=callbacks,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_model_summary=False,
        enable_progress_bar=False,
        **options,
    )
    tokens = torch.stack(batches(STEPS, SIZE)).flatten(0, 1)
    trainer.fit(module, torch.utils.data.DataLoader(tokens, batch_size=SIZE))
    variant.saver = callbacks[0].saver if callbacks else None
    return Trained(module.losses, module.gradients, copies(module.parameters()))


if __name__ == "__main__":
    torch.set_num_threads(1)
    write(sys.argv[1], {name: compare(partial(train, options)) for name, options in RUNS.items()})
