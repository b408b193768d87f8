"""The list of all proofs: which claim about which component, of which size and how far."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

from amaranth import C, Cat, Value
from amaranth.lib import wiring

from golden import HadamardFormat, PlaneFormat
from golden.hadamard import SCALE_BIAS
from rtl import (
    AxiStreamCompressor,
    AxiStreamDecompressor,
    Compressor,
    Decompressor,
    RuntimeCompressor,
    RuntimeDecompressor,
)
from rtl.memory import MemoryParameters
from rtl.planes.chooser import Chooser
from rtl.planes.coder import Coder
from rtl.planes.decompressor import Expander
from rtl.planes.engine import PlaneEngine
from rtl.planes.placer import Placer
from rtl.planes.scanner import Scanner
from rtl.stream import (
    AsyncFifo,
    BlockJoiner,
    BlockSplitter,
    DelayLine,
    FullSlice,
    HalfSlice,
    Joiner,
    MemoryLine,
    Narrower,
    Packer,
    Splitter,
    Switch,
    Unpacker,
    Widener,
    word_layout,
)

from ..config import PRESETS, Config
from ..verilog import geometry, make_component, parts
from .answers import ReadAnswers, WriteAnswers
from .axi import AxiStreams
from .contract import NO_PATH_FROM_READY, Contract, Patience
from .crossing import Crossing, InTime
from .faults import FAULTS, Stage
from .hadamard import Aligned, EveryBlock, NoInvalidHeader, TinyHadamard, Transformed
from .headers import Headers
from .memory import MapInside, ReadRules, ReadsApart, WriteOrder, WriteRules
from .order import Chain, InOrder
from .roundtrip import RoundTrip, TinyFormat
from .runner import INDUCTION, REACHABILITY, SEARCH, Proof
from .runtime import AtBoundary, Configured
from .tally import NeverHangs, Rate, Tally

__all__ = ["all_proofs"]

SMALL = Config(PlaneFormat("bf16", block=16, target=20), bus_bytes=16)
NARROW = Config(PlaneFormat("fp16", block=16, target=7), bus_bytes=64)
SWITCHED = Config(
    PlaneFormat("bf16", block=16, target=20),
    bus_bytes=16,
    interface="runtime",
    further=(PlaneFormat("fp32", block=16, target=24, rounding="truncate"),),
    preset="bf16_n16_t20_or_fp32_n16_t24_b16",
)
HADAMARD = Config(HadamardFormat("bf16", block=64, target=16), bus_bytes=16)
SWITCHED_HADAMARD = Config(
    HadamardFormat("bf16", block=64, target=16),
    bus_bytes=16,
    interface="runtime",
    further=(HadamardFormat("fp32", block=64, target=32),),
    preset="bf16_n64_t16_or_fp32_n64_t32_hadamard_b16",
)

NUMBER = "number, latency"

Maker = Callable[[], wiring.Component]


def all_proofs() -> list[Proof]:
    """Every proof, and for each kind of claim the faults that it must find."""
    parts = (
        *(_of_stages, _of_movers, _of_clocks, _of_engines, _of_runtime),
        *(_of_headers, _of_round_trips, _of_hadamard, _of_hadamard_blocks, _of_faults, _of_memory),
    )
    return [proof for part in parts for proof in part()]


def _contract(name: str, parameters: str, make: Maker) -> Proof:
    return Proof(
        "contract", name, parameters, lambda: Contract(make()), INDUCTION, 2, script=NO_PATH_FROM_READY
    )


def _reached(proof: Proof, depth: int) -> Proof:
    """What the proof is about occurs at all: its `Cover` statements."""
    return replace(proof, engine=INDUCTION, depth=depth, mode="cover", script=())


def _plane(config: Config) -> PlaneFormat:
    assert isinstance(config.fmt, PlaneFormat)
    return config.fmt


def _of_stages() -> Iterator[Proof]:
    """The components inside the engines; the last number of a row is their patience."""
    engine = PlaneEngine(_plane(SMALL), SMALL.bus_bytes)
    narrow = PlaneEngine(_plane(NARROW), NARROW.bus_bytes)
    stages: list[tuple[str, str, Maker, int]] = [
        ("Splitter", "4 to 2 bytes", lambda: Splitter(4, 2), 1),
        ("Joiner", "2 to 4 bytes", lambda: Joiner(2, 4), 2),
        ("Packer", "2 to 4 bytes", lambda: Packer(2, 4, 1), 3),
        ("Unpacker", "4 to 3 bytes", lambda: Unpacker(3, 4), 3),
        ("BlockSplitter", "3 to 2 bytes", lambda: BlockSplitter(3, 2), 1),
        ("BlockJoiner", "2 to 3 bytes", lambda: BlockJoiner(3, 2), 2),
        ("FullSlice", "2 bytes", lambda: FullSlice(word_layout(2)), 1),
        ("HalfSlice", "2 bytes", lambda: HalfSlice(word_layout(2)), 1),
        ("DelayLine", "8 bits, 4 deep", lambda: DelayLine(8, 4), 4),
        ("MemoryLine", "8 bits, 4 deep", lambda: MemoryLine(8, 4), 2),
        ("Widener", NARROW.name, lambda: Widener(narrow, Switch(narrow.formats)), 1),
        ("Narrower", NARROW.name, lambda: Narrower(narrow, Switch(narrow.formats)), 4),
        ("Scanner", SMALL.name, lambda: Scanner(engine), 6),
        ("Chooser", SMALL.name, lambda: Chooser(engine, Switch(engine.formats)), 1),
        ("Coder", SMALL.name, lambda: Coder(engine, Switch(engine.formats)), 2),
        ("Placer", SMALL.name, lambda: Placer(engine, Switch(engine.formats)), 3),
        ("Expander", SMALL.name, lambda: Expander(engine, Switch(engine.formats)), 3),
    ]
    for name, parameters, make, cycles in stages:
        yield _contract(name, parameters, make)
        yield _reached(_contract(name, parameters, make), 16)
        yield _patience(name, parameters, make, cycles)


def _patience(name: str, parameters: str, make: Maker, cycles: int) -> Proof:
    return Proof("valid does not wait", name, parameters, lambda: Patience(make(), cycles), REACHABILITY, 20)


def _of_movers() -> Iterator[Proof]:
    """The components that change no byte: none is lost, added, moved or late."""
    for wide, narrow in [(4, 2)]:
        yield _moves(Splitter, (wide, narrow), Rate(wide, narrow, narrow, narrow))
        yield _moves(Joiner, (narrow, wide), Rate(narrow, narrow, narrow, wide))
    for block, bus in [(3, 4), (3, 2), (2, 4)]:
        yield _moves(Packer, (block, bus, 1), Rate(block, 1, 1, bus, ragged=True))
        yield _moves(Unpacker, (block, bus), Rate(bus, block, block, block))
    for part in (FullSlice, HalfSlice):
        yield from _slices(part)
    yield _delays("DelayLine", lambda: DelayLine(4, 3), "4 bits, 3 deep")
    yield _delays("MemoryLine", lambda: MemoryLine(4, 3), "4 bits, 3 deep")


def _moves(component: type[wiring.Component], sizes: tuple[int, ...], rate: Rate) -> Proof:
    parameters = f"{sizes[0]} and {sizes[1]} bytes"
    return Proof(
        "order", component.__name__, parameters, lambda: Tally(component(*sizes), rate, 1), REACHABILITY, 20
    )


def _slices(part: type[wiring.Component]) -> Iterator[Proof]:
    """For all time, and with a word offered in the cycle after it was taken."""
    yield _delays(part.__name__, lambda: part(4), "4 bits")

    def harness():
        return Tally(part(word_layout(2)), Rate(2, 1, 1, 2), 1)

    yield Proof(NUMBER, part.__name__, "2 bytes", harness, SEARCH, 16, mode="bmc")


def _of_clocks() -> Iterator[Proof]:
    """The FIFO between two clocks, for all their ratios and phases."""
    depth, edges = 4, 3

    def crossing(ahead: bool = False) -> Crossing:
        return Crossing(AsyncFifo(1, depth), ahead)

    def order(ahead: bool = False) -> InOrder:
        return InOrder(crossing(ahead), 1, lambda tag, bit: tag, Value.cast)

    name, parameters = "AsyncFifo", f"1 bit, {depth} deep"
    yield replace(_contract(name, parameters, crossing), engine=REACHABILITY)
    in_order = Proof("order", name, parameters, order, REACHABILITY, 20)
    yield from (in_order, _reached(in_order, 20))
    fault = replace(in_order, parameters=f"{parameters}, a pointer one ahead", make=lambda: order(ahead=True))
    yield replace(fault, engine=SEARCH, mode="bmc", finds=True)
    for less in (0, 1):
        in_time = f"{parameters}, {edges - less} edges"
        make = partial(_in_time, crossing, depth, edges - less)
        proof = Proof(NUMBER, name, in_time, make, REACHABILITY, 20, finds=less > 0)
        yield replace(proof, engine=SEARCH, mode="bmc") if less else proof


def _in_time(crossing: Callable[[], Crossing], depth: int, edges: int) -> InTime:
    return InTime(crossing(), depth, edges)


def _delays(name: str, make: Maker, parameters: str) -> Proof:
    def harness():
        return InOrder(make(), 4, lambda tag, bit: tag, lambda payload: Value.cast(payload)[:4])

    return Proof("order", name, parameters, harness, REACHABILITY, 20)


def _of_engines() -> Iterator[Proof]:
    """No control depends on data, so that the datapaths fall away here and the engines may have full size."""
    streams = [config for config in PRESETS.values() if config.interface == "stream"]
    presets = [config for config in streams if isinstance(config.fmt, PlaneFormat)]
    engines = [*presets, SMALL, NARROW]
    for config in engines:
        yield _counts(config, "compressor", whole_blocks=True)
        yield _counts(config, "compressor", whole_blocks=False)
        yield _counts(config, "decompressor")
        yield _never_hangs(config)
    yield _counts(presets[0], "compressor", whole_blocks=True, less=1)
    yield _counts(presets[0], "decompressor", less=1)
    for part in ("compressor", "decompressor"):
        for config in engines:
            yield _engine_contract(config, part)
    for axi in (AxiStreamCompressor, AxiStreamDecompressor):
        for config in (presets[0], SMALL, HADAMARD):
            yield _axi_contract(axi, config)
    order = _orders_blocks(TinyFormat(block=16, target=8), 16)
    yield from (order, _reached(order, order.depth))


def _counts(config: Config, part: str, whole_blocks: bool = False, less: int = 0) -> Proof:
    """A tensor that ends within a block may have up to the rest of that block's words more of latency, in a
    compressor. With ``less`` cycles of latency than are stated the proof must fail.
    """
    fmt, bus = config.fmt, config.bus_bytes
    compresses = part == "compressor"
    assert fmt.target is not None
    engine = geometry(config)
    latency = parts(config)[part].latency(engine)
    taken, given = (fmt.original_bytes, fmt.target) if compresses else (fmt.target, fmt.original_bytes)
    name = config.name
    if compresses:
        latency += 0 if whole_blocks else engine.words - 1
        name += f", {'whole blocks' if whole_blocks else 'any bytes'}"
    name += f", {less} cycle sooner" if less else ""

    def harness():
        component = make_component(config, part)
        return Tally(component, Rate(bus, taken, given, bus), latency - less, whole_blocks)

    proof = Proof(NUMBER, _name(config, part), name, harness, REACHABILITY, 20)
    if config.preset and not compresses and not less:
        return proof
    depth = max(20, latency + 3 * engine.words)  # beyond the second word that is given
    return replace(proof, engine=SEARCH, depth=depth, mode="bmc", finds=less > 0)


def _name(config: Config, part: str) -> str:
    return parts(config)[part].__name__


def _never_hangs(config: Config) -> Proof:
    def harness():
        return NeverHangs(make_component(config, "decompressor"), wait=32, drain=64)

    return Proof("never hangs", _name(config, "decompressor"), config.name, harness, REACHABILITY, 80)


def _engine_contract(config: Config, part: str) -> Proof:
    return _contract(_name(config, part), config.name, lambda: make_component(config, part))


def _axi_contract(engine: type[wiring.Component], config: Config) -> Proof:
    return _contract(engine.__name__, config.name, lambda: AxiStreams(engine(config.fmt, config.bus_bytes)))


def _of_runtime() -> Iterator[Proof]:
    """Engines that are switched between formats: the switch, and each format by itself."""
    for config in (SWITCHED, SWITCHED_HADAMARD):
        for engine in (RuntimeCompressor, RuntimeDecompressor):
            yield _contract(engine.__name__, config.name, partial(engine, config.formats, config.bus_bytes))
            between = _takes_configurations(engine, config)
            yield from (between, _reached(between, between.depth))
            for number in range(len(config.formats)):
                yield _counts_switched(engine, config, number, bypass=False)
            yield _counts_switched(engine, config, 0, bypass=True)


def _takes_configurations(engine: type[wiring.Component], config: Config) -> Proof:
    def harness():
        return AtBoundary(engine(config.formats, config.bus_bytes))

    depth = _switched_depth(engine, config)
    return Proof("block boundary", engine.__name__, config.name, harness, SEARCH, depth, mode="bmc")


def _switched_depth(engine: type[wiring.Component], config: Config) -> int:
    """Cycles until beyond the second word that is given."""
    part = "compressor" if engine is RuntimeCompressor else "decompressor"
    return max(20, parts(config)[part].latency(geometry(config)) + 3 * geometry(config).words)


def _counts_switched(engine: type[wiring.Component], config: Config, number: int, bypass: bool) -> Proof:
    fmt, bus = config.formats[number], config.bus_bytes
    assert fmt.target is not None
    compressed, original = (
        Rate(bus, fmt.original_bytes, fmt.target, bus),
        Rate(bus, fmt.target, fmt.original_bytes, bus),
    )
    rate = compressed if engine is RuntimeCompressor else original

    def harness():
        runtime = engine(config.formats, bus)
        configured = Configured(runtime, number, bypass)
        if bypass:
            return Tally(configured, Rate(bus, 1, 1, bus), latency=1)
        return Tally(configured, rate, runtime.latency, whole_blocks=True)

    parameters = f"{config.name}, {'bypass' if bypass else f'format {number}'}"
    depth = 20 if bypass else _switched_depth(engine, config)
    return Proof(NUMBER, engine.__name__, parameters, harness, SEARCH, depth, mode="bmc")


def _orders_blocks(fmt: TinyFormat, bus_bytes: int) -> Proof:
    """Each bus word is a block; its values have a tag as their exponent, and come back as they went in."""
    ft = fmt.float_type

    def payload(tag: Value, is_last: Value) -> Value:
        value = tag << ft.mantissa_bits
        fields = {"data": value[: ft.width].replicate(fmt.block), "last": is_last}
        return Cat(fields.get(name, C(0, field.width)) for name, field in word_layout(bus_bytes))

    def tag(word) -> Value:
        return word.data[ft.mantissa_bits : ft.width - 1]

    def harness():
        chain = Chain(Compressor(fmt, bus_bytes), Decompressor(fmt, bus_bytes))
        return InOrder(chain, ft.exponent_bits, payload, tag)

    return Proof("order", "Compressor, Decompressor", _tiny(fmt), harness, SEARCH, 24, mode="bmc")


def _of_headers() -> Iterator[Proof]:
    """Engines of one format, with specials blocks or a partial slot, of every type; and a choice of two."""
    tiny = [TinyFormat(block=8, target=4), TinyFormat(block=16, target=11)]
    small = [PlaneFormat("bf16", 16, 8), PlaneFormat("fp16", 32, 37), PlaneFormat("fp32", 16, 24)]
    yield _reached(_headers(tiny[0]), 20)
    for fmt in (*tiny, *small):
        yield _headers(fmt)
    for number in range(len(SWITCHED.formats)):
        yield _switched_headers(number)
    yield _headers(tiny[1], replace(tiny[1], target=9))


def _headers(fmt: PlaneFormat, wrong: PlaneFormat | None = None) -> Proof:
    name = _tiny(fmt) if isinstance(fmt, TinyFormat) else Config(fmt, 16).name
    name += f" held against target {wrong.target}" if wrong else ""

    def harness():
        return Headers(Decompressor(fmt, 16), fmt, 16, wrong)

    return Proof("every header", "Decompressor", name, harness, SEARCH, 20, "bmc", finds=wrong is not None)


def _switched_headers(number: int) -> Proof:
    fmt, bus = _plane(replace(SWITCHED, fmt=SWITCHED.formats[number])), SWITCHED.bus_bytes

    def harness():
        configured = Configured(make_component(SWITCHED, "decompressor"), number, bypass=False)
        return Headers(configured, fmt, bus)

    name = f"{SWITCHED.name}, format {number}"
    return Proof("every header", "RuntimeDecompressor", name, harness, SEARCH, 20, mode="bmc")


def _of_round_trips() -> Iterator[Proof]:
    yield _reached(_round_trip(TinyFormat(block=8, target=6), SEARCH), 20)
    for rounding in ("nearest", "truncate"):
        for target in (4, 6):
            yield _round_trip(TinyFormat(block=8, target=target, rounding=rounding), INDUCTION)
        for target in (6, 7, 9, 11, 14):
            yield _round_trip(TinyFormat(block=16, target=target, rounding=rounding), SEARCH)


def _round_trip(fmt: TinyFormat, engine: str) -> Proof:
    return Proof("every x", "round trip", _tiny(fmt), lambda: RoundTrip(fmt, 16), engine, 20, mode="bmc")


def _tiny(fmt: TinyFormat) -> str:
    ft = fmt.float_type
    bits = f"1+{ft.exponent_bits}+{ft.mantissa_bits} bits"
    return f"{bits}, N={fmt.block}, target {fmt.target}, {fmt.rounding}"


def _of_hadamard() -> Iterator[Proof]:
    """The Hadamard engines as streams; as in the planes' engines, no control depends on data."""
    whole = PRESETS["gpt2-fp32-16x"]
    for part in ("compressor", "decompressor"):
        for config in (HADAMARD, whole):
            yield _engine_contract(config, part)
            yield _counts(config, part, whole_blocks=True)
        yield _counts(HADAMARD, part, whole_blocks=True, less=1)
    for config in (HADAMARD, whole):
        yield _counts(config, "compressor")
        yield _never_hangs(config)


def _of_hadamard_blocks() -> Iterator[Proof]:
    """What the Hadamard engines compute, and for each claim a fault that it must find."""
    bus = 16
    fmt = TinyHadamard("bf16", target=2)
    every = partial(EveryBlock, fmt, bus)
    yield from (_computes("Decompressor", fmt, every), _reached(_computes("Decompressor", fmt, every), 20))
    yield _computes(
        "Decompressor", fmt, partial(every, SCALE_BIAS - 1), "held against half of the scale", finds=True
    )

    alone = partial(Transformed, fmt, bus)
    yield _computes("Transform", fmt, alone, "one value not 0")
    other = "held against other places"
    yield _computes("Transform", fmt, partial(alone, wrong=True), other, finds=True)

    fmt = TinyHadamard("fp16")
    yield _computes("Aligner", fmt, partial(Aligned, fmt, bus), "two values not 0")
    down = partial(Aligned, fmt, bus, rounds=False)
    yield _computes("Aligner", fmt, down, "held against rounding down", finds=True)

    small, of = HADAMARD.fmt, HADAMARD.name
    assert isinstance(small, HadamardFormat)
    headers = partial(NoInvalidHeader, small, HADAMARD.bus_bytes)
    yield Proof("no invalid header", "HadamardCompressor", of, headers, REACHABILITY, 20)


def _computes(component: str, fmt: TinyHadamard, make: Maker, how: str = "", finds: bool = False) -> Proof:
    name = f"{fmt.dtype}, N={fmt.block}, target {fmt.target}{', ' * bool(how)}{how}"
    return Proof("every block", f"Hadamard{component}", name, make, SEARCH, 20, mode="bmc", finds=finds)


def _of_faults() -> Iterator[Proof]:
    """Each kind of harness passes a register without a fault, and finds each fault that is its to find."""
    harnesses: dict[str, tuple[Callable[[wiring.Component], wiring.Component], str, list[str]]] = {
        "contract": (Contract, INDUCTION, ["withdraws", "changes", "survives", "looks"]),
        "valid does not wait": (lambda stage: Patience(stage, 1), SEARCH, ["waits"]),
        "order": (lambda stage: Tally(stage, Rate(2, 1, 1, 2), 1), SEARCH, ["loses", "swallows", "dawdles"]),
        "never hangs": (lambda stage: NeverHangs(stage, wait=4, drain=8), SEARCH, ["swallows", "hangs"]),
    }
    for claim, (harness, engine, faults) in harnesses.items():
        for fault in (None, *faults):
            yield _finds(claim, harness, engine, fault)
    fmt = TinyFormat(block=8, target=6, rounding="truncate")
    wrong = replace(fmt, rounding="nearest")
    parameters = f"{_tiny(fmt)} held against nearest"
    yield Proof(
        "every x", "round trip", parameters, lambda: RoundTrip(fmt, 16, wrong), SEARCH, 20, "bmc", finds=True
    )


def _finds(claim: str, harness: Callable, engine: str, fault: str | None) -> Proof:
    parameters = FAULTS[fault] if fault else "without a fault"
    script = NO_PATH_FROM_READY if claim == "contract" else ()
    finds = fault is not None
    return Proof(
        claim, "Stage", parameters, lambda: harness(Stage(2, fault)), engine, 16, "bmc", finds, script
    )


def _in_turn(moves: Proof, parameters: MemoryParameters, bound: int) -> Iterator[Proof]:
    """Memory takes all of AW before W, or of W before AW."""
    for first, name in (("maw", "AW"), ("mw", "W")):
        make = partial(WriteAnswers, parameters, bound, first)
        yield replace(moves, parameters=f"{moves.parameters}, {name} first", make=make)


def _of_memory() -> Iterator[Proof]:
    """The paths of a small memory engine, in bypass and with a format, and the map of one with two."""
    small = MemoryParameters(
        bus_bytes=16,
        memory_bytes=16,
        address_bits=16,
        id_bits=1,
        regions=2,
        buffers=2,
        least_slots=2,
        reads=2,
        bursts=2,
    )
    blocks = replace(small, formats=(PlaneFormat("bf16", block=16, target=28),))
    two = replace(small, formats=(PlaneFormat("bf16", 16, 12), PlaneFormat("bf16", 32, 21)))
    reads, writes = ("ReadPath", ReadRules, ReadAnswers), ("WritePath", WriteRules, WriteAnswers)
    # With the bounds of answers, the cycles in which they are proven, and those within which a burst goes to
    # memory or comes from it. The longest that nothing moves: a burst that no region answers for goes through
    # Plan, a queue (2 cycles), the walker and R's register, and R is taken a cycle late: 5. A word in bypass
    # waits for another (the patience, 3), then 2 in a queue, and AW is taken a cycle late: 6. Blocks and then
    # beats of two pages that are waited for a cycle each, and AR taken a cycle late: 6.
    sizes = {"bypass": (small, (5, 18, 14), (6, 18, 14)), "a format": (blocks, (6, 20, 18), (18, 30, 20))}
    for about, (parameters, *bounds) in sizes.items():
        for (part, rules, answers), (bound, depth, reach) in zip((reads, writes), bounds, strict=True):
            keeps = Proof("rules of AXI4", part, about, partial(rules, parameters), SEARCH, 14, mode="bmc")
            moves = replace(
                keeps,
                claim="answers come",
                parameters=f"{about}, {bound} cycles",
                make=partial(answers, parameters, bound),
                depth=depth,
            )
            sooner = f"{moves.parameters}, 1 cycle sooner"
            fewer = partial(answers, parameters, bound - 1)
            yield from (keeps, _reached(keeps, reach), moves)
            yield replace(moves, parameters=sooner, make=fewer, finds=True)
            if answers is WriteAnswers:
                yield from _in_turn(moves, parameters, bound)
            else:
                make = partial(ReadAnswers, parameters, bound, one_at_a_time=True)
                yield replace(moves, parameters=f"{moves.parameters}, one read at a time", make=make)
        order = Proof(
            "order of an ID", "WritePath", about, partial(WriteOrder, parameters), SEARCH, 14, mode="bmc"
        )
        yield from (order, _reached(order, reach))
        page_apart = partial(ReadsApart, parameters)
        waits = replace(order, claim="reads wait for no other page", make=page_apart, depth=reach)
        yield from (waits, _reached(waits, reach))
        any_page = partial(ReadsApart, parameters, any_page=True)
        yield replace(waits, parameters=f"{about}, held against the same page", make=any_page, finds=True)
    mixed = partial(WriteOrder, small, any_id=True)
    yield replace(order, parameters="bypass, held against all IDs together", make=mixed, finds=True)
    apart = Proof("blocks apart", "Mapper", "two formats", lambda: MapInside(two), INDUCTION, 1)
    yield from (apart, _reached(apart, 1))
    yield replace(apart, parameters="regions that overlap", make=lambda: MapInside(two, True), finds=True)
