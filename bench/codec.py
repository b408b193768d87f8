"""How fast the codecs of the bridge are beside others, on real activations: ``python -m bench.codec``.

Prints GB of uncompressed values per second each way, the median of several runs, on one thread and on all,
and writes the same rows to build/bench/codec.json. Every codec makes its own output array, as it would in
training, and the memory copy does too. The values are what the default GPT-2 saves, concatenated, without
the tensors that the bridge keeps exact. zfp runs at a fixed rate, in one dimension and on one thread: zfpy
offers no more; it has no bf16, so it gets those values as fp32, converted beforehand. blosc2 is lossless,
at its default level 5, so it has no target. ``planes-verilated`` is the simulated hardware, which ``make
library`` builds.

``--device cuda`` measures the Triton kernels instead, and writes build/bench/codec_gpu.json: there a row
also has the share of the memory copy's rate.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import blosc2
import numpy as np
import torch
import zfpy
from rich.console import Console
from rich.table import Table

from golden import Format, HadamardFormat, PlaneFormat
from torch_bridge import backends
from torch_bridge.backends.dtypes import TORCH_DTYPES
from torch_bridge.job.activations import gpt2_activations

# Of 32 MiB on, glibc takes an array from the kernel and gives it back: then its pages are what is measured.
ORIGINAL_BYTES = {"cpu": 24 << 20, "cuda": 1 << 30}
RUNS = {"cpu": 15, "cuda": 20}
BLOCK, RATIOS = 64, (3.2, 2.0)  # of planes
HADAMARD_BLOCK, HADAMARD_BITS = 128, (2, 3, 4)  # bits a value
SIMULATED = 1 << 19  # values, as a simulation is slow
OUTPUT = {"cpu": Path("build/bench/codec.json"), "cuda": Path("build/bench/codec_gpu.json")}


class Codec(NamedTuple):
    """One codec on one tensor: ``decompress`` takes what ``compress`` gives, and gives values."""

    name: str
    compress: Callable[[], Any]
    decompress: Callable[[Any], torch.Tensor]
    stored_bytes: Callable[[Any], int] = len


def activations(dtype: str, device: str) -> torch.Tensor:
    """The values that the bridge would compress, ORIGINAL_BYTES at most; on a GPU repeated up to them."""
    saved = gpt2_activations(dtype, batch=16)
    values = np.concatenate([s.values for s in saved if s.dtype == dtype and s.exact is None])
    most = ORIGINAL_BYTES[device] // values.itemsize
    octets = values[:most].view(np.uint8)
    flat = torch.from_numpy(octets).view(TORCH_DTYPES[dtype]).to(device)
    return flat if device == "cpu" else flat.repeat(-(-most // len(flat)))[:most]


def planes(dtype: str) -> list[Format]:
    original = PlaneFormat(dtype, BLOCK, None).original_bytes
    return [PlaneFormat(dtype, BLOCK, int(original / ratio)) for ratio in RATIOS]


def hadamards(dtype: str) -> list[Format]:
    return [HadamardFormat(dtype, HADAMARD_BLOCK, HADAMARD_BLOCK * bits // 8) for bits in HADAMARD_BITS]


def bridge(backend: str, values: torch.Tensor, formats: Sequence[Format]) -> Iterator[Codec]:
    for fmt in formats:
        codec = backends.get(backend, fmt)
        yield Codec(
            f"{fmt.scheme}-{backend}",
            lambda codec=codec: codec.compress(values),
            lambda stored, codec=codec: codec.decompress(stored, len(values)),
            torch.Tensor.numel,
        )


def zfp(values: torch.Tensor) -> Iterator[Codec]:
    wide = values.float().numpy()
    for ratio in RATIOS:
        yield Codec(
            "zfp fixed rate",
            lambda rate=8 * values.itemsize / ratio: zfpy.compress_numpy(wide, rate=rate),
            lambda stored: torch.from_numpy(zfpy.decompress_numpy(stored)),
        )


def blosc(values: torch.Tensor, threads: int) -> Iterator[Codec]:
    octets = values.view(torch.uint8).numpy()

    def decompress(stored: bytes) -> torch.Tensor:
        decoded = torch.empty_like(values)
        blosc2.decompress2(stored, dst=decoded.view(torch.uint8).numpy(), nthreads=threads)
        return decoded

    for name, codec in (("lz4", blosc2.Codec.LZ4), ("zstd", blosc2.Codec.ZSTD)):
        options = {"codec": codec, "clevel": 5, "filters": [blosc2.Filter.BITSHUFFLE], "nthreads": threads}
        yield Codec(
            f"blosc2 bitshuffle+{name}",
            lambda options=options: blosc2.compress2(octets, typesize=values.itemsize, **options),
            decompress,
        )


def codecs(values: torch.Tensor, dtype: str, threads: int) -> Iterator[Codec]:
    yield Codec("memcpy", values.clone, torch.Tensor.clone, lambda stored: stored.nbytes)
    if values.device.type == "cuda":
        yield from bridge("triton", values, [*planes(dtype), *hadamards(dtype)])
        return
    yield from bridge("cpu", values, [*planes(dtype), *hadamards(dtype)])
    if threads == 1:
        yield from zfp(values)
    yield from blosc(values, threads)


def gigabytes_per_second(work: Callable[[], object], values: torch.Tensor) -> float:
    """Median of some runs, after one to warm up."""
    seconds = []
    for _ in range(RUNS[values.device.type] + 1):
        start = time.perf_counter()
        work()
        if values.device.type == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    return values.nbytes / 1e9 / statistics.median(seconds[1:])


def effective_bits(values: torch.Tensor, decoded: torch.Tensor) -> float:
    """Mean over blocks of 0.5 * log2(variance / mean squared error), at most 24 (Shannon's rate)."""
    whole = min(len(values), ORIGINAL_BYTES["cpu"] // values.itemsize) // BLOCK * BLOCK
    exact = values[:whole].double().view(-1, BLOCK)
    error = (decoded[:whole].double().view(-1, BLOCK) - exact).square().mean(1)
    variance = exact.var(1, correction=0)
    bits = 0.5 * torch.log2(variance / error)
    return float(bits.clamp(max=24)[variance > 0].mean())


def measure(
    values: torch.Tensor, dtype: str, threads: int, codecs: Iterable[Codec]
) -> Iterator[dict[str, str | int | float]]:
    torch.set_num_threads(threads)
    copy = 0.0
    for codec in codecs:
        stored = codec.compress()
        row: dict[str, str | int | float] = {
            "codec": codec.name,
            "dtype": dtype,
            "ratio": values.nbytes / codec.stored_bytes(stored),
            "threads": threads,
            "compress_gbps": gigabytes_per_second(codec.compress, values),
            "decompress_gbps": gigabytes_per_second(lambda c=codec, s=stored: c.decompress(s), values),
            "effective_bits": effective_bits(values, codec.decompress(stored)),
        }
        if values.device.type == "cuda":
            copy = copy or float(row["compress_gbps"])
            row["compress_of_copy"] = float(row["compress_gbps"]) / copy
            row["decompress_of_copy"] = float(row["decompress_gbps"]) / copy
            row["device"] = torch.cuda.get_device_name()
        yield row


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.codec", description="Speed of codecs.")
    parser.add_argument("--device", choices=OUTPUT, default="cpu", help="cpu (default) or cuda")
    device = parser.parse_args().device
    if device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda needs a GPU, and PyTorch sees none")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    rows = []
    for dtype in ("fp32", "bf16"):
        values = activations(dtype, device)
        for threads in sorted({1, cores}) if device == "cpu" else (1,):
            rows += measure(values, dtype, threads, codecs(values, dtype, threads))
        if device == "cpu" and dtype == "fp32":
            few = values[:SIMULATED]
            rows += measure(few, dtype, 1, bridge("verilated", few, planes(dtype)[:1]))
    columns = {name: name.replace("_gbps", "").replace("_", " ") for name in rows[0] if name != "device"}
    table = Table(title=f"GB/s of uncompressed values on {device}, median of {RUNS[device]} runs")
    for name, heading in columns.items():
        table.add_column(heading, justify="left" if name == "codec" else "right")
    for row in rows:
        cells = [row[name] for name in columns]
        table.add_row(*(f"{cell:.2f}" if isinstance(cell, float) else str(cell) for cell in cells))
    Console(width=120).print(table)
    output = OUTPUT[device]
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(rows, indent=2) + "\n")
    print(f"written to {output}")


if __name__ == "__main__":
    main()
