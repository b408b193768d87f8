"""What the backward pass of each operation needs of each tensor that it saves.

An allow-list: a tensor that is not in ``TABLE`` has no known need, stays exact and is named as unknown.
The question asked of each formula is: if each value had noise of a few percent of its block's norm, would the
gradient's relative error be as small? Then the need is VALUES; otherwise it names what must survive.

What other operations made of a tensor before decides in a few rows alone, by its lineage. The table says
nothing of parameters and buffers, which stay as they are. Tensors that can only hold integers, such as
indices and random states, are left out: no format has them. The names of operations and tensors are those of
PyTorch's ``derivatives.yaml`` (``torchgen/packaged/autograd``), and ``tests/test_needs.py`` holds the table
against that file.
"""

from __future__ import annotations

from .deciding import (
    Arguments,
    Entry,
    of_factors,
    of_group_norm,
    of_layer_norm,
    of_matrices,
    of_norm,
    of_power,
    of_reduction,
    of_rnn_output,
    of_softmax,
    of_variance,
)
from .lineage import NO_LINEAGE, LineageOf
from .need import (
    CHANNELS,
    DIFFERENCE,
    DRAWN_LATER,
    EQUALS,
    JUMPS,
    LOG_SUM_EXP,
    LOOKED_UP,
    LOSS_WEIGHT,
    NEAR_TARGET,
    NORM,
    SECOND,
    SINGULAR,
    STATE,
    Exact,
    Known,
    Need,
    Normed,
)

TABLE: dict[str, dict[str, Entry]] = {}
"""What each operation needs of each tensor that it saves.

The key is an operation's ATen name, without the underscore of the one in place, for all overloads;
"name.overload" where one differs. The inner key is the name of an argument or of a result: as the schema has
it, otherwise "result", or of several "result0", "result1", ... What an operation in place leaves is "result".
"""


def _rows(operations: str, needs: dict[str, Entry]) -> None:
    """Adds like operations to the table: names with spaces between them, also of the tensors."""
    for operation in operations.split():
        if operation in TABLE:
            raise ValueError(f"an operation must stand in one row of the table, not {operation!r} in two")
        TABLE[operation] = {slot: need for slots, need in needs.items() for slot in slots.split()}


# Products: their gradients are products with what they save.
_rows("mul", {"self other": of_factors("self", "other")})
_rows("mm bmm", {"self mat2": of_matrices("self", "mat2")})
_rows("_grouped_mm", {"self mat2": Need.VALUES})
_rows("addmm", {"mat1 mat2": of_matrices("mat1", "mat2")})
_rows("addbmm baddbmm", {"batch1 batch2": of_matrices("batch1", "batch2")})
_rows("linear", {"input weight": Need.VALUES})
_rows("mkldnn_linear", {"self weight": Need.VALUES})
_rows("dot", {"self tensor": of_factors("self", "tensor", are_summed=True)})
_rows("vdot", {"self other": of_factors("self", "other", are_summed=True)})
_rows("matmul linalg_cross", {"self other": Need.VALUES})
_rows("mv", {"self vec": of_matrices("self", "vec")})
_rows("addmv", {"mat vec": Need.VALUES})
_rows("addr", {"vec1 vec2": Need.VALUES})
_rows("addcmul", {"tensor1 tensor2": of_factors("tensor1", "tensor2")})
_rows("_trilinear", {"i1 i2 i3": Need.VALUES})
_rows("_embedding_bag", {"weight per_sample_weights": Need.VALUES})
_rows(
    "convolution _convolution convolution_overrideable _nnpack_spatial_convolution",
    {"input weight": Need.VALUES},
)
_rows(
    "_conv_depthwise2d conv_depthwise3d _slow_conv2d_forward slow_conv3d_forward slow_conv_dilated2d "
    "slow_conv_dilated3d slow_conv_transpose2d slow_conv_transpose3d cudnn_convolution "
    "cudnn_convolution_transpose miopen_convolution miopen_convolution_transpose "
    "miopen_depthwise_convolution mkldnn_convolution _mps_convolution _mps_convolution_transpose",
    {"self weight": Need.VALUES},
)
_rows("conv_tbc", {"self weight bias": Need.VALUES})
_rows("convolution_backward convolution_backward_overrideable", {"grad_output input weight": Need.VALUES})
_rows(
    "linear_backward _slow_conv2d_backward mps_convolution_backward", {"grad_output self weight": Need.VALUES}
)

# Smooth functions with bounded derivatives.
_rows("gelu silu mish", {"self": Need.VALUES})
# Their derivatives are near 0 but where few values are small, which an error of large ones must not reach.
_rows("glu erf erfc", {"self": Need.RELATIVE})
_rows("gelu_backward glu_backward", {"self grad_output": Need.VALUES})
_rows("pow.Tensor_Scalar", {"self": of_power})

# Only the shape is read.
_rows(
    "adaptive_max_pool2d adaptive_max_pool3d fractional_max_pool2d fractional_max_pool3d "
    "max_pool2d_with_indices max_pool3d_with_indices _adaptive_avg_pool2d _adaptive_avg_pool3d "
    "avg_pool2d avg_pool3d mkldnn_adaptive_avg_pool2d reflection_pad1d reflection_pad2d "
    "reflection_pad3d replication_pad1d replication_pad2d replication_pad3d cummax cummin gather take "
    "_fft_r2c",
    {"self": Need.VALUES},
)
_rows("index_add index_copy put", {"source": Need.VALUES})
_rows("complex", {"real imag": Need.VALUES})
_rows("scatter_reduce", {"self src result": of_reduction})

# Gates. Of gates elsewhere than at 0 a few may open or close, for values that were near them.
_rows("relu", {"result": Need.SIGNS})
_rows("elu celu leaky_relu", {"self result": Need.SIGNS})
_rows("threshold hardtanh hardswish hardsigmoid hardshrink softshrink abs", {"self": Need.SIGNS})
_rows("threshold_backward leaky_relu_backward hardtanh_backward", {"self": Need.SIGNS})
_rows("hardshrink_backward softshrink_backward", {"self": Need.SIGNS})
_rows("hardswish_backward", {"self": Need.SIGNS, "grad_output": Need.VALUES})
_rows("clamp", {"self min max": Need.SIGNS})
_rows("clamp_min", {"self min": Need.SIGNS})
_rows("clamp_max", {"self max": Need.SIGNS})
_rows("_prelu_kernel", {"self": Need.SIGNS, "weight": Need.VALUES})
_rows("_prelu_kernel_backward", {"self": Need.SIGNS, "weight grad_output": Need.VALUES})
# The noise is drawn into a tensor that was saved before.
_rows("rrelu_with_noise", {"self result": Need.SIGNS, "noise": DRAWN_LATER})
_rows("rrelu_with_noise_functional rrelu_with_noise_backward", {"self": Need.SIGNS, "noise": DRAWN_LATER})
_rows("maximum minimum fmax fmin", {"self other": Need.SIGNS})
_rows("sgn", {"self result": Need.SIGNS})
# They ask which values are no numbers, or infinite, which a format that mixes values spreads.
_rows("nan_to_num nansum", {"self": Need.SIGNS})

# Masks.
_rows("where", {"condition": Need.BITS})
_rows("masked_fill masked_scatter masked_scatter_backward", {"mask": Need.BITS})
_rows("masked_select", {"self": Need.VALUES, "mask": Need.BITS})  # of self only the shape is read
_rows("_unsafe_masked_index _unsafe_masked_index_put_accumulate", {"mask": Need.BITS})
_rows("native_dropout _fused_dropout", {"result1": Need.BITS})
_rows("native_dropout_backward", {"grad_output": Need.VALUES, "mask": Need.BITS})
_rows(
    "fake_quantize_per_channel_affine_cachemask fake_quantize_per_tensor_affine_cachemask "
    "_fake_quantize_per_tensor_affine_cachemask_tensor_qparams _fused_moving_avg_obs_fq_helper",
    {"mask": Need.BITS},
)

# Divisors, and what roots, logarithms and powers are taken of; dividends too, since rows with small divisors
# are small themselves. What an exponential gives is divided by sums of it, or more.
_rows("div", {"self other": Need.RELATIVE})
_rows("addcdiv", {"tensor1 tensor2": Need.RELATIVE})
_rows("reciprocal sqrt exp exp2 expm1 tan", {"result": Need.RELATIVE})
_rows("log log2 log10 renorm angle", {"self": Need.RELATIVE})
_rows("xlogy", {"self other": Need.RELATIVE})
_rows("pow", {"self exponent result": Need.RELATIVE})
_rows("ldexp", {"other result": Need.RELATIVE})
_rows("prod cumprod", {"self result": Need.RELATIVE})
_rows("hypot", {"self other result": Need.RELATIVE})
_rows("copysign", {"self result": Need.RELATIVE})
_rows("sin cos sinc", {"self": Need.ANGLE})
# Derivatives that fall like a power or an exponential.
_rows("sinh cosh atan asinh i0 softplus", {"self": Need.RELATIVE})
_rows("atan2", {"self other": Need.RELATIVE})
_rows("log_sigmoid_forward", {"self buffer": Need.RELATIVE})

# Norms and their statistics. The backward pass of a variance takes the mean anew, from the same noisy values.
_rows("var var_mean", {"self": of_variance})
_rows("std", {"self": of_variance, "result": NORM})
_rows("std_mean", {"self": of_variance, "result0": NORM})
_rows("norm linalg_vector_norm", {"self": of_norm, "result": NORM})
_rows("_weight_norm_interface", {"v g": Need.RELATIVE, "result1": NORM})
_rows("rsqrt", {"result": NORM})  # norms that are written in plain PyTorch end with it
_rows("native_layer_norm", {"input": of_layer_norm, "weight bias": Need.VALUES, "result1 result2": NORM})
_rows("native_group_norm", {"input": of_group_norm, "weight": Need.VALUES, "result1 result2": NORM})
_rows("_fused_rms_norm", {"input weight": Need.VALUES, "result1": NORM})
_rows(
    "native_batch_norm _native_batch_norm_legit miopen_batch_norm",
    {"input": CHANNELS, "weight": Need.VALUES, "running_mean running_var result1 result2": NORM},
)
_rows(
    "_native_batch_norm_legit_no_training",
    {"input": CHANNELS, "weight": Need.VALUES, "running_mean running_var result1 result2": NORM},
)
_rows(
    "cudnn_batch_norm _batch_norm_with_update _batch_norm_no_update",
    {
        "input": CHANNELS,
        "weight": Need.VALUES,
        "running_mean running_var result1 result2": NORM,
        "result3": STATE,
    },
)

# What ends at a value, from where nothing but the distance to it counts.
_rows("sigmoid", {"result": Need.SIGMOID})
_rows("tanh", {"result": Need.TANH})

# Softmaxes and sums of exponentials.
_rows("_softmax _safe_softmax", {"result": of_softmax})
_rows("_masked_softmax", {"result": Need.PROBABILITIES, "mask": Need.BITS})
_rows("_log_softmax", {"result": Need.LOG_PROBABILITIES})
_rows("logsumexp", {"self": Need.LOG_PROBABILITIES, "result": LOG_SUM_EXP})
_rows("logaddexp logaddexp2", {"self other": Need.LOG_PROBABILITIES})
_rows("logcumsumexp", {"self result": LOG_SUM_EXP})

# Fused attention keeps the log-sum-exps of its logits, not the logits: the backward pass computes these of
# queries, keys and the bias, and takes the exponential of what errors have made of them.
_rows(
    "_scaled_dot_product_flash_attention",
    {"query key": Need.LOGITS, "value output": Need.ATTENDED, "logsumexp": LOG_SUM_EXP},
)
_rows(
    "_flash_attention_forward",
    {"query key": Need.LOGITS, "value output": Need.ATTENDED, "softmax_logsumexp": LOG_SUM_EXP},
)
_rows(
    "_scaled_dot_product_flash_attention_for_cpu",
    {
        "query key": Need.LOGITS,
        "value output": Need.ATTENDED,
        "attn_mask": Need.LOGITS_BIAS,
        "logsumexp": LOG_SUM_EXP,
    },
)
_rows(
    "_scaled_dot_product_efficient_attention",
    {
        "query key": Need.LOGITS,
        "value output": Need.ATTENDED,
        "attn_bias": Need.LOGITS_BIAS,
        "log_sumexp": LOG_SUM_EXP,
    },
)
_rows(
    "_efficient_attention_forward",
    {
        "query key": Need.LOGITS,
        "value output": Need.ATTENDED,
        "bias": Need.LOGITS_BIAS,
        "logsumexp": LOG_SUM_EXP,
    },
)
_rows(
    "_scaled_dot_product_cudnn_attention _cudnn_attention_forward "
    "_scaled_dot_product_fused_attention_overrideable",
    {
        "query key": Need.LOGITS,
        "value output": Need.ATTENDED,
        "attn_bias": Need.LOGITS_BIAS,
        "logsumexp": LOG_SUM_EXP,
    },
)
# No ATen operation, but PyTorch's own Function: in the order in which it saves them.
_rows(
    "flex_attention",
    {"query key": Need.LOGITS, "value out": Need.ATTENDED, "logsumexp max_scores": LOG_SUM_EXP},
)

# Recurrent networks. A workspace of LSTM cells holds gates, which end at 0 or 1, or at -1 or 1.
_rows(
    "_thnn_fused_lstm_cell",
    {"input_gates hidden_gates input_bias hidden_bias cx result1": Need.VALUES, "result2": Need.TANH},
)
_rows(
    "_thnn_fused_gru_cell",
    {"input_gates hidden_gates input_bias hidden_bias hx": Need.VALUES, "result1": Need.RELATIVE},
)
# What closed kernels do with states and outputs cannot be read.
_rows(
    "_cudnn_rnn miopen_rnn",
    {
        "input": Need.VALUES,
        "weight dropout_state result3 result4": STATE,
        "hx cx": Need.RELATIVE,
        "result0": of_rnn_output,
    },
)
_rows(
    "mkldnn_rnn_layer",
    {"input hx_ cx_ weight0 weight1 weight2 weight3 result0 result1 result2": Need.VALUES, "result3": STATE},
)

# Losses.
_rows("mse_loss smooth_l1_loss huber_loss soft_margin_loss", {"self target": NEAR_TARGET})
_rows("binary_cross_entropy", {"self target weight": NEAR_TARGET})
_rows("binary_cross_entropy_with_logits", {"self target weight pos_weight": NEAR_TARGET})
_rows("nll_loss_forward nll_loss2d_forward", {"self": Need.VALUES, "weight total_weight": LOSS_WEIGHT})
_rows("multi_margin_loss", {"self": NEAR_TARGET, "weight": LOSS_WEIGHT})
_rows("multilabel_margin_loss_forward", {"self is_target": NEAR_TARGET})
_rows("_ctc_loss", {"log_probs result0 result1": LOG_SUM_EXP})
_rows("_cudnn_ctc_loss miopen_ctc_loss", {"result0 result1": LOG_SUM_EXP})

# Distances.
_rows("dist", {"self other": DIFFERENCE, "result": NORM})
_rows("_cdist_forward _euclidean_dist", {"x1 x2": DIFFERENCE, "result": NORM})
_rows("_pdist_forward", {"self": DIFFERENCE, "result": NORM})
_rows("lerp", {"self end": DIFFERENCE, "weight": Need.VALUES})

# What is compared with the result, rounded, or looked up.
_rows("amax amin max min median nanmedian", {"self result": EQUALS})
_rows("aminmax", {"self min max": EQUALS})
_rows("max_pool2d", {"self": EQUALS})
_rows("mkldnn_max_pool2d mkldnn_max_pool3d", {"self result": EQUALS})
_rows("index_reduce", {"self source result": EQUALS})
_rows("segment_reduce", {"data result": EQUALS})
_rows("nextafter", {"self other": EQUALS})
_rows("fmod remainder", {"self other": JUMPS})
_rows(
    "_fake_quantize_learnable_per_channel_affine _fake_quantize_learnable_per_tensor_affine",
    {"self scale zero_point": JUMPS},
)
_rows("grid_sampler_2d grid_sampler_3d _grid_sampler_2d_cpu_fallback", {"input grid": LOOKED_UP})
_rows("cudnn_grid_sampler", {"self grid": LOOKED_UP})

# Poles elsewhere than at 0, and factorisations, which divide by differences of eigenvalues or by pivots.
_rows("acos asin acosh atanh log1p logit erfinv lgamma digamma polygamma mvlgamma", {"self": SINGULAR})
_rows("igamma igammac special_xlog1py special_zeta", {"self other": SINGULAR})
_rows("special_entr linalg_matrix_exp", {"self": SINGULAR})
_rows("special_erfcx special_i0e special_i1 special_i1e special_log_ndtr", {"self result": SINGULAR})
_rows("_standard_gamma cholesky_inverse", {"self result": SINGULAR})
_rows("linalg_pinv linalg_solve_triangular", {"self result": SINGULAR})
_rows("special_ndtri cholesky polar", {"result": SINGULAR})
_rows("cholesky_solve", {"self input2 result": SINGULAR})
_rows("ormqr", {"self input2 input3 result": SINGULAR})
_rows("triangular_solve", {"self A solution": SINGULAR})
_rows("_linalg_det _linalg_solve_ex", {"A result LU": SINGULAR})
_rows("_linalg_slogdet", {"A sign LU": SINGULAR})
_rows("_linalg_eigh linalg_eig", {"eigenvalues eigenvectors": SINGULAR})
_rows("_linalg_svd", {"U S Vh": SINGULAR})
_rows("linalg_cholesky_ex", {"L": SINGULAR})
_rows("linalg_householder_product", {"input tau result": SINGULAR})
_rows("linalg_inv_ex", {"inverse": SINGULAR})
_rows("linalg_lstsq", {"self b solution": SINGULAR})
_rows("linalg_lu", {"P L U": SINGULAR})
_rows("linalg_lu_factor linalg_lu_factor_ex", {"LU": SINGULAR})
_rows("linalg_lu_solve", {"LU result": SINGULAR})
_rows("linalg_qr", {"Q R": SINGULAR})

# Formulas that are only saved for where gradients are differentiated again.
_rows("softplus_backward", {"self grad_output": SECOND})
_rows("log_sigmoid_backward", {"self buffer grad_output": SECOND})
_rows("elu_backward", {"self_or_result grad_output": SECOND})
_rows(
    "sigmoid_backward tanh_backward _softmax_backward_data _log_softmax_backward_data",
    {"output grad_output": SECOND},
)
_rows(
    "mse_loss_backward smooth_l1_loss_backward huber_loss_backward soft_margin_loss_backward",
    {"self target grad_output": SECOND},
)
_rows("binary_cross_entropy_backward", {"self target weight grad_output": SECOND})
_rows("nll_loss_backward nll_loss2d_backward", {"weight": SECOND})
_rows(
    "grid_sampler_2d_backward grid_sampler_3d_backward _grid_sampler_2d_cpu_fallback_backward",
    {"grad_output input grid": SECOND},
)
_rows("cudnn_grid_sampler_backward", {"grad_output self grid": SECOND})
_rows("native_layer_norm_backward", {"grad_out input mean rstd weight": SECOND})
_rows(
    "native_batch_norm_backward",
    {"input weight running_mean running_var save_mean grad_out save_invstd": SECOND},
)
_rows(
    "batch_norm_backward",
    {"input weight running_mean running_var save_mean grad_out save_var reserve": SECOND},
)
_rows(
    "miopen_batch_norm_backward",
    {"input weight running_mean running_var save_mean grad_output save_var": SECOND},
)
_rows(
    "cudnn_batch_norm_backward",
    {"input weight running_mean running_var save_mean grad_output save_var reserveSpace": SECOND},
)

UNKNOWN = frozenset(
    [
        # sparse tensors, nested ones, and layouts of one library, which no format has
        *("_sparse_addmm", "_sparse_coo_tensor_with_dims_and_tensors", "_sparse_log_softmax"),
        *("_sparse_mm_reduce_impl", "_sparse_softmax", "_sparse_sparse_matmul", "_sparse_sum", "_to_dense"),
        *("sparse_compressed_tensor", "sparse_mask", "sparse_sampled_addmm", "values", "values_copy"),
        *("to_mkldnn", "to_padded_tensor", "_nested_from_padded", "_nested_get_values"),
        *("_nested_get_values_copy", "_nested_tensor_from_tensor_list"),
        # of nested tensors alone
        *("chunk", "mean", "select", "select_copy", "split_with_sizes", "split_with_sizes_copy", "sum"),
        *("unbind", "unbind_copy", "view", "view_copy"),
        # lists of tensors
        *("_foreach_div", "_foreach_maximum", "_foreach_minimum", "_foreach_mm", "_foreach_norm"),
        "_foreach_pow",
        # closed, or there to test PyTorch
        *("_lstm_mps", "_test_autograd_multiple_dispatch_view"),
        "_test_autograd_multiple_dispatch_view_copy",
    ]
)
"""Operations whose formulas save tensors that can hold floats, and that are not in the table."""


def need(
    op: str, overload: str, slot: str, arguments: Arguments, lineage_of: LineageOf = lambda _: NO_LINEAGE
) -> Need | None:
    """What an operation's backward pass needs of one of the tensors that it saves.

    Args:
        op: the operation's ATen name, as "relu", or "relu_" in place.
        overload: as "Tensor_Scalar", "" or "default".
        slot: name of the argument, or of the result, that is saved, as "self" or "result1".
        arguments: the operation's arguments by name; of a few operations they decide.
        lineage_of: the lineage of one of these; likewise.

    Returns:
        None if it is not known.

    Examples:
        >>> need("relu", "", "result", {}), need("relu", "", "self", {})
        (<Need.SIGNS: 'sign and zeros of each value'>, None)
        >>> need("pow", "Tensor_Scalar", "self", {"exponent": 0.5}).name
        'RELATIVE'
    """
    found = _find(op, overload, slot, arguments, lineage_of)
    if isinstance(found, Normed):
        return Need.VALUES
    return Need.EXACT if isinstance(found, Exact) else found


def why(op: str, overload: str, slot: str, arguments: Arguments) -> str:
    """The reason for ``need``, in a few words for a report; "unknown operation" where there is none.

    Examples:
        >>> why("native_layer_norm", "", "result2", {})
        'norm statistics'
    """
    found = _find(op, overload, slot, arguments, lambda _: NO_LINEAGE)
    if found is None:
        return "unknown operation"
    if isinstance(found, Normed):
        found = Need.VALUES
    return found.why if isinstance(found, Exact) else found.value


def _find(op: str, overload: str, slot: str, arguments: Arguments, lineage_of: LineageOf) -> Known | None:
    name = op.removesuffix("_")
    slots = TABLE.get(f"{name}.{overload}") or TABLE.get(name, {})
    entry = slots.get(slot)
    return entry(arguments, lineage_of) if callable(entry) else entry
