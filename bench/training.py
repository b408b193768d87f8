"""What a training step costs in time and memory, by scheme: ``python -m bench.training``.

Trains GPT-2, the small default and the 124M one, each as Hugging Face has it and with GELU as one operation,
which saves less by itself ("fused"), without compression, with the bit-plane format at 3.2x, the
same with checksums, with the default policy of the Hadamard format at 8x, which recomputes, with
``torch.utils.checkpoint`` for each block, and with ``torch.autograd.graph.save_on_cpu``. Each row runs in a
process of its own, in several rounds over all schemes, so that a machine whose speed changes is unjust to
none. Memory is measured: on a CPU by PyTorch's allocator, whose every allocation the profiler reports, in a
step that is not timed; on a GPU by ``torch.cuda.max_memory_allocated``.

Columns: seconds of a step (median); MB that are alive when the forward pass ends, over those before, as
predicted by the Compressor's report and as measured; the peak of the whole step, gradients included; the peak
of the process's resident memory. Rows go to build/bench/training.json.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

from gen.arguments import at_least
from golden import HadamardFormat
from torch_bridge import Compressor, Policy
from torch_bridge.job import peak, train

SCHEMES = ("baseline", "planes", "planes_verify", "recomputed", "checkpointing", "save_on_cpu")
MODELS = {
    "small": train.Options(config="small", batch=8, steps=2, recompute=False),
    "small-fused": train.Options(config="small", batch=8, steps=2, recompute=False, fused=True),
    "gpt2": train.Options(config="gpt2", batch=1, steps=1, recompute=False),
    "gpt2-fused": train.Options(config="gpt2", batch=1, steps=1, recompute=False, fused=True),
}
OUTPUT = Path("build/bench/training.json")


def measure(name: str, scheme: str, steps: int) -> dict[str, str | int | float | None]:
    """One row; resident memory is that of this process."""
    options = MODELS[name]
    device = options.torch_device
    model, forward = train.warmed_up(options)
    if scheme == "checkpointing":
        model.activation_checkpointing_enable({"use_reentrant": False})  # type: ignore[operator]

    def around() -> AbstractContextManager[Compressor | None]:
        if scheme.startswith("planes"):
            return Compressor(model, options.policy, verify=scheme == "planes_verify")
        if scheme == "recomputed":
            return Compressor(model, HadamardFormat("fp32", 128, 64))
        if scheme == "save_on_cpu":
            return torch.autograd.graph.save_on_cpu(device.type == "cuda")
        return nullcontext()

    def step() -> Iterator[Compressor | None]:
        """Yields between the passes."""
        with around() as saver:
            loss = forward()
        yield saver
        loss.backward()

    seconds = []
    for _ in range(steps + 1):  # the first to warm up
        model.zero_grad(set_to_none=True)
        start = time.perf_counter()
        for _saver in step():
            pass
        _wait(device)
        seconds.append(time.perf_counter() - start)
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

    model.zero_grad(set_to_none=True)
    found = peak.measure(step, device)
    with Compressor(model, Policy([])) as exact:
        forward()
    predicted = exact.original_bytes if scheme == "baseline" else found.between and found.between.stored_bytes
    return {
        "model": name,
        "scheme": scheme,
        "device": peak.name_of(device),
        "threads": torch.get_num_threads(),
        "seconds_per_step": statistics.median(seconds[1:]),
        "predicted_bytes": predicted,
        "kept_bytes": found.kept,
        "peak_bytes": found.peak,
        "resident_bytes": resident,
    }


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.training", description="Time and memory of a step."
    )
    parser.add_argument("--model", choices=MODELS, help="only this one")
    parser.add_argument("--scheme", choices=SCHEMES, help="only this one")
    parser.add_argument("--steps", type=at_least(1), default=5, help="to take the median of (default: 5)")
    parser.add_argument("--rounds", type=at_least(1), default=3, help="and the median of that (default: 3)")
    parser.add_argument("--row", action="store_true", help="print one row as JSON and write nothing")
    given = parser.parse_args()
    if given.row:
        print(json.dumps(measure(given.model, given.scheme, given.steps)))
        return
    rows: list[dict[str, Any]] = []
    for name in MODELS:
        if given.model not in (None, name):
            continue
        rows += _of_model(name, [s for s in SCHEMES if given.scheme in (None, s)], given.steps, given.rounds)
        OUTPUT.parent.mkdir(parents=True, exist_ok=True)
        OUTPUT.write_text(json.dumps(rows, indent=2) + "\n")  # after each model: a whole run takes long
    _show(rows, given.rounds)
    print(f"written to {OUTPUT}")


def _of_model(name: str, schemes: list[str], steps: int, rounds: int) -> list[dict[str, Any]]:
    """A row for each scheme: the first round's, with the median of all rounds' seconds."""
    runs: dict[str, list[dict[str, Any]]] = {scheme: [] for scheme in schemes}
    for scheme in track(schemes * rounds, f"training {name}", console=Console(stderr=True), transient=True):
        command = [sys.executable, "-m", "bench.training", "--row", "--model", name, "--scheme", scheme]
        done = subprocess.run([*command, "--steps", str(steps)], stdout=subprocess.PIPE, check=True)
        runs[scheme].append(json.loads(done.stdout.splitlines()[-1]))
    return [
        found[0] | {"seconds_per_step": statistics.median(row["seconds_per_step"] for row in found)}
        for found in runs.values()
    ]


def _show(rows: list[dict[str, Any]], rounds: int) -> None:
    table = Table(
        "model", "scheme", title=f"a training step on {rows[0]['device']}, median of {rounds} rounds"
    )
    for heading in ("seconds", "of baseline", "predicted MB", "kept MB", "peak MB", "resident MB"):
        table.add_column(heading, justify="right")
    baseline = {row["model"]: row["seconds_per_step"] for row in rows if row["scheme"] == "baseline"}
    for row in rows:
        times = f"{row['seconds_per_step'] / baseline[row['model']]:.2f}" if row["model"] in baseline else "-"
        sizes = [row[f"{what}_bytes"] for what in ("predicted", "kept", "peak", "resident")]
        cells = ["-" if size is None else f"{size / 1e6:,.1f}" for size in sizes]
        table.add_row(row["model"], row["scheme"], f"{row['seconds_per_step']:.3f}", times, *cells)
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
