"""Signals and operators as Verilog expressions, whose widths are what Verilog takes them for."""

from __future__ import annotations

from .rtlil import Cell, Const, Sig, extended, width_of

# By kind: the operator, and how tightly it binds (IEEE 1800-2017, table 11-2; 1 is loosest).
BINARY = {
    "$mul": ("*", 11),
    "$add": ("+", 10),
    "$sub": ("-", 10),
    "$shl": ("<<", 9),
    "$shr": (">>", 9),
    "$lt": ("<", 8),
    "$le": ("<=", 8),
    "$gt": (">", 8),
    "$ge": (">=", 8),
    "$eq": ("==", 7),
    "$ne": ("!=", 7),
    "$and": ("&", 6),
    "$xor": ("^", 5),
    "$or": ("|", 4),
}
UNARY = {
    "$not": "~",
    "$neg": "-",
    "$reduce_and": "&",
    "$reduce_or": "|",
    "$reduce_xor": "^",
    "$reduce_bool": "|",
}
COMPARISONS = {"$lt", "$le", "$gt", "$ge", "$eq", "$ne"}
OPERATORS = {*BINARY, *UNARY, "$mux", "$sshr", "$shift"}
CHOICE, UNARY_BINDS, ATOM = 1, 12, 13
# What an operator's result is called where the source gives it no name.
NOUNS = {
    "$add": "sum",
    "$sub": "difference",
    "$mul": "product",
    "$eq": "is",
    "$ne": "differs",
    "$lt": "is_less",
    "$le": "is_at_most",
    "$gt": "is_more",
    "$ge": "is_at_least",
    "$mux": "choice",
    "$shl": "moved_up",
    "$shr": "moved_down",
    "$sshr": "moved_down",
    "$shift": "part",
    "$not": "inverse",
    "$neg": "negative",
    "$reduce_and": "all",
    "$reduce_or": "any",
    "$reduce_bool": "any",
    "$reduce_xor": "parity",
    "$dff": "register",
    "$adff": "register",
    "$memrd_v2": "word",
}


def operands(cell: Cell) -> dict[str, Sig]:
    """An operator's inputs, as wide as Verilog wants them for this result.

    Raises:
        ValueError: the cell is no operator.
    """
    if cell.kind not in OPERATORS:
        raise ValueError(f"cell must be one that Amaranth's operators become, not {cell.kind!r}")
    a, b = cell.ports.get("A", ()), cell.ports.get("B", ())
    if cell.kind == "$mux":
        return {"S": cell.ports["S"], "B": b, "A": a}
    signed = bool(cell.number("A_SIGNED"))
    result = cell.number("Y_WIDTH")
    if cell.kind in COMPARISONS:
        width = max(width_of(a), width_of(b))
        return {"A": extended(a, width, signed), "B": extended(b, width, signed)}
    if cell.kind.startswith("$reduce"):
        return {"A": a}
    if cell.kind in UNARY:
        return {"A": extended(a, result, signed)}
    if cell.kind == "$shift":
        return {"A": extended(a, max(width_of(a), result), signed), "B": b}
    if cell.kind in ("$shl", "$shr", "$sshr"):
        return {"A": extended(a, result, signed), "B": b}
    return {"A": extended(a, result, signed), "B": extended(b, result, signed)}


def constant(bits: str) -> str:
    """Bits as a number; "-" is a bit that may be either."""
    width = len(bits)
    if "-" in bits:
        return f"{width}'b{bits.replace('-', '?')}"
    if width == 1:
        return f"1'b{bits}"
    value = int(bits, 2)
    return f"{width}'d{value}" if value < 1000 else f"{width}'h{value:x}"


def is_zero(sig: Sig) -> bool:
    return all(isinstance(part, Const) and "1" not in part.bits for part in sig)


def grouped(text: str, binds: int, least: int) -> str:
    """An expression in parentheses, if it binds less tightly than it has to."""
    return text if binds >= least else f"({text})"
