"""Whether a mutant of a memory engine is a fault at all: both compared, cut at their memories and codecs.

What memories and codecs give is any input, the same for both; what they are given is compared as outputs are.
Two that are equal there are equal with any memories and codecs. Two that differ may still not differ at the
ports.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from .netlist import Mutant, commands_of, commands_of_miter, merges_to_nothing, ports_of
from .yosys import run_yosys

__all__ = ["is_equivalent"]

_CODECS = "*compressor[0-9]"


def is_equivalent(path: Path, mutant: Mutant) -> bool:
    """Whether ABC proves that no input tells a mutant from its engine; if not, that says nothing.

    What was found is kept beside what it was found in, and holds for the same comparison.

    Args:
        path: of the model with the mutants; the engine without them lies beside it, its codecs as modules.
    """
    base, folder = path.with_suffix(".il"), path.with_name(f"mutant{mutant.number}")
    folder.mkdir(exist_ok=True)
    top, change = commands_of(path, mutant)
    aiger, miter = folder / "miter.aig", folder / "miter.v"
    cut = ["memory_collect", f"expose -evert {top}/t:$mem_v2 {top}/t:{_CODECS}", "opt_clean", f"cd {top}"]
    engine, changed = folder / "engine.il", folder / "changed.il"
    for file, commands in ((engine, []), (changed, change)):
        script = [f"read_rtlil {base}", *commands, *cut, f"write_rtlil -selected {file}"]
        run_yosys(script, file.with_suffix(".log"))
    (module,) = re.findall(rf"^module \\{re.escape(top)}\n(.*?)^end", engine.read_text(), re.M | re.S)
    miter.write_text(_miter(ports_of(module)))
    both = [f"read_rtlil {engine}", f"rename {top} engine", f"read_rtlil {changed}", f"rename {top} changed"]
    run_yosys([*both, *commands_of_miter(miter, aiger)], folder / "miter.log")
    kept = folder / f"{hashlib.sha256(aiger.read_bytes()).hexdigest()[:16]}.json"
    if not kept.exists():
        kept.write_text(json.dumps(merges_to_nothing(aiger, folder / "proof.log")))
    return bool(json.loads(kept.read_text()))


def _miter(ports: Mapping[str, tuple[str, int]]) -> str:
    """Verilog that compares the modules "engine" and "changed"."""
    inputs = [name for name, (direction, _) in ports.items() if direction == "input"]
    outputs = [name for name in ports if name not in inputs]
    place = {name: f"p{number}" for number, name in enumerate(ports)}
    header = ", ".join(f"input [{ports[name][1]}-1:0] {place[name]}" for name in inputs)
    wires = [f"wire [{ports[name][1]}-1:0] {place[name]}_a, {place[name]}_b;" for name in outputs]
    both = ["." + _escaped(name) + f"({place[name]})" for name in inputs]
    modules = []
    for kind, end in (("engine", "a"), ("changed", "b")):
        own = ["." + _escaped(name) + f"({place[name]}_{end})" for name in outputs]
        modules.append(f"{kind} {end}({', '.join([*both, *own])});")
    differs = []
    for name in outputs:
        counts = [f"{place[other]}_a" for other in _when(name, outputs)]
        mask = f" & {{{ports[name][1]}{{|{counts[0]}}}}}" if counts else ""
        if name.endswith("WR_DATA"):  # of which each bit has its own enable
            mask = f" & {counts[0]}"
        differs.append(f"|(({place[name]}_a ^ {place[name]}_b){mask})")
    lines = [f"module miter({header}, output differs);", *wires, *modules]
    return "\n".join([*lines, f"assign differs = {' | '.join(differs)};", "endmodule", ""])


def _escaped(name: str) -> str:
    return f"\\{name} "


def _when(name: str, outputs: list[str]) -> Iterator[str]:
    """The output that says when another one counts, if there is one."""
    stem, _, port = name.rpartition(".")
    enable = {"WR_DATA": "WR_EN", "WR_ADDR": "WR_EN", "RD_ADDR": "RD_EN"}.get(port)
    if enable:
        yield f"{stem}.{enable}"
    elif channel := re.fullmatch(r"(.*axil?_(?:aw|w|b|ar|r)|.*_)(?!valid$|ready$)[a-z]+", name):
        valid = f"{channel[1]}valid"
        if valid in outputs:
            yield valid
