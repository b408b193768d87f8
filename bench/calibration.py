"""What calibration gains on the small GPT-2: ``python -m bench.calibration``.

The gradient error ``||g - g_exact|| / ||g_exact||`` over all parameters, with the same dropout masks, of
stashes of one size: all tensors at one rate, or each at the rate that ``bitstash.calibrate`` chose for it, on
batches other than that of the error. The time of calibrating is that of so many training steps on the same
batches. Prints the policies, too; rows go to build/bench/calibration.json.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from statistics import median

import torch
from rich.console import Console
from rich.table import Table

from golden import Format, HadamardFormat, PlaneFormat
from torch_bridge import Compressor, Policy, calibrate
from torch_bridge.job import train

OPTIONS = train.Options(batch=2, dropout=0.1, steps=2)
FORMATS = (PlaneFormat("fp32", 64, 80), HadamardFormat("fp32", 128, 64), HadamardFormat())
OUTPUT = Path("build/bench/calibration.json")


def main() -> None:
    argparse.ArgumentParser(
        prog="python -m bench.calibration", description=__doc__.partition(":")[0]
    ).parse_args()
    model, _ = train.warmed_up(OPTIONS)
    text, context = train.read_text(None), train.CONFIGS[OPTIONS.config]["n_positions"]

    def batch(seed: int) -> dict[str, torch.Tensor]:
        tokens = train.draw(text, OPTIONS.batch, context, torch.Generator().manual_seed(seed))
        return {"input_ids": tokens, "labels": tokens}

    def gradient(policy: Format | Policy) -> tuple[torch.Tensor, int]:
        torch.manual_seed(5)
        with Compressor(model, policy) as saver:
            loss = model(**batch(seed=1)).loss
        found = torch.autograd.grad(loss, list(model.parameters()))
        return torch.cat([one.flatten() for one in found]), saver.stored_bytes

    def seconds_of_steps(batches: list[dict[str, torch.Tensor]]) -> float:
        times = []
        for _ in range(5):
            start = time.perf_counter()
            for one in batches:
                torch.autograd.grad(model(**one).loss, list(model.parameters()))
            times.append(time.perf_counter() - start)
        return median(times)

    exact, original = gradient(Policy([]))
    batches = [batch(2), batch(3)]
    rows = []
    for fmt in FORMATS:
        uniform, size = gradient(fmt)
        start = time.perf_counter()
        policy = calibrate(model, batches, budget=size)
        steps = (time.perf_counter() - start) / seconds_of_steps(batches)
        print(policy)
        calibrated, fitted = gradient(policy)
        for rates, found, stored in (("one for all", uniform, size), ("calibrated", calibrated, fitted)):
            error = float((found - exact).norm() / exact.norm())
            name = f"{fmt.scheme}, {8 * fmt.target / fmt.block:g} bits"
            row = {"format": name, "rates": rates, "ratio": original / stored, "gradient_error": error}
            rows.append(row)
        rows[-1]["steps"] = steps
    table = Table("format", "rates", "ratio", "gradient error", "training steps to calibrate")
    for row in rows:
        steps = f"{row['steps']:.1f}" if "steps" in row else ""
        table.add_row(
            row["format"], row["rates"], f"{row['ratio']:.2f}", f"{row['gradient_error']:.2g}", steps
        )
    Console(width=100).print(table)
    OUTPUT.parent.mkdir(parents=True, exist_ok=True)
    OUTPUT.write_text(json.dumps(rows, indent=2) + "\n")
    print(f"written to {OUTPUT}")


if __name__ == "__main__":
    main()
