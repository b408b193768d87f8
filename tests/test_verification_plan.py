"""The verification plan has a place for every bench and every proof, and says what did not hold."""

import json
from pathlib import Path

import pytest

from cocotb_tests import __main__ as commands
from cocotb_tests import plan, reports
from cocotb_tests.claims import CLAIMS
from cocotb_tests.runner import BENCHES, STREAM_BENCH
from gen import provenance
from gen.config import Config
from gen.formal.proofs import all_proofs
from golden import HadamardFormat


def test_every_bench_holds_a_claim():
    there = {bench for module in (*BENCHES.values(), STREAM_BENCH) for bench in plan.benches(module)}
    assert len(there) > 15
    assert {bench for claim in CLAIMS for bench in claim.benches} == there


def test_a_bench_is_for_the_part_that_it_runs_on():
    benches = plan.benches("bench_engines")
    assert benches["matches_golden"] == ""
    assert benches["matches_golden_in_rare_blocks"] == "compressor"
    assert benches["invalid_headers_give_zeros_and_an_error"] == "decompressor"


def test_every_proof_holds_a_claim():
    assert {proof.claim for proof in all_proofs()} == {name for claim in CLAIMS for name in claim.proofs}


@pytest.mark.parametrize(
    ("component", "parameters", "kind"),
    [
        ("Decompressor", "gpt2-bf16-2x", "planes, streams: decompressor"),
        ("AxiStreamCompressor", "gpt2-fp32-3.2x", "planes, AXI4-Stream: compressor"),
        ("RuntimeDecompressor", "x", "planes, runtime-configurable: decompressor"),
        ("HadamardCompressor", "fp32_n128_t32_b64", "hadamard, streams: compressor"),
        ("AxiStreamCompressor", "fp32_n128_t32_hadamard_b64", "hadamard, AXI4-Stream: compressor"),
        ("Compressor, Decompressor", "1+3+4 bits", "planes, streams: both"),
        ("round trip", "1+3+4 bits", "planes, streams: both"),
        ("Packer", "2 to 4 bytes", None),
    ],
)
def test_the_kind_of_engine_that_a_proof_is_of(component, parameters, kind):
    assert plan.proven_engine(component, parameters) == kind


OTHER = Config(HadamardFormat("fp32", 128, 32), preset="another")


def sim(config, part, mismatches=0):
    row = {"config": config, "part": part, "simulator": "verilator", "blocks": 500, "mismatches": mismatches}
    return dict.fromkeys(reports.SIM.columns, 0) | row


def proof(claim, component, parameters, status="PASS", expected="PASS"):
    row = {"claim": claim, "component": component, "parameters": parameters, "status": status}
    return row | {"expected": expected, "extent": "inductive, k = 2", "engine": "smtbmc z3"}


def some_row(report):
    if report is reports.SYNTH:
        return area()
    of_memory = {"part": "memory"} if report in (reports.MEMORY, reports.MUTATION) else {}
    return dict.fromkeys(report.columns, 0) | of_memory


def write(report, rows, **made):
    report.path.parent.mkdir(parents=True, exist_ok=True)
    report.path.write_text(json.dumps(rows))
    provenance.note(report.path, **({"sources": provenance.sources()} | made))


def change(monkeypatch, *parts):
    """Of these parts the sources are others now."""
    now = provenance.sources() | dict.fromkeys(parts, "another")
    monkeypatch.setattr(provenance, "sources", lambda: now)


@pytest.fixture
def reported(tmp_path, monkeypatch):
    """Reports of planes, and of an engine of another format of which nothing was proven."""
    known = {config.name: config for config in (*plan.configs.PRESETS.values(), OTHER)}
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(plan, "_known", lambda: known)
    parts = ("compressor", "decompressor")
    rows = [sim(name, part) for name in ("gpt2-fp32-3.2x", "gpt2-bf16-2x") for part in parts]
    write(reports.SIM, [*rows, sim("another", "compressor", mismatches=3)], seed=9)
    proofs = [
        *(proof("contract", name, "gpt2-fp32-3.2x") for name in ("Compressor", "Decompressor")),
        proof("contract", "Packer", "2 to 4 bytes", status="FAIL"),
        proof("contract", "Splitter", "4 to 2 bytes"),
        proof("contract", "Stage", "an offer falls", status="FAIL", expected="FAIL"),
        proof("contract", "Stage", "a payload changes", status="PASS", expected="FAIL"),
    ]
    write(reports.FORMAL, proofs)
    reports.DOCS.mkdir()
    reports.take()


def test_engines_are_rows_and_what_does_not_hold_is_said(reported):
    page = plan.page()
    both = "| planes, streams: compressor and decompressor"
    assert f"{both} | `waits_for_no_ready` | 2 of them, Verilator, seed 9 | holds |" in page
    assert "| 1 of them, Verilator, seed 9, 500 blocks | **3 mismatches** |" in page
    assert f"{both} | proof *contract* | inductive, k = 2 (z3): gpt2-fp32-3.2x | holds |" in page
    assert "Packer; Splitter | proof *contract* | inductive, k = 2 (z3) | **1 of 2 do not hold** |" in page
    assert "| Stage, an offer falls; Stage, a payload changes | 1 of 2 found |" in page
    assert (
        "| simulated, and proven | *contract* |\n| --- | --- |\n| hadamard, streams: compressor | no |"
        in page
    )
    assert "| planes, streams: compressor | yes |" not in page, "it lacks none"


def test_the_page_says_what_it_was_made_with(reported):
    (run,) = reports.SIM.runs()
    made = run["made"]
    assert made["seed"] == 9
    assert {"Amaranth", "Verilator", "cocotb", "Python"} <= made["tools"].keys()
    page = plan.page()
    assert f"| `make sim` | engines | 5 of 5 | `{made['commit']}` | these | 9 | Python " in page
    assert f"Amaranth {made['tools']['Amaranth']}" in page
    assert "| `make mutate` | mutants | not run |" in page


def test_rows_of_other_sources_are_shown_as_such(reported, monkeypatch):
    assert reports.STALE not in plan.page()
    assert "of older sources" not in plan.page()
    assert "older" not in plan._made()
    write(
        reports.FORMAL, [proof("contract", "Packer", "2 to 4 bytes")], sources={"proofs": "0123456789abcdef"}
    )
    reports.take()
    page = plan.page()
    assert "- Rows of `make formal` are of [older sources]" in page
    assert page.count(reports.STALE) == 1
    assert "| Packer | 2 to 4 bytes |" in page, "nothing is dropped"
    change(monkeypatch, "codecs", "proofs")
    assert "- Rows of `make sim`, `make formal` are of [older sources]" in plan.page()


def test_a_record_of_no_commit_or_of_older_sources_is_refused(reported, monkeypatch):
    monkeypatch.setattr(provenance, "_commit", lambda: "0123456789")
    monkeypatch.setattr(reports, "datasheet", str)
    monkeypatch.setattr(plan, "page", str)
    for report in plan._COMMANDS:
        same = [one for one in plan._COMMANDS if one.path == report.path]
        write(report, [some_row(one) for one in same])
    reports.take()
    assert plan.mixed() == []
    commands.main(["document", "--one-commit"])

    monkeypatch.setattr(provenance, "_commit", lambda: "another-dirty")
    write(reports.MUTATION, [some_row(reports.MUTATION)])
    reports.take()
    assert plan.mixed() == ["make mutate, mutants: of another-dirty, which is no commit"]

    monkeypatch.setattr(provenance, "_commit", lambda: "another")
    write(reports.MUTATION, [some_row(reports.MUTATION)])
    reports.take()
    assert plan.mixed() == [], "what it depends on has not changed"

    change(monkeypatch, "memory engines")
    assert plan.mixed() == [
        "make sim, memory engines: of older sources, 0123456789",
        "make mutate, mutants: of older sources, another",
    ]
    with pytest.raises(SystemExit, match="not of this commit:\nmake sim, memory engines: of older"):
        commands.main(["document", "--one-commit"])


SOURCES = {
    "rtl/a.py": {"areas", "codecs", "memory engines", "proofs"},
    "rtl/memory/b.py": {"memory engines", "proofs"},
    "golden/c.py": {"areas", "codecs", "memory engines", "proofs"},
    "cocotb_tests/d.py": {"codecs", "memory engines"},
    "cocotb_tests/memory/e.h": {"memory engines"},
    "gen/formal/f.py": {"proofs"},
    "gen/system/g.h": {"memory engines"},
    "gen/netlist.py": {"codecs", "memory engines", "proofs"},
    "gen/config.py": {"areas", "codecs", "memory engines", "proofs"},
    "gen/memory.py": {"memory engines", "proofs"},
    "gen/synth/g.py": {"areas"},
    "gen/board/h.py": set(),
    "gen/release.py": set(),
    "cocotb_tests/plan.py": set(),
    "cocotb_tests/reports.py": set(),
    "cocotb_tests/claims.py": set(),
}


def test_the_hashes_of_sources_are_of_what_is_verified_and_of_what_verifies_it(tmp_path, monkeypatch):
    for name in SOURCES:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("1")
    monkeypatch.setattr(provenance, "_ROOT", tmp_path)
    before = provenance.sources.__wrapped__()
    for name, parts in SOURCES.items():
        (tmp_path / name).write_text("2")
        after = provenance.sources.__wrapped__()
        assert {part for part in after if after[part] != before[part]} == parts, name
        before = after


def test_a_report_without_a_note_is_given_no_other_commit(reported):
    reports.SIM.path.with_suffix(".made.json").unlink()
    reports.take()
    assert "| `make sim` | engines | 5 of 5 | not recorded |" in plan.page()
    assert "Verilator, seed not recorded" in plan.page()


def test_a_run_of_some_engines_is_in_place_of_their_rows_alone(reported):
    (whole,) = reports.SIM.runs()
    again = sim("gpt2-bf16-2x", "compressor", mismatches=2)
    write(reports.SIM, [again], seed=1, only=["gpt2-bf16-2x"])
    write(reports.FORMAL, [], only=["contract-*"])
    proofs = reports.FORMAL.rows()
    for _ in range(2):
        reports.take()
        before, further = reports.SIM.runs()
        assert before["rows"] == [
            row for row in whole["rows"] if reports.SIM._key(row) != reports.SIM._key(again)
        ]
        assert further["rows"] == [again]
        assert reports.FORMAL.rows() == proofs
    page = plan.page()
    assert "| `make sim` | engines | 4 of 5 |" in page
    assert "| `make sim` | engines | 1 of 5 |" in page
    assert "| 2 of them, Verilator, seeds 1, 9, 1,000 blocks | **2 mismatches** |" in page


def test_a_short_run_is_no_record(reported):
    before = reports.SIM.runs()
    write(reports.SIM, [sim("gpt2-bf16-2x", "compressor")], short=True)
    reports.take()
    assert reports.SIM.runs() == before


def test_runs_of_some_engines_with_the_same_are_one(reported):
    before = reports.FORMAL.rows()
    further = proof("contract", "AxiStreamCompressor", "gpt2-fp32-3.2x")
    write(reports.FORMAL, [further], only=["contract-Axi*"])
    reports.take()
    (run,) = reports.FORMAL.runs()
    assert run["rows"] == [*before, further]


def test_rows_that_were_run_again_are_not_of_older_sources(reported, monkeypatch):
    change(monkeypatch, "proofs")
    write(reports.FORMAL, [proof("contract", "Packer", "2 to 4 bytes")], only=["contract-Packer*"])
    reports.take()
    assert len(reports.FORMAL.stale_rows()) == 5
    page = plan.page()
    assert "| `make formal` | proofs | 5 of 6 |" in page
    assert f"**Of the first 5 rows: {reports.STALE}**" in page
    assert "Packer; Splitter | proof *contract* | inductive, k = 2 (z3) | holds |" in page


def test_one_command_run_again_leaves_the_others(reported):
    write(reports.SIM, [sim("gpt2-bf16-2x", "compressor")], seed=10)
    reports.FORMAL.path.unlink()
    reports.take()
    page = plan.page()
    assert "| 1 of them, Verilator, seed 10 | holds |" in page
    assert "seed 9" not in page
    assert "inductive, k = 2 (z3): gpt2-fp32-3.2x | holds |" in page


def area(preset="gpt2-fp32-16x", kge=90.04, **others):
    row = {
        "preset": preset,
        "part": "compressor",
        "bus_bytes": 64,
        "kge": kge,
        "kge_per_byte_per_cycle": 1.408,
    }
    row |= {"flip_flops": 6000, "memory_bits": 0, "nand_levels": 40, "ecp5_luts": None, "ecp5_mhz": None}
    return row | others


def test_areas_are_those_last_measured_of_each_preset(reported):
    write(reports.SYNTH, [area(ecp5_luts=9000, ecp5_mhz=99.5), area("gpt2-bf16-2x")], only=True)
    reports.take()
    write(reports.SYNTH, [area(), area(kge=30.0, memory_bits=5000), area("fp32_n64")], only=True)
    reports.take()
    bf16, fp32 = reports.SYNTH.rows()
    assert (fp32["preset"], fp32["kge"], fp32["ecp5_mhz"]) == ("gpt2-fp32-16x", 90.0, 99.5)
    assert bf16["preset"] == "gpt2-bf16-2x"

    write(reports.SYNTH, [area(kge=91.0)], only=True)
    reports.take()
    _, fp32 = reports.SYNTH.rows()
    assert (fp32["kge"], fp32["ecp5_mhz"]) == (91.0, None), "placed with other gates"


def test_the_datasheet_names_presets_that_were_not_measured(reported):
    places = "".join(f"<!-- {name} -->\n<!-- end -->\n" for name in ("sim", "memory", "synth", "submodules"))
    (reports.DOCS / "hardware.md").write_text(places)
    assert "Not measured" not in reports.datasheet(), "nothing was"
    write(reports.SYNTH, [area(name) for name in list(plan.configs.PRESETS)[1:]])
    reports.take()
    assert "Not measured: `gpt2-fp32-3.2x`." in reports.datasheet()


def test_pages_are_what_was_recorded(monkeypatch):
    """Else: python -m cocotb_tests document."""
    monkeypatch.chdir(Path(__file__).parent.parent)
    assert plan.page() == (reports.DOCS / "verification.md").read_text()
    assert reports.datasheet() == (reports.DOCS / "hardware.md").read_text()
