"""See the package."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from gen.arguments import at_least

from ..page import write
from . import composition, page, peaks, training

OUTPUT = Path("docs/compact.json")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.compact", description="CompAct beside its paper.")
    parser.add_argument("--again", action="store_true", help="count also what was counted before")
    parser.add_argument("--compress", action="store_true", help="with the rest in 4 bits as well: minutes")
    parser.add_argument("--train", action="store_true", help="train small models as well, for the losses")
    parser.add_argument("--steps", type=at_least(1), default=250, help="of every pre-training")
    parser.add_argument("--lr", type=float, default=2e-3, help="at its peak, of all")
    parser.add_argument("--scale", type=float, default=1.0, help="of the steps of converted weights")
    parser.add_argument("--period", type=at_least(1), default=50, help="steps between projections")
    given = parser.parse_args()
    torch.set_num_threads(1)
    found: dict[str, list[dict[str, Any]]] = json.loads(OUTPUT.read_text()) if OUTPUT.exists() else {}
    known = [] if given.again else found.get("peaks", [])
    rows = found["peaks"] = []
    for case in peaks.cases():
        row = next((row for row in known if asdict(case).items() <= row.items()), None)
        rows.append(row or peaks.measure(case))
        print(f"{case.model}, {case.rank}: {rows[-1]['peak_mb']:,.0f} MB")
    if given.compress:
        found["compressed"] = composition.measure()
    if given.train:
        found["training"] = training.run(given)
    write(OUTPUT, as_json(found))
    page.document(found)


def as_json(found: dict[str, list[dict[str, Any]]]) -> str:
    """A line for each row."""
    studies = [
        f'"{study}": [\n' + ",\n".join(json.dumps(row) for row in rows) + "\n]"
        for study, rows in found.items()
    ]
    return "{\n" + ",\n".join(studies) + "\n}\n"


if __name__ == "__main__":
    main()
