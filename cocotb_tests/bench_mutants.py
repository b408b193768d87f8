"""The benches of an engine against one mutant after the other, chosen by the model's input ``mutant``.

A mutant is killed by the first bench that fails on it; the benches after that one are left out.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import ModuleType

import cocotb

from cocotb_tests import bench_axi, bench_engines, bench_runtime
from cocotb_tests.bench_engines import TASK

PAUSES = [("never", "often"), ("often", "bursts"), ("bursts", "never")]
LONG = ("changing", "changing")  # how both ends pause in a run of all blocks
DECOMPRESSES = TASK.part == "decompressor"


def comparisons(blocks: int, pauses: list[tuple[str, str]]) -> dict[str, Callable]:
    """The comparison with golden/ for every kind of blocks, by name."""
    made = {}
    for kind in bench_engines.KINDS:
        for idle, stall in pauses:
            compare = partial(
                bench_engines.compare_with_golden,
                kind=kind,
                idle=idle,
                stall=stall,
                count=blocks,
                salt=blocks,
            )
            made[f"{kind}, {blocks} blocks, idle {idle}, stalled {stall}"] = compare
    return made


def of_stream() -> dict[str, Callable]:
    """The quick ones first: most mutants live no longer than some blocks. What only a rare block shows comes
    last."""
    benches = bench_engines
    made = comparisons(20, PAUSES)
    made |= {
        "latency": benches.takes_its_latency.func,
        "throughput": partial(benches.sustains_its_throughput.func, stalls=False),
        "ready after valid": benches.waits_for_no_ready.func,
        "places": partial(benches.meets_every_place.func, ends="often"),
        "reset": partial(benches.reset_leaves_no_trace.func, ends="often"),
    }
    if DECOMPRESSES:
        made |= {
            "no gap": benches.a_stall_leaves_no_gap.func,
            "headers": partial(benches.invalid_headers_give_zeros_and_an_error.func, ends="often"),
            "broken streams": partial(benches.a_stream_that_breaks_off_ends_with_an_error.func, ends="often"),
            "any bytes": benches.any_bytes_give_one_last_word_a_tensor.func,
        }
    made |= comparisons(TASK.blocks, [LONG])
    if not DECOMPRESSES:
        made["rare blocks"] = partial(benches.matches_golden_in_rare_blocks.func, idle="never", stall="never")
    return made


def of_axi() -> dict[str, Callable]:
    benches = bench_axi
    made: dict[str, Callable] = {
        "latency": benches.sustains_its_throughput_and_latency.func,
        "ready after valid": benches.waits_for_no_ready.func,
        "reset": benches.reset_leaves_no_trace.func,
        "any keep": partial(benches.takes_bytes_without_keep_as_zeros.func, idle="often", stall="bursts"),
        "every length": partial(benches.takes_packets_of_every_length.func, ends="often"),
    }
    return made | compared(benches)


def of_runtime() -> dict[str, Callable]:
    benches = bench_runtime
    made: dict[str, Callable] = {
        "latency": benches.sustains_its_throughput_and_latency.func,
        "bypass": benches.a_bypassed_word_takes_no_cycle.func,
        "switches": partial(benches.switches_from_each_format_to_each.func, ends="often"),
        "reset": benches.reset_leaves_no_trace.func,
    }
    if DECOMPRESSES:
        made["headers"] = partial(benches.invalid_headers_give_zeros_and_an_error.func, ends="often")
    return made | compared(benches)


def compared(benches: ModuleType) -> dict[str, Callable]:
    """Comparisons with golden/, by the name of how the ends pause: short ones, and one of all blocks."""
    runs = [*((pauses, TASK.blocks // 9) for pauses in [*PAUSES, ("never", "never")]), (LONG, TASK.blocks)]
    return {
        f"{blocks} blocks, idle {idle}, stalled {stall}": partial(
            benches.compare_with_golden, idle=idle, stall=stall, count=blocks, salt=number
        )
        for number, ((idle, stall), blocks) in enumerate(runs)
    }


BENCHES = {"stream": of_stream, "axi": of_axi, "runtime": of_runtime}[TASK.interface]()

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
