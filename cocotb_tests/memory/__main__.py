"""``python -m cocotb_tests.memory``: the memory engines against golden/memory.py, in Verilator."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from gen.arguments import at_least, interruptible

from .engines import ENGINES, find_faults, rows, run


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m cocotb_tests.memory", description=__doc__)
    parser.add_argument("names", nargs="*", help=f"of {', '.join(ENGINES)} (default: all)")
    parser.add_argument("--bursts", type=at_least(1), default=10_000, help="of each (default: 10000)")
    parser.add_argument("--seed", type=at_least(0), default=1, help="of what is random (default: 1)")
    parser.add_argument("--faults", help="put faults with such names, as '.*', into an engine instead")
    arguments = parser.parse_args()
    for name in arguments.names:
        if name not in ENGINES:
            parser.error(f"names must be of {', '.join(ENGINES)}, not {name!r}")
    with interruptible():
        _run(arguments)


def _run(arguments: argparse.Namespace) -> None:
    options = {"bursts": arguments.bursts, "seed": arguments.seed}
    if arguments.faults:
        found = []
        for name, bench in find_faults(arguments.faults, Path("build/sim"), **options):
            print(f"{name}: {bench or 'NOT FOUND'}", flush=True)
            found.append(bench)
        if not found:
            sys.exit(f"--faults must fit the name of one, not {arguments.faults!r}")
        if missed := found.count(None):
            sys.exit(f"{missed} faults that no bench finds")
        return
    for name in arguments.names or ENGINES:
        notes = run(name, Path("build/sim"), **options)
        for note in [*notes, *rows(name, notes)]:
            print(name, json.dumps(note), flush=True)


if __name__ == "__main__":
    main()
