"""Which engines there are: a format and a bus width, under a name."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

from golden import Format, HadamardFormat, PlaneFormat

INTERFACES = ("stream", "axi", "runtime")
_MOST_OF_OTHERS = 60  # characters


@dataclass(frozen=True)
class Config:
    """An engine's parameters.

    Args:
        fmt: a format with a fixed target.
        bus_bytes: bytes of a word on either side.
        interface: "stream", Amaranth's streams (:mod:`rtl.stream`), "axi", AXI4-Stream
            (:mod:`rtl.ports.axi`), or "runtime", the first with one more for the choice of a format
            (:mod:`rtl.ports.runtime`).
        further: formats besides ``fmt`` to choose from at run time.
        memories: whether the delay lines are in memories, see :class:`rtl.stream.DelayMemories`.
        preset: the name it is known by, if it is a preset.

    Raises:
        ValueError: the interface is none of these, or gives no choice between several formats.
    """

    fmt: Format = field(default_factory=PlaneFormat)
    bus_bytes: int = 64
    interface: str = "stream"
    further: tuple[Format, ...] = ()
    memories: bool = False
    preset: str | None = None

    def __post_init__(self) -> None:
        if self.interface not in INTERFACES:
            raise ValueError(f"interface must be one of {', '.join(INTERFACES)}, not {self.interface!r}")
        if self.further and self.interface != "runtime":
            raise ValueError(f"interface must be runtime for several formats, not {self.interface!r}")

    @property
    def formats(self) -> tuple[Format, ...]:
        """All formats that the engine has."""
        return (self.fmt, *self.further)

    @property
    def slug(self) -> str:
        """The parameters as part of a Verilog or file name."""
        first, *further = format_slugs(self.formats)
        interface = "" if self.interface == "stream" else f"_{self.interface}"
        memories = "_memories" * self.memories
        return "_".join([first, f"b{self.bus_bytes}{interface}", *further]) + memories

    @property
    def name(self) -> str:
        return self.preset + "-memories" * self.memories if self.preset else self.slug


def format_slugs(formats: Sequence[Format]) -> list[str]:
    """Names of formats; tools cut those of over 127, so the later ones only say where they differ.

    Many of them have one for all, with a hash.
    """
    words = [(fmt.dtype, f"n{fmt.block}", f"t{fmt.target}", kind_of(fmt)) for fmt in formats]
    first = ["_".join(words[0])] if words else []
    others = ["or_" + "_".join(word for word in other if word not in words[0]) for other in words[1:]]
    if sum(map(len, others)) > _MOST_OF_OTHERS:
        digest = hashlib.sha256("_".join(others).encode()).hexdigest()[:8]
        others = [f"or_{len(others)}_others_{digest}"]
    return first + others


def kind_of(fmt: Format) -> str:
    """What is not said by sizes: of planes their rounding, else the format."""
    return fmt.rounding if isinstance(fmt, PlaneFormat) else fmt.scheme


PRESETS = {
    config.name: config
    for config in (
        Config(PlaneFormat("fp32", block=64, target=80), preset="gpt2-fp32-3.2x"),
        Config(PlaneFormat("bf16", block=64, target=64), preset="gpt2-bf16-2x"),
        Config(PlaneFormat("fp32", block=64, target=80), interface="axi", preset="gpt2-fp32-3.2x-axi"),
        Config(PlaneFormat("bf16", block=64, target=64), interface="axi", preset="gpt2-bf16-2x-axi"),
        # What it takes to choose the target and the rounding at run time, and then the type as well.
        Config(
            PlaneFormat("fp32", block=64, target=80),
            interface="runtime",
            further=(
                PlaneFormat("fp32", block=64, target=80, rounding="truncate"),
                PlaneFormat("fp32", block=64, target=128),
            ),
            preset="gpt2-fp32-runtime",
        ),
        Config(
            PlaneFormat("fp32", block=64, target=80),
            interface="runtime",
            further=(
                PlaneFormat("fp32", block=64, target=80, rounding="truncate"),
                PlaneFormat("fp32", block=64, target=128),
                PlaneFormat("bf16", block=64, target=64),
                PlaneFormat("fp16", block=64, target=64),
            ),
            preset="gpt2-runtime",
        ),
        Config(HadamardFormat("fp32", block=128, target=32), preset="gpt2-fp32-16x"),
        Config(HadamardFormat("fp32", block=128, target=64), preset="gpt2-fp32-8x"),
        Config(HadamardFormat("bf16", block=128, target=32), preset="gpt2-bf16-8x"),
        Config(HadamardFormat("fp32", block=128, target=32), interface="axi", preset="gpt2-fp32-16x-axi"),
        # The same for the rate, from 1 to 4 bits a value.
        Config(
            HadamardFormat("fp32", block=128, target=32),
            interface="runtime",
            further=tuple(HadamardFormat("fp32", block=128, target=target) for target in (16, 48, 64)),
            preset="gpt2-fp32-hadamard-runtime",
        ),
        Config(
            HadamardFormat("fp32", block=128, target=32),
            interface="runtime",
            further=(
                *(HadamardFormat("fp32", block=128, target=target) for target in (16, 48, 64)),
                *(HadamardFormat(dtype, block=128, target=32) for dtype in ("bf16", "fp16")),
            ),
            preset="gpt2-hadamard-runtime",
        ),
    )
}
