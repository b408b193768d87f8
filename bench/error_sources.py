"""Which saved tensors make the gradient error of SmolLM2-135M: ``python -m bench.error_sources``.

The gradient error ``||g - g_exact|| / ||g_exact||`` over all parameters of one step in bf16 autocast, where
tensors of one kind are in the Hadamard format and all others exact; and what it is without the means of
channels, which are kept beside the format's blocks. ``make finetune`` installs the model. Leaves
build/bench/error_sources.md.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from golden import HadamardFormat
from torch_bridge import Compressor, Policy, Rule
from torch_bridge.facts.facts import Facts
from torch_bridge.policy import Decision

from . import smollm2
from .products import step

# By module and by what saves them.
KINDS: dict[str, list[tuple[str, str]]] = {
    "all": [("*", "*")],
    "inputs of norms": [("*norm", "*")],
    "gates": [("*act_fn", "*")],
    "ups": [("*.mlp", "*")],
    "queries and keys": [("*self_attn", "*attention*.query"), ("*self_attn", "*attention*.key")],
    "values": [("*self_attn", "*attention*.value")],
}
OUT = Path("build/bench/error_sources.md")


@dataclass(frozen=True)
class WithoutMeans(Policy):
    """A policy that takes no means of channels."""

    def decide(self, facts: Facts) -> Decision:
        return replace(super().decide(facts), channels=False)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.error_sources", description="Gradient errors.")
    parser.add_argument("--bits", type=int, choices=(2, 3, 4), default=4, help="of a value (default: 4)")
    parser.add_argument("--tokens", type=int, default=512, help="of the sequence (default: 512)")
    given = parser.parse_args()
    torch.set_num_threads(1)
    subject = smollm2.subject()
    lines = []
    for line in table(subject.model, subject.text[: given.tokens][None], given.bits):
        lines.append(line)
        print(line, flush=True)
    OUT.parent.mkdir(parents=True, exist_ok=True)
    OUT.write_text("\n".join(lines) + "\n")


def table(model: torch.nn.Module, tokens: torch.Tensor, bits: int) -> Iterator[str]:
    """The table, line by line."""
    yield "| in the format | kept, MB | gradient error | without means of channels |"
    yield "| --- | ---: | ---: | ---: |"
    fmt = HadamardFormat("bf16", target=16 * bits)
    exact, _ = step(model, tokens, torch.bfloat16, Compressor(model, Policy([])))
    for name, patterns in KINDS.items():
        own = [Rule(fmt, module=module, saved_by=saved_by) for module, saved_by in patterns]
        rules = [Rule("recompute"), *own, Rule("exact")] if name != "all" else Policy.default(fmt).rules
        errors, kept = [], 0
        for policy in (Policy(rules), WithoutMeans(rules)):
            saver = Compressor(model, policy)
            found, _ = step(model, tokens, torch.bfloat16, saver)
            errors.append(float((found - exact).norm() / exact.norm()))
            kept = kept or saver.stored_bytes
        yield f"| {name} | {kept / 1e6:.1f} | {errors[0]:.3f} | {errors[1]:.3f} |"


if __name__ == "__main__":
    main()
