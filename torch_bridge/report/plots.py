"""What a report's page shows: where the bytes of saved tensors are, before and after."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

from . import page
from .rows import BITS, COMPRESSED, RECOMPUTED, Row, merged

# Colours that people who see few can tell apart (Okabe and Ito), and grey for what is as it was.
BEFORE, AFTER = "#b8b8b8", "#0072b2"
TREATMENTS = {"recomputed": "#009e73", "compressed": "#0072b2", "bits": "#56b4e9", "kept": "#e69f00"}
_MOST_BARS = 24


def sections(rows: Sequence[Row]) -> list[page.Section]:
    """The sections of a page on a report's rows, the summary first."""
    counted = [row for row in rows if row.counted]
    modules = [_modules(counted)] if any(row.module for row in counted) else []
    return [_totals(counted), *modules, _kinds(counted), _treatments(rows)]


def _totals(rows: list[Row]) -> page.Section:
    shares: dict[str, int] = dict.fromkeys(TREATMENTS, 0)
    for row in rows:
        shares[_treatment(row)] += row.original_bytes
    bars = [
        {"type": "bar", "orientation": "h", "name": name, "x": [size / 1e6], "y": ["saved"]}
        | {"marker": {"color": TREATMENTS[name]}, "hovertemplate": f"{name}: %{{x:.2f}} MB<extra></extra>"}
        for name, size in shares.items()
    ]
    original, stored = sum(row.original_bytes for row in rows), sum(row.stored_bytes for row in rows)
    text = (
        f"The forward pass saves {_mb(original)} for the backward pass; {_mb(stored)} are kept of it"
        f"{f', {original / stored:.1f} times less' if stored else ''}. {_mb(shares['recomputed'])} are "
        "recomputed from the rest."
    )
    layout = {"barmode": "stack", "xaxis": {"title": {"text": "MB saved"}}, "height": 190}
    return page.Section("What is saved", text, page.plot(bars, layout))


def _modules(rows: list[Row]) -> page.Section:
    text = "Bytes that each module saves, before and after. A star stands for the numbers of like modules."
    return page.Section("Where it goes", text, _bars(rows, lambda row: _folded(row.module)))


def _kinds(rows: list[Row]) -> page.Section:
    text = "Bytes of saved tensors by the operation that made them, before and after."
    return page.Section("What it is", text, _bars(rows, lambda row: row.op or "not made in the step"))


def _bars(rows: Iterable[Row], name_of: Callable[[Row], str]) -> str:
    sizes: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for row in rows:
        sizes[name_of(row)][0] += row.original_bytes
        sizes[name_of(row)][1] += row.stored_bytes
    largest = sorted(sizes.items(), key=lambda item: item[1][0])
    shown, rest = largest[-_MOST_BARS:], largest[:-_MOST_BARS]
    if rest:
        shown.insert(0, ("all others", [sum(size[i] for _, size in rest) for i in range(2)]))
    names = [name for name, _ in shown]
    bars = [
        {"type": "bar", "orientation": "h", "name": name, "x": [size[i] / 1e6 for _, size in shown]}
        | {"y": names, "marker": {"color": color}, "hovertemplate": "%{y}: %{x:.3f} MB<extra></extra>"}
        for i, name, color in ((1, "after", AFTER), (0, "before", BEFORE))
    ]
    axis = {"title": {"text": "MB"}}
    return page.plot(bars, {"barmode": "group", "xaxis": axis, "height": 150 + 34 * len(names)})


def _treatments(all_rows: Sequence[Row]) -> page.Section:
    head = ["operation", "shape", "type", "what became of it", "tensors", "MB before", "MB after"]
    rows = [
        [
            row.op or "not made in the step",
            " x ".join(map(str, row.shape)) or "scalar",
            row.dtype,
            _why(row),
            str(row.tensors),
            f"{row.original_bytes / 1e6:.3f}",
            f"{row.stored_bytes / 1e6:.3f}",
        ]
        for row in sorted(merged(all_rows), key=lambda row: -row.original_bytes)
    ]
    text = (
        "Every kind of saved tensor. Recomputed: cheap operations made it of others, and make it anew. Bits: "
        "it has two values. Anything else that is not compressed is kept, for the reason that is given."
    )
    return page.Section("What became of it, and why", text, page.table(head, rows, numbers=3))


def _why(row: Row) -> str:
    if _treatment(row) == "kept":
        return f"kept: {row.kept}" if row.counted else f"not counted: {row.kept}"
    return row.kept


def _treatment(row: Row) -> str:
    known = (COMPRESSED, BITS, RECOMPUTED)
    return next((name for name in known if row.kept.startswith(name)), "kept")


def _folded(module: str) -> str:
    """A module's name with stars for numbers."""
    return re.sub(r"(?<![^.])\d+(?![^.])", "*", module) or "the model itself"


def _mb(size: float) -> str:
    return f"{size / 1e6:,.1f} MB"
