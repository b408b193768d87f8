"""GPT-2's linear layers, CompAct's and pooled: what an nn.Linear with the same weight does."""

import pytest
import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from torch_bridge.schemes import compact, pool


def pair():
    """A Conv1D and an nn.Linear that compute the same, each in a model by the same name."""
    torch.manual_seed(0)
    conv, line = Conv1D(24, 16), nn.Linear(16, 24)
    with torch.no_grad():
        conv.bias.copy_(torch.randn(24))
        line.weight.copy_(conv.weight.T)
        line.bias.copy_(conv.bias)
    return nn.ModuleDict({"layer": conv}), nn.ModuleDict({"layer": line})


def run(model):
    x = torch.randn(3, 7, 16, generator=torch.Generator().manual_seed(1)).requires_grad_()
    out = model["layer"](x)
    out.sin().sum().backward()
    return out.detach(), x.grad


@pytest.mark.parametrize("scheme", ["compact", "pool"])
def test_it_does_what_a_linear_layer_does(scheme):
    conv, line = pair()
    plain, _ = run(pair()[0])
    for model in (conv, line):
        if scheme == "compact":
            assert compact.convert(model, 4, names="*") == ["layer"]
        else:
            assert pool.convert(model, 2, tokens=True) == ["layer"]
    assert type(conv["layer"]).__name__ == ("CompActConv1D" if scheme == "compact" else "PooledConv1D")
    (out, x_grad), (line_out, line_x_grad) = run(conv), run(line)
    assert torch.equal(out, plain)
    torch.testing.assert_close(out, line_out)
    torch.testing.assert_close(x_grad, line_x_grad)
    torch.testing.assert_close(conv["layer"].bias.grad, line["layer"].bias.grad)
    if scheme == "pool":
        torch.testing.assert_close(conv["layer"].weight.grad, line["layer"].weight.grad.T)
        return
    torch.testing.assert_close(conv["layer"].subspace.grad, line["layer"].subspace.grad)
    for model in (conv, line):
        compact.CompActAdamW(model, lr=0.1).step()
    assert not conv["layer"].subspace.any()
    torch.testing.assert_close(conv["layer"].weight, line["layer"].weight.T)
    assert not torch.equal(conv["layer"].weight, pair()[0]["layer"].weight)
    assert set(conv.state_dict()) == set(pair()[0].state_dict())
