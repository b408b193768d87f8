"""A job for the page: a small model with something to derive, to compress and to keep."""

import torch
from torch import nn


def job():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(32, 64), nn.LayerNorm(64), nn.GELU(), nn.Linear(64, 64), nn.Tanh(), nn.ReLU()
    )
    return model, torch.randn(48, 32), lambda model, batch: model(batch).square().mean()
