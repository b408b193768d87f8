"""Peaks of a training step at the shapes of CompAct's paper, counted: no machine here has the memory.

Pre-training, Tables 2 and 5 and appendix B: LLaMA-60M, 130M and 350M of GaLore's configurations, in bf16, 256
tokens, 512 sequences in all, which GaLore's script for 350M trains in passes of 128; norms without a
conversion of dtype; the loss of logits that stay in bf16. Fine-tuning, Table 4 and appendix C: RoBERTa-base,
16 sequences of 512 tokens. Attention keeps its result and a log-sum-exp, as FlashAttention does.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any
from unittest import mock

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional

from torch_bridge.schemes import compact

from . import live

MB = 2**20  # the paper's GB and MB are PyTorch's, powers of two

# hidden, intermediate, layers, heads: configs/ of github.com/jiaweizzhao/GaLore
LLAMAS = {
    "LLaMA-60M": (512, 1376, 8, 8),
    "LLaMA-130M": (768, 2048, 12, 12),
    "LLaMA-350M": (1024, 2736, 24, 16),
}
ROBERTA = "RoBERTa-base"
VOCABULARY, LENGTH, PASS, ACCUMULATE = 32000, 256, 128, 2  # with more passes the last is the same
FINE_TUNING_BATCH, FINE_TUNING_LENGTH = 16, 512

# Ranks as the paper calls them.
RANKS = {"full": None, "n/2": 1 / 2, "n/4": 1 / 4, "n/8": 1 / 8, "8": 8, "4": 4}

# Table 2, GB, by rank from "full" on, and Table 4, MB.
_TABLE_2 = {
    "LLaMA-60M": (11.59, 11.32, 10.80, 10.54),
    "LLaMA-130M": (18.66, 17.97, 16.78, 16.19),
    "LLaMA-350M": (39.97, 37.94, 34.71, 33.03),
}
PAPER = {
    (model, rank): 1024 * gb
    for model, peaks in _TABLE_2.items()
    for rank, gb in zip(RANKS, peaks, strict=False)
} | {(ROBERTA, "full"): 6298, (ROBERTA, "8"): 3102, (ROBERTA, "4"): 3092}


@dataclass(frozen=True)
class Case:
    """A row.

    Attributes:
        model: of ``LLAMAS``, or ``ROBERTA``.
        rank: of ``RANKS``.
        shared: whether layers with one input keep one projection of it.
        dtype: "bf16", "fp32", or "autocast" to bf16 of weights in fp32.
    """

    model: str
    rank: str
    shared: bool
    dtype: str

    @property
    def is_full(self) -> bool:
        return RANKS[self.rank] is None


def cases() -> Iterator[Case]:
    for model in LLAMAS:
        yield Case(model, "full", True, "bf16")
        for rank in ("n/2", "n/4", "n/8"):
            for shared in (False, True):
                yield Case(model, rank, shared, "bf16")
    for dtype in ("fp32", "autocast"):
        yield Case(ROBERTA, "full", True, dtype)
        for rank in ("8", "4"):
            for shared in (False, True):
                yield Case(ROBERTA, rank, shared, dtype)


def measure(case: Case) -> dict[str, Any]:
    """A case's row: MB by kind when they are most, and between the passes; the paper's where it has one."""
    with FakeTensorMode(), _as_in_the_paper(case.model != ROBERTA):
        model, names = build(case)
        optimizer = (compact.CompActAdamW if names else torch.optim.AdamW)(*_of(model, names), lr=1e-3)
        tokens, labels = _batch(case)
        found = live.count(
            model,
            optimizer,
            lambda: _loss(case, model, tokens, labels),
            names or _plain_names(model),
            vocabulary=VOCABULARY if case.model in LLAMAS else 0,
            accumulate=ACCUMULATE if case.model in LLAMAS else 1,
        )
    return {
        "model": case.model,
        "rank": case.rank,
        "shared": case.shared,
        "dtype": case.dtype,
        "peak_mb": round(sum(found.at_peak.values()) / MB, 1),
        "at_peak_mb": {kind: round(nbytes / MB, 1) for kind, nbytes in found.at_peak.items()},
        "kept_mb": {kind: round(nbytes / MB, 1) for kind, nbytes in found.kept.items()},
    }


def build(case: Case) -> tuple[nn.Module, list[str]]:
    """The model, and the names of its converted layers, none if it trains in full."""
    import transformers as hf

    torch.manual_seed(0)
    if case.model in LLAMAS:
        hidden, intermediate, layers, heads = LLAMAS[case.model]
        config: Any = hf.LlamaConfig(
            hidden_size=hidden,
            intermediate_size=intermediate,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            vocab_size=VOCABULARY,
            tie_word_embeddings=False,
            use_cache=False,
            attn_implementation=_ATTENTION,
        )
        model: Any = hf.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    else:
        config = hf.RobertaConfig(
            vocab_size=50265,
            max_position_embeddings=FINE_TUNING_LENGTH + 2,
            type_vocab_size=1,
            attn_implementation=_ATTENTION,
        )
        model = hf.AutoModelForSequenceClassification.from_config(config)
    model.train()
    rank = RANKS[case.rank]
    return model, [] if rank is None else compact.convert(model, rank, shared=case.shared)


_ATTENTION = "counted"


def attend(
    module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, _mask: Any, **options: Any
) -> tuple[torch.Tensor, None]:
    """Attention of one operation for transformers; it masks by what the model is, not by a mask.

    Args:
        module: of the model, which says whether attention is causal.
        query, key, value: float[batch, heads, tokens, width].
        options: of transformers; "scaling" is used.

    Returns:
        float[batch, tokens, heads, width], and no probabilities.
    """
    flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    out, _ = flash(query, key, value, 0.0, module.is_causal, scale=options.get("scaling"))
    return out.transpose(1, 2), None


@contextmanager
def _as_in_the_paper(is_llama: bool) -> Iterator[None]:
    import transformers as hf
    from transformers.models.llama import modeling_llama as llama

    hf.AttentionInterface.register(_ATTENTION, attend)
    patch = mock.patch.object(llama.LlamaRMSNorm, "forward", _norm) if is_llama else nullcontext()
    with patch:
        yield


def _norm(self: Any, x: torch.Tensor) -> torch.Tensor:
    """LLaMA's norm without a conversion of dtype."""
    return self.weight * (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.variance_epsilon))


def _of(model: nn.Module, names: list[str]) -> tuple[Any, ...]:
    return (model,) if names else (model.parameters(),)


def _plain_names(model: nn.Module) -> list[str]:
    """Of the layers that CompAct would convert."""
    return [
        name
        for name, layer in model.named_modules()
        if type(layer) is nn.Linear and any(fnmatchcase(name, pattern) for pattern in compact.NAMES)
    ]


def _batch(case: Case) -> tuple[torch.Tensor, torch.Tensor]:
    if case.model in LLAMAS:
        tokens = torch.zeros(PASS, LENGTH, dtype=torch.int64)
        return tokens, tokens[:, 1:].contiguous().view(-1)
    tokens = torch.zeros(FINE_TUNING_BATCH, FINE_TUNING_LENGTH, dtype=torch.int64)
    return tokens, torch.zeros(FINE_TUNING_BATCH, dtype=torch.int64)


def _loss(case: Case, model: nn.Module, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", torch.bfloat16, enabled=case.dtype == "autocast"):
        if case.model in LLAMAS:
            logits = model(input_ids=tokens).logits[:, :-1].contiguous()
            return functional.cross_entropy(logits.view(-1, VOCABULARY), labels)
        places = torch.zeros_like(tokens)  # which no value of the tokens has to be looked at for
        return functional.cross_entropy(model(input_ids=tokens, position_ids=places).logits, labels)
