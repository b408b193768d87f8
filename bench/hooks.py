"""What the hooks cost in Python for each saved tensor, beside the last release: ``python -m bench.hooks``.

A step of 48 small GPT-2 blocks, forward and backward, less the same step without a stash, over the tensors
that it saves; the processor's time, of one thread. Codecs do nothing here. "plain" is a policy that needs no
names of operations, "named" the default one, which derives where the release has it. The release comes from
git and runs in a process of its own; rounds of both take turns. Rows go to build/bench/hooks.json.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tarfile
from contextlib import nullcontext
from io import BytesIO
from pathlib import Path
from time import process_time
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

RELEASE, COMMIT = "0.1.0", "f523b19"
BLOCKS, WIDTH, LENGTH = 48, 64, 32
OUTPUT = Path("build/bench/hooks.json")


class Nothing:
    """A codec in a backend's place."""

    def __init__(self, *_: Any) -> None:
        self._stored = torch.zeros(1, 80, dtype=torch.uint8)

    def compress(self, values: torch.Tensor, *_: Any) -> torch.Tensor:
        return self._stored

    def decompress(self, stored: torch.Tensor, count: int, *_: Any) -> torch.Tensor:
        return torch.empty(count)

    def check(self) -> None:
        pass


def measure(steps: int) -> dict[str, float]:
    """Microseconds of a step without a stash, and what a policy adds for each saved tensor."""
    from transformers import GPT2Config, GPT2LMHeadModel

    from golden import PlaneFormat
    from torch_bridge import Compressor, Policy, Rule, backends

    backends.get = Nothing
    torch.set_num_threads(1)
    torch.manual_seed(0)
    sizes = {"n_layer": BLOCKS, "n_embd": WIDTH, "n_head": 2, "n_positions": LENGTH, "vocab_size": 64}
    model = GPT2LMHeadModel(GPT2Config(**sizes, use_cache=False, bos_token_id=0, eos_token_id=0)).eval()
    model.loss_type = "ForCausalLM"
    tokens = torch.zeros(1, LENGTH, dtype=torch.long)
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(saved.append, lambda _: None):
        model(tokens, labels=tokens)
    fmt = PlaneFormat("fp32", 64, 80)
    policies: dict[str, Any] = {"none": None, "plain": Policy([Rule(fmt)]), "named": Policy.default(fmt)}

    def step(policy: Any) -> float:
        start = process_time()
        with nullcontext() if policy is None else Compressor(model, policy, min_values=256):
            loss = model(tokens, labels=tokens).loss
        loss.backward()
        seconds = process_time() - start
        model.zero_grad(set_to_none=True)
        return seconds

    times: dict[str, list[float]] = {name: [] for name in policies}
    for _ in range(steps + 1):
        for name, policy in policies.items():
            times[name].append(step(policy))
    least = {name: min(seconds[1:]) for name, seconds in times.items()}
    return {name: 1e6 * (least[name] - least["none"]) / len(saved) for name in ("plain", "named")}


def release() -> Path | None:
    """The last release's code, taken from git; None where its history is missing, as in a shallow clone."""
    folder = Path("build/bench") / f"release-{RELEASE}"
    if not folder.exists():
        packed = subprocess.run(
            ["git", "archive", COMMIT, "golden", "torch_bridge"], capture_output=True, check=False
        )
        if packed.returncode:
            return None
        with tarfile.open(fileobj=BytesIO(packed.stdout)) as tar:
            tar.extractall(folder, filter="data")
    return folder


def run(code: Path, steps: int) -> dict[str, float]:
    """:func:`measure` in a process that has its packages from a folder."""
    command = [sys.executable, str(Path(__file__).resolve()), "--row", "--steps", str(steps)]
    done = subprocess.run(
        command, env=os.environ | {"PYTHONPATH": str(code.resolve())}, stdout=subprocess.PIPE, check=True
    )
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.hooks", description="Python's part of the hooks.")
    parser.add_argument("--steps", type=int, default=10, help="of which the fastest counts (default: 10)")
    parser.add_argument("--rounds", type=int, default=3, help="and the median of that (default: 3)")
    parser.add_argument("--row", action="store_true", help="print one row as JSON and write nothing")
    given = parser.parse_args()
    if given.row:
        print(json.dumps(measure(given.steps)))
        return
    versions = {"now": Path(__file__).parent.parent}
    before = release()
    if before:
        versions = {RELEASE: before} | versions
    else:
        print(f"release {RELEASE} is not in the history here: only the present is measured")
    found: dict[str, list[dict[str, float]]] = {name: [] for name in versions}
    for _ in track(range(given.rounds), "measuring", console=Console(stderr=True), transient=True):
        for name, code in versions.items():
            found[name].append(run(code, given.steps))
    rows = {
        version: {policy: statistics.median(row[policy] for row in rows) for policy in ("plain", "named")}
        for version, rows in found.items()
    }
    table = Table("version", title=f"microseconds of Python for each saved tensor, {BLOCKS} small blocks")
    for heading in ("no names needed", "default policy"):
        table.add_column(heading, justify="right")
    for version, row in rows.items():
        table.add_row(version, *(f"{row[policy]:.1f}" for policy in ("plain", "named")))
    now, earlier = rows["now"], rows.get(RELEASE)
    results = {"microseconds_per_tensor": now["plain"], "microseconds_per_tensor_named": now["named"]}
    if earlier:
        shares = [now[policy] / earlier["named"] for policy in ("plain", "named")]
        table.add_row("share of the release's default", *(f"{share:.2f}" for share in shares))
        results |= {
            "release": RELEASE,
            "release_microseconds_per_tensor": earlier["plain"],
            "release_microseconds_per_tensor_named": earlier["named"],
        }
    Console(width=100).print(table)
    OUTPUT.parent.mkdir(parents=True, exist_ok=True)
    OUTPUT.write_text(json.dumps(results, indent=1) + "\n")
    print(f"written to {OUTPUT}")


if __name__ == "__main__":
    main()
