"""A step in front of a DRAM: what is recorded of it, where it lies, what a simulator is given and says."""

import json
import os
import shutil
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch

from bench.dram import dramsim3, lossless, page, trace
from bench.dram.layout import (
    ALIGNMENT,
    FixedRate,
    Pages,
    Place,
    Plain,
    Span,
    spans,
)
from bench.dram.step import Access, Step, Tensor, record
from bitstash import Compressor
from gen.toolchain import ToolError
from golden import HadamardFormat, PlaneFormat

DOCS = Path(__file__).parent.parent / "docs"
PLANES = PlaneFormat("fp32", 64, 80)
CONFIG = """
[dram_structure]
BL = 4
[timing]
tCK = 0.5
[system]
channels = 2
bus_width = 128
"""


def tensor(size, exact=False):
    return Tensor(np.arange(size, dtype=np.uint8), exact)


def a_step(*sizes, exact=()):
    tensors = [tensor(size, number in exact) for number, size in enumerate(sizes)]
    writes = [Access(number, True) for number in range(len(sizes))]
    return Step(tensors, writes + [Access(access.tensor, False) for access in reversed(writes)], [])


@pytest.fixture(scope="module")
def mlp():
    torch.manual_seed(0)
    linear = torch.nn.Linear
    model = torch.nn.Sequential(linear(256, 512), torch.nn.GELU(), linear(512, 256))
    x = torch.randn(128, 256)
    return model, lambda: torch.log_softmax(model(x), -1)[:, 0].sum()


def test_a_step_is_written_forward_and_read_backward(mlp):
    step = record(*mlp)
    # The input, the first linear's output, GELU's output, and the log-softmax.
    assert [saved.size for saved in step.tensors] == [4 * 128 * width for width in (256, 512, 512, 256)]
    assert [saved.exact for saved in step.tensors] == [False, False, False, True]
    assert step.accesses == [Access(n, True) for n in range(4)] + [Access(n, False) for n in (3, 2, 1, 0)]
    assert step.moved_bytes == 2 * step.saved_bytes
    assert step.parameters == [4 * size for size in (256 * 512, 512, 512 * 256, 256)]


def test_what_is_recorded_has_the_bytes_of_the_bridges_report(mlp):
    model, forward = mlp
    with Compressor(model, PLANES) as saver:
        forward().backward()
    assert record(model, forward).saved_bytes == saver.original_bytes


def test_values_are_those_that_were_saved():
    x = torch.linspace(0, 1, 1 << 15, requires_grad=True)
    step = record(torch.nn.Identity(), lambda: (x.exp() * 2).sum())
    (saved,) = step.tensors
    assert (saved.values.view(np.float32) == x.detach().exp().numpy()).all()


def test_views_that_are_read_together_are_one_read():
    x = torch.randn(3, 8, 64, 64, requires_grad=True)
    step = record(torch.nn.Identity(), lambda: torch.mul(*(2 * x)[:2]).sum())
    assert len(step.tensors) == 1
    assert step.accesses == [Access(0, True), Access(0, False)]


def test_plain_tensors_are_aligned_and_do_not_overlap():
    first, second, third = Plain().place([tensor(100), tensor(ALIGNMENT), tensor(7)])
    assert first == Place((), (Span(0, 100),), 100)
    assert second.data == (Span(ALIGNMENT, ALIGNMENT),)
    assert third.data == (Span(2 * ALIGNMENT, 7),)


@pytest.mark.parametrize(("fmt", "ratio"), [(PLANES, 3.2), (HadamardFormat("fp32", 128, 32), 16)])
def test_the_address_of_a_block_is_a_multiplication(fmt, ratio):
    sizes = [4096, 1 << 16, 300, 2048]
    places = FixedRate("x", fmt).place([tensor(size) for size in sizes])
    plain = Plain().place([tensor(size) for size in sizes])
    base = places[0].data[0].address
    for place, as_it_is in zip(places, plain, strict=True):
        assert place.data[0].address - base == as_it_is.data[0].address / ratio
        assert not place.before
    assert places[1].data[0].size == places[1].stored == (1 << 16) / ratio
    assert places[2].data[0].size == -(-300 // fmt.original_bytes) * fmt.target


def test_exact_tensors_stay_as_they_are():
    small, large = FixedRate("x", PLANES).place([tensor(1000, exact=True), tensor(256)])
    assert small.data == (Span(0, 1000),)
    assert large.data[0].size == 80


def halves(values, page):
    return np.full(-(-len(values) // page), page // 2 - 10)


def test_pages_take_their_granularity_and_an_entry_each():
    (place,) = Pages("x", halves, page=4096, entry=8, granularity=64).place([tensor(3 * 4096)])
    assert [span.size for span in place.data] == [2038] * 3
    assert [span.address for span in place.data] == [0, 2048, 4096]
    assert place.before[0].size == 24
    assert place.stored == 3 * 2048 + 24


def test_pages_that_grow_are_kept_as_they_are():
    def larger(values, page):
        return np.array([page + 1])

    (place,) = Pages("x", larger, page=4096, entry=8, granularity=64).place([tensor(4096)])
    assert place.data == (Span(0, 4096),)


def test_a_step_moves_metadata_before_data():
    layout = Pages("x", halves, page=4096, entry=8, granularity=64)
    step = a_step(4096)
    places = layout.place(step.tensors)
    table = places[0].before[0]
    moved = list(spans(step, places))
    assert moved == [(True, table), (True, Span(0, 2038)), (False, table), (False, Span(0, 2038))]


def test_requests_have_the_steps_bytes():
    step = a_step(4096, 1 << 16, 640)
    found = list(trace.requests(spans(step, Plain().place(step.tensors)), 64))
    assert len(found) * 64 == step.moved_bytes
    assert [request.writes for request in found] == [True] * (len(found) // 2) + [False] * (len(found) // 2)
    assert [request.address for request in found[:3]] == [0, 64, 128]
    # The last tensor is the first to be read.
    assert found[len(found) // 2].address == 4096 + (1 << 16)


def test_compressed_requests_are_as_many_as_the_ratio_says():
    step = a_step(1 << 16, 1 << 16)
    found = list(trace.requests(spans(step, FixedRate("x", PLANES).place(step.tensors)), 64))
    assert len(found) * 64 == step.moved_bytes / 3.2


def test_a_burst_in_which_two_spans_meet_is_one_request():
    moved = [(True, Span(0, 80)), (True, Span(80, 80)), (False, Span(0, 10))]
    found = list(trace.requests(moved, 64))
    assert found == [(0, True), (64, True), (128, True), (0, False)]
    assert len(list(trace.requests(moved, 128))) == 3
    with pytest.raises(ValueError, match="power of two, not 96"):
        list(trace.requests(moved, 96))


def test_traces_are_in_the_simulators_formats(tmp_path):
    found = [trace.Request(0x1C0, True), trace.Request(64, False)]
    assert trace.write_dramsim3(found, tmp_path / "a") == 2
    assert (tmp_path / "a").read_text() == "0x1c0 WRITE 0\n0x40 READ 0\n"
    assert trace.write_ramulator2(found, tmp_path / "b") == 2
    assert (tmp_path / "b").read_text() == "ST 0x1c0\nLD 0x40\n"


def test_bit_planes_are_planes():
    # All words alike: each plane is all zeros or all ones.
    values = np.full(1024, 0x3F800001, "<u4").view(np.uint8)
    planes = b"".join(bytes([255 * (0x3F800001 >> bit & 1)]) * 128 for bit in range(31, -1, -1))
    assert lossless.bit_planes(values, 4096).tolist() == [len(zlib.compress(planes))]
    noise = np.random.default_rng(0).integers(0, 256, 8192, np.uint8)
    assert (lossless.bit_planes(noise, 4096) > 4096).all()
    assert len(lossless.bit_planes(noise[:4097], 4096)) == 2


def bpc(words):
    return lossless.bit_plane_compression(np.array([words], "<i4").view(np.uint8)).tolist()


def test_bit_plane_compression_is_what_is_counted_by_hand():
    assert bpc([0] * 16) == [0]
    # A base of 4 bits, and a run of 33 planes of zeros: 7 + 7 bits.
    assert bpc([5] * 16) == [2]
    # Deltas of 1: the lowest plane is all ones, so is its exclusive or: 19 + 7 (32 zeros) + 5 bits.
    assert bpc(range(1000, 1016)) == [4]
    # One delta of 1 alone: 3 (base 0) + 7 + 9 for a single one.
    assert bpc([0] * 15 + [1]) == [3]
    noise = np.random.default_rng(0).integers(-(1 << 31), 1 << 31, 16)
    assert bpc(noise)[0] > 64


def test_lines_are_in_bins():
    lines = np.array([[0] * 16, [5] * 16, list(range(0, 16 * 9999, 9999))], "<i4")
    noise = np.random.default_rng(0).integers(-(1 << 31), 1 << 31, (61, 16)).astype("<i4")
    values = np.concatenate([lines, noise]).view(np.uint8).reshape(-1)
    third = lossless.lines(values, 4096)[0] - 0 - 8 - 61 * 64
    assert third in (8, 32)


@pytest.fixture
def memory(tmp_path):
    path = tmp_path / "HBM.ini"
    path.write_text(CONFIG)
    return dramsim3.Memory.read("HBM", path)


def test_a_memory_is_read_from_its_configuration(memory, tmp_path):
    assert (memory.burst, memory.channels, memory.clock) == (64, 2, 0.5)
    assert memory.peak == 16 * 2 / 0.5 * 2
    with pytest.raises(ValueError, match=r"but '.*absent\.ini' has none"):
        dramsim3.Memory.read("x", tmp_path / "absent.ini")
    (tmp_path / "wrong.ini").write_text("[system]\nchannels = 1\n")
    with pytest.raises(ValueError, match=r"but '.*wrong\.ini' is none: .*dram_structure"):
        dramsim3.Memory.read("x", tmp_path / "wrong.ini")


def statistics(reads, writes):
    channel = {"num_reads_done": reads, "num_writes_done": writes, "num_read_row_hits": 3}
    return json.dumps({"0": channel | {"num_write_row_hits": 1, "total_energy": 4e9}})


def test_what_the_simulator_says_is_read(memory):
    run = dramsim3.result(memory, '{"requests": 8, "cycles": 100}', statistics(6, 2))
    assert (run.requests, run.nanoseconds, run.row_hits) == (8, 50, 0.5)
    assert run.millijoules == pytest.approx(2)  # mW in each of its cycles, of half a nanosecond
    with pytest.raises(ToolError, match="answered 8 requests, not 7"):
        dramsim3.result(memory, '{"requests": 8, "cycles": 100}', statistics(6, 1))


def test_a_folder_without_a_build_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"DRAMSIM3 must be a folder with libdramsim3\.so, not '.*'"):
        dramsim3.DramSim3(tmp_path, tmp_path)


RESULTS = {
    "dramsim3": "abc",
    "torch": "2",
    "memories": {"HBM2": {"configuration": "HBM2_x", "peak_gb_per_s": 256.0}},
    "models": [
        {
            "model": "small",
            "batch": 8,
            "tensors": 3,
            "saved_bytes": 2_000_000,
            "exact_bytes": 100_000,
            "moved_bytes": 4_000_000,
            "parameter_bytes": 500_000,
            "parameter_traffic_bytes": 5_000_000,
            "rows": [
                {
                    "layout": name,
                    "stored_bytes": stored,
                    "memory": "HBM2",
                    "moved_bytes": moved,
                    "requests": moved // 64,
                    "nanoseconds": moved / 200,
                    "millijoules": moved / 1e6,
                    "row_hits": 0.975,
                }
                for name, stored, moved in (
                    ("as they are", 2_000_000, 4_000_000),
                    ("ours", 500_000, 1_000_000),
                )
            ],
        }
    ],
}


def test_the_page_has_a_table_for_each_memory(tmp_path):
    path = tmp_path / "dram.md"
    path.write_text("# x\n<!-- results -->\nold\n<!-- end -->\nbehind\n")
    page.fill(path, RESULTS)
    text = path.read_text()
    assert "old" not in text
    assert text.endswith("<!-- end -->\nbehind\n")
    assert "3 saved tensors have 2.0 MB, 0.1 MB of them exact." in text
    assert "| as they are | 100% | 4.0 | 0.02 | 100% | 4.00 | 200.0 | 97.5% |" in text
    assert "| ours | 25% | 1.0 | 0.01 | 25% | 1.00 | 200.0 | 97.5% |" in text
    assert "moves 5.0 MB for them" in text


def test_the_committed_page_has_what_its_results_say(tmp_path):
    for name in ("dram.json", "node.json", "dram.md"):
        shutil.copy(DOCS / name, tmp_path)
    page.fill(tmp_path / "dram.md", json.loads((DOCS / "dram.json").read_text()))
    page.fill_engine(tmp_path)
    assert (tmp_path / "dram.md").read_text() == (DOCS / "dram.md").read_text()


def test_the_engine_takes_its_picojoules_of_each_byte_there_and_back(tmp_path):
    small = RESULTS["models"][0]
    rows = [small["rows"][0], small["rows"][1] | {"layout": "bitstash, bit-plane format 3.2x"}]
    (tmp_path / "dram.json").write_text(json.dumps(RESULTS | {"models": [small | {"rows": rows}]}))
    engines = [
        {"preset": preset, "bus_bytes": width, "sized": {"pj_per_byte": energy}}
        for preset, width, energy in (
            ("gpt2-fp32-3.2x", 64, 200),
            ("gpt2-fp32-3.2x", 64, 100),
            ("gpt2-fp32-3.2x", 16, 9000),
            ("gpt2-fp32-memory-64", 64, 400),
        )
    ]
    (tmp_path / "node.json").write_text(json.dumps({"rows": engines}))
    (tmp_path / "dram.md").write_text("<!-- engine -->\n<!-- end -->\n")
    page.fill_engine(tmp_path)
    text = (tmp_path / "dram.md").read_text()
    assert "Of the small model's step, 1.9 MB are compressed." in text
    assert "| codecs, bit-plane format 3.2x | 0.570 | 14.2% | 57.0% |" in text
    assert "| the whole memory engine, bit-plane format 3.2x | 1.520 | 38.0% | 152.0% |" in text
    assert "Hadamard" not in text  # which node.json does not have


def test_the_driver_needs_nothing_but_the_librarys_header():
    includes = [line for line in dramsim3.DRIVER.read_text().splitlines() if line.startswith("#include")]
    assert [line for line in includes if '"' in line] == ['#include "dramsim3.h"']


@pytest.mark.skipif("DRAMSIM3" not in os.environ, reason="DRAMSIM3 names no build of DRAMsim3")
def test_a_trace_runs_to_its_end(tmp_path):
    simulator = dramsim3.DramSim3(Path(os.environ["DRAMSIM3"]), tmp_path)
    hbm = simulator.memory("HBM2", "HBM2_8Gb_x128")
    assert (hbm.burst, hbm.channels, hbm.peak) == (64, 8, 256)
    step = a_step(1 << 20)
    found = trace.requests(spans(step, Plain().place(step.tensors)), hbm.burst)
    count = trace.write_dramsim3(found, tmp_path / "trace")
    run = simulator.run(hbm, tmp_path / "trace")
    assert run.requests == count == (2 << 20) // 64
    assert 0.5 * hbm.peak < (2 << 20) / run.nanoseconds < hbm.peak
    assert run.row_hits > 0.9
    assert run.millijoules > 0
