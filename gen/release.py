"""A release: all that a chip project takes, in one archive that is the same whenever it is made."""

from __future__ import annotations

import gzip
import io
import posixpath
import re
import tarfile
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path, PurePosixPath

from . import memory, parts, project, registers
from .config import PRESETS

_ROOT = Path(__file__).resolve().parent.parent
# Beside the Verilog, by their places in the archive.
_DOCUMENTS = (
    *("LICENSE", "CHANGELOG.md"),
    *(f"docs/{name}.md" for name in ("hardware", "memory", "format", "verification", "board")),
    *("docs/scaling.png", "docs/scaling.json"),
)
_LINK = re.compile(r"!?\[([^\]]*)\]\(([^)\s#]+)(#[^)\s]*)?\)")

Sections = Mapping[str, Iterable[tuple[str, project.Writer]]]


def presets(memories: bool = False) -> Sections:
    """All files that there are by default, for :func:`gen.project.write_all`; ``memories``: see Config."""
    configs = [replace(config, memories=memories) for config in PRESETS.values()]
    return {"configs": [*project.writers(configs), *memory.writers()], "parts": parts.writers()}


def write(folder: Path, sections: Sections | None = None) -> Path:
    """Write bitstash-VERSION.tar.gz to a folder and return its path.

    It has Verilog with what stands beside it, the manifest, the memory engine's registers as SystemRDL,
    C header and page, the datasheets, license and version.

    Args:
        folder: where.
        sections: the Verilog; by default all presets.

    Raises:
        gen.toolchain.ToolError: the linter has a complaint.
    """
    name = f"bitstash-{project.VERSION}"
    folder.mkdir(parents=True, exist_ok=True)
    archive = folder / f"{name}.tar.gz"
    with tempfile.TemporaryDirectory(dir=folder) as made:
        verilog = Path(made)
        project.write_all(verilog, **(presets() if sections is None else sections))
        files = {f"verilog/{path.name}": path.read_bytes() for path in verilog.iterdir()}
    with tempfile.TemporaryDirectory(dir=folder) as made:
        written = Path(made)
        registers.write(written)
        places = [written / f"{registers.NAME}{end}" for end in (".rdl", ".h")]
        places += [path for path in (written / "html").rglob("*") if path.is_file()]
        files |= {f"registers/{path.relative_to(written)}": path.read_bytes() for path in places}
    files |= {document: (_ROOT / document).read_bytes() for document in _DOCUMENTS}
    for kind in ("svg", "json"):
        waves = (_ROOT / "docs/waves").glob(f"*.{kind}")
        files |= {f"docs/waves/{path.name}": path.read_bytes() for path in waves}
    files["VERSION"] = f"{project.VERSION}\n".encode()
    for place in [place for place in files if place.endswith(".md")]:
        files[place] = _without_links_out(files[place].decode(), place, files).encode()
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


def _without_links_out(text: str, place: str, files: Iterable[str]) -> str:
    """A page, at its place in the archive, with the words alone of links to what the archive has not."""
    folder = posixpath.dirname(place)
    places = {parent for name in files for parent in (name, *map(str, PurePosixPath(name).parents))}

    def kept(link: re.Match[str]) -> str:
        words, target, _ = link.groups()
        is_there = "://" in target or posixpath.normpath(posixpath.join(folder, target)) in places
        return link[0] if is_there else words

    return _LINK.sub(kept, text)
