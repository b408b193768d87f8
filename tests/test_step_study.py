"""The study of the step format: what it takes for the format is the format."""

import numpy as np
import pytest

from bench import step_study
from golden import StepFormat


@pytest.mark.parametrize("bits", step_study.RATES)
def test_the_estimate_of_the_format_is_what_golden_decodes(bits):
    rng = np.random.default_rng(0)
    values = rng.standard_normal((300, 128)) * np.exp2(rng.integers(-20, 20, (300, 1)))
    values[100:200] *= rng.random((100, 128)) < 0.2
    values[200:250, 3] *= 300
    values = values.astype(np.float32)
    fmt = StepFormat("fp32", 128, int(16 * bits))
    expected = fmt.decompress(fmt.compress(values), values.shape)
    assert (step_study.decoded(values.astype(np.float64), bits, step_study.Variant()) == expected).all()
