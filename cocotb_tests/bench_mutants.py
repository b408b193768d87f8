"""The benches of both engines against one mutant after the other, chosen by the model's input ``mutant``.

A mutant is killed by the first bench that fails on it; the benches after that one are left out.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import cocotb

from cocotb_tests import bench_engines as benches
from cocotb_tests.bench_engines import TASK

PAUSES = [("never", "often"), ("often", "bursts"), ("bursts", "never")]


def comparisons(blocks: int, pauses: list[tuple[str, str]]) -> dict[str, Callable]:
    """The comparison with golden/ for every kind of blocks, by name."""
    made = {}
    for kind in benches.KINDS:
        for idle, stall in pauses:
            compare = partial(
                benches.compare_with_golden, kind=kind, idle=idle, stall=stall, count=blocks, salt=blocks
            )
            made[f"{kind}, {blocks} blocks, idle {idle}, stalled {stall}"] = compare
    return made


# The quick ones first: most mutants live no longer than some blocks. What only a rare block shows comes last.
BENCHES: dict[str, Callable] = {
    **comparisons(20, PAUSES),
    "latency": benches.takes_its_latency.func,
    "throughput": partial(benches.sustains_its_throughput.func, stalls=False),
    "ready after valid": benches.waits_for_no_ready.func,
    "reset": partial(benches.reset_leaves_no_trace.func, ends="often"),
}
if TASK.part == "decompressor":
    BENCHES |= {
        "no gap": benches.a_stall_leaves_no_gap.func,
        "headers": partial(benches.invalid_headers_give_zeros_and_an_error.func, ends="often"),
        "broken streams": partial(benches.a_stream_that_breaks_off_ends_with_an_error.func, ends="often"),
        "any bytes": benches.any_bytes_give_one_last_word_a_tensor.func,
    }
BENCHES |= comparisons(TASK.blocks, [("never", "never")])
if TASK.part == "compressor":
    BENCHES["lone bits of NaNs"] = benches.tells_every_nan_from_an_infinity.func

unfinished: dict[int, str] = {}  # mutant -> the bench that did not end well on it


@cocotb.test()
@cocotb.parametrize(mutant=range(TASK.mutants + 1), bench=list(BENCHES))
async def finds(dut, mutant, bench):
    """Fails if the bench finds the mutant; number 0 is the engine without a fault."""
    if mutant in unfinished:
        return
    unfinished[mutant] = bench
    dut.mutant.value = mutant
    await BENCHES[bench](dut)
    del unfinished[mutant]


@cocotb.test(stage=1)
async def note_which_were_killed(dut):
    TASK.note(killed=unfinished)
