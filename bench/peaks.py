"""What a training step of the largest measured model takes: ``python -m bench.peaks``.

Reads the table of docs/cost.md that ``python -m bench.training`` makes, and writes what is shown of it
elsewhere: the table of README.md and the bars of docs/peaks.svg.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from .page import fill, write

COST, README, PICTURE = Path("docs/cost.md"), Path("README.md"), Path("docs/peaks.svg")
MODEL = "the default 124M GPT-2"
# Names in docs/cost.md, and here.
NAMES = {
    "baseline": "baseline",
    "`torch.utils.checkpoint` for each block": "activation checkpointing",
    "bit-plane format, 3.2x, nothing recomputed": "bit-plane format, 3.2x",
    "default policy, Hadamard 8x": "recommended: Hadamard format, recomputation",
}
WIDTH, BAR, GAP, TEXT = 640, 22, 14, 180


def rows(page: str) -> dict[str, tuple[float, float, float]]:
    """MB that are kept, MB of the peak, and time over the baseline's, by the names here.

    Raises:
        ValueError: the page has no row of that name, or two.
    """
    inside, found = False, dict.fromkeys(NAMES.values(), None)
    for line in page.splitlines():
        cells = [cell.strip(" *") for cell in line.strip("|").split("|")]
        if line.startswith("|") and "baseline" in cells[0]:
            inside = cells[0].startswith(MODEL)
            cells[0] = "baseline"
        if inside and cells[0] in NAMES:
            name = NAMES[cells[0]]
            if found[name] is not None:
                raise ValueError(f"docs/cost.md must have one row of {name}, not two")
            _, time, kept, peak = (float(cell.replace(",", "")) for cell in cells[1:])
            found[name] = (kept, peak, time)
    missing = [name for name, row in found.items() if row is None]
    if missing:
        raise ValueError(f"docs/cost.md must have a row of {', '.join(missing)}")
    return {name: row for name, row in found.items() if row is not None}


def table(found: dict[str, tuple[float, float, float]]) -> str:
    """In Markdown; the recommended setting stands out."""
    lines = ["| | activations kept, MB | peak of the step, MB | time |", "| --- | ---: | ---: | ---: |"]
    for name, (kept, peak, time) in found.items():
        cells = [name, f"{kept:,.0f}", f"{peak:,.0f}", f"{time:g}"]
        lines.append(f"| {' | '.join(f'**{cell}**' if 'recommended' in name else cell for cell in cells)} |")
    return "\n".join(lines)


def bars(found: dict[str, tuple[float, float, float]]) -> str:
    """The peaks as SVG, which browsers show in the reader's own light or dark."""
    most = max(peak for _, peak, _ in found.values())
    share = found["recommended: Hadamard format, recomputation"][1] / most
    title = f"The recommended setting needs {share:.0%} of the baseline's peak"
    height = 44 + len(found) * (BAR + GAP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">',
        f"<title>{title}</title>",
        '<rect width="100%" height="100%" fill="#fff"/>',
        '<g font-family="sans-serif" font-size="13" fill="#222">',
        f'<text x="8" y="24" font-size="16" font-weight="bold">{title}</text>',
    ]
    for place, (name, (_, peak, _)) in enumerate(found.items()):
        y, length = 44 + place * (BAR + GAP), round((WIDTH - TEXT - 90) * peak / most)
        colour = "#0072B2" if "recommended" in name else "#9aa5b1"
        parts += [
            f'<text x="{TEXT - 8}" y="{y + 15}" text-anchor="end">{name.partition(":")[0]}</text>',
            f'<rect x="{TEXT}" y="{y}" width="{length}" height="{BAR}" fill="{colour}"/>',
            f'<text x="{TEXT + length + 8}" y="{y + 15}">{peak:,.0f} MB</text>',
        ]
    return "\n".join([*parts, "</g>", "</svg>"]) + "\n"


def main() -> None:
    argparse.ArgumentParser(
        prog="python -m bench.peaks", description=re.sub(":.*", "", __doc__ or "")
    ).parse_args()
    found = rows(COST.read_text())
    fill(README, "costs", table(found))
    write(PICTURE, bars(found))
    print(f"wrote the table of {README} and {PICTURE}")


if __name__ == "__main__":
    main()
