"""What the backward passes of the kernels that people run need of the tensors that they save.

PyTorch knows nothing of a custom ``autograd.Function`` but its name and what it saves. The kernels below were
read: an entry of ``FUNCTIONS`` gives the packages that they were read in and the tensors in the order of
``save_for_backward``, and a comment the file. A Function that is not here, that saves another number of
tensors, or whose class is defined in another package, is unknown: all it saves stays exact. So someone's own
``RMSNormFunction`` is not taken for PyTorch's. A copy of a kernel in another package is unknown as well: it
may have been changed. Where else a class is imported does not count.

Versions read: PyTorch 2.13, transformers 5.23, FlashAttention 2.8.4 (``flash_attn``), 3.0.0 (``hopper``),
xformers 0.0.35, Liger 0.8.5, Megatron-core 0.16.1, Apex of July 2026, Transformer Engine 2.18, DeepSpeed
0.19.8, torchao 0.18.0, peft 0.21.2, bitsandbytes 0.50.2, TRL 1.16.0.

Four rules decide the needs:

- Statistics stay exact: they stand for a whole row, and a kernel writes them into memory of its own, so that
  no operation of PyTorch is seen to have made them.
- Weights stay exact. Parameters do anyway; here are the copies that kernels make of them, as for autocast.
- Gradients that a kernel has computed in the forward pass stay exact. An activation's error meets a gradient
  in a product and averages out over tokens. A gradient's error reaches every layer below at its full size,
  and the optimizer sees that of a weight's gradient as it is.
- What a forward pass is run again from may be lossy: all that the backward pass reads then fits together.

Not here, as nothing goes through ``save_for_backward``: bitsandbytes' ``MatMul4Bit`` and ``MatMul8bitLt``,
which keep tensors on their ``ctx`` (autograd/_functions.py), and DeepSpeed's ``CheckpointFunction``. Not
here, as what they save depends on how they were compiled or quantised: PyTorch's ``CompiledFunction``,
Transformer Engine's linear layers and fused attention.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cache
from typing import NamedTuple

import torch

from .need import CHANNELS, LOG_SUM_EXP, NEAR_TARGET, NORM, Exact, Known, Need, normed

VALUES, RELATIVE, SIGNS = Need.VALUES, Need.RELATIVE, Need.SIGNS
PROBABILITIES, LOG_PROBABILITIES = Need.PROBABILITIES, Need.LOG_PROBABILITIES
LOGITS, LOGITS_BIAS, ATTENDED = Need.LOGITS, Need.LOGITS_BIAS, Need.ATTENDED
ROWS = normed()
WEIGHT = Exact("weight")
GRADIENT = Exact("a gradient already")
ROTATION = Exact("a table of angles that all layers share")
SCALE = Exact("a scale, or a weight of a token")
NOT_TRAINED = Exact("requires no gradient")
REVERSED = Exact("earlier activations are computed back from it by differences")

# Nodes whose outputs lose their memory while the forward pass goes on, and get it back, with the same values,
# before the backward pass reads them. What was a reference to the memory is a reference to nothing meanwhile:
# they stay where they are, and are not offloaded.
# Megatron-core: core/tensor_parallel/random.py
EMPTIED = ("CheckpointWithoutOutputFunctionBackward",)
# Nodes that give the memory that they were given. Megatron-core: core/tensor_parallel/mappings.py
PASSING = ("_CopyToModelParallelRegionBackward",)


class Slot(NamedTuple):
    """One of the tensors that a call saves.

    Attributes:
        name: as in the kernel's source.
        need: what must survive of it.
    """

    name: str
    need: Known


@dataclass(frozen=True)
class Saved:
    """What one call of a Function saves: floating-point tensors, in the order of ``save_for_backward``.

    Args:
        slots: the first of them. Arguments that may be None make several entries, as a None is not seen.
        others: the need of any number of further ones that require a gradient, or None if there are no
            further ones. Those that require none are exact.
        has_row_statistics: the exact ones hold one value for each row of the first. This tells a norm from
            others where one name stands for many operations.
        packages: that have the class.
    """

    slots: tuple[Slot, ...]
    others: Known | None = None
    has_row_statistics: bool = False
    packages: tuple[str, ...] = ()

    def __add__(self, more: Saved) -> Saved:
        """What saves these slots and then those of ``more``."""
        return replace(self, slots=self.slots + more.slots)

    def needs(self, tensors: Sequence[torch.Tensor]) -> tuple[Known, ...] | None:
        """The need of each tensor, or None where this entry does not describe these tensors.

        What attention gives has as many dimensions as queries have, and log-sum-exps have fewer. So the two
        are never mistaken for each other where kernels of one name save the same number of tensors.
        """
        known = len(self.slots)
        if len(tensors) < known or (len(tensors) > known and self.others is None):
            return None
        for (_, need), tensor in zip(self.slots, tensors, strict=False):
            if need is ATTENDED and tensor.dim() != tensors[0].dim():
                return None
            if self.has_row_statistics and isinstance(need, Exact) and not _is_of_rows(tensor, tensors[0]):
                return None
        others = (self.others if t.requires_grad else NOT_TRAINED for t in tensors[known:])
        return tuple(slot.need for slot in self.slots) + tuple(need for need in others if need is not None)


FUNCTIONS: dict[str, tuple[Saved, ...]] = {}
"""Entries by the name of the class, or a shell pattern of names; the first that describes the tensors holds.

An operation of ``torch.library`` has the name ``GeneratedBackwardFor_<namespace>_<operation>_<overload>``.
"""


def needs_of(name: str, tensors: Sequence[torch.Tensor]) -> tuple[Known, ...] | None:
    """What the backward pass of a custom Function needs of each tensor that one call saves.

    Args:
        name: of the Function's class, with its module: "liger_kernel.ops.rms_norm.LigerRMSNormFunction".
        tensors: all floating-point tensors that the call saves, in their order.

    Returns:
        A need for each tensor, or None if the table does not know what they are.
    """
    for saved in entries_of(name):
        needs = saved.needs(tensors)
        if needs is not None:
            return needs
    return None


@cache
def entries_of(name: str) -> tuple[Saved, ...]:
    """The table's entries for a class of that module and name, under whatever pattern."""
    module, _, own = name.rpartition(".")
    return tuple(
        saved
        for pattern, entries in FUNCTIONS.items()
        if fnmatchcase(own, pattern)
        for saved in entries
        if any(f"{module}.".startswith(f"{package}.") for package in saved.packages)
    )


def packages_of(name: str) -> list[str]:
    """The packages whose classes of that name the table knows; the name is without module."""
    entries = (saved for pattern, known in FUNCTIONS.items() if fnmatchcase(name, pattern) for saved in known)
    return sorted({package for saved in entries for package in saved.packages})


def _is_of_rows(statistic: torch.Tensor, of: torch.Tensor) -> bool:
    return statistic.numel() * of.shape[-1] == of.numel()


def _functions(packages: str, names: str, *entries: Saved) -> None:
    """Adds Functions of packages that save alike; a name that projects share may stand in several groups."""
    here = tuple(replace(one, packages=tuple(packages.split())) for one in entries)
    for name in names.split():
        FUNCTIONS[name] = FUNCTIONS.get(name, ()) + here


def _operations(names: str, *entries: Saved) -> None:
    """Adds operations of ``torch.library``, named "namespace::operation"."""
    generated = (f"GeneratedBackwardFor_{name.replace('::', '_')}_default" for name in names.split())
    _functions("torch._library", " ".join(generated), *entries)


def _saves(**needs: Known) -> Saved:
    return Saved(tuple(Slot(name, need) for name, need in needs.items()))


def _keeps(why: Exact) -> Saved:
    """Any number of tensors, all exact."""
    return Saved((), others=why)


# Recomputation, from any number of inputs.
CHECKPOINTS = (
    "CheckpointFunction",
    "CheckpointWithoutOutputFunction",
    "_NoopSaveInputs",
    "_CheckpointFunction",
)
_recomputed = Saved((), others=VALUES)
# PyTorch: utils/checkpoint.py. Megatron-core: core/tensor_parallel/random.py
_functions("torch megatron", "CheckpointFunction CheckpointWithoutOutputFunction", _recomputed)
# PyTorch 2.9: utils/checkpoint.py. What saves inputs in PyTorch 2.13 is no Function, but goes by this name
_functions("torch", "_NoopSaveInputs", _recomputed)
# Transformer Engine: pytorch/distributed.py
_functions("transformer_engine", "_CheckpointFunction", _recomputed)
_functions("liger_kernel", "LigerTiledMLPFunction", _saves(x=VALUES))  # Liger: ops/tiled_mlp.py
# DeepSpeed: runtime/sequence_parallel/ulysses_sp.py
_functions("deepspeed", "TiledMLP AutogradComputeMLP", _saves(x=VALUES))

# Attention. FlashAttention 4 (flash_attn/cute/interface.py) saves these five too, and more with sinks or
# second queries, which is unknown.
_attention = _saves(q=LOGITS, k=LOGITS, v=ATTENDED, out=ATTENDED, softmax_lse=LOG_SUM_EXP)
# FlashAttention: flash_attn/flash_attn_interface.py, hopper/flash_attn_interface.py
FLASH = "flash_attn flash_attn_interface hopper"
_functions(FLASH, "FlashAttnFunc FlashAttnVarlenFunc", _attention)
_functions(FLASH, "FlashAttnQKVPackedFunc FlashAttnVarlenQKVPackedFunc", _attention)
_functions(FLASH, "FlashAttnKVPackedFunc FlashAttnVarlenKVPackedFunc", _attention)
_operations("flash_attn_3::_flash_attn_forward", _attention)
_operations("torch_attn::_varlen_attn", _attention)  # PyTorch: nn/attention/varlen.py
_functions("xformers mslk", "_fMHA", _attention)  # xformers: ops/fmha/__init__.py, since then in mslk
# FlashAttention: flash_attn/flash_attn_triton.py. Keys are a part of what the packed ones save
_bias = _saves(bias=LOGITS_BIAS)
_packed = _saves(qkv=LOGITS, o=ATTENDED, lse=LOG_SUM_EXP)
_functions(FLASH, "FlashAttnQKVPackedFunc", _packed, _packed + _bias)
_packed = _saves(q=LOGITS, kv=LOGITS, o=ATTENDED, lse=LOG_SUM_EXP)
_functions(FLASH, "FlashAttnKVPackedFunc", _packed, _packed + _bias)
_functions(FLASH, "FlashAttnFunc", _attention + _bias)
# DeepSpeed: ops/deepspeed4science/evoformer_attn.py
_functions("deepspeed", "EvoformerFusedAttention", _attention + _saves(bias1=LOGITS_BIAS, bias2=LOGITS_BIAS))
# PyTorch: _higher_order_ops/flex_attention.py. Buffers of score_mod follow, as slopes of ALiBi
_functions(
    "torch",
    "FlexAttentionAutogradOp",
    Saved((*_attention.slots, Slot("max_scores", LOG_SUM_EXP)), others=SCALE),
)
# Liger: ops/fused_neighborhood_attention.py. Probabilities are saved, so that nothing is exponentiated anew
_functions(
    "liger_kernel",
    "LigerFusedNeighborhoodAttentionFunction",
    _saves(query=VALUES, key=VALUES, value=VALUES, attn_weights=PROBABILITIES),
)

# Softmaxes.
_scaled = _saves(softmax_results=PROBABILITIES, scale=SCALE)
# Megatron-core: core/fusions/fused_softmax.py
_functions("megatron", "ScaledUpperTriangMaskedSoftmax ScaledMaskedSoftmax ScaledSoftmax", _scaled)
# Transformer Engine: pytorch/attention/dot_product_attention/softmax.py
_operations(
    "te_softmax::scaled_softmax_fwd te_softmax::scaled_masked_softmax_fwd", _saves(output=PROBABILITIES)
)
_operations("te_softmax::scaled_upper_triang_masked_softmax_fwd", _saves(output=PROBABILITIES))
# Liger: ops/softmax.py, ops/backends/_cutedsl/softmax.py, ops/backends/_cutile/softmax.py
_functions("liger_kernel", "LigerSoftmaxFunction _LigerSoftmax*Function", _saves(y=PROBABILITIES))
_functions(
    "liger_kernel", "LigerSparsemaxFunction", _saves(out=SIGNS)
)  # Liger: ops/sparsemax.py. Only which are not 0 is read
# transformers: models/sew_d/modeling_sew_d.py
_functions("transformers", "XSoftmax", _saves(output=PROBABILITIES))

# Norms.
_rms_norm = _saves(x=VALUES, weight=WEIGHT, rstd=NORM)
_layer_norm = _saves(x=ROWS, weight=WEIGHT, bias=WEIGHT, mean=NORM, rstd=NORM)
# Liger: ops/rms_norm.py, fused_add_rms_norm.py, layer_norm.py, group_norm.py, and of these ops/backends
_functions(
    "liger_kernel", "LigerRMSNormFunction _LigerRMSNorm*Function", _rms_norm, _saves(x=VALUES, rstd=NORM)
)
_functions("liger_kernel", "LigerFusedAddRMSNormFunction _LigerFusedAddRMSNorm*Function", _rms_norm)
_functions(
    "liger_kernel", "LigerLayerNormFunction _LigerLayerNorm*Function LigerGroupNormFunction", _layer_norm
)
_functions(
    "liger_kernel",  # Liger: ops/modulated_rms_norm.py. With and without weight and shift
    "LigerModulatedRMSNormFunction",
    _saves(x=VALUES, scale=SCALE, rstd=NORM),
    _saves(x=VALUES, weight_or_scale=SCALE, scale_or_shift=SCALE, rstd=NORM),
    _saves(x=VALUES, weight=WEIGHT, scale=SCALE, shift=SCALE, rstd=NORM),
)
# Liger: ops/dyt.py
_functions("liger_kernel", "LigerDyTFunction", _saves(x=VALUES, alpha=WEIGHT, gamma=WEIGHT, beta=WEIGHT))
# Megatron-core: core/transformer/custom_layers/batch_invariant_kernels.py
_functions("megatron", "BatchInvariantRMSNormFn", _rms_norm)
_functions("deepspeed", "_FusedRMSNorm", _rms_norm)  # DeepSpeed: ops/triton_ops/fused_rms_norm.py
_functions("torch", "RMSNormFunction", _rms_norm)  # PyTorch: _vendor/quack/rmsnorm.py
# FlashAttention: flash_attn/ops/triton/layer_norm.py. Weights and biases, if there are, and statistics follow
_functions("flash_attn", "LayerNormFn LayerNormLinearFn", Saved((Slot("residual_out", ROWS),), others=WEIGHT))
# Apex: apex/normalization/fused_layer_norm.py. The memory-efficient ones save the output, not the input, and
# divide it by the weight. Of the RMS norm the two look alike
_divided = _saves(output=RELATIVE, weight=WEIGHT, bias=WEIGHT, invvar=NORM)
_functions(
    "apex", "FusedLayerNormAffineFunction FusedLayerNormAffineMixedDtypesFunction", _layer_norm, _divided
)
_operations("apex::fused_layer_norm_affine_fwd", _layer_norm, _divided)
_divided = _saves(input_or_output=RELATIVE, weight=WEIGHT, invvar=NORM)
_functions("apex", "FusedRMSNormAffineFunction FusedRMSNormAffineMixedDtypesFunction", _divided)
_operations("apex::fused_rms_norm_affine_fwd", _divided)
_plain, _centred = _saves(input_or_output=VALUES, invvar=NORM), _saves(input=ROWS, mean=NORM, invvar=NORM)
_functions("apex", "FusedLayerNormFunction", _centred, _plain)
_functions("apex", "FusedRMSNormFunction", _plain)
_operations("apex::fused_layer_norm_fwd", _centred, _plain)
_operations("apex::fused_rms_norm_fwd", _plain)
# Apex: apex/contrib/layer_norm/layer_norm.py. The memory-efficient one saves the bias last
_functions(
    "apex",
    "FastLayerNormFN",
    _saves(xmat_or_ymat=RELATIVE, gamma=WEIGHT, mu_or_rsigma=NORM, rsigma_or_beta=NORM),
)
# Transformer Engine: pytorch/ops/basic/rmsnorm.py, layer_norm.py. One Function runs any chain of operations;
# where it saves a matrix and statistics of its rows, and nothing else, the chain is a norm
_functions(
    "transformer_engine",
    "_OperationFuserAutogradFunction",
    Saved((Slot("x", VALUES), Slot("rstdevs", NORM)), has_row_statistics=True),
    Saved((Slot("x", ROWS), Slot("means", NORM), Slot("rstdevs", NORM)), has_row_statistics=True),
)
# PyTorch: nn/modules/_functions.py. With and without weight
_statistics = _saves(mean=NORM, invstd=NORM)
_functions(
    "torch",
    "SyncBatchNorm",
    _saves(input=CHANNELS, weight=WEIGHT) + _statistics,
    _saves(input=CHANNELS) + _statistics,
)

# Activations. The gradient of a squared ReLU has no step, so that a sign may be lost near 0.
_input, _pair = _saves(input=VALUES), _saves(a=VALUES, b=VALUES)
_biased, _weighted = _saves(input=VALUES, bias=WEIGHT), _saves(input=VALUES, weights=SCALE)
# Megatron-core: core/fusions/fused_bias_gelu.py, and transformers: models/bloom/modeling_bloom.py
_functions("megatron transformers", "GeLUFunction", _biased, _input)
_functions("megatron", "GeGLUFunction", _input)  # Megatron-core: core/fusions/fused_bias_geglu.py
_functions("megatron", "BiasGeGLUFunction", _biased)
_functions("megatron", "WeightedQuickGeGLUFunction", _weighted + _saves(linear_offset=SCALE))
_functions("megatron", "WeightedBiasQuickGeGLUFunction", _biased + _saves(weights=SCALE, linear_offset=SCALE))
_functions("megatron", "SwiGLUFunction", _input)  # Megatron-core: core/fusions/fused_bias_swiglu.py
_functions("megatron", "BiasSwiGLUFunction", _biased)
_functions("megatron", "WeightedSwiGLUFunction", _weighted)
_functions(
    "megatron", "WeightedSquaredReLUFunction", _weighted
)  # Megatron-core: core/fusions/fused_weighted_squared_relu.py
_functions("flash_attn", "SwiGLUFunction", _pair)  # FlashAttention: flash_attn/ops/activations.py
_functions("flash_attn", "FastGeLUFunction", _input)
# Liger: ops/swiglu.py, geglu.py, relu_squared.py, and of these ops/cutedsl and ops/backends
_functions("liger_kernel", "LigerSiLUMulFunction LigerSiLUMulCuteDSLFunction _LigerSwiGLU*Function", _pair)
_functions("liger_kernel", "LigerGELUMulFunction _LigerGeGLU*Function", _pair)
_functions("liger_kernel", "LigerFusedGateUpSiLUMulFunction LigerReLUSquaredFunction", _input)
_functions("deepspeed", "_SwiGLUFn", _pair)  # DeepSpeed: ops/triton_ops/swiglu_triton.py
_functions("deepspeed", "_SwiGLUPackedFn", _input)
# transformers: models/recurrent_gemma/modeling_recurrent_gemma.py. Divides by the root
_functions("transformers", "SqrtBoundDerivative", _saves(x=RELATIVE))

# Rotations of queries and keys.
_rotation = _keeps(ROTATION)
# Liger: ops/rope.py, qwen2vl_mrope.py, llama4_rope.py, and of these ops/cutedsl and ops/backends
_functions("liger_kernel", "LigerRopeFunction LigerRopeCuteDSLFunction _LigerRope*Function", _rotation)
_functions("liger_kernel", "LigerQwen2VLMRopeFunction LigerLlama4RopeFunction", _rotation)
# FlashAttention: flash_attn/layers/rotary.py
_functions("flash_attn", "ApplyRotaryEmb ApplyRotaryEmbQKV_ ApplyRotaryEmbKV_", _rotation)
# Megatron-core: core/fusions/fused_mla_yarn_rope_apply.py
_functions("megatron", "ApplyMLARotaryEmbQ ApplyMLARotaryEmbKV", _rotation)
# Transformer Engine: pytorch/attention/rope.py
_functions("transformer_engine", "FusedRoPEFunc FusedQKVRoPEFunc", _rotation)
_functions("deepspeed", "_FusedRotaryPosEmb", _rotation)  # DeepSpeed: ops/triton_ops/fused_rotary_pos_emb.py

# Linear layers and experts.
_linear, _affine = _saves(input=VALUES, weight=WEIGHT), _saves(input=VALUES, weight=WEIGHT, bias=WEIGHT)
# CompAct's and pooled layers: torch_bridge/schemes
_functions("torch_bridge.schemes", "CompActLinearFunction PooledLinearFunction PooledConv2dFunction", _linear)
# Megatron-core: core/tensor_parallel/layers.py, core/transformer/moe/moe_utils.py
_functions("megatron", "LinearWithGradAccumulationAndAsyncCommunication", _linear)
_functions("megatron", "LinearWithFrozenWeight", _saves(weight=WEIGHT))
_functions("megatron", "RouterGatingLinearFunction", _linear, _affine)
_functions("deepspeed", "LinearFunctionForZeroStage3", _linear, _affine)  # DeepSpeed: runtime/zero/linear.py
_functions("deepspeed", "AsyncColumnParallel", _linear)  # DeepSpeed: module_inject/layers.py
# DeepSpeed: runtime/domino/async_linear.py
_functions("deepspeed", "DominoAsyncColumnParallelLinearImpl", _linear, _affine)
_functions("deepspeed", "_GroupGemmFn", _linear)  # DeepSpeed: ops/triton_ops/group_gemm_triton.py
# DeepSpeed: ops/triton_ops/autoep_fused_token_ops.py
_functions("deepspeed", "_FusedWeightedRestore _FusedRowWeighting", _weighted)
# Apex: apex/fused_dense/fused_dense.py. FlashAttention: flash_attn/ops/fused_dense.py
_functions("apex flash_attn", "FusedDenseFunc DenseNoBiasFunc", _linear)
_functions("flash_attn apex", "FusedDenseFunc", _saves(weight=WEIGHT))
_functions(
    "apex",
    "FusedDenseGeluDenseFunc",
    _saves(input=VALUES, weight1=WEIGHT, weight2=WEIGHT, gelu_in=VALUES, output1=VALUES),
)
_operations("transformers::grouped_mm_fallback", _linear)  # transformers: integrations/moe.py
# torchao: float8/float8_linear.py, prototype/moe_training/mxfp8_linear.py,
# prototype/quantized_training/int8.py and int8_mixed_precision.py,
# quantization/quantize_/workflows/nf4/nf4_tensor.py
_functions("torchao", "matmul_with_hp_or_float8_args mx_mm", _linear)
_functions("torchao", "_Int8WeightOnlyLinear _Int8MixedPrecisionTrainingLinearFunction", _linear)
_functions("torchao", "LinearNF4", _saves(weight=WEIGHT))
_functions(
    "liger_kernel",  # Liger: ops/fused_moe.py
    "LigerFusedMoEFunction",
    _saves(x=VALUES, gate_up_proj=WEIGHT, down_proj=WEIGHT, pre_act=VALUES, topk_weights=SCALE),
)
_functions(
    "xformers", "_ScaledIndexAdd", _saves(scaling=WEIGHT, source=VALUES), _saves(source=VALUES)
)  # xformers: ops/indexing.py
_functions("peft", "BlockCircularConvolution", _linear)  # peft: tuners/c3a/utils.py
# peft: tuners/boft/layer.py, tuners/loha/layer.py, tuners/randlora/layer.py. All they save is made of weights
_functions("peft", "FastBlockDiag HadaWeight HadaWeightCP UniqueBaseGrad", _keeps(WEIGHT))

# Losses that save a softmax, exponentials or logits. Their gradient is the difference between probabilities
# and targets. Where a prediction is nearly sure, little is left of it. So of a softmax the logit is kept,
# which has the distance to 1. Of exponentials the largest is 1, which bit planes have exactly. Of logits
# nothing may be lost.
# Megatron-core: core/tensor_parallel/cross_entropy.py, core/fusions/fused_cross_entropy.py
_functions("megatron", "_VocabParallelCrossEntropy", _saves(exp_logits=Need.SIGMOID))  # divided by their sum
_sums = _saves(exp_logits=LOG_PROBABILITIES, sum_exp=LOG_SUM_EXP)
_functions("deepspeed", "_VocabParallelCrossEntropy", _sums)  # DeepSpeed: sequence/cross_entropy.py
# Liger: ops/vocab_parallel_cross_entropy.py
_functions("liger_kernel", "LigerVocabParallelCEFunction", _sums)
_logits = _saves(logits=NEAR_TARGET, lse=LOG_SUM_EXP)
# DeepSpeed: runtime/chunked_cross_entropy.py
_functions("deepspeed", "_TritonCrossEntropy _ChunkedCrossEntropy", _logits)
# FlashAttention: flash_attn/ops/triton/cross_entropy.py
_functions("flash_attn", "CrossEntropyLoss", _logits)
# Apex: apex/contrib/xentropy/softmax_xentropy.py
_functions("apex", "SoftmaxCrossEntropyLoss", _logits + _saves(smoothing=SCALE))
# TRL: kernels/chunked_logprob.py, chunked_divergence.py, logprob_entropy.py. Where they save hidden states,
# logits are computed anew from them, against log-sum-exps that are not
_functions(
    "trl", "ChunkedLogProbFunction ChunkedDivergenceFunction _LogProbEntropyFunction", _keeps(NEAR_TARGET)
)

# Losses that have computed their gradients when the forward pass ends.
_gradient = _keeps(GRADIENT)
# Liger: ops/cross_entropy.py, fused_linear_cross_entropy.py, fused_linear_jsd.py, fused_linear_kl_div.py,
# jsd.py, kl_div.py, tvd.py, and of these ops/backends
_functions("liger_kernel", "LigerCrossEntropyFunction LigerFusedLinearCrossEntropyFunction", _gradient)
_functions("liger_kernel", "LigerFusedLinearJSDFunction LigerFusedLinearKLDivFunction", _gradient)
_functions("liger_kernel", "LigerJSDFunction _LigerJSD*Function LigerTVDLossFunction", _gradient)
_functions("liger_kernel", "LigerKLDivLossFunction _LigerKLDiv*Function", _gradient)
# Transformer Engine: pytorch/cross_entropy.py
_functions("transformer_engine", "CrossEntropyFunction", _gradient)
# DeepSpeed: runtime/sequence_parallel/ulysses_sp.py
_functions("deepspeed", "TiledFusedLogitsLoss", _gradient)

# transformers: models/reformer/modeling_reformer.py, models/phimoe/modeling_phimoe.py
_functions("transformers", "_ReversibleFunction", _keeps(REVERSED))
_functions("transformers", "PhimoeMultiplier", _keeps(SCALE))
