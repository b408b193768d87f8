"""What reads ask of writes: whether bytes that they need are still on their way to memory."""

from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from .layouts import place_layout, probe_layout, range_layout
from .parameters import MemoryParameters

__all__ = ["Hazards"]


class Hazards(wiring.Signature):
    """Between reads, whose side this is, and writes.

    Members:
        blocks: that a read asks for.
        blocks_anew: from the next cycle on of other ones, or for another read: the read must wait for those
            that are here by then, and not for any that come later.
        evicts: evict those of them that are open and have bytes that were answered.
        has_block: the read must wait for one of them.
        beats, beats_anew: of memory, likewise.
        has_beat: the read must wait for one of them.
        completed: a block is complete, and reads see another one from now on.
        packed: a beat of blocks goes to memory, and what is known of it is old.
    """

    def __init__(self, parameters: MemoryParameters):
        beat = parameters.address_bits - parameters.beat_bits
        super().__init__(
            {
                "blocks": Out(probe_layout(parameters)),
                "blocks_anew": Out(1),
                "evicts": Out(1),
                "has_block": In(1),
                "beats": Out(range_layout(parameters)),
                "beats_anew": Out(1),
                "has_beat": In(1),
                "completed": In(data.StructLayout({"valid": 1, "place": place_layout(parameters)})),
                "packed": In(data.StructLayout({"valid": 1, "beat": beat})),
            }
        )
