"""A release: all that a chip project takes, in one archive that is the same whenever it is made."""

from __future__ import annotations

import gzip
import io
import json
import posixpath
import re
import tarfile
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

from . import memory, parts, project, registers
from .config import PRESETS

_ROOT = Path(__file__).resolve().parent.parent
# Beside the Verilog, by their places in the archive.
_DOCUMENTS = (
    *("LICENSE", "CHANGELOG.md"),
    *(f"docs/{name}.md" for name in ("integration", "hardware", "memory", "format", "verification")),
    *(f"docs/{name}.md" for name in ("dram", "board", "glossary")),
)
_LINK = re.compile(r"!?\[([^\]]*)\]\(([^)\s#]+)(#[^)\s]*)?\)")

Sections = Mapping[str, Iterable[tuple[str, project.Writer]]]


def presets(*memories: bool) -> Sections:
    """All files of the presets, for :func:`gen.project.write_all`; ``memories``: see Config."""
    configs = [replace(config, memories=has) for has in memories for config in PRESETS.values()]
    return {"configs": [*project.writers(configs), *memory.writers()], "parts": parts.writers()}


def write(folder: Path, sections: Sections | None = None) -> Path:
    """Write bitstash-VERSION.tar.gz to a folder and return its path.

    It has a page to begin with, Verilog with what stands beside it, the manifest, the memory engine's
    registers as SystemRDL and C header, the datasheets, license and version.

    Args:
        folder: where.
        sections: the Verilog; by default all presets, their delay lines in registers and in memories.

    Raises:
        gen.toolchain.ToolError: the linter has a complaint.
    """
    name = f"bitstash-{project.VERSION}"
    folder.mkdir(parents=True, exist_ok=True)
    archive = folder / f"{name}.tar.gz"
    with tempfile.TemporaryDirectory(dir=folder) as made:
        verilog = Path(made)
        project.write_all(verilog, **(presets(False, True) if sections is None else sections))
        files = {f"verilog/{path.name}": path.read_bytes() for path in verilog.iterdir()}
    files["README.md"] = _readme(json.loads(files["verilog/manifest.json"])).encode()
    with tempfile.TemporaryDirectory(dir=folder) as made:
        written = Path(made)
        registers.write(written)
        for path in (written / f"{registers.NAME}{end}" for end in (".rdl", ".h")):
            files[f"registers/{path.name}"] = path.read_bytes()
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


def _readme(manifest: dict[str, Any]) -> str:
    """The page to begin with; its commands have the manifest's first entry for their example."""
    entries = [*manifest.get("configs", ()), *manifest.get("parts", ())]
    rows = "".join(
        f"| `{entry['file']}` | {', '.join(f'`{module}`' for module in _modules(entry).values())} |\n"
        for entry in entries
    )
    first = entries[0]
    stem, core = first["file"].removesuffix(".v"), project.core_name(first["name"])
    part, top = next(iter(_modules(first).items()))
    return f"""# bitstash {project.VERSION}

Hardware that compresses activations on their way to memory, as Verilog. [License](LICENSE): Apache-2.0.

Begin with [docs/hardware.md](docs/hardware.md), the engines' datasheet: ports, latency, integration.
[docs/memory.md](docs/memory.md) is that of the memory engine between an accelerator and its memory.

| | |
| --- | --- |
| [verilog/](verilog) | engines and parts. Beside `x.v`: `x.vlt`, lint waivers; `x.sdc`, constraints |
| | `x.core`, for FuseSoC; `x_tb.sv`, a self-checking bench, which memory engines have not |
| [verilog/manifest.json](verilog/manifest.json) | every module's ports, parameters, latency and rate |
| [registers/](registers) | the memory engine's registers: SystemRDL, C header |
| [docs/integration.md](docs/integration.md) | from the archive to an engine, step by step |
| [docs/format.md](docs/format.md) | what the compressed bytes mean |
| [docs/verification.md](docs/verification.md) | what was verified, and how |
| [CHANGELOG.md](CHANGELOG.md), [VERSION](VERSION) | what changed, and which version this is |

With [FuseSoC](https://fusesoc.net) and Verilator, lint an engine, or list all cores:

```sh
fusesoc --cores-root verilog run --target lint_{part} bitstash::{core}
fusesoc --cores-root verilog core list
```

The target `sim` runs the bench. With Verilator alone:

```sh
verilator --lint-only -Wall --top-module {top} verilog/{stem}.vlt verilog/{stem}.v
```
{_OF_MEMORIES if any(_has_memories(entry) for entry in entries) else ""}
Where the pages name `make` or programs in Python, these are of the project's sources.

| file in verilog/ | modules |
| --- | --- |
{rows}"""


_OF_MEMORIES = """
An engine with `-memories` in its name has its delay lines in memories, and needs
`verilog/bitstash_delay_memory.v` as well, or a macro in its place: `delay_memories` in the manifest has
their sizes.
"""


def _has_memories(entry: dict[str, Any]) -> bool:
    return bool(entry.get("parameters", {}).get("memories"))


def _modules(entry: dict[str, Any]) -> dict[str, str]:
    """The top modules of a manifest's entry, by what they are."""
    engines = entry.get("engines", {"part": entry})
    return {part: engine["module"] for part, engine in engines.items()}


def _without_links_out(text: str, place: str, files: Iterable[str]) -> str:
    """A page, at its place in the archive, with the words alone of links to what the archive has not."""
    folder = posixpath.dirname(place)
    places = {parent for name in files for parent in (name, *map(str, PurePosixPath(name).parents))}

    def kept(link: re.Match[str]) -> str:
        words, target, _ = link.groups()
        is_there = "://" in target or posixpath.normpath(posixpath.join(folder, target)) in places
        return link[0] if is_there else words

    return _LINK.sub(kept, text)
