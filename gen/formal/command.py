"""``python -m gen formal``."""

from __future__ import annotations

import argparse
from fnmatch import fnmatch
from pathlib import Path

from .. import provenance
from ..arguments import add_jobs
from ..toolchain import ToolError
from .proofs import all_proofs
from .runner import prove, report

__all__ = ["add_arguments", "run"]

_FOLDER = Path("build/formal")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="*", help="of a proof, as in 'contract-*' (default: all)")
    add_jobs(parser, "proofs")


def run(arguments: argparse.Namespace) -> None:
    """Run the proofs, print their table and write it to build/formal/report.json.

    What was proven before of the same harness, by the same tools, is not proven again.

    Raises:
        ValueError: no proof has such a name.
        gen.toolchain.ToolError: a proof did not end as it must.
    """
    names = arguments.name or ["*"]
    proofs = [proof for proof in all_proofs() if any(fnmatch(proof.name, name) for name in names)]
    if not proofs:
        raise ValueError(f"name must be of a proof, not {' '.join(names)!r}")
    results = prove(proofs, _FOLDER, arguments.jobs, keep=True)
    report(results, _FOLDER / "report.json")
    provenance.note(_FOLDER / "report.json", only=arguments.name, sources=provenance.sources())
    wrong = [proof.name for proof, result in zip(proofs, results, strict=True) if not result.is_good]
    if wrong:
        raise ToolError(f"not as it must be, see {_FOLDER}: {', '.join(wrong)}")
