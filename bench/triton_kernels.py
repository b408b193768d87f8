"""What Triton's compiler makes of each kernel, for three GPUs: ``python -m bench.triton_kernels``.

Registers, spills and shared memory are those of the machine code. The estimate is a roofline: a program moves
its values and its stored bytes once, and issues each of its instructions once for each warp (loops are
unrolled); whichever takes longer holds. Nothing was measured on a GPU. Rows go to
build/bench/triton_kernels.json.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import triton
from rich.console import Console
from rich.table import Table
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile

from golden import Format, HadamardFormat, PlaneFormat
from torch_bridge import backends
from torch_bridge.backends.triton_tiles import WARPS

OUTPUT = Path("build/bench/triton_kernels.json")
FORMATS = (PlaneFormat("fp32", 64, 80), PlaneFormat("bf16", 64, 64), HadamardFormat("fp32", 128, 32))
# By capability: name, bytes of memory a second, and instructions of warps a second (processors, four each a
# cycle, clock), from the maker's datasheets.
GPUS = {
    80: ("A100", 2.0e12, 108 * 4 * 1.41e9),
    90: ("H100", 3.35e12, 132 * 4 * 1.83e9),
    100: ("B200", 8.0e12, 148 * 4 * 1.85e9),
}
TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"


def compiled(fmt: Format, capability: int) -> Iterator[tuple[str, Any]]:
    """Both kernels of a format."""
    kernels = backends.get("triton", fmt)._kernels
    constants = kernels.constants(fmt)
    words = "*u32" if fmt.dtype == "fp32" else "*u16"
    aligned = {(i,): [["tt.divisibility", 16]] for i in (0, 1)}  # as tensors are, both values and stored
    compress = {"values": words, "stored": "*u8", "count": "i32", "first": "i32"}
    decompress = {
        "stored": "*u8",
        "values": words,
        "count": "i64",
        "first": "i32",
        "record": "*i64",
        "call": "i32",
    }
    for kernel, arguments in ((kernels.compress, compress), (kernels.decompress, decompress)):
        source = ASTSource(
            kernel, arguments | dict.fromkeys(constants, "constexpr"), constants, attrs=aligned
        )
        target = GPUTarget("cuda", capability, 32)
        yield kernel.__name__.strip("_"), compile(source, target=target, options={"num_warps": WARPS})


def row(fmt: Format, capability: int, name: str, kernel: Any) -> dict[str, Any]:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.asm["cubin"])
        file.flush()
        used = subprocess.run(
            [TOOLS / "cuobjdump", "-res-usage", file.name], capture_output=True, text=True, check=True
        )
        code = subprocess.run(
            [TOOLS / "cuobjdump", "-sass", file.name], capture_output=True, text=True, check=True
        )
    numbers = dict(re.findall(r"(REG|STACK|SHARED|LOCAL):(\d+)", used.stdout + used.stderr))
    # Of each: its name behind the address, and behind a predicate if it has one.
    instructions = re.findall(
        r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?\w+ )?([A-Z][\w.]*)", code.stdout, re.MULTILINE
    )
    instructions = [one for one in instructions if one not in ("NOP", "BRA", "EXIT")]
    memory = [one for one in instructions if re.match(r"(LD|ST)[GS]", one)]
    spills = [one for one in instructions if re.match(r"(LD|ST)L", one)]
    blocks = backends.get("triton", fmt)._kernels.constants(fmt)["BLOCKS"]
    values = blocks * fmt.block
    gpu, bandwidth, issues = GPUS[capability]
    moved = blocks * (fmt.original_bytes + fmt.target) / bandwidth
    issued = WARPS * len(instructions) / issues
    return {
        "format": f"{fmt.scheme}, {fmt.dtype}, {fmt.block} in {fmt.target}",
        "kernel": name,
        "gpu": f"{gpu} (sm_{capability})",
        "registers": int(numbers["REG"]),
        "spills": len(spills),
        "shared_bytes": kernel.metadata.shared,
        "instructions": len(instructions),
        "memory_instructions": len(memory),
        "estimated_gb_per_s": values * fmt.original_bytes / fmt.block / max(moved, issued) / 1e9,
        "bound": "memory" if moved > issued else "issue",
    }


def main() -> None:
    argparse.ArgumentParser(
        prog="python -m bench.triton_kernels", description="Triton's kernels, compiled."
    ).parse_args()
    rows = [
        row(fmt, capability, name, kernel)
        for fmt in FORMATS
        for capability in GPUS
        for name, kernel in compiled(fmt, capability)
    ]
    table = Table(title="kernels as compiled; GB/s of values are estimates")
    for heading in rows[0]:
        table.add_column(heading.replace("_", " "))
    for one in rows:
        table.add_row(*(f"{value:.0f}" if isinstance(value, float) else str(value) for value in one.values()))
    Console(width=180).print(table)
    OUTPUT.parent.mkdir(parents=True, exist_ok=True)
    OUTPUT.write_text(json.dumps(rows, indent=1) + "\n")
    print(f"written to {OUTPUT}")


if __name__ == "__main__":
    main()
