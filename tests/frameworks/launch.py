"""Runs a worker of this folder once, for all tests of its file."""

import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from ..launch import python, torchrun
from .variants import read


def needs(*packages: str) -> pytest.MarkDecorator:
    """Skips tests, with a word, where a framework is not installed."""
    missing = [name for name in packages if find_spec(name) is None]
    return pytest.mark.skipif(bool(missing), reason=f"{', '.join(missing)} not installed: make frameworks")


def worker(name: str, ranks: int = 1, **variables: str) -> Callable[..., Any]:
    """A fixture of what each rank of ``tests.frameworks.NAME_worker`` wrote.

    Args:
        name: of the worker.
        ranks: under torchrun; 1 runs it by itself.
        variables: of its environment; "{folder}" in them is a folder of this run.
    """

    @pytest.fixture(scope="module")
    def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
        folder: Path = tmp_path_factory.mktemp(name)
        how = torchrun(ranks) if ranks > 1 else ()
        own = {key: value.format(folder=folder / "own") for key, value in variables.items()}
        output = python(*how, "-m", f"tests.frameworks.{name}_worker", str(folder), seconds=1000, **own)
        sys.stdout.write(output)
        return read(folder, ranks)

    return found
