"""See the package."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch

from ..page import write
from . import gradients, training
from .cuts import BLOCK, CUTS
from .page import document

OUTPUT = Path("docs/rows.json")
RATES = (4, 2)
WIDTHS = (64, 192, 576, 960, 128, 256, 512, 65, 100, 196, 1000)

Row = dict[str, Any]


def without_training() -> Iterator[tuple[Row, Callable[..., Row]]]:
    """What each row is of, and what gives its figures of that."""
    for block, bits in product((64, 128, 256), (1, 1.625, 2, 3, 4)):
        yield {"study": "gaussian", "block": block, "bits": bits}, gradients.gaussian
    for width in WIDTHS:
        cuts = CUTS if width % BLOCK else ("memory order",)  # which all are the same
        for cut, bits in product(cuts, RATES):
            yield {"study": "norm", "width": width, "cut": cut, "bits": bits}, gradients.norm
    for layout, spread, bits in product(gradients.LAYOUTS, (0.0, 0.5), RATES):
        yield {"study": "attention", "layout": layout, "spread": spread, "bits": bits}, gradients.attention
    for row, size, bits in product(gradients.IMAGES, (7, 8, 14), RATES):
        yield {"study": "convolution", "row": row, "size": size, "bits": bits}, gradients.convolution


def with_training(seeds: list[int]) -> Iterator[tuple[Row, Callable[..., Row]]]:
    """Likewise; of each seed, the run without compression comes first."""
    for seed, (width, cuts), start in product(seeds, training.TRAINED.items(), training.STARTS):
        for cut, bits in [("exact", 32), *product(cuts, RATES)]:
            of = {"width": width, "start": start, "seed": seed, "cut": cut, "bits": bits}
            yield {"study": "training", **of}, training.run


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.rows", description="Blocks that respect rows.")
    parser.add_argument("--train", action="store_true", help="train as well: about half an hour")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3], help="of training")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows = json.loads(OUTPUT.read_text()) if OUTPUT.exists() else []
    for of, measure in [*without_training(), *(with_training(arguments.seeds) if arguments.train else ())]:
        if not any(of.items() <= row.items() for row in rows):
            figures = partial(measure, **{name: value for name, value in of.items() if name != "study"})
            rows.append(of | figures())
            write(OUTPUT, "[\n" + ",\n".join(map(json.dumps, rows)) + "\n]\n")
    document(rows)


if __name__ == "__main__":
    main()
