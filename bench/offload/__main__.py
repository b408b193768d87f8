"""See the package."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from gen.arguments import at_least

from ..page import write
from . import page

OUTPUT = Path("docs/offload.json")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.offload", description="Offloading in a pipeline.")
    parser.add_argument("--directory", type=Path, default=Path("build"), help="on the SSD")
    parser.add_argument("--rounds", type=at_least(1), default=2, help="over all methods (default: 2)")
    parser.add_argument("--steps", type=at_least(1), default=3, help="of each (default: 3)")
    parser.add_argument("--document", action="store_true", help="only write the page, from docs/offload.json")
    given = parser.parse_args()
    if not given.document:
        given.directory.mkdir(parents=True, exist_ok=True)
        rows = measure(given.directory, given.rounds, given.steps)
        write(OUTPUT, as_json(rows))
    page.document(json.loads(OUTPUT.read_text()))


def measure(directory: Path, rounds: int, steps: int) -> list[dict[str, Any]]:
    """The rows of both stages; see :mod:`bench.offload.ranks`."""
    with tempfile.TemporaryDirectory(dir=directory) as folder:
        out = Path(folder, "rows.json").resolve()
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        command += ["-m", "bench.offload.ranks", str(out), str(rounds), str(steps)]
        subprocess.run(command, check=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
        found: list[dict[str, Any]] = json.loads(out.read_text())
    return found


def as_json(rows: list[dict[str, Any]]) -> str:
    """A line for each row."""
    return "[\n" + ",\n".join(map(json.dumps, rows)) + "\n]\n"


if __name__ == "__main__":
    main()
