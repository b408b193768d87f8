"""What is claimed of the engines, and what no claim reaches: the prose of docs/verification.md."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Claim:
    """What is said of the engines.

    Attributes:
        name: a few words.
        text: what it means.
        benches: names of the benches that hold it, whatever the interface.
        proofs: the proofs' names for it.
        bursts: whether the bursts of memory engines hold it.
        gates: whether the benches hold it on gates as well, "gates" or "unknown" if these start so.
        gaps: what it does not reach.
    """

    name: str
    text: str
    benches: tuple[str, ...] = ()
    proofs: tuple[str, ...] = ()
    bursts: bool = False
    gates: str = ""
    gaps: tuple[str, ...] = ()


CLAIMS = (
    Claim(
        "The bytes and the values are golden's",
        "Whatever floats go in, what a compressor gives is to the last bit what [golden/](../golden) gives, "
        "and so is what a decompressor makes of stored bytes, behind any valid header whatever lies there. "
        "Blocks are random floats of every exponent, adversarial ones and activations of a GPT-2. The proof "
        "is of decompress(compress(x)) for every block x, against a description of the format without bytes, "
        "stages or trees (`gen/formal/plain.py`); of the Hadamard format, of tiny blocks, the decompressor "
        "for every two, the transform and the aligner for those that are 0 but in one or two places "
        "(`gen/formal/hadamard.py`).",
        benches=(
            "matches_golden",
            "meets_every_place",
            "matches_golden_in_rare_blocks",
            "takes_packets_of_every_length",
            "takes_bytes_without_keep_as_zeros",
            "switches_from_each_format_to_each",
        ),
        proofs=("every x", "every block"),
        gates="gates",
        gaps=(
            "*Every x* is proven of floats of eight bits, three of them exponent, in blocks of 8 and 16 "
            "values. A solver finishes no larger ones. In the formats themselves the bytes are held by "
            "simulation alone.",
        ),
    ),
    Claim(
        "Streams keep their contract",
        "An offer stands, with its payload, until it is taken, and does not wait for its `ready`; nothing "
        "is offered from the cycle after reset asserts until it ends; no wire leads from a `ready` that "
        "goes in to a `valid` or payload that comes out in the same cycle. For every behaviour of the "
        "neighbours.",
        benches=("waits_for_no_ready",),
        proofs=("contract", "valid does not wait"),
    ),
    Claim(
        "What comes out is what went in, in its order",
        "Each byte in its place, none lost, none twice, under any stalls; of whole engines, tagged blocks "
        "through a compressor and a decompressor in a row. Of the FIFO between two clocks for all their "
        "ratios and phases, though each bit of a pointer that changes as it is caught is read as it was or "
        "as it is.",
        benches=("gives_every_word_in_its_turn", "holds_as_many_words_as_it_says"),
        proofs=("order",),
        gaps=(
            "Of whole engines the order is proven of one tiny format; the comparison with golden/ holds it "
            "for others.",
        ),
    ),
    Claim(
        "The number of words, and the latency",
        "A tensor of any length becomes just its words, `last` and `empty` where its bytes end, each within "
        "the stated latency, under any stalls. A cycle less of latency is disproven. In simulation, without "
        "stalls, the latency is the datasheet's to the cycle.",
        benches=(
            "takes_its_latency",
            "sustains_its_throughput_and_latency",
            "a_bypassed_word_takes_no_cycle",
            "takes_a_configuration_at_once_while_empty",
        ),
        proofs=("number, latency",),
        gaps=(
            "The number of words and the latency are proven for all time of the decompressors of "
            "`gpt2-fp32-3.2x`, `gpt2-bf16-2x` and `gpt2-fp32-16x` with streams, and of the FIFO; of what "
            "else there is, for the first cycles after reset.",
        ),
    ),
    Claim(
        "The throughput",
        "Without stalls the uncompressed side takes or gives a word in every cycle, as the datasheet says, "
        "to the cycle.",
        benches=("sustains_its_throughput", "sustains_its_throughput_and_latency", "a_stall_leaves_no_gap"),
        gaps=("Throughput is simulated, not proven.",),
    ),
    Claim(
        "What cannot be decoded is zeros and an error, and nothing else is",
        "A decompressor takes just the headers that are valid, behind each of them any bytes; a block with "
        "another, or one that the end of its tensor cuts short, is zeros with `error` in all its words, and "
        "no other block has it. Cleared memory is zeros without an error. Of the Hadamard format it is "
        "proven that no compressor writes an invalid header. An `error` that is stuck at 0 or at 1 is found "
        "by the benches, as shown of one small runtime-configurable engine of planes "
        "(tests/test_hardware.py).",
        benches=(
            "invalid_headers_give_zeros_and_an_error",
            "a_stream_that_breaks_off_ends_with_an_error",
            "takes_packets_of_every_length",
        ),
        proofs=("every header", "no invalid header"),
    ),
    Claim(
        "Nothing that goes in makes an engine hang",
        "Whatever bits come, also such as no compressor sends: each `last` that goes in leads to one that "
        "comes out, in time.",
        benches=("any_bytes_give_one_last_word_a_tensor",),
        proofs=("never hangs",),
        gaps=(
            "That no bits make an engine hang is simulated of decompressors with streams alone, and proven "
            "of those in the table of claim 7.",
        ),
    ),
    Claim(
        "Reset leaves no trace",
        "A reset in any cycle empties an engine; what it held reaches no output. On gates without initial "
        "values every register starts with random bits, or with X in Icarus, and an X at a valid output "
        "fails the bench.",
        benches=("reset_leaves_no_trace",),
        gates="unknown",
    ),
    Claim(
        "A configuration is taken between two tensors",
        "Only when no tensor is inside, and it holds for the whole of the next.",
        benches=("switches_from_each_format_to_each",),
        proofs=("block boundary",),
    ),
    Claim(
        "The memory engine reads, writes and answers as its model",
        "Data and responses of every burst, registers, counters and what memory has in the end are those of "
        "a model: [golden/memory.py](../golden/memory.py) in cocotb, and in C++, for most bursts, one that "
        "is made from [memory.md](memory.md) as well (`cocotb_tests/memory/reference.h`), with golden's "
        "codecs. What the benches try is in [memory.md](memory.md#the-hardware); rates are in "
        "[hardware.md](hardware.md#the-memory-engine).",
        bursts=True,
        gaps=(
            "The memory engine has no functional, line or toggle coverage, and was simulated neither on "
            "gates nor from unknown states.",
        ),
    ),
    Claim(
        "The memory engine keeps the rules of AXI4",
        "What is offered stays until it is taken. Bursts have as many beats as they say and stay within "
        "4 KiB. They are answered in their turn, writes of one ID in their order. Blocks of usable regions "
        "are stored apart, each within its region. While a burst has no answer, a channel moves every so "
        "many cycles, if no neighbour waits for more than one. So it is behind a memory that takes all of AW "
        "before W, or all of W before AW. No read waits for writes of other pages, but for those under way "
        "to one of the same tag. No path leads from an input to an output without a register "
        "(tests/test_memory_paths.py). Its benches are in [memory.md](memory.md).",
        proofs=(
            "rules of AXI4",
            "order of an ID",
            "answers come",
            "reads wait for no other page",
            "blocks apart",
        ),
        gaps=(
            "Of the memory engine the rules, the order and the answers are proven for a small one, its paths "
            "each by itself and without merging, and for the first cycles after a reset. Its timeout, and "
            "how long a burst to memory waits to be continued, are shorter in the proof of answers.",
        ),
    ),
)

# What no claim above says by itself.
GAPS = (
    "On gates, and from unknown states, there are engines with streams only: AXI4-Stream adds gates at its "
    "ports, and runtime-configurable engines a choice, that have run as Verilog alone.",
    "Mutants are a hundred of each compressor and each decompressor, of small engines with each kind of "
    "ports and of one 64-byte engine of each format; of two memory engines there are two hundred each.",
    "Mutants of the memory engine are of small ones. ABC compares a survivor with the engine by induction, "
    "without memories and codecs. Four kinds stay undecided: of states that cannot be reached, of waits that "
    "only take longer, of bits that no block fills, and of high bits of counters.",
    "What coverage gives a reason for is named by signal: other bits of it may be missed as well.",
    "Lines and toggles are counted of the presets with streams, and of what the other interfaces add.",
    "Gates are simulated without delays. There is no timing simulation, and no equivalence check of gates "
    "with Verilog.",
    "Two simulators, and one place and route: nothing was run in a vendor's tools, or on a chip.",
    "Metastability in the FIFO between two clocks is modelled as a bit read old or new, for one cycle.",
)
