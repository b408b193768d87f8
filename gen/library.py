"""The Verilated engines as a shared library, for the bridge's ``verilated`` backend."""

from __future__ import annotations

import re
from pathlib import Path

from . import toolchain
from .config import Config
from .verilog import digest, module_name, parts, ports, verilog_text

_SOURCE = Path(__file__).with_name("library.cpp")


def build(config: Config, path: Path, optimise: str = "-O1") -> None:
    """Build the library of a configuration; done before for the same sources, it is left as it is.

    Args:
        optimise: the compiler's option for the model; a higher one takes twice the time and gains nothing.

    Raises:
        gen.toolchain.ToolError: there is no C++ compiler, or a tool failed.
    """
    compiler = toolchain.cxx()
    stamp, made = path.with_suffix(".digest"), f"{digest(config)} {optimise}"
    if path.exists() and stamp.exists() and stamp.read_text() == made:
        return

    folder = path.parent
    folder.mkdir(parents=True, exist_ok=True)
    source = folder / "engines.v"
    source.write_text(verilog_text(config))
    archives = []
    for part in parts(config):
        model = f"V{part}"
        toolchain.verilate(
            source,
            module_name(config, part),
            folder / part,
            optimise=optimise,
            options=["-CFLAGS", "-fPIC", "--prefix", model],
            log=folder / f"{part}.log",
        )
        archives.append(str(folder / part / f"{model}__ALL.a"))
    (folder / "layout.h").write_text(layout_header(config))
    include = Path(toolchain.environment()["VERILATOR_ROOT"]) / "include"
    toolchain.run(
        [
            *compiler.split(),
            *("-shared", "-fPIC", "-O2", "-std=c++17", "-pthread"),
            *(f"-DORIGINAL_BYTES={config.fmt.original_bytes}", f"-DTARGET_BYTES={config.fmt.target}"),
            f"-DBUS_BYTES={config.bus_bytes}",
            *("-isystem", str(include), "-isystem", str(include / "vltstd")),
            f"-I{folder}",
            *(f"-I{folder / part}" for part in parts(config)),
            str(_SOURCE),
            *archives,
            str(folder / "compressor" / "libverilated.a"),
            *("-o", str(path)),
        ],
        log=folder / "library.log",
    )
    stamp.write_text(made)


def layout_header(config: Config) -> str:
    """Where the fields of both engines' payloads lie, in C++: of those that a port lacks, no bits."""
    # No names that the dynamic linker sees: it would give one library the places of another's fields.
    lines = ["namespace {", "struct Field {", "    unsigned offset, width;", "};"]
    for part in parts(config):
        lines.append(f"struct {part.capitalize()}Layout {{")
        for name, members in {"i": ("last", "empty", "first"), "o": ("last", "empty", "error")}.items():
            fields = ports(config, part)[f"{name}_payload"]["fields"]
            for member in members:
                bits = [int(bit) for bit in re.findall(r"\d+", fields.get(member, ""))]  # "[high:low]"
                offset, width = (bits[-1], bits[0] - bits[-1] + 1) if bits else (0, 0)
                lines.append(f"    static constexpr Field {name}_{member}{{{offset}, {width}}};")
        lines.append("};")
    lines.append("}  // namespace")
    return "\n".join(lines) + "\n"
