"""Whether a mutant of a memory engine is a fault at all: both compared, cut at their memories and codecs.

What memories and codecs give is any input, the same for both; what they are given is compared as outputs are.
Two that are equal there are equal with any memories and codecs. Two that differ may still not differ at the
ports.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path

from .equivalence import Model, escaped, is_proven, ports_of, read_model, wrapper
from .netlist import Mutant
from .yosys import run_yosys

__all__ = ["CODECS", "is_equivalent"]

CODECS = "*compressor[0123456789]"  # names of modules; Yosys knows no ranges
_SECONDS = 20  # for one of the proofs


def is_equivalent(path: Path, mutant: Mutant) -> bool:
    """Whether ABC proves that no input tells a mutant from its engine; if not, that says nothing. It is kept.

    Args:
        path: of the model with the mutants, as RTLIL, its codecs as modules.
    """
    model = _model(path, path.read_text())
    folder = path.with_name(f"mutant{mutant.number}")
    folder.mkdir(exist_ok=True)
    kept = folder / f"{model.key}.json"
    if not kept.exists():
        kept.write_text(json.dumps(is_proven(model, mutant.number, folder, _SECONDS)))
    return bool(json.loads(kept.read_text()))


@lru_cache(maxsize=1)
def _model(path: Path, text: str) -> Model:
    """The engine between its memories and codecs."""
    (top,) = re.findall(r"^attribute \\top 1\n(?:attribute .*\n)*module (\S+)", text, re.M)
    cut = path.with_suffix(".cut.il")
    expose = [f"expose -evert {top}/t:$mem_v2 {top}/t:{CODECS}", "opt_clean", f"cd {top}"]
    run_yosys(
        [f"read_rtlil {path}", "memory_collect", *expose, f"write_rtlil -selected {cut}"],
        cut.with_suffix(".log"),
    )
    (module,) = re.findall(rf"^module {re.escape(top)}\n(.*?)^end", cut.read_text(), re.M | re.S)
    commands = [f"read_rtlil {cut}", f"rename {top} engine"]
    return read_model(path.with_suffix(".gates"), text, _around(ports_of(module)), commands)


def _around(ports: Mapping[str, tuple[str, int]]) -> str:
    """Verilog for :func:`gen.equivalence.read_model`."""
    outputs = [name for name, (direction, _) in ports.items() if direction == "output"]
    values = {}
    for name in outputs:
        counts = [escaped(other) for other in _when(name, outputs)]
        mask = f" & {{{ports[name][1]}{{|{counts[0]}}}}}" if counts else ""
        if name.endswith("WR_DATA"):  # of which each bit has its own enable
            mask = f" & {counts[0]}"
        values[name] = escaped(name) + mask
    return wrapper(ports, values)


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
