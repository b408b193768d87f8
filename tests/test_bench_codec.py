"""What the measurements of codecs are of."""

from types import SimpleNamespace

import pytest
import torch

from bench import codec
from torch_bridge import backends


@pytest.mark.parametrize(("device", "backend"), [("cpu", "cpu"), ("cuda", "triton")])
def test_every_format_is_measured_on_every_device(device, backend, monkeypatch):
    monkeypatch.setattr(backends, "get", lambda name, fmt: None)
    values = SimpleNamespace(device=torch.device(device), clone=None, view=lambda dtype: torch.ones(0))
    names = [made.name for made in codec.codecs(values, "fp32", threads=2)]
    assert names.count(f"planes-{backend}") == len(codec.RATIOS)
    assert names.count(f"hadamard-{backend}") == len(codec.HADAMARD_BITS)
