"""HyC-LoRA's layers against the same model without them, and against quantisation written out plainly."""

import math

import numpy as np
import pytest
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from torch_bridge import Compressor, Policy
from torch_bridge.keep import keep_activations
from torch_bridge.schemes import hyclora


class Lora(nn.Module):
    """What peft makes of a linear layer, as far as the scheme reads it."""

    def __init__(self, base: nn.Linear, rank: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.base_layer = base
        features_in, features_out = base.in_features, base.out_features
        self.lora_A = nn.ModuleDict({"default": nn.Linear(features_in, rank, bias=False)})
        self.lora_B = nn.ModuleDict({"default": nn.Linear(rank, features_out, bias=False)})
        kind = nn.Dropout(dropout) if dropout else nn.Identity()
        self.lora_dropout = nn.ModuleDict({"default": kind})
        self.lora_variant = nn.ModuleDict()
        self.scaling = {"default": 0.5}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        low = self.lora_A["default"](self.lora_dropout["default"](x))
        return self.base_layer(x) + self.lora_B["default"](low) * self.scaling["default"]


def llama(dropout: float = 0.0, vocabulary: int = 128) -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, vocab_size=vocabulary, use_cache=False, attention_bias=True,
    )  # fmt: skip
    model = LlamaForCausalLM(config).requires_grad_(False)
    for layer in model.model.layers:
        for parent, names in ((layer.self_attn, "qkvo"), (layer.mlp, ("gate", "up", "down"))):
            for name in names:
                setattr(parent, f"{name}_proj", Lora(getattr(parent, f"{name}_proj"), 8, dropout))
    return model.train()


TOKENS = torch.randint(128, (2, 48), generator=torch.Generator().manual_seed(1))


def gradient(model: nn.Module, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    """The logits, and the gradient of all that is trained."""
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
        found = model(TOKENS, labels=TOKENS)
    trained = [one for one in model.parameters() if one.requires_grad]
    grads = torch.autograd.grad(found.loss, trained)
    return found.logits.detach(), torch.cat([one.flatten() for one in grads])


def error(model: nn.Module, exact: torch.Tensor, dtype: torch.dtype = torch.float32) -> float:
    _, found = gradient(model, dtype)
    return float((found - exact).norm() / exact.norm())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_forward_pass_is_what_it_was(dtype: torch.dtype) -> None:
    model = llama()
    before, _ = gradient(model, dtype)
    assert hyclora.convert(model, 2) == ["model.layers.0", "model.layers.1"]
    after, _ = gradient(model, dtype)
    assert torch.equal(before, after)


def test_without_quantisation_the_gradient_is_autograds(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the formulas give of exact tensors: quantisation apart, they are autograd's."""

    def exactly(self: hyclora.Channels, x: torch.Tensor) -> tuple[tuple[torch.Tensor, torch.Tensor], None]:
        return (x, x), None

    model = llama()
    _, exact = gradient(model)
    monkeypatch.setattr(hyclora.Channels, "compress", exactly)
    monkeypatch.setattr(
        hyclora.Channels, "decompress", lambda self, kept, scales, shape, dtype: kept[0].to(dtype)
    )
    hyclora.convert(model)
    assert error(model, exact) < 1e-5


def test_more_bits_are_a_smaller_gradient_error() -> None:
    errors = []
    for bits in hyclora.BITS:
        model = llama()
        _, exact = gradient(model)
        hyclora.convert(model, bits)
        errors.append(error(model, exact))
    assert errors[0] > 1.5 * errors[1] > 1.5 * errors[2] > 0, errors


def test_channels_are_quantised_as_the_paper_says() -> None:
    x = torch.randn(1, 40, 6, generator=torch.Generator().manual_seed(2)) * torch.arange(1, 7) + 0.7
    channels = hyclora.Channels(4, 5, has_zero=True)
    kept, scales = channels.compress(x)
    values = x[0].numpy()
    step = (values.max(0) - values.min(0)) / 15
    zero = -np.round(values.min(0) / step) - 8
    levels = np.clip(np.round(values / step + zero), -8, 7)
    found = channels.decompress(kept, scales, x.shape, torch.float32)
    np.testing.assert_allclose(found[0].numpy(), (levels - zero) * step, rtol=1e-5, atol=1e-5)
    assert kept[0].numel() == 40 * 6 * 4 // 8


def test_scales_are_the_mean_of_the_first_batches_and_stay() -> None:
    channels = hyclora.Channels(4, 2)
    first, second, third = (torch.linspace(0, size, 32).view(1, 32, 1) for size in (15.0, 45.0, 300.0))
    for one, step in ((first, 1.0), (second, 3.0), (third, 2.0)):
        _, scales = channels.compress(one)
        assert float(scales.step) == pytest.approx(step)


def test_the_loudest_channels_of_a_norm_stay_exact() -> None:
    x = torch.randn(1, 64, 200, generator=torch.Generator().manual_seed(3))
    x[..., 17] *= 100
    channels = hyclora.Channels(2, 5, 0.005)
    kept, scales = channels.compress(x)
    assert scales.exact.tolist() == [17]
    found = channels.decompress(kept, scales, x.shape, torch.float32)
    assert torch.equal(found[..., 17], x[..., 17])


@pytest.mark.parametrize("bits", hyclora.BITS)
@pytest.mark.parametrize("count", [1, 7, 16])
def test_packed_codes_come_back(bits: int, count: int) -> None:
    codes = (torch.arange(count) % (1 << bits)).to(torch.uint8)
    packed = hyclora._pack(codes, bits)
    assert packed.numel() == math.ceil(count * bits / 8)
    assert torch.equal(hyclora._unpack(packed, bits, (count,)), codes)


def test_layers_keep_their_bits_of_each_value() -> None:
    """Of a token: 4 inputs, q and attention's output of 64, k and v of 32, gate and up of 128.

    The input of the first norm needs no gradient, so nothing is kept of it.
    """
    model = llama()
    hyclora.convert(model, 2)
    with Compressor(model, Policy([]), min_values=0) as saver, keep_activations():
        model(TOKENS, labels=TOKENS)
    rows = [row for row in saver.report().rows if row.dtype == "uint8"]
    values = TOKENS.numel() * (2 * (6 * 64 + 2 * 32 + 2 * 128) - 64)
    assert sum(row.stored_bytes for row in rows) == values * 2 // 8


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda model: hyclora.convert(model, 3), "bits must be 2, 4 or 8, not 3"),
        (lambda model: hyclora.convert(model, outliers=1.5), "outliers must be a share .* not 1.5"),
        (lambda model: hyclora.convert(model, batches=0), "batches must be positive, not 0"),
        (lambda model: hyclora.convert(nn.Linear(2, 2)), "layers of transformers' Llama, Linear has none"),
        (lambda model: hyclora.convert(model.requires_grad_(True)), "must have frozen norms"),
        (lambda model: hyclora.convert(llama(0.1)), "plain LoRA without dropout"),
    ],
)
def test_what_does_not_fit_is_named(change: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        change(llama())  # type: ignore[operator]
