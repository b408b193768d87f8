"""Which engines there are: a format and a bus width, under a name."""

from __future__ import annotations

from dataclasses import dataclass, field

from golden import PlaneFormat


@dataclass(frozen=True)
class Config:
    """An engine's parameters.

    Args:
        fmt: a format with a fixed target.
        bus_bytes: bytes of a word on either side.
        preset: the name it is known by, if it is a preset.
    """

    fmt: PlaneFormat = field(default_factory=PlaneFormat)
    bus_bytes: int = 64
    preset: str | None = None

    @property
    def slug(self) -> str:
        """The parameters as part of a Verilog or file name."""
        fmt = self.fmt
        return f"{fmt.dtype}_n{fmt.block}_t{fmt.target}_{fmt.rounding}_b{self.bus_bytes}"

    @property
    def name(self) -> str:
        return self.preset or self.slug


PRESETS = {
    config.name: config
    for config in (
        Config(PlaneFormat("fp32", block=64, target=80), preset="gpt2-fp32-3.2x"),
        Config(PlaneFormat("bf16", block=64, target=64), preset="gpt2-bf16-2x"),
    )
}
