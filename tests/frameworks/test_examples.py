"""The programs of examples/ that need a framework run, and the patch for nanoGPT adds what it says."""

import re
from pathlib import Path

import pytest

from ..launch import ROOT, python, torchrun
from .launch import needs

PROGRAMS = {
    "pipeline": [*torchrun(2), "examples/pipeline.py"],
    "deepspeed": [*torchrun(2), "-m", "tests.frameworks.deepspeed_program", "examples/deepspeed_zero.py"],
    "megatron": [*torchrun(2), "-m", "tests.frameworks.megatron_program", "examples/megatron_tp.py"],
    "trl": ["examples/trl_sft.py"],
}


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[] if name == "pipeline" else needs(name)) for name in PROGRAMS],
)
def test_example_of_a_framework_runs(name, tmp_path):
    output = python(
        *PROGRAMS[name],
        seconds=200,
        DS_ACCELERATOR="cpu",
        TORCH_EXTENSIONS_DIR=str(tmp_path),
        TORCH_COMPILE_DISABLE="1",
        HF_HUB_OFFLINE="1",
        HF_HUB_DISABLE_TELEMETRY="1",
    )
    ratios = re.findall(r"activations ([\d.]+)x smaller", output)
    assert ratios, output
    assert all(float(ratio) > 4 for ratio in ratios), output


def test_the_patch_for_nanogpt_is_whole():
    """Its hunks have as many lines as they say, and what they add enters a Compressor in every step."""
    lines = Path(ROOT, "examples", "nanogpt.patch").read_text().splitlines()
    hunks = [i for i, line in enumerate(lines) if line.startswith("@@")]
    for start, end in zip(hunks, [*hunks[1:], len(lines)], strict=True):
        before, after = re.findall(r"[-+]\d+,(\d+)", lines[start])
        found = lines[start + 1 : end]
        assert sum(not line.startswith("+") for line in found) == int(before)
        assert sum(not line.startswith("-") for line in found) == int(after)
    added = "\n".join(line[1:].strip() for line in lines if re.match(r"\+[^+]", line))
    assert "from bitstash import Compressor" in added
    assert "saver = Compressor(model, bits=bits)" in added
    assert "with ctx, saver:" in added
