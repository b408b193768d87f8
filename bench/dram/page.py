"""The tables of docs/dram.md."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .. import page

_RESULT, _ENGINE = "results", "engine"
_MEMORY = "HBM2"  # whose energy the engine's is compared with
_WIDTH = 64  # bytes of the engines
_CODECS = {"bit-plane format 3.2x": "gpt2-fp32-3.2x", "Hadamard 16x": "gpt2-fp32-16x"}
_MEMORY_ENGINE = "gpt2-fp32-memory-64"  # measured with the first of its formats


def fill(path: Path, results: dict[str, Any]) -> None:
    """Put the tables of docs/dram.json where docs/dram.md has their place; see :func:`bench.page.fill`."""
    page.fill(path, _RESULT, "\n".join(_lines(results)))


def fill_engine(docs: Path) -> None:
    """Put what the engine takes of a step's energy into docs/dram.md, from docs/dram.json and node.json."""
    step, node = (json.loads((docs / name).read_text()) for name in ("dram.json", "node.json"))
    page.fill(docs / "dram.md", _ENGINE, "\n".join(_of_engine(step["models"][0], node["rows"])))


def _of_engine(model: dict[str, Any], engines: list[dict[str, Any]]) -> Iterator[str]:
    spent = {row["layout"]: row["millijoules"] for row in model["rows"] if row["memory"] == _MEMORY}
    compressed = model["saved_bytes"] - model["exact_bytes"]
    parts: dict[str, list[float]] = {}
    for engine in engines:
        if engine["bus_bytes"] == _WIDTH:
            parts.setdefault(engine["preset"], []).append(engine["sized"]["pj_per_byte"])
    first = next(iter(_CODECS))
    # What is written is read once. A memory engine's figure is of a byte either way, a codec's of its own.
    rows = [(f"codecs, {layout}", layout, preset, 1) for layout, preset in _CODECS.items()]
    rows.append((f"the whole memory engine, {first}", first, _MEMORY_ENGINE, 2))
    yield f"Of the {model['model']} model's step, {_mb(compressed)} MB are compressed."
    yield ""
    yield f"| | mJ | of {_MEMORY}'s energy uncompressed | of what is left of it |"
    yield "| --- | ---: | ---: | ---: |"
    for name, layout, preset, ways in rows:
        if preset not in parts:
            continue  # not measured yet in this library
        taken = compressed * ways * sum(parts[preset]) / 1e9
        shares = (taken / energy for energy in (spent["as they are"], spent[f"bitstash, {layout}"]))
        yield f"| {name} | {taken:.3f} | {' | '.join(f'{share:.1%}' for share in shares)} |"


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
