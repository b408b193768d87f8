"""A release: all that a chip project takes, in one archive that is the same whenever it is made."""

from __future__ import annotations

import gzip
import io
import tarfile
import tempfile
from collections.abc import Iterable
from pathlib import Path

from . import memory, project
from .config import PRESETS, Config
from .parts import PARTS, Part, writers

_ROOT = Path(__file__).resolve().parent.parent
# Beside the Verilog, by their places in the archive.
_DOCUMENTS = (
    *("LICENSE", "CHANGELOG.md"),
    *(f"docs/{name}" for name in ("hardware.md", "memory.md", "format.md", "scaling.png")),
)


def write(
    folder: Path, configs: Iterable[Config] = tuple(PRESETS.values()), parts: Iterable[Part] = PARTS
) -> Path:
    """Write bitstash-VERSION.tar.gz to a folder and return its path.

    It has the Verilog of engines, register slices, FIFO and memory engine with what stands beside them, the
    manifest, the datasheets, license and version.

    Raises:
        gen.toolchain.ToolError: the linter has a complaint.
    """
    configs = list(configs)
    name = f"bitstash-{project.VERSION}"
    folder.mkdir(parents=True, exist_ok=True)
    archive = folder / f"{name}.tar.gz"
    with tempfile.TemporaryDirectory(dir=folder) as made:
        verilog = Path(made)
        project.write_presets(configs, verilog, writers(parts))
        memory.write((configs[0].fmt,), configs[0].bus_bytes, configs[0].bus_bytes, verilog / "memory.v")
        files = {f"verilog/{path.name}": path.read_bytes() for path in verilog.iterdir()}
    files |= {document: (_ROOT / document).read_bytes() for document in _DOCUMENTS}
    files |= {f"docs/waves/{path.name}": path.read_bytes() for path in (_ROOT / "docs/waves").glob("*.svg")}
    files["VERSION"] = f"{project.VERSION}\n".encode()
    with (
        archive.open("wb") as file,
        gzip.GzipFile("", "wb", fileobj=file, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w") as tar,
    ):
        for place in sorted(files):
            member = tarfile.TarInfo(f"{name}/{place}")
            member.size = len(files[place])
            tar.addfile(member, io.BytesIO(files[place]))
    return archive
