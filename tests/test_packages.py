"""The packages: who imports whom, late imports included, and that there are no circles."""

import ast
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import bitstash
import golden
import torch_bridge

ROOT = Path(__file__).parent.parent
# What each package may import of this project; its own parts aside.
PACKAGES = {
    "golden": set(),
    "rtl.arith": set(),
    "rtl.stream": {"golden", "rtl.arith"},
    "rtl.planes": {"golden", "rtl.arith", "rtl.stream"},
    "rtl.hadamard": {"golden", "rtl.arith", "rtl.stream"},
    "torch_bridge.backends": {"golden"},
    "torch_bridge.offload": {"torch_bridge.backends"},
    "torch_bridge.facts": {"torch_bridge.internals"},
    "torch_bridge.policy": {"golden", "torch_bridge.backends", "torch_bridge.facts"},
    "torch_bridge.report": {"torch_bridge.facts"},
    "torch_bridge.internals": set(),
    "torch_bridge.keep": set(),
}
PACKAGES["torch_bridge.store"] = {package for package in PACKAGES if package.startswith("torch_bridge.")} - {
    "torch_bridge.keep"
}
PACKAGES["torch_bridge.hooks"] = {package for package in PACKAGES if not package.startswith("rtl")}
PACKAGES["torch_bridge.compressor"] = {package for package in PACKAGES if not package.startswith("rtl")}
PACKAGES["torch_bridge.compiled"] = {*PACKAGES["torch_bridge.store"], "golden", "torch_bridge.store"}
for _package in ("calibration", "schemes", "trainers"):
    PACKAGES[f"torch_bridge.{_package}"] = {*PACKAGES["torch_bridge.compressor"], "torch_bridge.compressor"}
PACKAGES["torch_bridge.planner"] = {
    *PACKAGES["torch_bridge.schemes"],
    "torch_bridge.schemes",
    "torch_bridge.compiled",
}
PACKAGES["torch_bridge.job"] = {package for package in PACKAGES if not package.startswith("rtl")}
PACKAGES["torch_bridge"] = {package for package in PACKAGES if not package.startswith("rtl")}
PACKAGES["rtl.ports"] = {"golden", "rtl.arith", "rtl.stream", "rtl.planes", "rtl.hadamard"}
PACKAGES["rtl.memory"] = {*PACKAGES["rtl.ports"], "rtl.ports"}
PACKAGES["rtl.selftest"] = {*PACKAGES["rtl.ports"], "rtl.ports"}
PACKAGES["rtl"] = {package for package in PACKAGES if package.startswith("rtl.")}
PACKAGES["bitstash"] = {"golden", "torch_bridge", "torch_bridge.job"}
PACKAGES["gen"] = {
    "golden",
    "torch_bridge.backends",
    *(package for package in PACKAGES if package.startswith("rtl")),
}
PROJECT = {*(package.partition(".")[0] for package in PACKAGES), "cocotb_tests", "tests", "bench"}


def modules():
    """The modules of the packages: by their names, and with whether they are packages."""
    for folder in sorted({package.partition(".")[0] for package in PACKAGES}):
        for path in sorted((ROOT / folder).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            is_package = parts[-1] == "__init__"
            yield ".".join(parts[:-1] if is_package else parts), is_package, path


MODULES = [*modules()]


def imports(name, is_package, path):
    """The modules of the house that a module imports, wherever in it the import stands."""
    known = {module for module, _, _ in MODULES}
    package = name if is_package else name.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            up = package.split(".")[: len(package.split(".")) + 1 - node.level] if node.level else []
            base = ".".join([*up, *([node.module] if node.module else [])])
            parts = [f"{base}.{alias.name}" for alias in node.names]
            found = [part if part in known else base for part in parts]
        else:
            continue
        yield from (one for one in found if one.partition(".")[0] in PROJECT and one != name)


def package_of(module):
    return max(
        (package for package in PACKAGES if f"{module}.".startswith(f"{package}.")), key=len, default=module
    )


@pytest.mark.parametrize("package", PACKAGES)
def test_arrows_point_downward_only(package):
    own = [module for module in MODULES if package_of(module[0]) == package]
    assert own
    wrong = [
        f"{module[0]} imports {other}"
        for module in own
        for other in imports(*module)
        if package_of(other) not in {package, *PACKAGES[package]}
    ]
    assert wrong == []


def test_there_are_no_circles_of_imports():
    arrows = {name: {*imports(name, *rest)} for name, *rest in MODULES}
    while leaves := [name for name, others in arrows.items() if not others & arrows.keys()]:
        for name in leaves:
            del arrows[name]
    packages = {name for name, is_package, _ in MODULES if is_package}
    # A module that imports a sibling's name from its package goes through the package: that is no circle.
    assert {name: others & arrows.keys() for name, others in arrows.items() if name not in packages} == {}


def test_the_one_import_has_everything_public_and_no_more():
    assert {*bitstash.__all__} == {*golden.__all__, *torch_bridge.__all__}
    for name in bitstash.__all__:
        homes = [package for package in (golden, torch_bridge) if name in package.__all__]
        assert [getattr(bitstash, name) is getattr(package, name) for package in homes] == [True] * len(homes)
    shown = {"Compressor", "attach", "keep_activations", "calibrate", "Policy", "Rule", "Offload"}
    assert {*bitstash.__all__} >= {*shown, "PlaneFormat", "HadamardFormat"}


@pytest.mark.parametrize("absent", ["numba", "transformers", "matplotlib", "triton", "amaranth", "cocotb"])
def test_the_one_import_needs_its_dependencies_only(absent):
    code = f"import sys; sys.modules[{absent!r}] = None; import bitstash"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_the_wheel_has_the_import_with_its_types_and_no_hardware(tmp_path):
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    for package in PROJECT:
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    code = "from setuptools import build_meta; print(build_meta.build_wheel('.'))"
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    names = [name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name]
    expected = [
        str(path.relative_to(ROOT))
        for package in ("bitstash", "golden", "torch_bridge")
        for pattern in ("*.py", "py.typed")
        for path in (ROOT / package).rglob(pattern)
    ]
    assert sorted(names) == sorted(expected)
    assert {f"{package}/py.typed" for package in ("bitstash", "golden", "torch_bridge")} <= {*names}
