"""The tables of docs/dram.md."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .. import page

_RESULT = "results"


def fill(path: Path, results: dict[str, Any]) -> None:
    """Put the tables of docs/dram.json where docs/dram.md has their place; see :func:`bench.page.fill`."""
    page.fill(path, _RESULT, "\n".join(_lines(results)))


def _lines(results: dict[str, Any]) -> Iterator[str]:
    yield f"DRAMsim3 at commit `{results['dramsim3']}`, PyTorch {results['torch']}."
    for model in results["models"]:
        yield ""
        yield from _of_model(model, results["memories"])


def _of_model(model: dict[str, Any], memories: dict[str, Any]) -> Iterator[str]:
    yield f"### {model['model']}, batch of {model['batch']}"
    yield ""
    yield (
        f"{model['tensors']} saved tensors have {_mb(model['saved_bytes'])} MB, "
        f"{_mb(model['exact_bytes'])} MB of them exact. The step writes and reads "
        f"{_mb(model['moved_bytes'])} MB of them. Parameters have {_mb(model['parameter_bytes'])} MB: "
        f"a step with AdamW moves {_mb(model['parameter_traffic_bytes'])} MB for them, "
        "whatever the batch, which is not in the tables."
    )
    for memory, about in memories.items():
        rows = [row for row in model["rows"] if row["memory"] == memory]
        yield ""
        yield f"{memory}: `{about['configuration']}`, at most {about['peak_gb_per_s']} GB/s."
        yield ""
        yield "| layout | stored | moved, MB | time, ms | of uncompressed | energy, mJ | GB/s | row hits |"
        yield "| --- | --- | --- | --- | --- | --- | --- | --- |"
        yield from (_row(row, rows[0], model["saved_bytes"]) for row in rows)


def _row(row: dict[str, Any], plain: dict[str, Any], saved_bytes: int) -> str:
    cells = [
        row["layout"],
        f"{row['stored_bytes'] / saved_bytes:.0%}",
        _mb(row["moved_bytes"]),
        f"{row['nanoseconds'] / 1e6:.2f}",
        f"{row['nanoseconds'] / plain['nanoseconds']:.0%}",
        f"{row['millijoules']:.2f}",
        f"{row['moved_bytes'] / row['nanoseconds']:.1f}",
        f"{row['row_hits']:.1%}",
    ]
    return f"| {' | '.join(cells)} |"


def _mb(size: int) -> str:
    return f"{size / 1e6:.1f}"
