"""The memory engine's register map: what PeakRDL makes of it has the addresses of the RTL."""

import re

import pytest

from gen import project, registers
from gen.__main__ import main
from rtl.memory.registers.map import ERRORS, MAP_BITS, REGISTERS, Group, address_of


def test_the_header_has_every_field_and_the_compiler_no_complaint(tmp_path):
    registers.write(tmp_path)
    header = (tmp_path / "bitstash_memory.h").read_text()
    for entry in REGISTERS:
        for register in entry.registers if isinstance(entry, Group) else (entry,):
            for field in register.fields:
                prefix = f"{entry.name}__{register.name}" if isinstance(entry, Group) else register.name
                found = re.search(rf"BITSTASH_MEMORY__{prefix}__{field.name}_bp (\d+)", header)
                assert found, field
                assert int(found[1]) == field.low
    assert "PARAMETERS__REGIONS_reset" not in header  # it is another in each engine
    assert "TIMEOUT__VALUE_reset 0x1000" in header
    written = [tmp_path / "bitstash_memory.rdl", tmp_path / "bitstash_memory.h"]
    assert (tmp_path / "html" / "index.html").exists()
    for file in written:
        assert f"{project.LICENSE}\n" in file.read_text()
        assert f"bitstash {project.VERSION}, " in file.read_text()
    assert (tmp_path / "bitstash_memory" / "reg_model").exists()


def test_registers_lie_apart():
    places = []
    for entry in REGISTERS:
        if isinstance(entry, Group):
            names = [f"{entry.name}_{register.name}" for register in entry.registers]
            places += [address_of(name, i) for name in names for i in range(entry.count)]
        else:
            places.append(address_of(entry.name))
    assert len(set(places)) == len(places)
    assert all(place % 4 == 0 and place < 1 << MAP_BITS for place in places)
    assert address_of("ERROR_ADDRESS_HIGH", len(ERRORS) - 1) < address_of("READ_BEATS")


def test_verilog_is_made_and_linted(tmp_path):
    path = tmp_path / "memory.v"
    main(
        [
            "verilog",
            "--interface",
            "memory",
            *["--dtype", "bf16", "--block", "32", "--target", "24", "--bus-bytes", "16"],
            "-o",
            str(path),
        ]
    )
    assert "module bitstash_memory_bf16_n32_t24_nearest_b16_m16" in path.read_text()


@pytest.mark.parametrize("option", [["--memory-bytes", "16"], ["--merging"]], ids=lambda option: option[0])
def test_a_memory_has_a_bus_of_its_own_and_merges_only_behind_a_memory_engine(option):
    with pytest.raises(SystemExit, match=f"{option[0]} is of --interface memory, not axi"):
        main(["verilog", "--interface", "axi", *option])
