"""The verification plan: what is claimed of the engines, what holds each claim, and how far that reaches.

What was found of the claims comes from docs/verification.json. Engines are rows: one with another
format or interface has its own as soon as it is in the reports.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

from gen.config import INTERFACES, Config

from . import configs
from .claims import CLAIMS, GAPS, Claim
from .reports import (
    BINS,
    CODE,
    FORMAL,
    MEMORY,
    MUTATION,
    NETLIST,
    SIM,
    STREAMS,
    SYNTH,
    XSAFETY,
    Report,
    Row,
    as_markdown,
    older_rows,
)
from .runner import BENCHES, STREAM_BENCH

_PORTS = dict(zip(INTERFACES, ("streams", "AXI4-Stream", "runtime-configurable"), strict=True))
_SOLVERS = {"smtbmc z3": "z3", "abc pdr": "ABC", "abc bmc3": "ABC"}
_COMPARISONS = {"matches_golden", "gives_every_word_in_its_turn"}
_COMMANDS = (SIM, MEMORY, CODE, NETLIST, XSAFETY, MUTATION, FORMAL, SYNTH)
# What a proof says has a meaning for these alone.
_ONLY_OF = {
    "every x": "planes",
    "every block": "hadamard",
    "no invalid header": "hadamard",
    "block boundary": _PORTS["runtime"],
}
PARTS = "parts of the streams"
STAGES = "stages and parts"


_INTRODUCTION = """# Verification

This page says what is claimed of the [engines](hardware.md), what holds each claim, and how far. What is
not held stands first.

[Gaps](#gaps) · [What was run](#what-was-run) · [Claims](#claims) · [How good the benches
are](#how-good-the-benches-are) · [Appendix: all that was run](#appendix-all-that-was-run)

"""

_RUN = """## What was run

`make verify` runs all of it, in hours, goes on where it was stopped, and writes this page;
`python -m cocotb_tests sim --engines NAME` and its like run some engines. The figures are those of each
engine's last run, in [verification.json](verification.json), with hashes of what they depend on: of `rtl/`,
`golden/`, what makes Verilog, gates and mutants in `gen/`, and of `gen/formal/`, `gen/synth/` or the benches
in `cocotb_tests/`; rows of codecs do not depend on `rtl/memory/` and its benches. Where it is the same as
here, the table says "these", and the row holds for what is here, whatever the commit of the run; else
"older".

{made}

"""

_CLAIMS = """## Claims

*Simulated* is random stimulus and the corners of the format, compared with golden/, under every pattern of
idling and stalling at either end. `python -m cocotb_tests sim --seed N` makes all of it again, with the seed
of the row.
*Inductive* proofs hold for all time, *bounded* ones for all behaviours of the cycles stated after reset.
*Reached* shows that what a claim is about occurs.

Proofs of control are of presets in full size, where a row names one: no control depends on data, so a
solver can leave the datapaths out. The others are of the small engines that rows name.
"""

_BENCHES = """## How good the benches are

A bench that looks at nothing passes. So it is counted which corners of the format the ports have shown, while
words flowed, behind a pause, and under a stall; which branches and bits of the Verilog were reached; and how
many faults are found that are put in on purpose.

"""

_APPENDIX = """## Appendix: all that was run

The table of `make sim`, every engine against golden/, is in [hardware.md](hardware.md#measured).
"""


def page() -> str:
    """The whole page, from what was recorded."""
    sections = [_INTRODUCTION + _all_gaps(), _RUN.format(made=_made()) + _CLAIMS]
    sections += [_section(number, claim) for number, claim in enumerate(CLAIMS, 1)]
    sections += [_of_benches(), _APPENDIX]
    sections += [report.section() for report in (BINS, STREAMS, CODE, NETLIST, XSAFETY, MUTATION, FORMAL)]
    return "\n".join(sections)


def _made() -> str:
    """The runs of the commands, each with its commit, seed and tools."""
    rows = []
    for report in _COMMANDS:
        for run in report.runs():
            made = run["made"]
            tools = ", ".join(f"{name} {version}" for name, version in made.get("tools", {}).items())
            commit = f"`{made['commit']}`" if made else "not recorded"
            of = f"{len(run['rows'])} of {len(report.rows())}"
            sources = "older" if older_rows(run) else "these"
            made_by = [commit, sources, str(made.get("seed", "")), tools]
            rows.append([f"`{report.command}`", report.name, of, *made_by])
        if not report.rows():
            rows.append([f"`{report.command}`", report.name, "not run", "", "", "", ""])
    return as_markdown(["command", "of", "rows", "commit", "sources", "seed", "tools"], rows)


def _section(number: int, claim: Claim) -> str:
    rows = _merged([*_simulated(claim), *_proven(claim), *(_bursts() if claim.bursts else [])])
    table = as_markdown(["of", "evidence", "how far", "result"], rows)
    return f"### {number}. {claim.name}\n\n{claim.text}\n\n{table}\n"


def _merged(rows: Sequence[list[str]]) -> list[list[str]]:
    """One row where both engines have the same to say."""
    found: dict[tuple[str, ...], list[str]] = {}
    for of, *rest in rows:
        found.setdefault((of.partition(": ")[0], *rest), []).append(of.partition(": ")[2])
    return [
        [": ".join(filter(None, (of, " and ".join(parts)))), *rest] for (of, *rest), parts in found.items()
    ]


# Simulation


def engine(config: Config, part: str) -> str:
    """What kind of engine a row is about: its format, its ports, and which of the two it is."""
    return f"{config.fmt.scheme}, {_PORTS[config.interface]}: {part}"


def benches(module: str) -> dict[str, str]:
    """The benches of a module, in their order, each with the part that it is for, "" if for either."""
    text = Path(__file__).with_name(f"{module}.py").read_text()
    found = re.findall(r"^@cocotb\.test\((.*)\)\n(?:@.*\n)*async def (\w+)\(", text, re.M)
    parts = {name: re.search(r'TASK\.part != "(\w+)"', options) for options, name in found}
    return {name: part[1] if part else "" for name, part in parts.items()}


@cache
def _known() -> dict[str, Config]:
    lists = (configs.ALL, configs.COVERED, configs.GATES, configs.MUTATED)
    return {config.name: config for some in lists for config in some}


def _by_engine(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Rows by the kind of their engine, and of no other engines than those that are still there."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        config = _known().get(row["config"])
        if config is not None:
            found.setdefault(engine(config, row["part"]), []).append(row)
    return found


def _simulated(claim: Claim) -> Iterator[list[str]]:
    """A row for each kind of engine, and for the parts of the streams."""
    for kind, rows in _by_engine(SIM.rows()).items():
        config = _known()[rows[0]["config"]]
        here = _benches(claim, BENCHES[config.interface], rows[0]["part"])
        if here:
            yield [kind, _names(here), *_ran(SIM, rows, here)]
    here = _benches(claim, STREAM_BENCH, "")
    if here and STREAMS.rows():
        yield [PARTS, _names(here), *_ran(STREAMS, STREAMS.rows(), here)]
    if claim.gates:
        report = {"gates": NETLIST, "unknown": XSAFETY}[claim.gates]
        for kind, rows in _by_engine(report.rows()).items():
            yield [kind, "all benches on gates", *_ran(report, rows, list(_COMPARISONS))]


def _bursts() -> Iterator[list[str]]:
    """A row for each memory engine."""
    for name in dict.fromkeys(row["config"] for row in MEMORY.rows()):
        rows = [row for row in MEMORY.rows() if row["config"] == name]
        bursts, wrong = (sum(row[what] for row in rows) for what in ("bursts", "mismatches"))
        result = f"**{wrong:,} mismatches**" if wrong else "holds"
        seeds = _seeds(_seeds_of(MEMORY, rows))
        yield [f"memory engine `{name}`", "random bursts and checks", f"{bursts:,} bursts, {seeds}", result]


def _benches(claim: Claim, module: str, part: str) -> list[str]:
    return [name for name, of in benches(module).items() if name in claim.benches and of in ("", part)]


def _names(benches: Sequence[str]) -> str:
    return ", ".join(f"`{bench}`" for bench in benches)


def _ran(report: Report, rows: Sequence[Row], benches: Sequence[str]) -> tuple[str, str]:
    """How much was simulated, and what came of it. The blocks are those that are compared with golden/."""
    what = "words" if report is STREAMS else "blocks"
    number = len({row["config"] for row in rows})
    simulators = " and ".join(sorted({row["simulator"].capitalize() for row in rows}))
    seeds = {row["seed"] for row in rows} if "seed" in rows[0] else _seeds_of(report, rows)
    extent = f"{number} of them, {simulators}, {_seeds(seeds)}"
    if _COMPARISONS & set(benches):
        extent += f", {sum(row[what] for row in rows):,} {what}"
    wrong = sum(row["mismatches"] for row in rows)
    return extent, f"**{wrong:,} mismatches**" if wrong else "holds"


def _seeds_of(report: Report, rows: Sequence[Row]) -> set[int | None]:
    """Of the runs that these rows are from."""
    return {run["made"].get("seed") for run in report.runs() if any(row in rows for row in run["rows"])}


def _seeds(seeds: set[int | None]) -> str:
    if None in seeds:
        return "seed not recorded"
    return f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, sorted(map(int, filter(None, seeds)))))}"


# Proofs


def proven_engine(component: str, parameters: str) -> str | None:
    """The kind of engine that a proof is of; None of a stage or another part."""
    names = component.lower()
    if component != "round trip" and not names.endswith("compressor"):
        return None
    scheme = "hadamard" if "hadamard" in f"{component} {parameters}".lower() else "planes"
    interface = next((name for name in INTERFACES if names.startswith(name)), "stream")
    both = component == "round trip" or "," in component
    part = "both" if both else "decompressor" if names.endswith("decompressor") else "compressor"
    return f"{scheme}, {_PORTS[interface]}: {part}"


def _proven(claim: Claim) -> Iterator[list[str]]:
    """A row for each kind of engine, one for all other components, and one for the faults."""
    rows = [row for row in FORMAL.rows() if row["claim"] in claim.proofs]
    groups: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows:
        if row["expected"] == "PASS" and row["component"] != "Stage":  # that is what faults are put into
            kind = proven_engine(row["component"], row["parameters"]) or STAGES
            extent = f"{row['extent']} ({_SOLVERS.get(row['engine'], row['engine'])})"
            groups.setdefault((kind, row["claim"], extent), []).append(row)
    for (kind, name, extent), some in groups.items():
        of = "; ".join(sorted({row["component" if kind == STAGES else "parameters"] for row in some}))
        what, extent = (f"{kind}: {of}", extent) if kind == STAGES else (kind, f"{extent}: {of}")
        yield [what, f"proof *{name}*", extent, _held(some)]
    faults = [row for row in rows if row["expected"] == "FAIL"]
    if faults:
        found = sum(row["status"] == "FAIL" for row in faults)
        names = "; ".join(f"{row['component']}, {row['parameters']}" for row in faults)
        proofs = " and ".join(f"proof *{name}*" for name in claim.proofs)
        yield ["with a fault", proofs, names, f"{found} of {len(faults)} found"]


def _held(rows: Sequence[Row]) -> str:
    wrong = [row for row in rows if row["status"] != row["expected"]]
    return f"**{len(wrong)} of {len(rows)} do not hold**" if wrong else "holds"


# The benches themselves


def _of_benches() -> str:
    rows = [*_corners(), *_reached(), *_mutants()]
    return _BENCHES + as_markdown(["of", "what", "how far", "result"], rows) + "\n"


def _corners() -> Iterator[list[str]]:
    for kind, rows in _by_engine(BINS.rows()).items():
        bins, met = sum(row["bins"] for row in rows), sum(row["met"] for row in rows)
        yield [kind, "corners met", f"{len(rows)} of them", f"{met:,} of {bins:,}"]


def _reached() -> Iterator[list[str]]:
    for what, name in (("lines", "branches reached"), ("toggles", "toggles reached")):
        for kind, rows in _by_engine(CODE.rows()).items():
            total = sum(row[what] for row in rows)
            reached = round(sum(row[what] * row[f"{what}_percent"] / 100 for row in rows))
            yield [kind, name, _configs(rows), f"{reached:,} of {total:,}"]


def _mutants() -> Iterator[list[str]]:
    of_memory = [row for row in MUTATION.rows() if row["part"] == "memory"]
    groups = _by_engine(MUTATION.rows()) | ({"memory engines": of_memory} if of_memory else {})
    for kind, rows in groups.items():
        equivalent, killed = (sum(row[name] for row in rows) for name in ("equivalent", "killed"))
        faults = sum(row["mutants"] for row in rows) - equivalent
        result = f"{killed} of {faults}; {equivalent} more are proven to be no fault"
        seeds = _seeds(_seeds_of(MUTATION, rows))
        yield [kind, "mutants found", f"{_configs(rows)}, {seeds}", result]


def _configs(rows: Sequence[Row]) -> str:
    return "; ".join(dict.fromkeys(row["config"] for row in rows))


# Gaps


def _unproven() -> str:
    """Which proofs some kinds of engines have and others have not, as a table; "" if all have all."""
    simulated = _by_engine(SIM.rows())
    proofs = [name for claim in CLAIMS for name in claim.proofs]
    proven: dict[str, set[str]] = {name: set() for name in proofs}
    for row in FORMAL.rows():
        kind = proven_engine(row["component"], row["parameters"])
        if kind is not None and row["claim"] in proven:
            proven[row["claim"]] |= {kind.replace("both", part) for part in ("compressor", "decompressor")}
    shown = [name for name in proofs if proven[name]]
    rows = [[kind, *(_has(kind, name, proven[name]) for name in shown)] for kind in simulated]
    missing = [row for row in rows if "no" in row]
    if not missing:
        return ""
    table = as_markdown(["simulated, and proven", *(f"*{name}*" for name in shown)], missing)
    return f"\nProofs that some kinds of engines have and others have not:\n\n{table}\n"


def _has(kind: str, name: str, proven: set[str]) -> str:
    """Whether a kind of engine has a proof; "" if that is of others by what it says."""
    if kind in proven:
        return "yes"
    is_of_it = kind.rpartition(" ")[2] in {other.rpartition(" ")[2] for other in proven}
    return "no" if is_of_it and _ONLY_OF.get(name, "") in kind else ""


def unreached() -> Iterator[str]:
    """Engines of which benches have not reached all that inputs may reach."""
    for row in CODE.rows():
        count = sum(map(int, re.findall(r"(\d+) without a reason", row["missed"])))
        if count:
            engine = f"{row['config']}'s {row['part']}"
            yield f"{count} branches or toggles of {engine} were not reached, for no reason that is known."


def unmutated() -> Iterator[str]:
    """Whether mutants of the memory engine are missing."""
    if MUTATION.rows() and not any(row["part"] == "memory" for row in MUTATION.rows()):
        yield "The recorded run of `make mutate` has no mutants of the memory engine."


def mixed() -> list[str]:
    """Why the record is not of the commit that is here: a line for each command, none if it is.

    Rows that were made earlier are of this commit if nothing that they depend on has changed since.
    """
    found = []
    for report in _COMMANDS:
        what = f"{report.command}, {report.name}"
        if not report.runs():
            found.append(f"{what}: not run")
        for run in report.runs():
            commit = run["made"].get("commit", "unknown")
            if older_rows(run):
                found.append(f"{what}: of older sources, {commit}")
            elif commit == "unknown" or commit.endswith("-dirty"):
                found.append(f"{what}: of {commit}, which is no commit")
    return found


def _all_gaps() -> str:
    listed = [
        f"`{report.command}` was not run of {report.name}: what it would hold is not held."
        for report in _COMMANDS
        if not report.rows()
    ]
    stale = dict.fromkeys(f"`{report.command}`" for report in _COMMANDS if report.stale_rows())
    if stale:
        listed.append(f"Rows of {', '.join(stale)} are of [older sources](#what-was-run).")
    listed += [
        *(gap for claim in CLAIMS for gap in claim.gaps),
        *GAPS,
        *unreached(),
        *unmutated(),
    ]
    return "## Gaps\n\n" + "\n".join(f"- {gap}" for gap in listed) + "\n" + _unproven()
