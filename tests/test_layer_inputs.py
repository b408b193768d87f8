"""``Policy.layer_inputs``: it names what reads the input of each layer, and training from that is close."""

from contextlib import nullcontext

import pytest
import torch
from torch import nn

from torch_bridge import Compressor, Policy
from torch_bridge.facts.layers import input_readers

from .families import FAMILIES, LAYERS, loss_of

# Which modules of a layer read its input, read in transformers' own files.
READERS = {
    "gpt2": ["ln_1"],
    "gpt_neox": ["input_layernorm", "post_attention_layernorm"],  # attention and MLP stand side by side
    "gptj": ["ln_1"],
    "opt": ["self_attn_layer_norm"],
    "bloom": ["input_layernorm"],
    "llama": ["input_layernorm"],
    "mistral": ["input_layernorm"],
    "qwen3": ["input_layernorm"],
    "phi": ["input_layernorm"],
    "gemma": ["input_layernorm"],
    "mpt": ["norm_1"],
    "olmo2": ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],  # norms come last
}
BOUND = 0.13  # of the gradient's relative error


def build(family):
    return FAMILIES[family].build(FAMILIES[family].attentions[-1])


def named(policy):
    return [rule.module for rule in policy.rules if rule.why == "input of a layer"]


@pytest.mark.parametrize(("family", "readers"), READERS.items(), ids=READERS)
def test_what_reads_the_input_of_a_layer_is_named(family, readers):
    model = build(family)
    found = input_readers(model)
    assert len(found) == LAYERS
    assert {layer: [f"{layer}.{name}" for name in readers] for layer in found} == found
    assert named(Policy.layer_inputs(model)) == [name for names in found.values() for name in names]


@pytest.mark.parametrize("family", READERS)
def test_what_is_named_is_given_the_values_that_its_layer_is_given(family):
    model = build(family)
    found, given, names = input_readers(model), {}, {part: name for name, part in model.named_modules()}

    def note(part, args, kwargs):
        given[names[part]] = [*args, *kwargs.values()][0]

    for part in names:
        part.register_forward_pre_hook(note, with_kwargs=True)
    model(**FAMILIES[family].batch())
    for layer, readers in found.items():
        for reader in readers:
            assert torch.equal(given[reader].flatten(), given[layer].flatten()), reader


@pytest.mark.parametrize("family", READERS)
def test_gradients_are_close_and_less_is_kept_than_with_four_bits(family):
    model, batch = build(family), FAMILIES[family].batch()

    def gradient(context):
        model.zero_grad(set_to_none=True)
        torch.manual_seed(0)
        with context:
            loss = loss_of(model(**batch))
        loss.backward()
        return torch.cat([one.grad.flatten() for one in model.parameters() if one.grad is not None])

    exact, errors, kept = gradient(nullcontext()), [], []
    for options in ({"bits": 4}, {"policy": Policy.layer_inputs(model), "time": 3}):
        saver = Compressor(model, min_values=256, **options)
        for _ in range(2):  # the first step says what fits the time
            found = gradient(saver)
        errors.append(float((found - exact).norm() / exact.norm()))
        kept.append(saver.stored_bytes)
    assert 0 < errors[1] < min(BOUND, 1.05 * errors[0]), errors
    assert kept[1] < kept[0]


def test_the_model_is_left_as_it_was():
    model = build("gpt2")  # with dropout, which would draw random numbers
    model.transformer.h[1].eval()
    modes = [part.training for part in model.modules()]
    state = torch.get_rng_state()
    Policy.layer_inputs(model)
    assert torch.equal(torch.get_rng_state(), state)
    assert [part.training for part in model.modules()] == modes
    assert all(one.grad is None for one in model.parameters())
    assert not any(part._forward_pre_hooks or part._forward_hooks for part in model.modules())


class Residual(nn.Module):
    """As nanoGPT's: a stack of layers that takes no ``input_ids``."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 8)) for _ in range(2))

    def forward(self, x):
        for layer in self.layers:
            x = x + layer(x)
        return x


class Idle(Residual):
    def forward(self, x):
        return x


@pytest.mark.parametrize("example", [{"x": torch.ones(2, 8)}, (torch.ones(2, 8),), torch.ones(2, 8)])
def test_a_model_of_another_kind_is_run_on_an_example(example):
    policy = Policy.layer_inputs(Residual(), example, bits=2)
    assert named(policy) == ["layers.0.0", "layers.1.0"]
    assert policy.rules[-1].keep.target == 32


def test_a_layer_that_fails_leaves_the_model_without_hooks():
    model = Residual()
    with pytest.raises(RuntimeError):
        Policy.layer_inputs(model, torch.ones(2, 9))
    assert model.training
    assert not any(part._forward_pre_hooks or part._forward_hooks for part in model.modules())


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        (nn.Sequential(nn.Linear(8, 8)), {}, "layers in an nn.ModuleList, Sequential has none"),
        (Residual(), {}, "example must be given, as a batch of one: Residual takes no input_ids"),
        (Residual(), {"example": 3}, "example must be a mapping, a tuple or a tensor, not 3"),
        (Residual(), {"bits": 5}, "bits must be one of 2, 3, 4, not 5"),
        (Idle(), {"example": torch.ones(2, 8)}, "must run one of its layers, 'layers.0' or other"),
    ],
)
def test_what_has_no_layers_to_name_is_an_error(model, options, message):
    with pytest.raises(ValueError, match=message):
        Policy.layer_inputs(model, **options)
