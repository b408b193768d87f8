"""Changes to a design that leave what it does, and make it shorter to read.

Amaranth makes an operator for each time that an expression is used, one for each constant operand, and a port
for each piece of a signal that comes from somewhere else.
"""

from __future__ import annotations

from dataclasses import replace

from .design import first_name, is_whole, names_in, output_of, target_of
from .expressions import OPERATORS, operands
from .rtlil import Assign, Cell, Const, Module, Sig, Slice, Statements, Wire, cut, joined, width_of

Values = dict[str, Sig]  # of wires, what stands for them


def simplify(modules: list[Module]) -> None:
    """Change modules in place."""
    parents = {cell.kind[1:]: cell for module in modules for cell in module.cells}
    for module in modules:
        if module is not modules[0]:
            _join_ports(module, parents[module.name])
    for module in modules:
        _merge_operators(module)
        _drive_outputs(module, {inner.name: inner for inner in modules})


def _replaced(sig: Sig, values: Values) -> Sig:
    """A signal in which wires are replaced by what stands for them."""
    if not any(isinstance(part, Slice) and part.name in values for part in sig):
        return sig
    found: list[Const | Slice] = []
    for part in sig:
        if isinstance(part, Slice) and part.name in values:
            found += _replaced(cut(values[part.name], part.low, part.width), values)
        else:
            found.append(part)
    return joined(tuple(found))


def _replace(module: Module, values: Values) -> None:
    """Replace wires wherever they are read."""
    if not values:
        return
    for cell in module.cells:
        own = output_of(cell) if not cell.kind.startswith("\\") else ""
        for port, sig in cell.ports.items():
            if port != own or cell.kind in ("$memwr_v2", "$meminit_v2"):
                cell.ports[port] = _replaced(sig, values)
    for process in module.processes:
        _replace_in(process.body, values)
    module.connects = [(target, _replaced(value, values)) for target, value in module.connects]


def _replace_in(body: Statements, values: Values) -> None:
    for i, statement in enumerate(body):
        if isinstance(statement, Assign):
            body[i] = replace(statement, value=_replaced(statement.value, values))
        else:
            statement.value = _replaced(statement.value, values)
            for _, inner in statement.cases:
                _replace_in(inner, values)


def _join_ports(module: Module, instance: Cell) -> None:
    """Make one port of the pieces in which a signal comes into a module."""
    pieces = {
        wire.name for wire in module.ports() if wire.direction == "input" and wire.name.startswith("\\port$")
    }
    inputs = {wire.name for wire in module.ports() if wire.direction == "input"}
    joins = sorted(module.connects, key=lambda connect: -width_of(connect[1]))
    for target, value in joins:
        name = first_name(target)
        names = names_in([value])
        if "." in name or module.wires[name].direction or not pieces & set(names) or not inputs >= set(names):
            continue
        values: Values = {}
        low = 0
        for part in value:
            if (
                isinstance(part, Slice)
                and part.name in pieces
                and part.width == module.wires[part.name].width
            ):
                values.setdefault(part.name, (Slice(name, low, part.width),))
            low += part.width
        if not values:
            continue
        above = [
            instance.ports[part.name[1:]][:]
            if isinstance(part, Slice) and part.width == module.wires[part.name].width
            else cut(instance.ports[part.name[1:]], part.low, part.width)
            if isinstance(part, Slice)
            else (part,)
            for part in value
        ]
        module.connects.remove((target, value))
        _replace(module, values)
        module.wires[name].direction = "input"
        instance.ports[name[1:]] = joined(tuple(part for sig in above for part in sig))
        for gone in values:
            del module.wires[gone], instance.ports[gone[1:]]
        pieces -= values.keys()


def _merge_operators(module: Module) -> None:
    """Leave out operators that others are equal to, or that one of their operands is equal to."""
    while True:
        values: Values = {}
        seen: dict[object, Sig] = {}
        kept = []
        for cell in module.cells:
            if cell.kind not in OPERATORS:
                kept.append(cell)
                continue
            for port in cell.ports:
                if port != "Y":
                    cell.ports[port] = _replaced(cell.ports[port], values)
            result = cell.ports["Y"]
            name = first_name(result)
            simple = _simple(cell)
            if simple is not None:
                if not module.wires[name].direction:
                    values[name] = simple
                if not name.startswith("$"):
                    module.connects.append((result, simple))
                continue
            key = (
                cell.kind,
                width_of(result),
                *sorted(cell.parameters.items()),
                *sorted(operands(cell).items()),
            )
            if key in seen and name.startswith("$"):
                values[name] = seen[key]
                continue
            seen.setdefault(key, result)
            kept.append(cell)
        module.cells = kept
        if not values:
            return
        _replace(module, values)


def _simple(cell: Cell) -> Sig | None:
    """The operand that an operator's result is equal to, or a constant."""
    of = operands(cell)
    if cell.kind == "$mux":
        (condition,) = of["S"] if len(of["S"]) == 1 else (None,)
        if isinstance(condition, Const):
            return of["B"] if condition.bits == "1" else of["A"]
        return of["A"] if of["A"] == of["B"] else None
    if cell.kind in ("$and", "$or", "$xor", "$add"):
        for one, other in (("A", "B"), ("B", "A")):
            bits = _bits(of[one])
            if bits is None:
                continue
            if not bits.strip("0"):
                return of[one] if cell.kind == "$and" else of[other]
            if not bits.strip("1") and cell.kind in ("$and", "$or"):
                return of[other] if cell.kind == "$and" else of[one]
    if cell.kind.startswith("$reduce") and width_of(of["A"]) < 2:
        return of["A"] or (Const("1" if cell.kind == "$reduce_and" else "0"),)
    bits = _bits(of["A"])
    if cell.kind == "$not" and bits is not None:
        return (Const(bits.translate(str.maketrans("01", "10"))),)
    return None


def _bits(sig: Sig) -> str | None:
    """The bits of a constant."""
    return sig[0].bits if len(sig) == 1 and isinstance(sig[0], Const) else None


def _drive_outputs(module: Module, modules: dict[str, Module]) -> None:
    """Let what drives an output drive the port itself, not a wire beside it."""
    driven = _driven(module, modules)
    for target, value in list(module.connects):
        port = module.wires[first_name(target)]
        if port.direction != "output" or not is_whole(value, module.wires):
            continue
        wire = module.wires[first_name(value)]
        if wire.direction or wire.name not in driven:
            continue
        module.connects.remove((target, value))
        port.init = wire.init
        _rename(module, wire.name, port)
        driven.discard(wire.name)


def _driven(module: Module, modules: dict[str, Module]) -> set[str]:
    """Wires that a cell, an instance or a process drives, all of each."""
    found = {target_of(process) for process in module.processes}
    for cell in module.cells:
        if cell.kind[1:] in modules:
            inner = modules[cell.kind[1:]].wires
            sigs = [sig for port, sig in cell.ports.items() if inner[f"\\{port}"].direction == "output"]
        else:
            sigs = [sig for port, sig in cell.ports.items() if port == output_of(cell)]
        found |= {first_name(sig) for sig in sigs if is_whole(sig, module.wires)}
    return found


def _rename(module: Module, name: str, wire: Wire) -> None:
    """Give a wire's driver and readers another wire in its place."""
    values: Values = {name: (Slice(wire.name, 0, wire.width),)}
    for cell in module.cells:
        for port, sig in cell.ports.items():
            cell.ports[port] = _replaced(sig, values)
    for process in module.processes:
        if target_of(process) == name:
            _retarget(process.body, wire.name)
        _replace_in(process.body, values)
    module.connects = [(target, _replaced(value, values)) for target, value in module.connects]


def _retarget(body: Statements, name: str) -> None:
    for i, statement in enumerate(body):
        if isinstance(statement, Assign):
            body[i] = replace(statement, target=replace(statement.target, name=name))
        else:
            for _, inner in statement.cases:
                _retarget(inner, name)
