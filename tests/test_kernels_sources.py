"""The stand-ins of ``tests/kernels.py`` save what the kernels save, by the kernels' own sources.

The sources are parsed and never imported, which would need a GPU. A package that is not installed is skipped;
one that is only unpacked is found by PYTHONPATH.
"""

import ast
import importlib.util
from pathlib import Path

import pytest

from . import kernels

ANY = "any number of them"
STAND_INS = Path(__file__).parent / "kernels.py"
# Of each stand-in the package and the file, and the class there if it has another name.
MEGATRON, TENSOR_PARALLEL = "megatron.core.fusions", "megatron.core.tensor_parallel"
APEX = "apex.normalization", "fused_layer_norm.py"
SOURCES = {
    "FlashAttnFunc": ("flash_attn", "flash_attn_interface.py"),
    "_fMHA": ("xformers.ops.fmha", "__init__.py"),
    "setup_context": ("hopper", "flash_attn_interface.py"),
    "FlexAttentionAutogradOp": ("torch._higher_order_ops", "flex_attention.py"),
    "ScaledUpperTriangMaskedSoftmax": (MEGATRON, "fused_softmax.py"),
    "LigerRMSNormFunction": ("liger_kernel.ops", "rms_norm.py"),
    "LigerFusedAddRMSNormFunction": ("liger_kernel.ops", "fused_add_rms_norm.py"),
    "LigerLayerNormFunction": ("liger_kernel.ops", "layer_norm.py"),
    "FusedLayerNormAffineFunction": APEX,
    "FusedRMSNormAffineFunction": APEX,
    "_OperationFuserAutogradFunction": ("transformer_engine.pytorch.ops.basic", "layer_norm.py", "LayerNorm"),
    "LigerSiLUMulFunction": ("liger_kernel.ops", "swiglu.py"),
    "LigerGELUMulFunction": ("liger_kernel.ops", "geglu.py"),
    "GeLUFunction": (MEGATRON, "fused_bias_gelu.py"),
    "SwiGLUFunction": (MEGATRON, "fused_bias_swiglu.py"),
    "LigerRopeFunction": ("liger_kernel.ops", "rope.py"),
    "LinearWithGradAccumulationAndAsyncCommunication": (TENSOR_PARALLEL, "layers.py"),
    "LinearFunctionForZeroStage3": ("deepspeed.runtime.zero", "linear.py"),
    "_VocabParallelCrossEntropy": (TENSOR_PARALLEL, "cross_entropy.py"),
    "LigerVocabParallelCEFunction": ("liger_kernel.ops", "vocab_parallel_cross_entropy.py"),
    "LigerCrossEntropyFunction": ("liger_kernel.ops", "cross_entropy.py"),
    "LigerFusedLinearCrossEntropyFunction": ("liger_kernel.ops", "fused_linear_cross_entropy.py"),
}


def saved_in(path: Path, name: str) -> list[tuple[str, ...]]:
    """The names of the tensors in each ``save_for_backward`` of a class or function, lower case."""
    owner = next(
        node
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name
    )
    calls = [node for node in ast.walk(owner) if isinstance(node, ast.Call)]
    methods = [call.args for call in calls if ast.unparse(call.func) == "ctx.save_for_backward"]
    functions = [call.args[1] for call in calls if ast.unparse(call.func) == "save_values_for_backward"]
    return [
        names(args) for args in [*methods, *(one.elts for one in functions if isinstance(one, ast.Tuple))]
    ]


def names(args: list[ast.expr]) -> tuple[str, ...]:
    """Of tensors in a call; ANY, and no more, where a tuple of tensors is unpacked into it."""
    found = []
    for arg in args:
        if isinstance(arg, ast.Starred):
            return *found, ANY
        chosen = arg.body if isinstance(arg, ast.IfExp) else arg  # the tensor, where there may be None
        found.append(ast.unparse(chosen).removesuffix(".detach()").rpartition(".")[2].lower())
    return tuple(found)


def folder_of(package: str) -> Path:
    """Where a package lies, found from its top; parents that are packages of code are not imported."""
    top, *parts = package.split(".")
    spec = importlib.util.find_spec(top)
    if spec is None or not spec.submodule_search_locations:
        pytest.skip(f"{top} is not installed, whose sources are read")
    folder = Path(next(iter(spec.submodule_search_locations))).joinpath(*parts)
    if not folder.is_dir():
        pytest.skip(f"this version of {top} has no {package}")
    return folder


@pytest.mark.parametrize("name", SOURCES)
def test_a_stand_in_saves_what_the_kernel_saves(name):
    package, file, *other = SOURCES[name]
    path = folder_of(package) / file
    if not path.is_file():
        pytest.skip(f"this version of {package} has no {file}")
    real = saved_in(path, *other or [name])
    ours = saved_in(STAND_INS, name)
    assert ours
    for call in ours:
        assert any(is_like(call, other) for other in real), f"{call}, not one of {real}"


def is_like(call: tuple[str, ...], real: tuple[str, ...]) -> bool:
    return call[: len(real) - 1] == real[:-1] if ANY in real else call == real


def test_every_stand_in_goes_by_its_package():
    for name, (package, *_) in SOURCES.items():
        module = getattr(kernels, name).__module__
        assert name == "setup_context" or module.partition(".")[0] == package.partition(".")[0], name


def test_every_stand_in_has_its_source():
    tree = ast.parse(STAND_INS.read_text())
    classes = {node.name for node in tree.body if isinstance(node, ast.ClassDef)}
    assert classes | {"setup_context"} == set(SOURCES)
