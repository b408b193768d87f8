"""One training step of the models that people train: gradients equal those of plain hooks."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
import transformers
from torch import nn

from golden import PlaneFormat
from torch_bridge import Compressor, Policy, Rule

from .plain_hooks import (
    COARSE,
    FMT,
    gradients,
    is_log_softmax,
    reference,
    stored,
    unequal,
    untouched,
)

# No two of these that could stand in the same place of a shape are equal, so that shapes tell tensors apart.
BATCH, LENGTH, WIDTH, HEADS, VOCABULARY = 3, 40, 64, 4, 32


@dataclass(frozen=True)
class Task:
    """A model of transformers, shrunk, and what it is trained on.

    Attributes:
        model, config: classes of transformers.
        settings: of the config, attention and dropout aside.
        dropouts: names of the config's dropout probabilities.
        inputs: makes a batch.
        attentions: implementations of attention that the model has.
    """

    model: type
    config: type
    settings: dict
    dropouts: tuple[str, ...]
    inputs: Callable[[], dict]
    attentions: tuple[str, ...] = ("eager", "sdpa")

    def build(self, attention: str = "eager", dropout: float = 0.0) -> nn.Module:
        torch.manual_seed(0)
        settings = self.settings | dict.fromkeys(self.dropouts, dropout)
        model = self.model(self.config(**settings, attn_implementation=attention))
        for parameter in model.parameters():  # none like another, nor like a constant
            parameter.data.add_(0.02 * torch.randn_like(parameter))
        return model.train()


def tokens():
    return torch.randint(1, VOCABULARY, (BATCH, LENGTH))


def next_tokens():
    ids = tokens()
    return {"input_ids": ids, "labels": ids}


def masked_tokens():
    ids = tokens()
    attention_mask = torch.ones_like(ids)
    attention_mask[1, 30:] = 0
    return {"input_ids": ids, "labels": tokens(), "attention_mask": attention_mask}


def images():
    pixels = torch.rand(BATCH, 3, 32, 32)  # pixels below the mean are as common as above it
    return {"pixel_values": pixels - 0.5, "labels": torch.randint(5, (BATCH,))}


TASKS = {
    "gpt2": Task(
        transformers.GPT2LMHeadModel,
        transformers.GPT2Config,
        {
            "vocab_size": VOCABULARY,
            "n_positions": LENGTH,
            "n_embd": WIDTH,
            "n_layer": 2,
            "n_head": HEADS,
            "use_cache": False,
            "bos_token_id": 0,
            "eos_token_id": 0,
        },
        ("resid_pdrop", "embd_pdrop", "attn_pdrop"),
        next_tokens,
    ),
    "llama": Task(
        transformers.LlamaForCausalLM,
        transformers.LlamaConfig,
        {
            "vocab_size": VOCABULARY,
            "hidden_size": WIDTH,
            "intermediate_size": 96,
            "num_hidden_layers": 2,
            "num_attention_heads": HEADS,
            "num_key_value_heads": HEADS // 2,
            "use_cache": False,
        },
        ("attention_dropout",),
        next_tokens,
    ),
    "bert": Task(
        transformers.BertForMaskedLM,
        transformers.BertConfig,
        {
            "vocab_size": VOCABULARY,
            "hidden_size": WIDTH,
            "intermediate_size": 96,
            "num_hidden_layers": 2,
            "num_attention_heads": HEADS,
        },
        ("hidden_dropout_prob", "attention_probs_dropout_prob"),
        masked_tokens,
    ),
    "t5": Task(
        transformers.T5ForConditionalGeneration,
        transformers.T5Config,
        {
            "vocab_size": VOCABULARY,
            "d_model": WIDTH,
            "d_kv": WIDTH // HEADS,
            "d_ff": 96,
            "num_layers": 2,
            "num_heads": HEADS,
            "use_cache": False,
            "decoder_start_token_id": 0,
        },
        ("dropout_rate",),
        masked_tokens,
    ),
    "vit": Task(
        transformers.ViTForImageClassification,
        transformers.ViTConfig,
        {
            "hidden_size": WIDTH,
            "intermediate_size": 96,
            "num_hidden_layers": 2,
            "num_attention_heads": HEADS,
            "image_size": 32,
            "patch_size": 4,
            "num_labels": 5,
        },
        ("hidden_dropout_prob", "attention_probs_dropout_prob"),
        images,
    ),
    "resnet": Task(
        transformers.ResNetForImageClassification,
        transformers.ResNetConfig,
        {
            "embedding_size": 16,
            "hidden_sizes": [16, 32],
            "depths": [2, 2],
            "layer_type": "basic",
            "num_labels": 5,
        },
        (),
        images,
        ("eager",),
    ),
}
VARIANTS = [(name, attention) for name, task in TASKS.items() for attention in task.attentions]


def is_statistic(tensor):
    """Norm statistics are one number for each row or channel, log-sum-exps one for each query of a head."""
    per_row = tensor.dim() > 1 and tensor.shape[-1] == 1
    per_channel = tensor.dim() == 1
    per_query = tensor.dim() == 3 and tensor.shape[1] == HEADS
    return per_row or per_channel or per_query


def is_exact(tensor):
    return is_log_softmax(tensor) or is_statistic(tensor)


def step(task, model, context, autocast=None, scale=1.0):
    """Gradients of one training step, and what the context gave."""
    torch.manual_seed(1)  # the same batch and the same dropout masks every time
    inputs = task.inputs()
    with context as saver, torch.autocast("cpu", autocast, enabled=autocast is not None):
        loss = model(**inputs).loss
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=scale, enabled=scale != 1.0)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    found = gradients(model)
    assert found
    assert all(gradient.isfinite().all() for gradient in found.values())
    return found, saver


def check(task, model, fmt=FMT, *, min_values=2, **how):
    """Equal to the reference; and compressed, so that what is lost can be seen in the gradients.

    A single value is what the loss is divided by.
    """
    found, saver = step(task, model, Compressor(model, stored(fmt), min_values=min_values), **how)
    assert saver.report().ratio > (1.4 if how.get("autocast") else 2), str(saver.report())

    expected, _ = step(task, model, reference(model, fmt, is_exact, min_values=min_values), **how)
    assert unequal(found, expected) == []

    exact, _ = step(task, model, untouched(), **how)
    assert unequal(found, exact) != []


@pytest.mark.parametrize(("name", "attention"), VARIANTS)
def test_gradients_equal_the_reference(name, attention):
    """Coarse with SDPA attention, fine with eager; with dropout both are fine."""
    task = TASKS[name]
    check(task, task.build(attention), FMT if attention == task.attentions[0] else COARSE)


@pytest.mark.parametrize(("name", "attention"), VARIANTS)
def test_dropout_masks_are_exact(name, attention):
    task = TASKS[name]
    check(task, task.build(attention, dropout=0.1))


@pytest.mark.parametrize("name", TASKS)
def test_tensors_under_the_size_floor_are_exact(name):
    task = TASKS[name]
    check(task, task.build(), min_values=1024)


@pytest.mark.parametrize("name", TASKS)
def test_bf16_autocast_equals_the_reference(name):
    task = TASKS[name]
    check(task, task.build(task.attentions[0]), autocast=torch.bfloat16)


@pytest.mark.parametrize("name", TASKS)
def test_fp16_autocast_with_a_scaled_loss_equals_the_reference(name):
    task = TASKS[name]
    check(task, task.build(task.attentions[-1]), autocast=torch.float16, scale=1024.0)


@pytest.mark.parametrize(("name", "attention"), VARIANTS)
def test_a_format_that_loses_nothing_changes_nothing(name, attention):
    task, autocast = TASKS[name], None if attention == "eager" else torch.bfloat16
    model = task.build(attention, dropout=0.1)
    exact, _ = step(task, model, untouched(), autocast=autocast)
    lossless = PlaneFormat("fp32", block=64, target=256)
    found, saver = step(task, model, Compressor(model, stored(lossless)), autocast=autocast)
    assert any(row.kept == "compressed" for row in saver.report().rows)
    assert unequal(found, exact) == []


@pytest.mark.parametrize("autocast", [None, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize(("name", "attention"), VARIANTS)
def test_what_is_recomputed_from_exact_tensors_changes_nothing(name, attention, autocast):
    task = TASKS[name]
    model = task.build(attention, dropout=0.1)
    exact, _ = step(task, model, untouched(), autocast=autocast)
    policy = Policy([Rule("recompute")])
    found, saver = step(task, model, Compressor(model, policy, min_values=2), autocast=autocast)
    assert saver.report().recomputed_bytes > 0
    assert unequal(found, exact) == []
