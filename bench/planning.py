"""Plans of docs/planning.md: ``python -m bench.planning``, which writes docs/planning.json and the tables.

``--document`` only writes the tables anew, from the JSON.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any

from torch_bridge.job import cli

COMMANDS = (
    "gpt2-xl --batch 4 --device-memory 24GB",
    "llama-3-8b --length 8192 --device-memory 80GB",
    "llama-3-8b --length 4096 --lora 16 --device-memory 24GB",
    "qwen3-8b --length 131072 --checkpointing --loss-chunk 4096 --zero 3 --processes 8 --device-memory 141GB",
)
RECORD, PAGE = Path("docs/planning.json"), Path("docs/planning.md")
_HEADINGS = ("kept", "parameters", "gradients", "optimizer", "activations", "workspace", "peak")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.planning", description=__doc__)
    parser.add_argument("--document", action="store_true", help="only write the page")
    if not parser.parse_args().document:
        found = {}
        for number, command in enumerate(COMMANDS):
            path = Path(f"build/bench/planning-{number}.json")
            path.parent.mkdir(parents=True, exist_ok=True)
            cli.main(["plan", *command.split(), "--json", str(path)], package="bitstash")
            found[command] = json.loads(path.read_text())
        RECORD.write_text(json.dumps(found, indent=1) + "\n")
    PAGE.write_text(page(PAGE.read_text(), json.loads(RECORD.read_text())))


def page(text: str, plans: dict[str, Any]) -> str:
    """The page with the tables of the plans in place of those that it has."""
    tables = "\n\n".join(f"{_table(command, plan)}" for command, plan in plans.items())
    pattern = r"(<!-- plans -->\n)[\s\S]*?(\n<!-- end of plans -->)"
    return re.sub(pattern, lambda found: f"{found[1]}{tables}{found[2]}", text)


def _table(command: str, plan: dict[str, Any]) -> str:
    """A plan as Markdown, in GB; what is computed and moved beyond the first row."""
    first = plan["rows"][0]
    lines = [
        f"`python -m bitstash plan {command}`:",
        "",
        f"| policy | {' | '.join(_HEADINGS)} | FLOPs | traffic | fits |",
        f"| --- |{' --- |' * (len(_HEADINGS) + 3)}",
    ]
    for row in plan["rows"]:
        sizes = " | ".join(f"{row[name] / 1e9:,.1f}" for name in _HEADINGS)
        flops, traffic = row["flops"] / first["flops"] - 1, (row["traffic"] - first["traffic"]) / 1e9
        extra = " | | | " if row is first else f" | +{flops:.0%} | +{traffic:,.0f} | "
        name = row["policy"]
        name = f"**{name}**" if name == plan["recommended"] else name
        lines.append(f"| {name} | {sizes}{extra}{'yes' if row['fits'] else 'no'} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
