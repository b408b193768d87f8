"""The planner's promise: a training step needs what it says, and the planner needs no memory for it."""

import gc
from contextlib import nullcontext

import pytest
import torch
import transformers

from torch_bridge import Compressor
from torch_bridge.job import peak
from torch_bridge.planner import estimates, treatments
from torch_bridge.planner.estimates import Training
from torch_bridge.schemes.recompute import recompute_activations

from .families import SEQUENCES, T5, TEXT

WIDTH, HEADS, LAYERS, BATCH, LENGTH = 128, 4, 3, 8, 128
TOLERANCE = 0.05
SIZES = {
    **TEXT,
    "vocab_size": 512,
    "hidden_size": WIDTH,
    "intermediate_size": 3 * WIDTH,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "max_position_embeddings": LENGTH,
}
GROUPED = {**SIZES, "num_key_value_heads": 2, "head_dim": WIDTH // HEADS}
NAMED_AS_GPT2 = {"n_embd": WIDTH, "n_layer": LAYERS, "n_head": HEADS, "n_positions": LENGTH}
MODELS = {
    "gpt2": {**TEXT, "vocab_size": 512, **NAMED_AS_GPT2},
    "gpt_neo": {
        **SIZES,
        "num_layers": LAYERS,
        "num_heads": HEADS,
        "attention_types": [[["global"], LAYERS]],
    },
    "llama": GROUPED,
    "qwen3": GROUPED,
    "gemma2": {**GROUPED, "query_pre_attn_scalar": 32},
    "opt": {**SIZES, "ffn_dim": 3 * WIDTH, "word_embed_proj_dim": WIDTH},
    "phi": SIZES,
    "bert": SIZES,
    "t5": {**T5, "d_model": WIDTH, "d_kv": WIDTH // HEADS, "d_ff": 3 * WIDTH, "vocab_size": 512},
    "bart": {**SEQUENCES, "d_model": WIDTH, "vocab_size": 512, "max_position_embeddings": LENGTH},
}
RANDOM_STATE = torch.get_rng_state().nbytes  # that a checkpoint keeps, where no operation makes it
SCALARS = 256  # bytes of numbers that operations are given, whose memory a dry run does not see
DTYPES = ("fp32", "bf16-autocast", "bf16")
TREATMENTS = (treatments.BASELINE, treatments.FOUR_BITS, treatments.PLANES, treatments.TIMED, treatments.CHECKPOINTING)


def training_of(name, dtype="fp32", **options):
    config = transformers.AutoConfig.for_model(name, **MODELS[name])
    options = {"batch": BATCH, "length": LENGTH, "device": "cpu", **options}
    return Training(config=config, dtype=dtype, **options)


def measured(training, treatment):
    """Bytes that a step allocates over those before it, at most and between its passes; what is stored."""
    torch.manual_seed(0)
    model = training.build()
    vocabulary = training.config.get_text_config().vocab_size
    tokens = torch.randint(5, vocabulary, (training.batch, training.length))
    batch = {"input_ids": tokens, "labels": tokens}
    optimizer = estimates.OPTIMIZERS[training.optimizer](
        [p for p in model.parameters() if p.requires_grad], False
    )
    saver = None if treatment.options is None else Compressor(model, **treatment.options)

    def step():
        checkpointing = recompute_activations(model) if treatment.is_checkpointed else nullcontext()
        with checkpointing, saver or nullcontext():
            loss = training.loss(model, batch)
        yield
        loss.backward()
        optimizer.step()

    for _ in range(2):
        for _ in step():
            pass
        optimizer.zero_grad(set_to_none=True)
        gc.collect()
    return peak.measure(step, torch.device("cpu")), saver.stored_bytes if saver else None


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", MODELS)
def test_a_step_needs_what_was_planned(name, dtype):
    training = training_of(name, dtype)
    wrong = []
    for found in estimates.estimate(training, TREATMENTS):
        real, stored = measured(training, found.treatment)
        planned = found.gradients + found.activations + found.workspace
        kept = found.kept + RANDOM_STATE * LAYERS * found.treatment.is_checkpointed
        what = f"{found.treatment.name}: stored {found.stored} of {stored}, kept {kept} of {real.kept}, "
        what += f"peak {planned} of {real.peak}"
        is_stored, is_peak = (
            stored in (None, found.stored),
            planned == pytest.approx(real.peak, rel=TOLERANCE),
        )
        if not (is_stored and is_peak and kept == pytest.approx(real.kept, abs=SCALARS)):
            wrong.append(what)
    assert not wrong, wrong
