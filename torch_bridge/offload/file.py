"""The file on the SSD."""

from __future__ import annotations

import os
import tempfile
import weakref
from pathlib import Path
from zlib import crc32

from ..backends.checksum import CorruptionError
from .extents import Extents, Place


class OffloadError(RuntimeError):
    """A tensor that was offloaded cannot be read back, or none can be sent any more."""


class File:
    """A file without a name, which the system removes with the process, however that ends.

    Any number of threads may read and write at once.

    Attributes:
        extents: where in it.

    Raises:
        FileNotFoundError: there is no such directory.
        OSError: no file can be made in it.
    """

    def __init__(self, directory: str | Path) -> None:
        if not Path(directory).is_dir():
            raise FileNotFoundError(f"directory must be one that exists, not {str(directory)!r}")
        with tempfile.TemporaryFile(dir=directory) as file:
            self.number = os.dup(file.fileno())
        self.directory, self.extents = str(directory), Extents()
        self.close = weakref.finalize(self, os.close, self.number)

    def write(self, memory: memoryview, place: Place) -> int:
        """Write as many bytes as the place has; their checksum."""
        checksum, done = crc32(memory), 0
        while done < place.size:
            count = os.pwrite(self.number, memory[done:], place.offset + done)
            if count == 0:
                raise OSError("nothing more could be written")
            done += count
        return checksum

    def read(self, memory: memoryview, place: Place, checksum: int, name: str) -> None:
        """Fill the memory with what was written.

        Raises:
            CorruptionError: these are not the bytes that were written.
            OffloadError: they cannot be read.
        """
        done = 0
        while done < place.size:
            try:
                count = os.preadv(self.number, [memory[done:]], place.offset + done)
                if count == 0:
                    raise OSError(f"the file ends after {done} of {place.size} bytes")
            except OSError as error:
                raise OffloadError(f"cannot read {name} back from {self.directory!r}: {error}") from error
            done += count
        if crc32(memory) != checksum:
            raise CorruptionError(f"offloaded bytes changed in {self.directory!r}: those of {name}")
