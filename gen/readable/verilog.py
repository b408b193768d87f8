"""A design's Verilog: one module for each component, in the order of the design."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from . import sources
from .design import (
    Design,
    Names,
    contents_of,
    first_name,
    inputs_of,
    is_whole,
    names_in,
    plain,
    reads_of,
    writes_to,
)
from .expressions import (
    ATOM,
    BINARY,
    CHOICE,
    COMPARISONS,
    NOUNS,
    UNARY,
    UNARY_BINDS,
    constant,
    grouped,
    operands,
)
from .rtlil import (
    Assign,
    Cell,
    Const,
    Memory,
    Module,
    Process,
    Sig,
    Slice,
    Statements,
    Switch,
    Wire,
    cut,
    extended,
    parse,
    width_of,
)
from .simplify import simplify
from .trees import Case, If, Tree, is_constant, one_bit, segments, tree

WIDTH = 110  # columns
_LONGEST = 90  # characters of an expression within another
_FEW = 4  # cases that are written as choices
_OPERATORS = {*BINARY, *UNARY, "$mux"}

# By port of a top module: where in it its fields lie.
Fields = dict[str, dict[str, str]]


def verilog(rtlil: str, fields: Fields | None = None) -> str:
    """The Verilog of a design that Amaranth wrote as RTLIL, with sources.

    What no output depends on is left out, and so are ports that nothing reads.

    Args:
        rtlil: of a component and all that is in it.
        fields: of the top module's ports, for the comments on them.
    """
    modules = parse(rtlil)
    simplify(modules)
    design = Design(modules)
    writers = [
        _Writer(design, module, fields if module is design.top else None)
        for module in design.modules.values()
    ]
    return "\n".join(writer.text() for writer in writers if writer.is_needed)


@dataclass
class _Register:
    """A register and what sets it."""

    name: str
    wire: Wire
    clock: Sig
    source: str
    body: Statements
    target: str  # what the body assigns
    reset: Sig  # asynchronous; () is none
    reset_value: str


class _Writer:
    """Writes one module."""

    def __init__(self, design: Design, module: Module, fields: Fields | None) -> None:
        self._design = design
        self._module = module
        self._wires = module.wires
        self._drivers = design.drivers[module.name]
        self._component = sources.component(module.source)
        self._called = dict(design.ports[module.name])
        self._ports = [module.wires[name] for name in self._called]
        self._fields = fields
        # Linters take a wire for hidden that has the name of the instance that it is in.
        instance = [plain(design.parents[module.name].cell.name)] if module.name in design.parents else []
        self._names = Names([*self._called.values(), "unused", *instance])
        self._memories: dict[str, str] = {}
        self._aliases = self._find_aliases()
        self._alias_names = frozenset(self._aliases.values())
        self._registers = self._find_registers()
        self._merged = {register.target for register in self._registers.values()}
        self._count_reads()
        self._name_wires()
        self._written: set[str] = set()
        self._seen: dict[str, int] = {}  # of each wire that is written: the bits that are read
        self._unread: list[str] = []
        self._where = ""  # what is written comes from
        self._out: list[str] = []
        self._declared: list[tuple[str, str, int]] = []
        self._functions: list[str] = []

    @property
    def is_needed(self) -> bool:
        return self._module is self._design.top or bool(self._ports)

    def _live(self, name: str) -> bool:
        return self._design.is_live(self._module, name)

    # What there is

    def _live_cells(self) -> Iterator[Cell]:
        """Cells that drive something that is read, and those that write to memories that are."""
        done: set[int] = set()
        for name, driver in self._drivers.items():
            if isinstance(driver, Cell) and self._live(name) and id(driver) not in done:
                done.add(id(driver))
                yield driver

    def _find_aliases(self) -> dict[Sig, str]:
        """By a signal that is no wire: the name that the source has for it."""
        found: dict[Sig, str] = {}
        for name, driver in self._drivers.items():
            if not isinstance(driver, tuple) or self._wires[name].direction or name.startswith("$"):
                continue
            if not is_whole(driver, self._wires) and not is_constant(driver):
                found.setdefault(driver, name)
        return found

    def _find_registers(self) -> dict[str, _Register]:
        """By the wire that it drives, each register, with the process that sets it and nothing else."""
        found = {}
        counts = Counter(self._all_reads())
        for cell in self._live_cells():
            if cell.kind not in ("$dff", "$adff"):
                continue
            name, data = first_name(cell.ports["Q"]), cell.ports["D"]
            wire = self._wires[name]
            body: Statements = [Assign(Slice(name, 0, wire.width), data)]
            target, source = name, cell.source
            if is_whole(data, self._wires):
                given = first_name(data)
                driver = self._drivers.get(given)
                if isinstance(driver, Process) and given.startswith("$") and counts[given] == 1:
                    body, target, source = driver.body, given, driver.source
            reset, value = (
                cell.ports.get("ARST", ()),
                cell.parameters.get("ARST_VALUE", "").rpartition("'")[2],
            )
            found[name] = _Register(name, wire, cell.ports["CLK"], source, body, target, reset, value)
        return found

    def _all_reads(self) -> Iterator[str]:
        for sig in self._read_sigs():
            yield from names_in([sig])

    def _read_sigs(self) -> Iterator[Sig]:
        """Every signal that something live reads, once for each time; of repeated bits once."""
        for name, driver in self._drivers.items():
            if isinstance(driver, Process) and self._live(name):
                yield from reads_of(driver.body)
            elif isinstance(driver, tuple) and self._wires[name].direction and self._live(name):
                yield driver
        for cell in self._live_cells():
            if cell.kind.startswith("\\"):
                yield from (sig for _, sig in self._connected(cell))
            else:
                yield from inputs_of(cell)
                if cell.kind == "$memrd_v2":
                    for write in writes_to(self._module, cell.memory):
                        yield from inputs_of(write)

    def _connected(self, cell: Cell) -> list[tuple[str, Sig]]:
        """The inputs of an instance, by its ports' names."""
        found = []
        inner = self._design.modules.get(cell.kind[1:])
        for port, sig in cell.ports.items():
            if inner:
                is_input = inner.wires[f"\\{port}"].direction == "input"
                if is_input and self._design.is_live(inner, f"\\{port}"):
                    found.append((port, sig))
            elif not (is_whole(sig, self._wires) and self._drivers.get(first_name(sig)) is cell):
                found.append((port, sig))
        return found

    def _count_reads(self) -> None:
        self._reads: Counter[str] = Counter()
        self._partial: set[str] = set()
        self._readers: dict[str, str] = {}  # of what has no name: what is made of it
        for sig in self._read_sigs():
            before = None
            for part in sig:
                if isinstance(part, Slice) and part != before:
                    self._reads[part.name] += 1
                    if part.width != self._wires[part.name].width:
                        self._partial.add(part.name)
                before = part
        for name, driver in self._drivers.items():
            if not self._live(name):
                continue
            if isinstance(driver, Process):
                sigs = list(reads_of(driver.body))
            elif isinstance(driver, Cell) and not driver.kind.startswith("\\"):
                sigs = inputs_of(driver)
            elif isinstance(driver, tuple) and self._wires[name].direction:
                sigs = [driver]
            else:
                continue
            for read in names_in(sigs):
                if read.startswith("$"):
                    self._readers.setdefault(read, name)
        for cell in self._live_cells():
            if cell.kind.startswith("\\"):
                for port, sig in self._connected(cell):
                    for read in names_in([sig]):
                        self._readers.setdefault(read, f"\\{plain(cell.name)}_{plain(port)}")

    # Names

    def _name_wires(self) -> None:
        for name in self._module.memories:
            self._memories[name] = self._names.new(plain(name))
        for cell in self._module.cells:
            if cell.kind.startswith("\\"):
                self._called[cell.name] = self._names.new(plain(cell.name))
        self._name_nets()
        for name in self._wires:
            if not name.startswith("$") and name not in self._called and self._live(name):
                self._called[name] = self._names.new(plain(name))

    def _name_nets(self) -> None:
        """Call wires between instances after the port that drives them, if they are called after any."""
        instances = [cell for cell in self._live_cells() if cell.kind[1:] in self._design.modules]
        ports: dict[str, set[str]] = {}
        for cell in instances:
            for port, sig in cell.ports.items():
                if is_whole(sig, self._wires):
                    ports.setdefault(first_name(sig), set()).add(plain(port))
        for cell in instances:
            for port, sig in cell.ports.items():
                name = first_name(sig) if is_whole(sig, self._wires) else ""
                is_port = name and (name.startswith("$") or plain(name) in ports[name])
                if is_port and name not in self._called and self._drivers.get(name) is cell:
                    self._called[name] = self._names.new(f"{plain(cell.name)}_{plain(port)}")
        for cell in instances:
            for port, sig in cell.ports.items():
                name = first_name(sig) if is_whole(sig, self._wires) else ""
                if (
                    name
                    and not name.startswith("$")
                    and self._live(name)
                    and name not in self._called
                    and plain(name) == plain(port)
                ):
                    self._called[name] = self._names.new(f"{plain(cell.name)}_{plain(port)}")

    def _name(self, name: str) -> str:
        """What a wire is called; one that the source does not name, after what is made of it."""
        if name not in self._called:
            self._called[name] = self._names.new(self._described(name))
        return self._called[name]

    def _described(self, name: str) -> str:
        driver = self._drivers.get(name)
        noun = NOUNS.get(driver.kind, "term") if isinstance(driver, Cell) else "value"
        reader, steps = name, 0
        while reader.startswith("$") and reader in self._readers and steps < 100:
            reader, steps = self._readers[reader], steps + 1
        if reader.startswith("$"):
            return noun
        called = self._called.get(reader) or plain(reader)
        return (
            called
            if noun in ("value", "choice", "term")
            and driver is not None
            and steps == 1
            and (isinstance(driver, Process))
            else f"{called}_{noun}"
        )

    # Expressions

    def _sig(self, sig: Sig) -> tuple[str, int]:
        """A signal as an expression, and how tightly that binds."""
        if len(sig) == 1:
            return self._part(sig[0])
        if sig in self._aliases:
            return self._alias(sig), ATOM
        pieces: list[str] = []
        i = 0
        parts = sig[::-1]
        while i < len(parts):
            run = i
            while run < len(parts) and parts[run] == parts[i]:
                run += 1
            part = parts[i]
            if run - i > 1 and isinstance(part, Slice):
                pieces.append(f"{{{run - i}{{{self._part(part)[0]}}}}}")
            else:
                pieces += [self._part(part)[0]] * (run - i)
            i = run
        if not pieces:
            return "1'b0", ATOM
        return (pieces[0], ATOM) if len(pieces) == 1 else (f"{{{', '.join(pieces)}}}", ATOM)

    def _alias(self, sig: Sig) -> str:
        """The name of a part or a row of wires, which is written before what reads it."""
        name = self._aliases[sig]
        if name not in self._written:
            self._written.add(name)
            if name not in self._called:
                self._called[name] = self._names.new(plain(name))
            del self._aliases[sig]
            text = self._sig(sig)[0]
            self._aliases[sig] = name
            self._statement(f"wire {_range(width_of(sig))}{self._called[name]} = {text};", "")
        return self._called[name]

    def _part(self, part: Const | Slice) -> tuple[str, int]:
        if isinstance(part, Const):
            return constant(part.bits), ATOM
        wire = self._wires[part.name]
        inlined = self._inlined(part.name) if part.width == wire.width else None
        if inlined:
            return inlined
        if (part,) in self._aliases:
            return self._alias((part,)), ATOM
        self._seen[part.name] = self._seen.get(part.name, 0) | ((1 << part.width) - 1) << part.low
        if part.width == wire.width:
            return self._use(part.name), ATOM
        return f"{self._use(part.name)}{_bits(part.low, part.width)}", ATOM

    def _inlined(self, name: str) -> tuple[str, int] | None:
        """The expression in place of a wire that the source does not name, if it is read once and short."""
        driver = self._drivers.get(name)
        if not name.startswith("$") or not isinstance(driver, Cell) or driver.kind not in _OPERATORS:
            return None
        if name in self._partial or name in self._called:
            return None
        if self._reads[name] != 1 and not _is_short(driver):
            return None
        text, binds = self._operator(driver)
        return (text, binds) if len(text) <= _LONGEST else None

    def _use(self, name: str) -> str:
        """A wire's name. What drives one without a name in the source is written before what reads it."""
        called = self._name(name)
        if name.startswith("$"):
            self._write(name)
        return called

    def _operator(self, cell: Cell) -> tuple[str, int]:
        of = operands(cell)
        if cell.kind == "$mux":
            condition, then, otherwise = (self._sig(of[name]) for name in "SBA")
            chosen = grouped(*then, CHOICE + 1), grouped(*otherwise, CHOICE)
            return f"{grouped(*condition, CHOICE + 1)} ? {chosen[0]} : {chosen[1]}", CHOICE
        if cell.kind in UNARY:
            return f"{UNARY[cell.kind]}{grouped(*self._sig(of['A']), ATOM)}", UNARY_BINDS
        operator, binds = BINARY[cell.kind]
        if cell.kind in COMPARISONS and cell.number("A_SIGNED") and cell.kind not in ("$eq", "$ne"):
            a, b = (f"$signed({self._sig(of[name])[0]})" for name in "AB")
        else:
            a, b = (self._operand(of[name], operator) for name in "AB")
        return f"{a} {operator} {b}", binds

    def _operand(self, sig: Sig, operator: str) -> str:
        """One side of an operator; in parentheses if it has another one, whichever binds more tightly."""
        text, binds = self._sig(sig)
        if binds == ATOM or (binds == UNARY_BINDS and text[0] in "~-"):
            return text
        if operator in "&|^" and sig and isinstance(sig[0], Slice):
            driver = self._drivers.get(sig[0].name)
            if isinstance(driver, Cell) and BINARY.get(driver.kind, ("", 0))[0] == operator:
                return text
        return f"({text})"

    # Statements

    def _write(self, name: str) -> None:
        """Write what drives a wire, unless that is done."""
        if name in self._written:
            return
        self._written.add(name)
        driver, called = self._drivers.get(name), self._name(name)
        wire = self._wires[name]
        if name in self._registers or driver is None:
            return
        if isinstance(driver, Process):
            self._declare(name)
            self._write_process(driver, called, wire.width)
        elif isinstance(driver, tuple):
            if wire.direction:
                self._assign(called, self._sig(driver)[0], "")
        elif driver.kind.startswith("\\"):
            self._declare(name)
        elif driver.kind == "$memrd_v2":
            self._declare(name, "reg" if driver.number("CLK_ENABLE") else "wire")
        else:
            self._write_operator(name, driver)

    def _write_operator(self, name: str, cell: Cell) -> None:
        called = self._name(name)
        of = operands(cell)
        if cell.kind == "$sshr":
            shift = grouped(*self._sig(of["B"]), ATOM)
            text = f"$signed({self._sig(of['A'])[0]}) >>> {shift}"
        elif cell.kind == "$shift":
            text = f"{grouped(*self._sig(of['A']), ATOM)} >> {grouped(*self._sig(of['B']), ATOM)}"
            if (whole := width_of(of["A"])) > self._wires[name].width:
                moved = self._names.new(f"{called}_moved")
                self._statement(f"wire {_range(whole)}{moved} = {text};", cell.source)
                self._unread.append(f"{moved}[{whole - 1}:{self._wires[name].width}]")
                text = f"{moved}{_bits(0, self._wires[name].width, whole)}"
        else:
            text = self._operator(cell)[0]
        if name.startswith("$"):
            bits = _range(self._wires[name].width)
            self._statement(f"wire {bits}{called} = {text};", cell.source)
        else:
            self._declare(name)
            self._assign(called, text, cell.source)

    def _write_process(self, process: Process, called: str, width: int) -> None:
        for low, size in segments(process.body, width):
            value = tree(process.body, low, size)
            part = _bits(low, size, width)
            suffix = "" if size == width else f"_{low}"
            self._assign(f"{called}{part}", self._choice(value, f"{called}{suffix}")[0], process.source)

    def _choice(self, value: Tree, name: str) -> tuple[str, int]:
        """A tree as an expression; of many cases it is a call of a function."""
        if isinstance(value, tuple):
            return self._sig(value)
        if isinstance(value, If):
            condition = grouped(*self._sig(value.condition), CHOICE + 1)
            then = grouped(*self._choice(value.then, name), CHOICE + 1)
            otherwise = self._choice(value.otherwise, name)[0]
            return f"{condition} ? {then} :\n{otherwise}", CHOICE
        patterns = [pattern for some, _ in value.cases for pattern in some]
        if len(patterns) <= _FEW and not any("-" in pattern for pattern in patterns):
            key = grouped(*self._sig(value.key), 8)
            lines = []
            for some, inner in value.cases:
                condition = " || ".join(f"{key} == {constant(pattern)}" for pattern in some)
                lines.append(f"{condition} ? {grouped(*self._choice(inner, name), CHOICE + 1)} :\n")
            return "".join(lines) + self._choice(value.otherwise, name)[0], CHOICE
        return self._call(value, name), ATOM

    def _call(self, value: Case, name: str) -> str:
        """A call of a function that has the cases; what their values are made of is given to it."""
        function, names = self._names.new(f"{name}_of"), Names(self._called.values())
        key = self._sig(value.key)[0]
        given, arguments = {key: names.new("key")}, [(width_of(value.key), "key")]

        def inside(inner: Tree) -> str:
            if isinstance(inner, tuple) and is_constant(inner):
                return self._sig(inner)[0]
            text = self._choice(inner, name)[0].replace("\n", " ")
            if text not in given:
                given[text] = names.new("given")  # no signal is called so, now or later
                arguments.append((_tree_width(inner), given[text]))
            return given[text]

        result = _tree_width(value)
        word = "casez" if any("-" in pattern for some, _ in value.cases for pattern in some) else "case"
        lines = []
        for some, inner in value.cases:
            lines.append(f"      {', '.join(map(constant, some))}: {function} = {inside(inner)};")
        lines.append(f"      default: {function} = {inside(value.otherwise)};")
        inputs = ", ".join(f"input {_range(bits)}{argument}" for bits, argument in arguments)
        head = _wrapped(f"  function {_range(result)}{function}({inputs});", "      ")
        self._functions.append("\n".join([head, f"    {word} (key)", *lines, "    endcase", "  endfunction"]))
        return f"{function}({', '.join(given)})"

    def _assign(self, target: str, text: str, source: str) -> None:
        self._statement(f"assign {target} = {text};", source)

    def _statement(self, text: str, source: str) -> None:
        """A statement, its source above it if that is another than the one before has; choices have lines."""
        head, *rest = text.split("\n")
        lines = [f"  {head}", *(f"    {line}" for line in rest)]
        if rest:
            target, _, first = head.partition(" = ")
            lines[:1] = [f"  {target} =", f"    {first}"]
        where = sources.line(source)
        if where and where != self._where:
            self._out += ["", f"  // {where}"]
        self._where = where or self._where
        self._out += _wrapped_lines(lines)

    def _declare(self, name: str, kind: str = "wire") -> None:
        wire = self._wires[name]
        if not wire.direction:
            self._declared.append((kind, self._name(name), wire.width))

    def _write_registers(self) -> None:
        """Registers of one line of the source share a block."""
        groups: dict[tuple[Sig, Sig, str], list[_Register]] = {}
        for register in self._registers.values():
            groups.setdefault((register.clock, register.reset, register.source), []).append(register)
        for (clock, reset, source), registers in groups.items():
            chunks = [self._set(register) for register in registers]
            # Statements of different registers do not depend on each other's order.
            ranks = range(max(map(len, chunks)))
            ranked = [of[rank] for rank in ranks for of in chunks if rank < len(of)]
            blocks = [line for lines in ranked for line in lines]
            edge, lines = f"posedge {self._sig(clock)[0]}", _joined(blocks)
            if reset:
                name = self._sig(reset)[0]
                edge += f" or posedge {name}"
                first = [f"  {self._name(one.name)} <= {constant(one.reset_value)};" for one in registers]
                lines = [
                    f"if ({name}) begin",
                    *first,
                    "end else begin",
                    *(f"  {one}" for one in lines),
                    "end",
                ]
            self._out.append("")
            if where := sources.line(source):
                self._out.append(f"  // {where}")
            self._out.append(f"  always @({edge}) begin")
            self._out += [*_wrapped_lines([f"    {line}" for line in lines]), "  end"]
            self._where = ""

    def _set(self, register: _Register) -> list[list[str]]:
        """The statements that set a register, in lines of their own each."""
        name, width = self._name(register.name), register.wire.width
        if not register.wire.direction:
            self._declared.append(("reg", name, width))
        hold = Assign(Slice(register.target, 0, width), (Slice(register.name, 0, width),))
        body = register.body[1:] if register.body[0] == hold else register.body
        return [lines for one in body if (lines := self._statements([one], name, width))]

    def _statements(self, body: Statements, name: str, width: int) -> list[str]:
        lines: list[str] = []
        for statement in body:
            if isinstance(statement, Assign):
                low, size = statement.target.low, statement.target.width
                part = _bits(low, size, width)
                lines.append(f"{name}{part} <= {self._sig(statement.value)[0]};")
            else:
                lines += self._switch(statement, name, width)
        return lines

    def _switch(self, switch: Switch, name: str, width: int) -> list[str]:
        bodies = [self._statements(body, name, width) for _, body in switch.cases]
        if not any(bodies):
            return []
        bits = one_bit(switch)
        lines: list[str] = []
        if bits is None:
            word = "casez" if any("-" in p for patterns, _ in switch.cases for p in patterns) else "case"
            lines.append(f"{word} ({self._sig(switch.value)[0]})")
            for (patterns, _), inner in zip(switch.cases, bodies, strict=True):
                label = ", ".join(map(constant, patterns)) or "default"
                lines += [f"  {label}: begin", *(f"    {line}" for line in inner), "  end"]
            if all(patterns for patterns, _ in switch.cases):
                lines.append("  default: ;")
            return [*lines, "endcase"]
        while bodies and not bodies[-1]:
            bodies, bits = bodies[:-1], bits[:-1]
        for number, ((condition, is_high), inner) in enumerate(zip(bits, bodies, strict=True)):
            word = "end else " if number else ""
            if condition:
                test = self._sig(condition) if is_high else (f"!{grouped(*self._sig(condition), ATOM)}", ATOM)
                word += f"if ({test[0]}) "
            lines += [f"{word}begin", *(f"  {line}" for line in inner)]
            if not condition:
                break
        return [*lines, "end"]

    def _write_memories(self) -> None:
        for name, memory in self._module.memories.items():
            reads = [cell for cell in self._live_cells() if cell.kind == "$memrd_v2" and cell.memory == name]
            if not reads:
                continue
            words, writes = self._memories[name], writes_to(self._module, name)
            contents = contents_of(self._module, name, memory)
            if not writes:
                self._write_table(words, memory, contents, reads)
                continue
            self._out.append("")
            if where := sources.line(memory.source):
                self._out.append(f"  // {where}")
            self._out.append(f"  reg {_range(memory.width)}{words} [0:{memory.depth - 1}];")
            self._write_contents(words, contents)
            for write in writes:
                self._write_write(words, write)
            for read in reads:
                self._write_read(f"{words}[{self._sig(read.ports['ADDR'])[0]}]", read, writes)

    def _write_table(
        self, words: str, memory: Memory, contents: Sequence[str], reads: Sequence[Cell]
    ) -> None:
        """A memory that nothing writes to, as a function of the address."""
        bits = max(width_of(read.ports["ADDR"]) for read in reads)
        lines = [
            f"      {bits}'d{number}: {words} = {constant(word)};" for number, word in enumerate(contents)
        ]
        lines.append(f"      default: {words} = {constant('0' * memory.width)};")
        head = f"  function {_range(memory.width)}{words}(input {_range(bits)}address);"
        self._functions.append(
            "\n".join([head, "    case (address)", *lines, "    endcase", "  endfunction"])
        )
        for read in reads:
            address = extended(read.ports["ADDR"], bits)
            self._write_read(f"{words}({self._sig(address)[0]})", read, ())

    def _write_contents(self, words: str, contents: Sequence[str]) -> None:
        if contents:
            index = self._names.new("i")
            self._out.append(f"  integer {index};")
            self._out.append("  initial begin")
            self._out.append(f"    for ({index} = 0; {index} < {len(contents)}; {index} = {index} + 1)")
            self._out.append(f"      {words}[{index}] = {constant('0' * len(contents[0]))};")
            for number, bits in enumerate(contents):
                if "1" in bits:
                    self._out.append(f"    {words}[{number}] = {constant(bits)};")
            self._out.append("  end")

    def _enables(self, write: Cell) -> Iterator[tuple[int, int, Sig]]:
        """Which bits of a word each bit of a write's enable is for: the lowest, how many, and the bit."""
        enable, low = write.ports["EN"], 0
        bits = [cut(enable, i, 1) for i in range(width_of(enable))]
        while low < len(bits):
            high = low
            while high < len(bits) and bits[high] == bits[low]:
                high += 1
            yield low, high - low, bits[low]
            low = high

    def _write_write(self, words: str, write: Cell) -> None:
        lines = []
        address = self._sig(write.ports["ADDR"])[0]
        data = write.ports["DATA"]
        for low, size, enable in self._enables(write):
            part = _bits(low, size, width_of(data))
            value = self._sig(cut(data, low, size))[0]
            lines.append(f"if ({self._sig(enable)[0]}) {words}[{address}]{part} <= {value};")
        clock = self._sig(write.ports["CLK"])[0]
        self._out += [
            f"  always @(posedge {clock}) begin",
            *_wrapped_lines([f"    {line}" for line in lines]),
            "  end",
        ]

    def _write_read(self, word: str, read: Cell, writes: Sequence[Cell]) -> None:
        called = self._name(first_name(read.ports["DATA"]))
        address = self._sig(read.ports["ADDR"])[0]
        if not read.number("CLK_ENABLE"):
            self._assign(called, word, read.source)
            return
        lines = [f"{called} <= {word};"]
        seen = read.number("TRANSPARENCY_MASK")
        for write in (write for write in writes if seen >> write.number("PORTID") & 1):
            data, written = write.ports["DATA"], self._sig(write.ports["ADDR"])[0]
            for low, size, enable in self._enables(write):
                part = _bits(low, size, width_of(data))
                value = self._sig(cut(data, low, size))[0]
                lines.append(
                    f"if (({self._sig(enable)[0]}) && {written} == {address}) {called}{part} <= {value};"
                )
        clock, enables = self._sig(read.ports["CLK"])[0], self._sig(read.ports["EN"])[0]
        self._out.append(f"  always @(posedge {clock}) begin")
        self._out += [
            f"    if ({enables}) begin",
            *_wrapped_lines([f"      {line}" for line in lines]),
            "    end",
            "  end",
        ]

    def _write_instances(self) -> None:
        for cell in self._live_cells():
            if not cell.kind.startswith("\\"):
                continue
            inner = self._design.modules.get(cell.kind[1:])
            connected = []
            inputs = dict(self._connected(cell))
            for port, sig in cell.ports.items():
                is_output = port not in inputs and any(self._live(name) for name in names_in([sig]))
                if inner and f"\\{port}" not in self._design.ports[inner.name]:
                    continue
                if port in inputs or is_output:
                    name = self._design.ports[inner.name][f"\\{port}"] if inner else port
                    seen = dict(self._seen)
                    connected.append(f".{name}({self._sig(sig)[0]})")
                    if is_output:
                        self._seen = seen
            for name in (name for sig in cell.ports.values() for name in names_in([sig])):
                if self._drivers.get(name) is cell and self._live(name):
                    self._write(name)
            self._out.append("")
            module = plain(cell.kind)
            if inner:
                about = sources.component(inner.source)
                self._out += _comment(about.summary or about.name)
            elif cell.parameters:
                values = ", ".join(
                    f".{name}({_parameter(value)})" for name, value in sorted(cell.parameters.items())
                )
                module += f" #({values})"
            self._out += [f"  {module} {self._called[cell.name]} (", *_listed(connected), "  );"]

    # The whole

    def text(self) -> str:
        self._write_instances()
        for name in self._wires:
            if not name.startswith("$") and self._live(name):
                driver = self._drivers.get(name)
                if not isinstance(driver, tuple) or self._wires[name].direction:
                    self._write(name)
        self._write_registers()
        self._write_memories()
        lines = [
            *self._head(),
            *self._declarations(),
            *self._functions_lines(),
            "",
            *self._out,
            *self._initial(),
            *self._unused(),
        ]
        return "\n".join([*_single_blanks(lines), "endmodule", ""])

    def _unused(self) -> list[str]:
        """A wire of all bits that are not read, which linters take for a reason."""
        wires = [self._wires[name] for name in self._called if name in self._wires]
        for wire in wires:
            is_made = (
                wire in self._ports if wire.direction else wire.name in self._written | {*self._registers}
            )
            is_read = wire.direction == "output" or wire.name in self._alias_names or not is_made
            left = 0 if is_read else ((1 << wire.width) - 1) & ~self._seen.get(wire.name, 0)
            low = 0
            while left >> low:
                if left >> low & 1:
                    size = next(n for n in range(1, wire.width + 1) if not left >> (low + n) & 1)
                    self._unread.append(f"{self._called[wire.name]}{_bits(low, size, wire.width)}")
                    low += size
                low += 1
        if not self._unread:
            return []
        lines = _wrapped_lines([f"  wire unused = &{{1'b0, {', '.join(self._unread)}}};"])
        return ["", "  // Bits of words and results of which only others are needed here.", *lines]

    def _functions_lines(self) -> list[str]:
        return [line for function in self._functions for line in ("", *function.split("\n"))]

    def _head(self) -> list[str]:
        about = self._component
        title = f"{about.name}: {about.summary}" if about.summary else about.name
        lines = [line.strip() for line in _comment(title)] if title else []
        if about.place:
            lines.append(f"// Source: {about.place}")
        ports = []
        described: set[str] = set()
        for i, wire in enumerate(self._ports):
            said = about.member(self._called[wire.name])
            if said and said not in described:
                described.add(said)
                ports += _comment(said)
            comma = "," if i < len(self._ports) - 1 else ""
            kind = "input  wire" if wire.direction == "input" else f"output {self._kind(wire.name)}"
            if fields := self._fields_of(wire):
                ports += _comment(f"{self._called[wire.name]}: {fields}")
            ports.append(f"  {kind} {_range(wire.width)}{self._called[wire.name]}{comma}")
        return [*lines, f"module {plain(self._module.name)} (", *ports, ");"]

    def _kind(self, name: str) -> str:
        """What Verilog calls an output: a register if a clock sets it."""
        driver = self._drivers.get(name)
        is_read = isinstance(driver, Cell) and driver.kind == "$memrd_v2" and driver.number("CLK_ENABLE")
        return "reg " if name in self._registers or is_read else "wire"

    def _fields_of(self, wire: Wire) -> str:
        """Where the fields of a port lie."""
        if self._fields is not None:
            given = self._fields.get(plain(wire.name), {})
            return ", ".join(f"{name} {place}" for name, place in given.items())
        found = []
        for name, driver in self._drivers.items():
            head, mark, rest = name.partition(".")
            if not mark or head != wire.name or "." in rest or "[" in rest or not isinstance(driver, tuple):
                continue
            part = driver[0] if len(driver) == 1 else None
            if isinstance(part, Slice) and part.name == wire.name:
                found.append(f"{rest} {_bits(part.low, part.width)}")
        return ", ".join(found)

    def _declarations(self) -> list[str]:
        lines = [f"  {kind} {_range(width)}{name};" for kind, name, width in dict.fromkeys(self._declared)]
        return ["", *lines] if lines else []

    def _initial(self) -> list[str]:
        """What registers hold before the first clock edge."""
        lines = [
            f"    {self._name(register.name)} = {constant(register.wire.init)};"
            for register in self._registers.values()
            if register.wire.init is not None
        ]
        return (
            [
                "",
                "  // Before the first clock edge, in simulators and FPGAs.",
                "  initial begin",
                *lines,
                "  end",
            ]
            if lines
            else []
        )


def _is_short(cell: Cell) -> bool:
    """Whether an operator may as well be written each time that it is read."""
    return cell.kind in UNARY and all(
        isinstance(part, Slice) and part.name[0] != "$" for part in cell.ports["A"]
    )


def _tree_width(value: Tree) -> int:
    found = value
    while not isinstance(found, tuple):
        found = found.then if isinstance(found, If) else found.cases[0][1]
    return width_of(found)


def _range(width: int) -> str:
    return f"[{width - 1}:0] " if width > 1 else ""


def _bits(low: int, size: int, width: int = 0) -> str:
    """Which bits of a wire, nothing if it has no more."""
    if size == width:
        return ""
    return f"[{low + size - 1}:{low}]" if size > 1 else f"[{low}]"


def _parameter(value: str) -> str:
    return value if "'" in value or value.startswith('"') else f"32'd{value}"


def _comment(text: str) -> list[str]:
    return [f"  // {line}" for line in textwrap.wrap(text, WIDTH - 6)]


def _listed(items: Sequence[str]) -> list[str]:
    return _wrapped_lines([f"    {item}{',' * (i < len(items) - 1)}" for i, item in enumerate(items)])


def _wrapped(line: str, indent: str) -> str:
    """A line, broken at spaces where it is too long."""
    here, lines = line, []
    while len(here) > WIDTH:
        first = len(here) - len(here.lstrip()) + 1
        at = here.rfind(" ", first, WIDTH)
        at = at if at > 0 else here.find(" ", WIDTH)
        if at < 0:
            break
        lines.append(here[:at])
        here = indent + here[at + 1 :]
    return "\n".join([*lines, here])


def _wrapped_lines(lines: Iterable[str]) -> list[str]:
    found: list[str] = []
    for line in lines:
        indent = " " * (len(line) - len(line.lstrip()) + 4)
        found += _wrapped(line, indent).split("\n")
    return found


def _joined(lines: list[str]) -> list[str]:
    """Statements of which neighbours with the same plain ``if`` share it."""
    found: list[str] = []
    for line in lines:
        starts = line.startswith("if (") and line.endswith("begin")
        if starts and found and found[-1] == "end":
            opened = _opening(found)
            if opened == line:
                found.pop()
                continue
        found.append(line)
    return found


def _opening(lines: list[str]) -> str:
    """The line that begins the block that the last line ends, if it has no else."""
    for line in reversed(lines[:-1]):
        if not line.startswith(" "):
            return line
    return ""


def _single_blanks(lines: Iterable[str]) -> Iterator[str]:
    before: Any = None
    for line in lines:
        if line or before:
            yield line.rstrip()
        before = line
