"""CompAct with the rest of the activations compressed: a LLaMA-60M's second step, on English text in fp32.

A ``Compressor`` goes around the model after it was converted. What CompAct keeps are saved tensors as others
are, and are compressed too unless a rule says that they stay exact. A policy more is a row more.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import nn

from golden import HadamardFormat
from torch_bridge import Compressor, Policy, Rule
from torch_bridge.job import peak, train
from torch_bridge.schemes import compact

from .peaks import LLAMAS, MB, VOCABULARY

SEQUENCES, LENGTH = 2, 256
FOUR_BITS = Policy.default(HadamardFormat(target=HadamardFormat().block * 4 // 8))
EXACT_PROJECTIONS = Policy([Rule("exact", saved_by="CompActLinearFunction"), *FOUR_BITS.rules])

METHODS: dict[str, tuple[float | None, Policy | None]] = {
    "full": (None, None),
    "full, 4 bits": (None, FOUR_BITS),
    "n/4": (1 / 4, None),
    "n/4, the rest 4 bits": (1 / 4, EXACT_PROJECTIONS),
    "n/4, all 4 bits": (1 / 4, FOUR_BITS),
}


def measure() -> list[dict[str, Any]]:
    """A row for each method: MB kept between the passes and at most, beside parameters; the gradient's error.

    The error is that against the same model whose activations are not compressed, over all that is trained.
    """
    text = train.read_text(None)[: SEQUENCES * LENGTH].view(SEQUENCES, LENGTH)
    rows, exact = [], dict[float | None, torch.Tensor]()
    for name, (rank, policy) in METHODS.items():
        model = _model(rank)
        around: Any = Compressor(model, policy) if policy is not None else nullcontext()
        if policy is not None:  # the first step finds out what may be recomputed
            for _between in _step(model, text, around):
                pass
            model.zero_grad(set_to_none=True)
        found = peak.measure(partial(_step, model, text, around), torch.device("cpu"))
        gradient = torch.cat([one.grad.flatten() for one in model.parameters() if one.grad is not None])
        reference = exact.setdefault(rank, gradient)
        row = {
            "method": name,
            "kept_mb": round(found.kept / MB, 1),
            "peak_mb": round(found.peak / MB, 1),
            "gradient_error": round(float((gradient - reference).norm() / reference.norm()), 4),
        }
        rows.append(row)
        print(row)
    return rows


def _model(rank: float | None) -> nn.Module:
    import transformers as hf

    torch.manual_seed(0)
    hidden, intermediate, layers, heads = LLAMAS["LLaMA-60M"]
    model: Any = hf.LlamaForCausalLM(
        hf.LlamaConfig(
            hidden_size=hidden,
            intermediate_size=intermediate,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            vocab_size=VOCABULARY,
            use_cache=False,
        )
    )
    if rank is not None:
        compact.convert(model, rank)
    return model


def _step(model: nn.Module, tokens: torch.Tensor, around: AbstractContextManager[Any]) -> Iterator[None]:
    """Yields between the passes."""
    with around:
        loss = model(input_ids=tokens, labels=tokens).loss
    yield
    loss.backward()
