"""How far the log-softmax of GPT-2's 50,257 tokens can be compressed: ``python -m bench.log_softmax``.

It is a sixth of all that the 124M GPT-2 saves. For each rate, the gradient error
``||g - g_exact|| / ||g_exact||`` over all parameters, with the log-softmax alone compressed, then with
everything at 3.2x, and the ratio of the all that is saved with the log-softmax at this rate. Rows go to
build/bench/log_softmax.json.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

from golden import PlaneFormat
from torch_bridge import Compressor, Policy, Rule
from torch_bridge.job import train

OPTIONS = train.Options(config="gpt2", batch=1, steps=2)
BITS = (32, 16, 14, 12, 10, 8, 6)
OUTPUT = Path("build/bench/log_softmax.json")


def main() -> None:
    argparse.ArgumentParser(
        prog="python -m bench.log_softmax", description=__doc__.partition(":")[0]
    ).parse_args()
    model, _ = train.warmed_up(OPTIONS)
    text, context = train.read_text(None), train.CONFIGS[OPTIONS.config]["n_positions"]
    tokens = train.draw(text, OPTIONS.batch, context, torch.Generator().manual_seed(1)).to(
        OPTIONS.torch_device
    )

    def gradients(rules: list[Rule]) -> tuple[torch.Tensor, float]:
        with Compressor(model, Policy(rules)) as saver:
            loss = train.loss_of(model, OPTIONS, tokens)
        found = torch.autograd.grad(loss, list(model.parameters()))
        return torch.cat([gradient.flatten() for gradient in found]), saver.report().ratio

    def error(found: torch.Tensor) -> float:
        return float((found - exact).norm() / exact.norm())

    exact, _ = gradients([])
    others = list(Policy.default(OPTIONS.format, recompute=False).rules)
    rows = []
    for bits in track(BITS, "training", console=Console(stderr=True), transient=True):
        fmt = PlaneFormat("fp32", 64, 8 * bits)
        here = Rule("exact" if bits == 32 else fmt, op="_log_softmax")
        alone, _ = gradients([here])
        everything, ratio = gradients([here, *others])
        rows.append(
            {"bits": bits, "error_alone": error(alone), "error_of_all": error(everything), "ratio": ratio}
        )

    table = Table("bits a value", title="gradient error, 124M GPT-2, 1,024 tokens")
    for heading in ("log-softmax alone", "everything at 3.2x", "ratio of all"):
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(
            str(row["bits"]), f"{row['error_alone']:.2g}", f"{row['error_of_all']:.2g}", f"{row['ratio']:.2f}"
        )
    Console(width=100).print(table)
    OUTPUT.parent.mkdir(parents=True, exist_ok=True)
    OUTPUT.write_text(json.dumps(rows, indent=2) + "\n")
    print(f"written to {OUTPUT}")


if __name__ == "__main__":
    main()
