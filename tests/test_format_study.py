"""The study of the Hadamard format: what it takes for the format is the format."""

import numpy as np
import pytest
import torch

from bench import format_study
from golden import HadamardFormat


@pytest.mark.parametrize("block", [64, 128, 256])
@pytest.mark.parametrize("bits", format_study.RATES)
def test_the_format_among_the_variants_is_what_golden_decodes(block, bits):
    rng = np.random.default_rng(0)
    values = rng.standard_normal((300, block)) * np.exp2(rng.integers(-20, 20, (300, 1)))
    values[100:200] *= rng.random((100, block)) < 0.2
    values[200:250, 3] *= 300
    values[290:] = 0
    values = values.astype(np.float32)
    fmt = HadamardFormat("fp32", block, int(bits * block / 8))
    expected = fmt.decompress(fmt.compress(values), values.shape)
    variant = format_study.Variant(bits=bits, block=block)
    found = format_study.Simulated(variant)
    flat = torch.from_numpy(values).view(-1)
    assert (
        found.decompress(found.compress(flat), flat.numel()).numpy().reshape(values.shape) == expected
    ).all()
