"""Whatever is saved comes back: random views of a few storages, written to and unpacked in between."""

import random

import pytest
import torch

from golden import PlaneFormat
from torch_bridge import Compressor, Offload, keep_activations

EXACT = PlaneFormat("fp32", block=16, target=64)  # loses nothing
NOTHING = torch.nn.Module()


class Save(torch.autograd.Function):
    """Saves tensors beside copies of them, and compares them when they are needed."""

    @staticmethod
    def forward(ctx, *tensors):
        ctx.save_for_backward(*tensors)
        ctx.expected = [(tensor.clone(), tensor.stride()) for tensor in tensors]
        return sum(tensor.sum() for tensor in tensors)

    @staticmethod
    def backward(ctx, grad):
        for found, (expected, stride) in zip(ctx.saved_tensors, ctx.expected, strict=True):
            assert torch.equal(found, expected)
            assert found.stride() == stride
        return tuple(torch.ones_like(tensor) for tensor in ctx.saved_tensors)


def some_view(draw, tensor):
    """Slices, transposes, windows, broadcasts and halves of one another."""
    for _ in range(draw.randrange(4)):
        dim = draw.randrange(tensor.dim())
        size = tensor.shape[dim]
        start = draw.randrange(size)
        stop = draw.randrange(start, size) + 1
        cut = (slice(None),) * dim + (slice(start, stop, draw.choice([1, 1, 2, 3])),)
        ways = [
            lambda t, cut=cut: t[cut],
            lambda t, dim=dim: t.transpose(dim, -1),
            lambda t, dim=dim, size=size: t.unfold(dim, min(size, 3), draw.choice([1, 2])),
            lambda t, dim=dim: t.unsqueeze(dim).expand(*t.shape[:dim], 3, *t.shape[dim:]),
            lambda t, dim=dim: t.chunk(draw.choice([2, 3]), dim)[0],
        ]
        tensor = draw.choice([ways[0], *ways])(tensor)
    return tensor


@pytest.mark.parametrize("how", ["compressed", "compressed but for the small", "offloaded"])
def test_what_is_saved_comes_back_as_it_was(how, tmp_path):
    for seed in range(40):
        draw = random.Random(seed)
        x = torch.randn(8, 6, 10, generator=torch.Generator().manual_seed(seed)).requires_grad_()
        options = {"min_values": 60 if how == "compressed but for the small" else 0}
        if how == "offloaded":
            options["offload"] = Offload(tmp_path, amount=draw.choice(["all", 2000]))
        losses = []

        def walk(loss, x=x):
            try:
                torch.autograd.grad(loss, x, retain_graph=True, allow_unused=True)
            except RuntimeError as error:
                if "modified by an inplace operation" not in str(error):  # of what stayed as it is
                    raise

        with Compressor(NOTHING, EXACT, **options):
            sources = [x * 2, (x * 3).transpose(0, 2).contiguous(), x.sin().view(-1)[3:].view(-1, 9)]
            for _ in range(draw.randrange(4, 20)):
                source = draw.choice(sources)
                event = draw.random()
                if event < 0.8:
                    save = keep_activations()(Save.apply) if draw.random() < 0.1 else Save.apply
                    losses.append(save(*(some_view(draw, source) for _ in range(draw.randrange(1, 4)))))
                elif event < 0.9:
                    with torch.no_grad():
                        source[draw.randrange(len(source)) :].mul_(-1.5)
                elif losses:
                    walk(draw.choice(losses))
                    losses.pop(draw.randrange(len(losses)))
        draw.shuffle(losses)
        for loss in losses:
            walk(loss)
