"""Programs in processes of their own, which are gone when the time is up, children and all."""

import os
import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def torchrun(ranks: int) -> tuple[str, ...]:
    """Python's arguments for a program on so many ranks."""
    return "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)


TORCHRUN = torchrun(2)


def python(*arguments: str, seconds: float = 120, **variables: str) -> str:
    """Run Python on the CPU, in the project's folder, and return what it printed; fails if it fails.

    Args:
        arguments: of Python.
        seconds: that it may take.
        variables: of its environment.
    """
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    environment |= variables
    process = subprocess.Popen(
        [sys.executable, *arguments],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        raise AssertionError(f"{arguments} took over {seconds} seconds:\n{output}") from None
    assert process.returncode == 0, output
    return output
