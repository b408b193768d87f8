"""Verilog as a chip project wants to have it: plain names, and nothing that is not read.

Amaranth's Verilog has names that must be escaped, such as ``\\word.values[3]``, and a signal of its own for
each field of a struct, also where only the struct is used. Tools that are not Verilog's own (constraints,
waveform viewers, netlist editors) stumble over the first, and linters over the second.
"""

from __future__ import annotations

import re
from collections import Counter

# IEEE 1800-2017, annex B.
_KEYWORDS = """
accept_on alias always always_comb always_ff always_latch and assert assign assume automatic before begin
bind bins binsof bit break buf bufif0 bufif1 byte case casex casez cell chandle checker class clocking
cmos config const constraint context continue cover covergroup coverpoint cross deassign default defparam
design disable dist do edge else end endcase endchecker endclass endclocking endconfig endfunction
endgenerate endgroup endinterface endmodule endpackage endprimitive endprogram endproperty endspecify
endsequence endtable endtask enum event eventually expect export extends extern final first_match for
force foreach forever fork forkjoin function generate genvar global highz0 highz1 if iff ifnone
ignore_bins illegal_bins implements implies import incdir include initial inout input inside instance int
integer interconnect interface intersect join join_any join_none large let liblist library local
localparam logic longint macromodule matches medium modport module nand negedge nettype new nexttime nmos
nor noshowcancelled not notif0 notif1 null or output package packed parameter pmos posedge primitive
priority program property protected pull0 pull1 pulldown pullup pulsestyle_ondetect pulsestyle_onevent
pure rand randc randcase randsequence rcmos real realtime ref reg reject_on release repeat restrict return
rnmos rpmos rtran rtranif0 rtranif1 s_always s_eventually s_nexttime s_until s_until_with scalared
sequence shortint shortreal showcancelled signed small soft solve specify specparam static string strong
strong0 strong1 struct super supply0 supply1 sync_accept_on sync_reject_on table tagged task this
throughout time timeprecision timeunit tran tranif0 tranif1 tri tri0 tri1 triand trior trireg type typedef
union unique unique0 unsigned until until_with untyped use uwire var vectored virtual void wait wait_order
wand weak weak0 weak1 while wildcard wire with within wor xnor xor
"""
_ESCAPED = re.compile(r"\\(\S+) ")
_WORD = re.compile(r"\\\S+ |[A-Za-z_]\w*")
_MODULE = re.compile(r"^module .*?^endmodule$", re.MULTILINE | re.DOTALL)
# A field's signal with its attributes, which would become the next line's without it, and what drives it.
_DECLARED = re.compile(r"^(?:  \(\* [^\n]* \*\)\n)*  wire (?:\[\d+:\d+\] )?(\\\S+ |\w+);\n", re.MULTILINE)
_DRIVEN = re.compile(r"^  assign (\\\S+ |\w+) = [^;]*;\n", re.MULTILINE)
# What wakes each ``always @*`` at the beginning, so that those of constants run at all; and those without it.
_WAKES = re.compile(r"^  reg (\\\$auto\$\S+ ) = 0;\n", re.MULTILINE)
_ASLEEP = re.compile(r"^  always @\*\n    ([^;]*;)$", re.MULTILINE)


def flat(text: str) -> str:
    """The same modules without wires that nothing reads, and without escaped names; also in SystemVerilog.

    ``\\word.values[3]`` becomes ``word__values_3``, and the module ``\\top.core`` ``top__core``. Of names
    that would become the same one, or a keyword, the later has a number behind it.
    """
    return _with_plain_names(_MODULE.sub(lambda module: _waking(_without_unread(module[0])), text))


def _without_unread(module: str) -> str:
    """A module without the wires that only their own assignment names, and those that only these read."""
    while True:
        uses = Counter(_WORD.findall(module))
        driven = Counter(_DRIVEN.findall(module))
        unread = {
            name for name in _DECLARED.findall(module) if uses[name] == 1 + driven[name] and driven[name] <= 1
        }
        if not unread:
            return module

        def kept(line: re.Match[str], unread: set[str] = unread) -> str:
            return "" if line[1] in unread else line[0]

        for pattern in (_DECLARED, _DRIVEN):
            module = pattern.sub(kept, module)


def _waking(module: str) -> str:
    """A module whose ``always @*`` run at the beginning in SystemVerilog as well.

    A value in a declaration is no event there. A statement is one, for blocks that wait by then, as those
    before it do: simulators begin with what comes first.
    """
    found = _WAKES.search(module)
    if not found and not _ASLEEP.search(module):
        return module
    wake = found[1] if found else "\\$auto$wake$1 "

    def woken(block: re.Match[str]) -> str:
        return f"  always @* begin\n    if ({wake}) begin end\n    {block[1]}\n  end"

    head, end, body = _ASLEEP.sub(woken, _WAKES.sub("", module)).partition(");\n")
    return f"{head}{end}  reg {wake};\n{body.removesuffix('endmodule')}  initial\n    {wake} = 0;\nendmodule"


def _with_plain_names(text: str) -> str:
    taken = set(_KEYWORDS.split()) | set(re.findall(r"(?<![\\\w.$\[\]])[A-Za-z_]\w*", text))
    plain: dict[str, str] = {}
    for escaped in dict.fromkeys(_ESCAPED.findall(text)):
        name = candidate = _plain(escaped)
        number = 0
        while name in taken:
            number += 1
            name = f"{candidate}_{number}"
        taken.add(name)
        plain[escaped] = name
    # The space that ends an escaped name stays where it separates two words.
    return re.sub(
        r"\\(\S+) (?=(\w)?)", lambda found: plain[found[1]] + (" " if found[2] is not None else ""), text
    )


def _plain(escaped: str) -> str:
    escaped = re.sub(r"^\$auto\$.*\$(\d+)$", r"initial_\1", escaped)
    name = re.sub(r"\W+", "_", escaped.replace(".", "__")).strip("_")
    return name if re.match(r"[A-Za-z_]", name) else f"n{name}"
