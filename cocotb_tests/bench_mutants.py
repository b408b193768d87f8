"""The benches of an engine against one mutant after the other, chosen by the model's input ``mutant``.

A mutant is killed by the first bench that fails on it; the benches after that one are left out.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import ModuleType

import cocotb
from cocotb.simtime import get_sim_time
from cocotb.triggers import with_timeout

from cocotb_tests import bench_axi, bench_engines, bench_runtime
from cocotb_tests.bench_engines import TASK

PAUSES = [("never", "often"), ("often", "bursts"), ("bursts", "never")]
CHANGING = ("changing", "changing")  # how both ends pause in a run of all blocks
ENDS = ("never", "often")  # how they do around a reset
DECOMPRESSES = TASK.part == "decompressor"


Benches = dict[str, Callable]


def comparisons(blocks: int, pauses: list[tuple[str, str]]) -> Benches:
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


def resets(benches: ModuleType) -> Benches:
    return {f"reset, ends {ends}": partial(benches.reset_leaves_no_trace.func, ends=ends) for ends in ENDS}


def of_stream() -> tuple[Benches, Benches]:
    benches = bench_engines
    quick = comparisons(20, PAUSES)
    quick |= {
        "latency": benches.takes_its_latency.func,
        "throughput": partial(benches.sustains_its_throughput.func, stalls=False),
        "ready after valid": benches.waits_for_no_ready.func,
        "places": partial(benches.meets_every_place.func, ends="often"),
    }
    quick |= resets(benches)
    if DECOMPRESSES:
        quick |= {
            "no gap": benches.a_stall_leaves_no_gap.func,
            "headers": partial(benches.invalid_headers_give_zeros_and_an_error.func, ends="often"),
            "broken streams": partial(benches.a_stream_that_breaks_off_ends_with_an_error.func, ends="often"),
            "any bytes": benches.any_bytes_give_one_last_word_a_tensor.func,
        }
    long = comparisons(TASK.blocks, [CHANGING])
    if not DECOMPRESSES:
        long["rare blocks"] = partial(benches.matches_golden_in_rare_blocks.func, idle="never", stall="never")
    return quick, long


def of_axi() -> tuple[Benches, Benches]:
    benches = bench_axi
    quick: Benches = {
        "latency": benches.sustains_its_throughput_and_latency.func,
        "ready after valid": benches.waits_for_no_ready.func,
        "any keep": partial(benches.takes_bytes_without_keep_as_zeros.func, idle="often", stall="bursts"),
        "every length": partial(benches.takes_packets_of_every_length.func, ends="often"),
    }
    if DECOMPRESSES:
        quick["no gap"] = benches.a_stall_leaves_no_gap.func
    return compared(benches, quick | resets(benches))


def of_runtime() -> tuple[Benches, Benches]:
    benches = bench_runtime
    quick: Benches = {
        "latency": benches.sustains_its_throughput_and_latency.func,
        "bypass": benches.a_bypassed_word_takes_no_cycle.func,
        "configuration": benches.takes_a_configuration_at_once_while_empty.func,
        "switches": partial(benches.switches_from_each_format_to_each.func, ends="often"),
    }
    if DECOMPRESSES:
        quick["no gap"] = benches.a_stall_leaves_no_gap.func
        quick["headers"] = partial(benches.invalid_headers_give_zeros_and_an_error.func, ends="often")
    return compared(benches, quick | resets(benches))


def compared(benches: ModuleType, quick: Benches) -> tuple[Benches, Benches]:
    """Short comparisons with golden/ behind the quick ones; as long ones those of rare and of all blocks."""

    def compare(idle: str, stall: str, blocks: int) -> Callable:
        salt = len(quick)  # each has blocks of its own
        return partial(benches.compare_with_golden, idle=idle, stall=stall, count=blocks, salt=salt)

    for idle, stall in [*PAUSES, ("never", "never")]:
        quick[f"idle {idle}, stalled {stall}"] = compare(idle, stall, TASK.blocks // 9)
    rare = partial(benches.matches_golden_in_rare_blocks.func, ends="never")
    of_all_kinds = compare(*CHANGING, TASK.blocks * len(bench_engines.KINDS))
    return quick, {"rare blocks": rare, "all blocks": of_all_kinds}


# Most mutants live no longer than some blocks: long ones are for those that survive the quick ones.
QUICK, LONG = {"stream": of_stream, "axi": of_axi, "runtime": of_runtime}[TASK.interface]()
BENCHES = {"quick": QUICK, "long": LONG}[TASK.benches]

unfinished: dict[int, str] = {}  # mutant -> the bench that did not end well on it
steps: dict[str, int] = {}  # bench -> how long it takes on the engine without a fault, which comes first


@cocotb.test()
@cocotb.parametrize(mutant=TASK.mutants, bench=list(BENCHES))
async def finds(dut, mutant, bench):
    """Fails if the bench finds the mutant, or takes twice as long; number 0 is the engine without a fault."""
    if mutant in unfinished:
        return
    unfinished[mutant] = bench
    dut.mutant.value = mutant
    began, run = get_sim_time("step"), BENCHES[bench](dut)
    if mutant == 0:
        await run
        steps[bench] = get_sim_time("step") - began
    else:
        await with_timeout(run, 2 * steps[bench], "step")
    del unfinished[mutant]


@cocotb.test(stage=1)
async def note_which_were_killed(dut):
    TASK.note(killed=unfinished)
