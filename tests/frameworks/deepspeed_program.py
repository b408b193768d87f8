"""Runs a program of DeepSpeed's on gloo alone: ``python -m tests.frameworks.deepspeed_program PROGRAM``.

DeepSpeed's own reductions in shared memory do the same, and are compiled for a minute first.
"""

import runpy
import sys
from importlib import import_module


def on_gloo() -> None:
    import_module("deepspeed.comm.torch").build_shm_op = lambda: None  # type: ignore[attr-defined]


if __name__ == "__main__":
    on_gloo()
    runpy.run_path(sys.argv[1], run_name="__main__")
