"""What tests that compile models share.

Most compile with ``aot_eager``: the partitioner sees a graph there as with Inductor, and nothing is built.
"""

import shutil
from collections import Counter
from contextlib import nullcontext

import pytest
import torch
from torch import nn

import bitstash
from bitstash import HadamardFormat, Policy, Rule
from torch_bridge.policy.policy import TABLE
from torch_bridge.report.rows import INPUT

needs_a_compiler = pytest.mark.skipif(
    not (shutil.which("g++") or shutil.which("clang++")), reason="inductor needs a C++ compiler"
)


@pytest.fixture(autouse=True)
def nothing_compiled():
    """Around every test of a file that imports it: what was compiled before and in it is forgotten.

    Nor does anything come from a cache of an earlier run: it would have no report.
    """
    torch._dynamo.reset()
    with torch.compiler.config.patch(force_disable_caches=True):
        yield
    torch._dynamo.reset()


FMT = HadamardFormat(target=64)
MIN_VALUES = 256
EXACT = Policy([Rule("exact")])


class Block(nn.Module):
    """A block of a GPT: layer norm, attention, and an MLP whose activation is written in plain PyTorch."""

    def __init__(self, width=64, dropout=0.0):
        super().__init__()
        self.norm, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        parts = self.qkv(self.norm(x)).chunk(3, 2)
        q, k, v = (part.unflatten(2, (4, -1)).transpose(1, 2) for part in parts)
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.dropout(self.out(y.transpose(1, 2).flatten(2)))
        h = self.up(self.norm_2(x))
        return x + self.down(0.5 * h * (1 + torch.tanh(0.8 * (h + 0.04 * torch.pow(h, 3.0)))))


def blocks(count=2, **settings):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 64), *(Block(**settings) for _ in range(count)))


def batch(length=32):
    return torch.randn(4, length, 64, generator=torch.Generator().manual_seed(1))


def gradients(model):
    found = torch.cat([part.grad.float().flatten() for part in model.parameters() if part.grad is not None])
    model.zero_grad(set_to_none=True)
    return found


def step(model, call=None, x=None, around=None):
    torch.manual_seed(2)
    with around or nullcontext():
        loss = (model if call is None else call)(batch() if x is None else x).square().mean()
    loss.backward()
    return gradients(model)


def error(found, expected):
    return float((found - expected).norm() / expected.norm())


def compiled(model, policy=FMT, **settings):
    return bitstash.compile(model, policy, min_values=MIN_VALUES, backend="aot_eager", **settings)


def kept(report):
    """How tensors are kept, by what made them, their type and their values: of parameters nothing.

    A table that is made of indices is no tensor of the graph's: it makes it anew.
    """
    found = {}
    for row in report.rows:
        if row.counted and "float" in row.dtype and row.kept not in (INPUT, TABLE):
            key = row.op, row.dtype, row.original_bytes // row.tensors
            found.setdefault(key, Counter())[row.kept] += row.tensors
    return found
