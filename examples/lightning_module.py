"""Compressed activations in Lightning: python examples/lightning_module.py"""

import pytorch_lightning as lightning  # or: import lightning.pytorch as lightning
import torch
from torch import nn

from torch_bridge.trainers.lightning import Callback


class Regression(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 1))

    def training_step(self, batch, _):
        loss = (self.net(batch) - batch.norm(dim=1, keepdim=True)).square().mean()
        self.log("loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


batches = torch.utils.data.DataLoader(torch.randn(4096, 64), batch_size=256)
callback = Callback()
trainer = lightning.Trainer(max_epochs=1, callbacks=[callback], logger=False, enable_checkpointing=False)
trainer.fit(Regression(), batches)
print(callback.saver.report())
print(f"activations {callback.saver.ratio:.2f}x smaller")
