"""How far the lossless bit-plane format shrinks what a GPT-2 of GPT-2-small's width saves, part by part."""

from __future__ import annotations

from functools import partial

from golden import Account, PlaneFormat

from ..calibration.capture import Saved, visit
from . import train

# Lee, Yun, Lee 2023, for GPT-2's activations.
PAPER = {"sign": 2.09, "exponent": 2.04, "mantissa": 1.21}

# Half of what eager attention saves is a causal zero: ratios depend on which tensors are counted.
# A byte is a token here: with GPT-2's 50,257 tokens the log-softmax alone would be a fifth of all bytes,
# and the bridge leaves it exact.
WORKLOAD = train.Options(config="wide", attention="eager", dropout=0.1, batch=1, steps=12)


def ratios(workload: train.Options = WORKLOAD) -> dict[str, object]:
    """Original bits over stored bits of every float tensor that autograd saves, parameters excluded.

    The account is that of the lossless mode in blocks of 64, headers included, after a few training
    steps. Nothing is sampled: all layers, all tensors of one step are counted.

    Args:
        workload: which model and how many steps; by default three layers of GPT-2-small's width (768,
            12 heads) over 1024 tokens, eager attention with dropout 0.1, after 12 steps.

    Returns:
        "sign", "exponent", "mantissa", "whole" with the zero code; "plain", the same without it;
        "paper", the paper's figures; and "original_bytes" that were counted.
    """
    total: list[Account] = []

    def count(fmt: PlaneFormat, saved: Saved) -> None:
        if saved.dtype == fmt.dtype:
            account = fmt.account(saved.values)
            total[:] = [total[0] + account if total else account]

    fmt = PlaneFormat(workload.dtype, 64, None)
    visit(*train.warmed_up(workload), partial(count, fmt))
    account = total[0]
    return {
        **account.ratio,
        "plain": account.plain_ratio,
        "paper": PAPER,
        "original_bytes": sum(account.original.values()) // 8,
    }
