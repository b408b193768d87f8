"""``python -m cocotb_tests.memory``: the memory engines against golden/memory.py, in Verilator."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from .engines import ENGINES, find_faults, rows, run


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m cocotb_tests.memory", description=__doc__)
    parser.add_argument(
        "names", nargs="*", default=list(ENGINES), help=f"of {', '.join(ENGINES)} (default: all)"
    )
    parser.add_argument("--bursts", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--faults", help="put faults with such names, as '.*', into an engine instead")
    arguments = parser.parse_args()
    options = {"bursts": arguments.bursts, "seed": arguments.seed}
    if arguments.faults:
        missed = 0
        for name, bench in find_faults(arguments.faults, Path("build/sim"), **options):
            print(f"{name}: {bench or 'NOT FOUND'}", flush=True)
            missed += bench is None
        sys.exit(f"{missed} faults that no bench finds" if missed else 0)
    for name in arguments.names:
        notes = run(name, Path("build/sim"), **options)
        for note in [*notes, *rows(name, notes)]:
            print(name, json.dumps(note), flush=True)


if __name__ == "__main__":
    main()
