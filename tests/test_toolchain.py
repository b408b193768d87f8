"""What the builders of models share."""

import pytest

from gen import object_cache, toolchain

COUNTER = "module counter(input clk, output reg [7:0] q); always @(posedge clk) q <= q + 1; endmodule\n"


@pytest.fixture
def compiler(tmp_path, monkeypatch):
    """Notes what it compiles, in a file of this path, and has the real one do it."""
    log, program = tmp_path / "compiled", tmp_path / "compiler"
    log.touch()
    program.write_text(
        f'#!/bin/sh\nfor last; do :; done\necho "$last" >> {log}\nexec {toolchain.cxx()} "$@"\n'
    )
    program.chmod(0o755)
    monkeypatch.setattr(object_cache, "FOLDER", tmp_path / "objects")
    monkeypatch.setenv("VERILATOR_ROOT", str(tmp_path))
    return program, log


def compile_(compiler, folder, source, *options):
    folder.mkdir(exist_ok=True)
    made = folder / "it.o"
    status = object_cache.main([str(compiler), *options, "-c", "-o", str(made), str(source)])
    return made.read_bytes() if status == 0 else None


def test_verilators_own_sources_are_compiled_once(tmp_path, compiler):
    program, log = compiler
    source = tmp_path / "include" / "verilated.cpp"
    source.parent.mkdir()
    source.write_text("int one() { return 1; }\n")
    first = compile_(program, tmp_path / "a", source)
    assert compile_(program, tmp_path / "b", source) == first
    assert log.read_text().split() == [str(source)]
    assert compile_(program, tmp_path / "c", source, "-DOTHER") is not None
    source.write_text("int one() { return 2; }\n")
    assert compile_(program, tmp_path / "d", source) != first
    source.write_text("an error\n")
    assert compile_(program, tmp_path / "e", source) is None
    assert compile_(program, tmp_path / "f", source) is None
    assert len(log.read_text().split()) == 5


def test_a_models_sources_are_compiled_whenever_make_says_so(tmp_path, compiler):
    program, log = compiler
    source = tmp_path / "model.cpp"
    source.write_text("int one() { return 1; }\n")
    compile_(program, tmp_path / "a", source)
    compile_(program, tmp_path / "a", source)
    assert len(log.read_text().split()) == 2


@pytest.mark.timeout(300)
def test_models_share_the_objects_of_verilators_own_sources(tmp_path):
    (tmp_path / "counter.v").write_text(COUNTER)
    for model in ("a", "b"):
        toolchain.verilate(
            tmp_path / "counter.v", "counter", tmp_path / model, optimise="-O0", log=tmp_path / f"{model}.log"
        )
    kept = [file.read_bytes() for file in object_cache.FOLDER.iterdir()]
    assert (tmp_path / "b" / "verilated.o").read_bytes() in kept
    # What was compiled leaves a list of what it depends on, what was copied does not.
    assert not (tmp_path / "b" / "verilated.d").exists()
