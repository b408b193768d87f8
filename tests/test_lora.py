"""What is kept of a model whose weights are frozen, with LoRA beside them."""

import pytest
import torch

from torch_bridge import Compressor, Policy

from .test_hyclora import llama

TOKENS = torch.randint(1024, (2, 512), generator=torch.Generator().manual_seed(1))


def kept(policy=None, **options):
    """The rows of a step."""
    model = llama(vocabulary=1024)
    saver = Compressor(model, policy, min_values=0, **options)
    for _ in range(2 if "time" in options else 1):  # the first pass says what fits the time
        with saver, torch.autocast("cpu", torch.bfloat16):
            loss = model(TOKENS, labels=TOKENS).loss
        loss.backward()
    return saver.report().rows


@pytest.mark.parametrize("options", [{"bits": 4}, {"bits": 2}, {"bits": 4, "time": 1.35}])
def test_frozen_layers_have_nothing_kept_but_their_weights(options):
    rows = [row for row in kept(**options) if ".base_layer" in row.module]
    assert rows
    assert not any(row.counted for row in rows)
    assert {row.kept for row in rows if row.dtype == "bfloat16"} == {"recomputed"}


@pytest.mark.parametrize("options", [{"bits": 4}, {"bits": 2}])
def test_what_is_kept_beside_what_autograd_keeps_is_less_than_what_it_replaces(options):
    """The frozen head's input, in place of the log-softmax."""
    rows = kept(**options)
    inputs = [row for row in rows if row.kept == "recomputation input" and row.stored_bytes > 1024]
    softmax = [row for row in rows if row.op == "_log_softmax" and row.kept == "recomputed"]
    assert [row.op for row in inputs] == ["_log_softmax"]
    assert len(softmax) == 1
    assert inputs[0].stored_bytes * 8 <= softmax[0].original_bytes


def test_no_more_is_kept_of_adapters_than_autograd_keeps():
    """Of what A and B are given, layer by layer."""

    def bytes_of(rows):
        found = {}
        for row in rows:
            if ".lora_" in row.module and row.counted:
                found[row.module] = found.get(row.module, 0) + row.original_bytes
        return found

    exact, lossy = bytes_of(kept(Policy([]))), bytes_of(kept(bits=4))
    assert exact
    assert lossy == exact
