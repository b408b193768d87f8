"""How fast golden/ compresses and decompresses: ``python -m bench.golden_speed``.

Prints MB of values per second each way, the median of several runs on one thread, and writes
the same rows to build/bench/golden.json. The values are like activations: normally distributed,
half of them zero in one block of three.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from golden import PlaneFormat

ORIGINAL_BYTES = 16 << 20
RUNS = 7
BLOCK = 64
TARGETS = (80, 128, None)  # 128 bytes is the uncompressed block in bf16
OUTPUT = Path("build/bench/golden.json")


def activations(fmt: PlaneFormat) -> np.ndarray:
    """ORIGINAL_BYTES of values of the format's type."""
    rng = np.random.default_rng(0)
    values = rng.standard_normal((ORIGINAL_BYTES // fmt.original_bytes, fmt.block), np.float32)
    values[::3][rng.random(values[::3].shape) < 0.5] = 0
    return values.astype(fmt.float_type.array)


def megabytes_per_second(work: Callable[[], object]) -> float:
    """Median over RUNS, after one run to warm up."""
    seconds = []
    for _ in range(RUNS + 1):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return ORIGINAL_BYTES / 1e6 / statistics.median(seconds[1:])


def measure(fmt: PlaneFormat) -> dict[str, str | int | float | None]:
    values = activations(fmt)
    stored = fmt.compress(values)
    return {
        "dtype": fmt.dtype,
        "block": fmt.block,
        "target": fmt.target,
        "ratio": values.nbytes / stored.nbytes,
        "compress_mb_per_s": megabytes_per_second(lambda: fmt.compress(values)),
        "decompress_mb_per_s": megabytes_per_second(lambda: fmt.decompress(stored, values.shape)),
    }


def main() -> None:
    argparse.ArgumentParser(
        prog="python -m bench.golden_speed", description=__doc__.partition(":")[0]
    ).parse_args()
    print(f"golden, {ORIGINAL_BYTES >> 20} MiB of values, median of {RUNS} runs, MB/s of values\n")
    print(f"{'dtype':6}{'block':>6}{'target':>10}{'ratio':>7}{'compress':>10}{'decompress':>12}")
    rows = []
    for dtype in ("fp32", "bf16"):
        for target in TARGETS:
            row = measure(PlaneFormat(dtype, BLOCK, target))
            rows.append(row)
            print(
                f"{dtype:6}{BLOCK:6}{target or 'lossless':>10}{row['ratio']:7.2f}"
                f"{row['compress_mb_per_s']:10.0f}{row['decompress_mb_per_s']:12.0f}"
            )
    OUTPUT.parent.mkdir(parents=True, exist_ok=True)
    OUTPUT.write_text(json.dumps(rows, indent=2) + "\n")
    print(f"\nwritten to {OUTPUT}")


if __name__ == "__main__":
    main()
