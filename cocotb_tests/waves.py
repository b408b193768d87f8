"""Waveforms as FST, a fraction of the size of VCD.

Verilator's own FST writer needs system libraries to compile, so the simulator writes VCD and this turns it
into FST.
"""

from __future__ import annotations

from pathlib import Path

from pylibfst import ffi, lib


def vcd_to_fst(source: Path, target: Path) -> None:
    """Convert a VCD file as Verilator writes it, one item a line; it is removed afterwards.

    Raises:
        OSError: the target cannot be written.
    """
    writer = lib.fstWriterCreate(str(target).encode(), 1)
    if writer == ffi.NULL:
        raise OSError(f"cannot write {target}")
    signals: dict[bytes, tuple[int, int]] = {}  # VCD's identifier -> FST's handle, bits
    with source.open("rb") as file:
        for line in file:
            words = line.split()
            match words:
                case [b"$timescale", scale, *_]:
                    lib.fstWriterSetTimescaleFromString(writer, scale)
                case [b"$scope", _, name, *_]:
                    lib.fstWriterSetScope(writer, lib.FST_ST_VCD_MODULE, name, ffi.NULL)
                case [b"$upscope", *_]:
                    lib.fstWriterSetUpscope(writer)
                case [b"$var", _, size, code, *name, b"$end"]:
                    bits, alias = int(size), signals.get(code, (0, 0))[0]
                    kind = (lib.FST_VT_VCD_WIRE, lib.FST_VD_IMPLICIT)
                    handle = lib.fstWriterCreateVar(writer, *kind, bits, b" ".join(name), alias)
                    signals[code] = (handle, bits)
                case [number, code] if number.startswith(b"b"):
                    handle, bits = signals[code]
                    lib.fstWriterEmitValueChange(writer, handle, number[1:].rjust(bits, b"0"))
                case [word] if word.startswith(b"#"):
                    lib.fstWriterEmitTimeChange(writer, int(word[1:]))
                case [word] if word[:1] in b"01xz":
                    lib.fstWriterEmitValueChange(writer, signals[word[1:]][0], word[:1])
    lib.fstWriterClose(writer)
    source.unlink()
