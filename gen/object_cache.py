"""Compiles Verilator's own sources once: they are the same in every model, and take longer than a small one.

    python gen/object_cache.py COMPILER ARGUMENT...

Verilator's makefiles put ``$OBJCACHE`` before each command that compiles; :mod:`gen.toolchain` sets it to
this. It is run by its path and imports nothing of the project, for it starts many times.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent / "build" / "objects"


def main(command: list[str]) -> int:
    """Compile, or copy what was compiled before in the same way; return the compiler's status."""
    if "-o" not in command or not _is_verilators(Path(command[-1])):
        return subprocess.call(command)
    made = Path(command[command.index("-o") + 1])
    kept = FOLDER / f"{_key(command)}.o"
    if kept.exists():
        shutil.copy(kept, made)
        return 0
    status = subprocess.call(command)
    if not status:
        _keep(made, kept)
    return status


def _is_verilators(source: Path) -> bool:
    return source.parent == Path(os.environ["VERILATOR_ROOT"]) / "include"


def _key(command: list[str]) -> str:
    """What the object depends on: the command, but for its path, and the versions of compiler and source."""
    place = command.index("-o") + 1
    words = [*command[:place], *command[place + 1 :]]
    for file in (shutil.which(command[0]) or command[0], command[-1]):
        status = os.stat(file)
        words += [str(status.st_size), str(status.st_mtime_ns)]
    return hashlib.sha256("\0".join(words).encode()).hexdigest()[:32]


def _keep(made: Path, kept: Path) -> None:
    """Several processes may do so at once: a file appears whole."""
    kept.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=kept.parent, delete=False) as beside:
        beside.write(made.read_bytes())
    os.replace(beside.name, kept)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
