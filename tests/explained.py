"""Jobs for the page: a small model with something to recompute, to compress and to keep; and what is none."""

import torch
from torch import nn


def job():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(32, 64), nn.LayerNorm(64), nn.GELU(), nn.Linear(64, 64), nn.Tanh(), nn.ReLU()
    )
    return model, torch.randn(48, 32), lambda model, batch: model(batch).square().mean()


def needs(argument):
    return argument


def raises():
    raise RuntimeError("no such\nluck")


def nothing_made():
    pass


def no_model():
    return 3, torch.zeros(3)


def no_scalar():
    model, batch, _ = job()
    return model[0], batch[:, :32], lambda model, batch: model(batch)[:, :32]


def frozen():
    model, *rest = job()
    return model.requires_grad_(False), *rest


def no_loss():
    return nn.Linear(32, 32), {"input": torch.zeros(48, 32)}


def wrong():
    model, batch, loss = job()
    return model, batch[:, :31], loss


def uncompilable():
    model, *rest = job()
    model.forward = torch.compiler.disable(model.forward)
    return model, *rest
