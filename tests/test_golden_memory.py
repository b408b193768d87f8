"""The memory behind the engine: what reads see, who is answered when, and what goes wrong."""

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from golden import HadamardFormat, PlaneFormat
from golden.bursts import PAGE, Burst, BurstKind, Response
from golden.memory import Dram, ErrorKind, MemoryModel, Region

from .memory_accesses import BUS_BYTES, REGIONS, bursts, contents
from .memory_reference import Reference

FMT = PlaneFormat("fp32", 64, 80)
OKAY, SLVERR, DECERR = Response.OKAY, Response.SLVERR, Response.DECERR


def memory(*regions, size=1 << 17, **options):
    model = MemoryModel(Dram(np.zeros(size, np.uint8)), **options)
    for index, region in enumerate(regions):
        model.enable(index, region)
    return model


def write(model, address, values, **options):
    """Whole words from an address on, in one INCR burst."""
    words = np.frombuffer(values.tobytes(), np.uint8).reshape(-1, model.bus_bytes)
    burst = Burst(address, len(words), model.bus_bytes)
    return model.write(burst, words, np.ones(words.shape, bool), **options)


def read(model, address, count, dtype=np.float32):
    words, responses = model.read(Burst(address, count * 4 // model.bus_bytes, model.bus_bytes))
    return words.reshape(-1).view(dtype), responses


def normal(count, seed=1):
    return np.random.default_rng(seed).normal(size=count).astype(np.float32)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_random_accesses_are_as_a_second_model_says(data):
    regions = list(REGIONS)
    model = memory(*regions, bus_bytes=BUS_BYTES, buffers=3, slots=4)
    reference = Reference(
        [(r.base, r.size, r.stored, r.fmt, r.merge) for r in regions], BUS_BYTES, buffers=3, slots=4
    )
    for _ in range(data.draw(st.integers(1, 25))):
        burst = data.draw(bursts())
        given_ = (burst.address, burst.beats, burst.size, burst.kind.name)
        what = data.draw(st.sampled_from(["write", "write", "write", "read", "expire"]))
        if what == "write":
            words, strobes = data.draw(contents(burst))
            options = {"bufferable": data.draw(st.booleans()), "master": data.draw(st.integers(0, 1))}
            plain = [
                {address - address % BUS_BYTES + int(i): int(word[i]) for i in np.flatnonzero(strobe)}
                for address, word, strobe in zip(burst.addresses(), words, strobes, strict=True)
            ]
            model.write(burst, words, strobes, **options)
            reference.write(*given_, plain, **options)
        elif what == "read":
            words, responses = model.read(burst)
            lanes = burst.lanes(BUS_BYTES)
            found = [
                None if response else [int(byte) for byte in word[lane]]
                for word, lane, response in zip(words, lanes, responses, strict=True)
            ]
            assert found == reference.read(*given_), given_
        elif model.expire():
            reference.evict(next(iter(reference.blocks)))
        assert model.responses == reference.answers
    while model.expire():
        pass
    assert not model._waiting


def test_a_block_reads_as_what_its_bytes_say_and_never_as_what_was_written():
    model = memory(Region(0, PAGE, PAGE, FMT))
    values = normal(64)
    ticket = write(model, 256, values)
    assert model.responses == {ticket: OKAY}
    stored = model.dram.content[PAGE + 80 : PAGE + 160]
    assert (stored == FMT.compress(values)[0]).all()
    found, responses = read(model, 256, 64)
    assert (found == FMT.decompress(stored.reshape(1, -1), 64)).all()
    assert (found != values).any()
    assert set(responses) == {OKAY}


def test_blocks_are_numbered_from_the_beginning_of_their_region():
    fmt = HadamardFormat("fp32", 64, 16)
    model = memory(Region(PAGE, PAGE, 8 * PAGE, fmt))
    write(model, PAGE + 3 * 256, normal(64))
    assert (model.dram.content[8 * PAGE + 48 :][:16] == fmt.compress(normal(64), 3)[0]).all()


def test_memory_that_was_cleared_reads_as_zeros():
    for fmt in (FMT, HadamardFormat()):
        found, responses = read(memory(Region(0, PAGE, PAGE, fmt)), 0, 64)
        assert not found.any()
        assert set(responses) == {OKAY}


def test_an_incomplete_block_reads_as_memory_has_it_while_nothing_of_it_was_answered():
    model = memory(Region(0, PAGE, PAGE, FMT))
    ticket = write(model, 0, normal(16))
    assert not read(model, 0, 64)[0].any()
    assert model.responses == {}
    write(model, 64, normal(48, seed=2))
    assert model.responses == {ticket: OKAY, ticket + 1: OKAY}
    assert read(model, 0, 64)[0].any()


def test_an_incomplete_block_that_was_answered_is_evicted_by_a_read():
    model = memory(Region(0, PAGE, PAGE, FMT))
    early = write(model, 0, normal(16), bufferable=True)
    late = write(model, 64, normal(16))
    assert model.responses == {early: OKAY}
    assert not read(model, 0, 16)[0].any()
    assert model.responses == {early: OKAY, late: SLVERR}
    assert model.errors == [(ErrorKind.EVICTED, 0)]
    write(model, 128, normal(32))  # the rest alone makes no block
    assert not model.dram.content.any()


def test_the_oldest_block_gives_way_when_buffers_run_out():
    model = memory(Region(0, 2 * PAGE, 8 * PAGE, FMT), buffers=4)
    tickets = [write(model, 256 * i, normal(16)) for i in range(4)]
    assert model.responses == {}
    write(model, 64, normal(16), master=1)  # the oldest stays the oldest
    write(model, 1024, normal(16))
    assert model.responses == {tickets[0]: SLVERR, 4: SLVERR}
    assert model.errors == [(ErrorKind.EVICTED, 0)]


def test_the_oldest_block_gives_way_when_answers_run_out():
    model = memory(Region(0, PAGE, PAGE, FMT), slots=2)
    tickets = [write(model, 64 * i, normal(16)) for i in range(3)]
    assert model.responses == dict.fromkeys(tickets[:2], SLVERR)


def test_bursts_of_one_master_are_answered_in_order_and_others_pass():
    model = memory(Region(0, PAGE, PAGE, FMT), Region(PAGE, PAGE, 2 * PAGE))
    held = write(model, 0, normal(16), master=1)
    behind = write(model, PAGE, normal(16), master=1)
    passing = write(model, PAGE, normal(16), master=2)
    assert model.responses == {passing: OKAY}
    model.expire()
    assert model.responses == {passing: OKAY, held: SLVERR, behind: OKAY}


def test_merging_changes_other_values_of_a_block_as_compressing_it_again_does():
    model = memory(Region(0, PAGE, PAGE, FMT, merge=True))
    write(model, 0, normal(64))
    before, _ = read(model, 0, 64)
    ticket = write(model, 64, normal(16, seed=2) * 1000)
    model.expire()
    assert model.responses[ticket] == OKAY
    merged = before.copy()
    merged[16:32] = normal(16, seed=2) * 1000
    after, _ = read(model, 0, 64)
    assert (after == FMT.decompress(FMT.compress(merged), 64)).all()
    assert (after[:16] != before[:16]).any()


def test_a_block_that_cannot_be_read_is_not_merged():
    model = memory(Region(0, PAGE, PAGE, FMT, merge=True))
    model.dram.content[PAGE + 1] = 255
    ticket = write(model, 0, normal(16))
    model.expire()
    assert model.responses == {ticket: SLVERR}
    assert model.errors == [(ErrorKind.INVALID, 0)]


def test_disabling_a_region_evicts_its_blocks_and_no_others():
    model = memory(Region(0, PAGE, PAGE, FMT), Region(2 * PAGE, PAGE, 3 * PAGE, FMT))
    gone, stays = write(model, 0, normal(16)), write(model, 2 * PAGE, normal(16))
    model.disable(0)
    assert model.responses == {gone: SLVERR}
    write(model, 2 * PAGE + 64, normal(48))
    assert model.responses[stays] == OKAY
    assert read(model, 0, 16)[1] == [DECERR]


@pytest.mark.parametrize("address", [2 * PAGE, 3 * PAGE], ids=["none", "two"])
def test_where_no_region_or_two_answer_there_is_nothing(address):
    model = memory(
        Region(0, PAGE, 8 * PAGE), Region(3 * PAGE, PAGE, 5 * PAGE), Region(3 * PAGE, PAGE, 6 * PAGE)
    )
    ticket = write(model, address, normal(16))
    words, responses = read(model, address, 32)
    assert model.responses == {ticket: DECERR}
    assert responses == [DECERR] * 2
    assert not words.any()
    assert model.errors == [(ErrorKind.DECODE, address)] * 2


def test_regions_that_share_memory_answer_nowhere():
    model = memory(Region(0, 16 * PAGE, 16 * PAGE, FMT), Region(64 * PAGE, PAGE, 20 * PAGE))
    assert read(model, 0, 16)[1] == read(model, 64 * PAGE, 16)[1] == [DECERR]
    model.disable(1)
    model.enable(1, Region(64 * PAGE, PAGE, 21 * PAGE))  # 16 pages become 5
    assert read(model, 0, 16)[1] == read(model, 64 * PAGE, 16)[1] == [OKAY]


def test_a_region_whose_stored_bytes_reach_beyond_the_address_space_answers_nowhere():
    bits = 17  # 32 pages
    model = memory(Region(0, 4 * PAGE, 29 * PAGE), address_bits=bits)
    assert read(model, 0, 16)[1] == [DECERR]
    for region in (Region(0, 3 * PAGE, 29 * PAGE), Region(0, 9 * PAGE, 29 * PAGE, FMT)):
        model.disable(0)
        model.enable(0, region)
        assert read(model, 0, 16)[1] == [OKAY]


def test_fixed_writes_to_blocks_are_refused():
    model = memory(Region(0, PAGE, PAGE, FMT), Region(PAGE, PAGE, 2 * PAGE))
    words = np.arange(128, dtype=np.uint8).reshape(2, 64)
    for address in (0, PAGE):
        model.write(Burst(address, 2, 64, BurstKind.FIXED), words, np.ones((2, 64), bool), bufferable=True)
    assert model.responses == {0: SLVERR, 1: OKAY}
    assert model.errors == [(ErrorKind.REFUSED, 0)]
    assert (model.dram.content[2 * PAGE : 2 * PAGE + 64] == words[1]).all()


def test_an_invalid_block_is_an_error_on_its_own_beats_only():
    model = memory(Region(0, PAGE, PAGE, FMT))
    model.dram.content[PAGE + 80 + 1] = 255
    words, responses = model.read(Burst(0, 16, 64))
    assert responses == [OKAY] * 4 + [SLVERR] * 4 + [OKAY] * 8
    assert not words.any()
    assert model.errors == [(ErrorKind.INVALID, 256)]


def test_an_error_of_memory_comes_back_on_the_blocks_whose_bytes_it_has():
    model = memory(Region(0, PAGE, PAGE, FMT))
    model.dram.faults.append((PAGE + 64, PAGE + 65, SLVERR))  # a beat with the end of block 0 and most of 1
    assert model.read(Burst(0, 16, 64))[1] == [SLVERR] * 8 + [OKAY] * 8
    values = normal(64)
    ticket = write(model, 256, values)
    assert model.responses == {ticket: SLVERR}
    assert model.errors[-1] == (ErrorKind.WRITE, PAGE + 80)
    expected = np.zeros_like(model.dram.content)
    expected[PAGE + 128 : PAGE + 160] = FMT.compress(values, 1)[0][48:]  # the other beat of block 1
    assert np.array_equal(model.dram.content, expected)


def test_memory_ends_with_decerr():
    model = memory(Region(0, PAGE, PAGE), size=PAGE + 128)
    ticket = write(model, 64, normal(32))
    assert model.responses == {ticket: DECERR}
    assert model.read(Burst(0, 3, 64))[1] == [OKAY, OKAY, DECERR]


BAD_BURSTS = [
    ((0xFC0, 2, 64), "must not cross 4 KiB: 2 beats of 64 from 0xfc0"),
    ((0, 3, 4, BurstKind.WRAP), "beats must be 2, 4, 8 or 16 of a WRAP burst, not 3"),
    ((2, 4, 4, BurstKind.WRAP), "multiple of the size of a WRAP burst, not 0x2"),
    ((0, 17, 1, BurstKind.FIXED), "beats must be from 1 to 16, not 17"),
    ((0, 0, 1), "beats must be from 1 to 256, not 0"),
    ((0, 1, 3), "size must be a power of two from 1 to 128 bytes, not 3"),
    ((4092, 2, 4, 3), "kind must be one of FIXED, INCR, WRAP, not 3"),
    ((0, 2, 4, "INCR"), "kind must be one of FIXED, INCR, WRAP, not 'INCR'"),
    ((-64, 1, 4), "address must be from 0 up, not -64"),
    ((0.5, 1, 4), "address must be a whole number, not 0.5"),
    ((0, True, 4), "beats must be a whole number, not True"),
    ((0, 1, 4.0), "size must be a whole number, not 4.0"),
]


@pytest.mark.parametrize(("arguments", "message"), BAD_BURSTS, ids=[m for _, m in BAD_BURSTS])
def test_bursts_that_axi_does_not_allow_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        Burst(*arguments)


def test_narrow_integers_do_not_overflow():
    assert Burst(np.uint8(192), np.int8(100), np.int8(4)) == Burst(192, 100, 4)


def test_beats_are_where_axi_says():
    assert Burst(5, 3, 4).addresses() == [5, 8, 12]
    assert Burst(5, 3, 4, BurstKind.FIXED).addresses() == [5, 5, 5]
    assert Burst(40, 4, 8, BurstKind.WRAP).addresses() == [40, 48, 56, 32]
    assert [np.flatnonzero(lane).tolist() for lane in Burst(5, 2, 4).lanes(8)] == [[5, 6, 7], [0, 1, 2, 3]]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((100, PAGE, 0), "base must be a multiple of 4096, not 100"),
        ((0, 0, 0), "size must not be 0"),
        ((4096.0, PAGE, 0), "base must be a multiple of 4096, not 4096.0"),
        ((0, PAGE, 0, "fp32"), "fmt must be a format or None, not 'fp32'"),
        ((0, PAGE, 0, PlaneFormat("fp32", 64, None)), "fixed target, not None"),
    ],
)
def test_regions_that_are_none_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        Region(*arguments)


def test_regions_are_changed_when_disabled_and_have_blocks_of_two_words():
    model = memory(Region(0, PAGE, PAGE))
    with pytest.raises(ValueError, match="region 0 must be disabled before it is changed"):
        model.enable(0, Region(0, PAGE, PAGE))
    with pytest.raises(ValueError, match="at least 128 bytes, not 64"):
        model.enable(1, Region(PAGE, PAGE, PAGE, PlaneFormat("fp32", 16, 20)))
    for index in (-1, 8):
        with pytest.raises(ValueError, match=f"index must be from 0 to 7, not {index}"):
            model.enable(index, Region(PAGE, PAGE, 2 * PAGE))


def test_a_model_has_at_least_one_of_each():
    with pytest.raises(ValueError, match="buffers must be at least 1, not 0"):
        memory(buffers=0)


@pytest.mark.parametrize(
    ("words", "strobes", "message"),
    [
        (np.zeros((1, 64)), np.ones((1, 64), bool), "words must be uint8[1, 64], not float64[1, 64]"),
        (np.zeros((2, 64), "u1"), np.ones((1, 64), bool), "words must be uint8[1, 64], not uint8[2, 64]"),
        (np.zeros((1, 64), "u1"), np.ones((1, 64), "u1"), "strobes must be bool[1, 64], not uint8[1, 64]"),
    ],
)
def test_words_and_strobes_of_another_kind_are_refused_before_anything_is_taken(words, strobes, message):
    model = memory(Region(0, PAGE, PAGE))
    with pytest.raises(ValueError, match=re.escape(message)):
        model.write(Burst(0, 1, 64), words, strobes)
    assert write(model, 0, normal(16)) in model.responses
