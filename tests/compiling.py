"""What tests that compile models share."""

import shutil

import pytest
import torch

needs_a_compiler = pytest.mark.skipif(
    not (shutil.which("g++") or shutil.which("clang++")), reason="inductor needs a C++ compiler"
)


@pytest.fixture(autouse=True)
def nothing_compiled():
    """Around every test of a file that imports it: what was compiled before and in it is forgotten."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()
