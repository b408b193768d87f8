"""A training step's saved tensors in DRAM, with and without the engine: ``make dram DRAMSIM3=folder``.

A step of each model is recorded, laid out in memory in each way, and run through DRAMsim3 with its own
configurations of HBM2, LPDDR4 and DDR4. Writes docs/dram.json and the tables of docs/dram.md.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from gen.arguments import interruptible
from gen.toolchain import ToolError
from golden import HadamardFormat, PlaneFormat
from torch_bridge.job import train

from . import lossless, page, trace
from .dramsim3 import DramSim3, Memory
from .layout import FixedRate, Layout, Pages, Plain, Span, spans
from .step import Step, record

# Sequences of a step.
MODELS = {"small": 4, "medium": 1}
MEMORIES = {"HBM2": "HBM2_8Gb_x128", "LPDDR4": "LPDDR4_8Gb_x16_2400", "DDR4": "DDR4_8Gb_x8_3200"}
LAYOUTS: tuple[Layout, ...] = (
    Plain(),
    FixedRate("bitstash, bit-plane format 3.2x", PlaneFormat("fp32", block=64, target=80)),
    FixedRate("bitstash, Hadamard 16x", HadamardFormat("fp32", block=128, target=32)),
    Pages("bit planes and DEFLATE, pages of 4 KiB", lossless.bit_planes, 4096, entry=8, granularity=64),
    Pages("lines in bins, pages of 4 KiB", lossless.lines, 4096, entry=64, granularity=512),
)
# A step with AdamW reads parameters forward and backward and writes gradients; the optimiser reads these,
# parameters and both moments, and writes all but gradients.
OF_PARAMETERS = 1 + 1 + 1 + 4 + 3
WARM_UP = 20  # steps, after which activations are those of training
FOLDER = Path("docs")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.dram", description=__doc__.partition(":")[0])
    parser.add_argument("--models", nargs="+", choices=train.CONFIGS, default=list(MODELS))
    parser.add_argument("--traces", type=Path, metavar="FOLDER", help="instead, write all traces there")
    arguments = parser.parse_args()
    try:
        with interruptible():
            if arguments.traces:
                write_traces(arguments.models, arguments.traces)
            else:
                simulate(arguments.models, os.environ.get("DRAMSIM3", ""))
    except (ValueError, OSError, ToolError) as error:
        sys.exit(f"python -m bench.dram: {error}")


def simulate(models: Sequence[str], dramsim3: str) -> None:
    """Run the steps of models through DRAMsim3, and write what they take.

    Args:
        models: names in :data:`torch_bridge.job.train.CONFIGS`.
        dramsim3: folder of its repository, built.

    Raises:
        ValueError: there is no build of it.
        gen.toolchain.ToolError: it failed; then nothing is written.
    """
    with tempfile.TemporaryDirectory() as work:
        simulator = DramSim3(Path(dramsim3), Path(work))
        memories = [simulator.memory(name, config) for name, config in MEMORIES.items()]
        console = Console(stderr=True)
        found = []
        for model in models:
            step = step_of(model)
            rows = []
            for layout, stored, moved in laid_out(step):
                for memory in memories:
                    console.print(f"{model}, {layout}, {memory.name}")
                    row = {"layout": layout, "stored_bytes": stored, "memory": memory.name}
                    rows.append(row | _run(simulator, memory, moved, Path(work) / "trace"))
            found.append(about(model, step) | {"rows": rows})
        results = {
            "dramsim3": simulator.commit,
            "memories": {
                memory.name: {"configuration": memory.path.stem, "peak_gb_per_s": round(memory.peak, 1)}
                for memory in memories
            },
            "torch": torch.__version__,
            "models": found,
        }
    (FOLDER / "dram.json").write_text(json.dumps(results, indent=1) + "\n")
    page.fill(FOLDER / "dram.md", results)
    page.fill_engine(FOLDER)
    print(f"wrote {FOLDER / 'dram.json'} and {FOLDER / 'dram.md'}")


def step_of(model: str) -> Step:
    """The step after :data:`WARM_UP` others."""
    options = train.Options(config=model, steps=WARM_UP, batch=MODELS.get(model, 1), fused=True, device="cpu")
    return record(*train.warmed_up(options))


def about(model: str, step: Step) -> dict[str, Any]:
    """What a step is."""
    return {
        "model": model,
        "batch": MODELS.get(model, 1),
        "tensors": len(step.tensors),
        "saved_bytes": step.saved_bytes,
        "exact_bytes": sum(tensor.size for tensor in step.tensors if tensor.exact),
        "moved_bytes": step.moved_bytes,
        "parameter_bytes": sum(step.parameters),
        "parameter_traffic_bytes": OF_PARAMETERS * sum(step.parameters),
    }


def laid_out(step: Step) -> Iterator[tuple[str, int, list[tuple[bool, Span]]]]:
    """For each layout its name, the bytes that it takes, and what it moves."""
    for layout in LAYOUTS:
        places = layout.place(step.tensors)
        yield layout.name, sum(place.stored for place in places), list(spans(step, places))


def _run(
    simulator: DramSim3, memory: Memory, moved: Sequence[tuple[bool, Span]], path: Path
) -> dict[str, Any]:
    count = trace.write_dramsim3(trace.requests(moved, memory.burst), path)
    return {"moved_bytes": count * memory.burst} | asdict(simulator.run(memory, path))


def write_traces(models: Sequence[str], folder: Path, burst: int = 64) -> None:
    """A file for each model, layout and simulator, of bursts of so many bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    for model in models:
        for number, (_, _, moved) in enumerate(laid_out(step_of(model))):
            for simulator, write in trace.WRITERS.items():
                path = folder / f"{model}-{number}.{simulator}"
                print(f"{path}: {write(trace.requests(moved, burst), path):,} requests")


if __name__ == "__main__":
    main()
