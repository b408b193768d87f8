"""A self-test of the engines on a chip: at full rate there, commanded by a host over a UART.

::

                        generator ──┐
    rx ── Commands ── memory of values ───┴─ compressor ── stored memory ── decompressor ── memory of values
    tx ──────┘                                                     └─ signature    └─ signature
"""

from .frames import FrameReceiver, FrameSender
from .generator import Generator
from .requests import FRAME_BYTES, Command, Place, request_layout, verdict_layout
from .selftest import SelfTest
from .signature import POLYNOMIAL
from .uart import UartReceiver, UartTransmitter

__all__ = [
    "FRAME_BYTES",
    "POLYNOMIAL",
    "Command",
    "FrameReceiver",
    "FrameSender",
    "Generator",
    "Place",
    "SelfTest",
    "UartReceiver",
    "UartTransmitter",
    "request_layout",
    "verdict_layout",
]
