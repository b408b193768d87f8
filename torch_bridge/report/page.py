"""A page of plots and tables in one file, which asks no network for anything."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from itertools import count
from pathlib import Path
from typing import Any

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #1a1a1a; background: #fff; margin: 0 auto;
  max-width: 64rem; padding: 1rem; }
h1 { font-size: 1.6rem; overflow-wrap: anywhere; } h2 { font-size: 1.2rem; margin-top: 2.5rem; }
p { max-width: 44rem; }
.plot { width: 100%; }
.scroll { overflow-x: auto; }
.scroll:focus-visible { outline: 3px solid #0072b2; }
table { border-collapse: collapse; font-size: .875rem; }
th, td { padding: .3rem .6rem; text-align: left; border-bottom: 1px solid #ddd; white-space: nowrap; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; }
"""
# What a browser may load: what stands in the file.
_POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"
_LAYOUT: dict[str, Any] = {
    "margin": {"l": 10, "r": 10, "t": 40, "b": 50},
    "yaxis": {"automargin": True, "ticks": "outside", "tickcolor": "#fff"},
    "legend": {"orientation": "h", "x": 0, "y": 1, "yanchor": "bottom", "traceorder": "reversed"},
    "template": {"layout": {"plot_bgcolor": "#fff", "xaxis": {"gridcolor": "#eee", "zeroline": False}}},
}
_CONFIG = {"responsive": True, "displaylogo": False, "displayModeBar": False, "scrollZoom": False}
_numbers = count()


@dataclass(frozen=True)
class Section:
    """A heading, a text under it, and what it shows: HTML from ``plot`` or ``table``."""

    title: str
    text: str
    shown: str


def plot(traces: Sequence[dict[str, Any]], layout: dict[str, Any]) -> str:
    """A plot, its traces and layout in plotly's terms, checked by plotly."""
    from plotly import graph_objects

    figure = graph_objects.Figure(data=traces, layout=_LAYOUT | layout)
    name = f"plot{next(_numbers)}"
    parts = json.loads(figure.to_json())
    given = ", ".join(_script(part) for part in (parts["data"], parts["layout"], _CONFIG))
    return f'<div class="plot" id="{name}"></div><script>Plotly.newPlot("{name}", {given})</script>'


def table(head: Sequence[str], rows: Sequence[Sequence[str]], numbers: int = 0) -> str:
    """A table, which scrolls sideways where it is too wide, with keys as well.

    Args:
        head: of the columns.
        rows: of texts.
        numbers: how many of the last columns are numbers.
    """
    first = len(head) - numbers

    def cells(texts: Sequence[str], tag: str) -> str:
        both = zip(texts, [""] * first + [' class="number"'] * numbers, strict=True)
        return "".join(f"<{tag}{kind}>{escape(text)}</{tag}>" for text, kind in both)

    body = "".join(f"<tr>{cells(row, 'td')}</tr>" for row in rows)
    return (
        '<div class="scroll" tabindex="0" role="region" aria-label="table"><table>'
        f"<thead><tr>{cells(head, 'th')}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def write(path: Path, title: str, sections: Sequence[Section]) -> None:
    """Write a page.

    Raises:
        ModuleNotFoundError: plotly is not installed, which draws the plots.
    """
    from plotly.offline import get_plotlyjs

    parts = (
        f"<section><h2>{escape(one.title)}</h2><p>{escape(one.text)}</p>{one.shown}</section>"
        for one in sections
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n<script>{get_plotlyjs()}</script>\n"
        f"</head>\n<body>\n<main>\n<h1>{escape(title)}</h1>\n{''.join(parts)}\n</main>\n</body>\n</html>\n",
        encoding="utf-8",
    )


def _script(value: Any) -> str:
    """JSON that can stand in a script."""
    return json.dumps(value).replace("<", "\\u003c")
