"""Runs a program of Megatron-core's on CPUs: ``python -m tests.frameworks.megatron_program PROGRAM``."""

import runpy
import sys

from .megatron_worker import on_cpu

if __name__ == "__main__":
    on_cpu()
    runpy.run_path(sys.argv[1], run_name="__main__")
