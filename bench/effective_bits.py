"""How many of the stored bits are worth something: ``python -m bench.effective_bits``.

For models that the formats were not tuned on, each after some steps of training: GPT-2 of another width, with
eager attention and dropout and so with causal zeros, on another text; a Llama; a ViT on images of digits. Of
all float tensors that autograd saves and the default policy compresses; queries, keys and softmaxes, which
that policy has finer, are in the format too:

- effective bits, ``0.5 * log2(variance / mean squared error)`` of each 64 values, at most 24, the mean over
  those that vary, weighted by bytes: the rate at which an ideal code for Gaussian values would do as well;
- the gradient error ``||g - g_exact|| / ||g_exact||`` over all parameters, with the same dropout masks.

Rows go to build/bench/effective_bits.json.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
import transformers
from rich.console import Console
from rich.progress import track
from rich.table import Table
from sklearn.datasets import load_digits

from golden import HadamardFormat, PlaneFormat
from torch_bridge import Compressor, Policy, Rule, backends
from torch_bridge.backends.dtypes import AnyFormat
from torch_bridge.calibration.capture import Saved, visit
from torch_bridge.job import train

FORMATS = [
    *(PlaneFormat("fp32", 64, 8 * bits) for bits in (10, 8, 6, 5, 4, 3)),
    *(HadamardFormat("fp32", 128, target) for target in (64, 48, 40, 32, 26, 16)),
]
STEPS = 20
SAMPLE = 1 << 15  # values of a tensor
OUTPUT = Path("build/bench/effective_bits.json")

Loss = Callable[[], torch.Tensor]
Batch = Callable[[int], dict[str, torch.Tensor]]
Maker = Callable[[], tuple[torch.nn.Module, Batch]]


def gpt2() -> tuple[torch.nn.Module, Batch]:
    """Four layers of 256, with eager attention, on Python's own source rather than its help."""
    config = transformers.GPT2Config(
        vocab_size=256,
        n_positions=128,
        n_embd=256,
        n_layer=4,
        n_head=8,
        attn_implementation="eager",
        bos_token_id=None,
        eos_token_id=None,
    )
    return transformers.GPT2LMHeadModel(config), _on_sources


def llama() -> tuple[torch.nn.Module, Batch]:
    config = transformers.LlamaConfig(
        vocab_size=256,
        hidden_size=192,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=6,
        max_position_embeddings=128,
    )
    return transformers.LlamaForCausalLM(config), _on_sources


def vit() -> tuple[torch.nn.Module, Batch]:
    config = transformers.ViTConfig(
        hidden_size=128,
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=512,
        image_size=32,
        patch_size=4,
        num_labels=10,
    )
    return transformers.ViTForImageClassification(config), _on_digits


def _on_sources(seed: int) -> dict[str, torch.Tensor]:
    text = train.read_text(Path(json.__file__).with_name("decoder.py"))
    tokens = train.draw(text, 4, 128, torch.Generator().manual_seed(seed))
    return {"input_ids": tokens, "labels": tokens}


def _on_digits(seed: int) -> dict[str, torch.Tensor]:
    digits = load_digits()
    chosen = np.random.default_rng(seed).integers(0, len(digits.target), 16)
    images = torch.tensor(digits.images[chosen], dtype=torch.float32)[:, None] / 16 - 0.3
    pixels = torch.nn.functional.interpolate(images, scale_factor=4, mode="bilinear").expand(-1, 3, -1, -1)
    return {"pixel_values": pixels.contiguous(), "labels": torch.tensor(digits.target[chosen])}


MODELS = {"gpt2, eager": gpt2, "llama": llama, "vit": vit}


def main() -> None:
    argparse.ArgumentParser(
        prog="python -m bench.effective_bits", description=__doc__.partition(":")[0]
    ).parse_args()
    rows = []
    for name, make in MODELS.items():
        model, batch = trained(make)
        kinds = tensors(model, lambda model=model, batch=batch: loss_of(model, batch))
        exact = gradient(model, batch, None)
        for fmt in track(FORMATS, name, console=Console(stderr=True), transient=True):
            error = gradient(model, batch, fmt)
            rows.append(
                {
                    "model": name,
                    "format": fmt.scheme,
                    "bits": 8 * fmt.target / fmt.block,
                    "effective_bits": mean(quality(fmt, kinds)),
                    "gradient_error": float((error - exact).norm() / exact.norm()),
                }
            )
    table = Table("model", "format", title="planes of 64 values, Hadamard blocks of 128")
    for heading in ("bits", "effective", "gap", "gradient error"):
        table.add_column(heading, justify="right")
    for before, row in pairwise([{}, *rows]):
        model_name = row["model"] if before.get("model") != row["model"] else ""
        gap = row["bits"] - row["effective_bits"]
        table.add_row(
            model_name,
            row["format"],
            f"{row['bits']:.3g}",
            f"{row['effective_bits']:.2f}",
            f"{gap:.2f}",
            f"{row['gradient_error']:.2g}",
        )
    Console(width=130).print(table)
    OUTPUT.parent.mkdir(parents=True, exist_ok=True)
    OUTPUT.write_text(json.dumps(rows, indent=2) + "\n")
    print(f"written to {OUTPUT}")


def everything(fmt: AnyFormat) -> Policy:
    """What the default policy keeps in a format, nothing recomputed, and what attention has finer by default.

    So it befits a study of formats. It does not befit models that were trained for long, whose attention
    needs more, see :class:`torch_bridge.facts.need.Need`.
    """
    attention = ("*attention*.[qkvo]*", "_softmax.result")
    return Policy([*(Rule(fmt, saved_by=one, unchecked=True) for one in attention), Rule(fmt)])


def trained(make: Maker) -> tuple[torch.nn.Module, Batch]:
    """A model after some steps, and its batches by their seed."""
    torch.manual_seed(0)
    model, batch = make()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4)
    for step in range(STEPS):
        model(**batch(step)).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return model, batch


def loss_of(model: torch.nn.Module, batch: Batch) -> torch.Tensor:
    torch.manual_seed(1)
    return model(**batch(99)).loss


def tensors(model: torch.nn.Module, forward: Loss) -> dict[str, list[np.ndarray]]:
    """By operation: float32[blocks, 128] of each saved tensor, a sample."""
    kinds: dict[str, list[np.ndarray]] = defaultdict(list)

    def use(saved: Saved) -> None:
        whole = len(saved.values) // 128 * 128
        if saved.exact is None and saved.dtype == "fp32" and whole >= 1024:
            blocks = saved.values[:whole].reshape(-1, 128)
            every = -(-whole // SAMPLE)
            kinds[saved.op].append(blocks[::every])

    visit(model, forward, use)
    return kinds


def quality(fmt: AnyFormat, kinds: dict[str, list[np.ndarray]]) -> dict[str, np.ndarray]:
    """By operation: effective bits of each 64 values, NaN where they do not vary."""
    found, backend = {}, backends.get("auto", fmt)
    for op, blocks in kinds.items():
        values = np.concatenate(blocks)
        decoded = backend.decompress(backend.compress(torch.from_numpy(values).view(-1)), values.size).numpy()
        exact = values.astype(np.float64).reshape(-1, 64)
        error = ((decoded.astype(np.float64).reshape(-1, 64) - exact) ** 2).mean(axis=1)
        variance = exact.var(axis=1)
        with np.errstate(divide="ignore", invalid="ignore"):
            bits = np.minimum(0.5 * np.log2(variance / error), 24)
        found[op] = np.where(variance > 0, bits, np.nan)
    return found


def mean(found: dict[str, np.ndarray]) -> float:
    return float(np.nanmean(np.concatenate(list(found.values()))))


def gradient(model: torch.nn.Module, batch: Batch, fmt: AnyFormat | None) -> torch.Tensor:
    if fmt is None:
        loss = loss_of(model, batch)
    else:
        with Compressor(model, everything(fmt)):
            loss = loss_of(model, batch)
    found = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)
    return torch.cat([one.flatten() for one in found if one is not None])


if __name__ == "__main__":
    main()
