"""Operations whose gradients a CPU computes, each with inputs of its own, for tests of what they save."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

aten: Any = torch.ops.aten
Case = Callable[[], Any]


def values(*shape: int) -> torch.Tensor:
    """Values of both signs and many sizes: large ones beside small ones."""
    shape = shape or (16, 128)
    return (torch.randn(shape) * torch.randn(shape).mul(0.7).exp()).requires_grad_()


def positive(*shape: int) -> torch.Tensor:
    return values(*shape).detach().abs().add(0.01).requires_grad_()


def mask(*shape: int) -> torch.Tensor:
    return torch.rand(shape or (16, 128)) < 0.5


def among(most: int, *shape: int) -> torch.Tensor:
    return torch.randint(most, shape)


def of(function: Any, *arguments: Any) -> Case:
    return lambda: function(values(), *arguments)


def of_positive(function: Any, *arguments: Any) -> Case:
    return lambda: function(positive(), *arguments)


def of_two(function: Any, *arguments: Any) -> Case:
    return lambda: function(values(), values(), *arguments)


def of_images(function: Any, dims: int, *arguments: Any) -> Case:
    return lambda: function(values(2, 3, *[12] * dims), *arguments)


def padded(kind: str, dims: int) -> Case:
    return of_images(getattr(aten, f"{kind}_pad{dims}d"), dims, [2] * (2 * dims))


def fractional(dims: int) -> Case:
    function = getattr(aten, f"fractional_max_pool{dims}d")
    return lambda: function(values(2, 3, *[12] * dims), [2] * dims, [5] * dims, torch.rand(2, 3, dims))


def convolved(function: Any, dims: int, *arguments: Any) -> Case:
    return lambda: function(values(2, 4, *[8] * dims), values(4, 4, *[3] * dims), *arguments)


def soft_targets() -> torch.Tensor:
    return functional.cross_entropy(values(), values().softmax(-1))


def attention() -> torch.Tensor:
    q, k, v = (torch.randn(2, 4, 64, 32).requires_grad_() for _ in range(3))
    return aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, attn_mask=torch.randn(64, 64))[0]


def batch_norm(function: Any, *arguments: Any) -> Case:
    """Of 12 values of 16 examples in 8 channels."""
    return lambda: function(
        *(values(16, 8, 12), positive(8), values(8), torch.zeros(8), torch.ones(8)), *arguments
    )


def group_norm() -> torch.Tensor:
    return aten.native_group_norm(values(16, 8, 12), positive(8), values(8), 16, 8, 12, 2, 1e-5)[0]


def lstm() -> Any:
    sizes = (64, 32), (64, 16), (64,), (64,), (1, 4, 16), (1, 4, 16)
    weights = (torch.randn(size).mul(0.3).requires_grad_() for size in sizes)
    options = {"reverse": False, "batch_sizes": [], "mode": 2, "hidden_size": 16, "num_layers": 1}
    flags = {"has_biases": True, "bidirectional": False, "batch_first": False, "train": True}
    return aten.mkldnn_rnn_layer(values(10, 4, 32), *weights, **options, **flags)[:3]


def embedding_bag() -> torch.Tensor:
    bags, scaled, sums, sparse = torch.arange(0, 64, 4), False, 0, False
    return aten._embedding_bag(values(32, 16), among(32, 64), bags, scaled, sums, sparse, values(64))[0]


def grouped() -> torch.Tensor:
    ends = torch.tensor([16, 32], dtype=torch.int32)
    return aten._grouped_mm(values(32, 64), values(2, 64, 32), ends)


def masked_index() -> torch.Tensor:
    return aten._unsafe_masked_index(values(), mask(8), [among(16, 8), among(128, 8)], 0)


def masked_index_put() -> torch.Tensor:
    where = [among(16, 8), among(128, 8)]
    return aten._unsafe_masked_index_put_accumulate(values(), mask(8), where, values(8))


def rrelu(function: Any, training: bool) -> Case:
    return lambda: function(values(), torch.rand(16, 128), 0.1, 0.3, training)


def quantized_by_channel() -> torch.Tensor:
    scale, zero = torch.full((16,), 0.1), torch.zeros(16, dtype=torch.int32)
    return aten.fake_quantize_per_channel_affine_cachemask(values(), scale, zero, 0, -8, 7)[0]


def quantized_by_tensors() -> torch.Tensor:
    function = aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams
    return function(values(), torch.tensor(0.1), torch.zeros(1).int(), torch.ones(1).long(), -8, 7)[0]


def quantized_by_observer() -> torch.Tensor:
    on, index = torch.ones(1).long(), torch.zeros(1).int()
    ranges = (torch.zeros(1), torch.ones(1), torch.ones(1), index)
    return aten._fused_moving_avg_obs_fq_helper(values(), on, on, *ranges, 0.1, 0, 255, 0)[0]


def scattered(reduce: str) -> Case:
    return lambda: torch.scatter_reduce(values(32), 0, among(32, 128), values(128), reduce)


def in_place(function: Any, *arguments: Any) -> Case:
    return lambda: function(values() * 1, *arguments)


_ONES, _THREES = [1, 1], [3, 3]

CASES: dict[str, tuple[Case, ...]] = {
    # products
    "mul": (of_two(torch.mul), soft_targets),
    "mm": (lambda: torch.mm(values(64, 128), values(128, 32)),),
    "bmm": (lambda: torch.bmm(values(4, 64, 128), values(4, 128, 32)),),
    "_grouped_mm": (grouped,),
    "addmm": (lambda: torch.addmm(values(32), values(64, 128), values(128, 32)),),
    "addbmm": (lambda: torch.addbmm(values(64, 32), values(4, 64, 128), values(4, 128, 32)),),
    "baddbmm": (lambda: torch.baddbmm(values(4, 64, 32), values(4, 64, 128), values(4, 128, 32)),),
    "linalg_cross": (lambda: torch.linalg.cross(values(64, 3), values(64, 3)),),
    "vdot": (lambda: torch.vdot(values(128), values(128)),),
    "mv": (lambda: torch.mv(values(), values(128)),),
    "addmv": (lambda: torch.addmv(values(16), values(), values(128)),),
    "dot": (lambda: torch.dot(values(128), values(128)),),
    "addr": (lambda: torch.addr(values(), values(16), values(128)),),
    "addcmul": (lambda: torch.addcmul(values(), values(), values()),),
    "_trilinear": (lambda: functional.bilinear(values(16, 8), values(16, 8), values(4, 8, 8)),),
    "_embedding_bag": (embedding_bag,),
    "convolution": (convolved(torch.conv2d, 2), convolved(torch.conv_transpose1d, 1)),
    "_convolution": (
        convolved(
            *(aten._convolution, 2, None, _ONES, _ONES, _ONES, False, [0, 0], 1, False, False, False, False)
        ),
    ),
    "_slow_conv2d_forward": (convolved(aten._slow_conv2d_forward, 2, _THREES, None, _ONES, _ONES),),
    "slow_conv3d_forward": (convolved(aten.slow_conv3d_forward, 3, [3] * 3, None, [1] * 3, [1] * 3),),
    "slow_conv_dilated2d": (convolved(aten.slow_conv_dilated2d, 2, _THREES),),
    "slow_conv_dilated3d": (convolved(aten.slow_conv_dilated3d, 3, [3] * 3),),
    "slow_conv_transpose2d": (convolved(aten.slow_conv_transpose2d, 2, _THREES),),
    "slow_conv_transpose3d": (convolved(aten.slow_conv_transpose3d, 3, [3] * 3),),
    "mkldnn_convolution": (convolved(aten.mkldnn_convolution, 2, None, _ONES, _ONES, _ONES, 1),),
    "conv_tbc": (lambda: torch.conv_tbc(values(16, 4, 8), values(3, 8, 6), values(6)),),
    "convolution_backward": (
        lambda: aten.convolution_backward(
            *(values(2, 4, 6, 6), values(2, 4, 8, 8), values(4, 4, 3, 3), None, _ONES, [0, 0], _ONES),
            *(False, [0, 0], 1, [True, True, False]),
        ),
    ),
    "_slow_conv2d_backward": (
        lambda: aten._slow_conv2d_backward(
            *(values(2, 4, 6, 6), values(2, 4, 8, 8), values(4, 4, 3, 3), _THREES, _ONES, [0, 0]),
            output_mask=[True, True, False],
        ),
    ),
    # smooth functions
    **{name: (of(getattr(functional, name)),) for name in ("gelu", "silu", "mish", "glu")},
    "erf": (of(torch.erf),),
    "erfc": (of(torch.erfc),),
    "gelu_backward": (of_two(aten.gelu_backward),),
    "glu_backward": (lambda: aten.glu_backward(values(16, 64), values(), -1),),
    "pow.Tensor_Scalar": tuple(
        case for n in (2, 3, 4) for case in (of(torch.pow, n), of_positive(torch.pow, n + 0.5))
    )
    + tuple(of_positive(torch.pow, n) for n in (-1, -2, 0.5, 7)),
    # only the shape is read
    "adaptive_max_pool2d": (of_images(aten.adaptive_max_pool2d, 2, [4, 4]),),
    "adaptive_max_pool3d": (of_images(aten.adaptive_max_pool3d, 3, [4] * 3),),
    "fractional_max_pool2d": (fractional(2),),
    "fractional_max_pool3d": (fractional(3),),
    "max_pool2d_with_indices": (of_images(functional.max_pool2d, 2, 2),),
    "max_pool3d_with_indices": (of_images(functional.max_pool3d, 3, 2),),
    "_adaptive_avg_pool2d": (of_images(aten._adaptive_avg_pool2d, 2, [4, 4]),),
    "_adaptive_avg_pool3d": (of_images(aten._adaptive_avg_pool3d, 3, [4] * 3),),
    "avg_pool2d": (of_images(functional.avg_pool2d, 2, 2),),
    "avg_pool3d": (of_images(functional.avg_pool3d, 3, 2),),
    **{f"{kind}_pad{n}d": (padded(kind, n),) for kind in ("reflection", "replication") for n in (1, 2, 3)},
    "cummax": (of(torch.cummax, 1),),
    "cummin": (of(torch.cummin, 1),),
    "gather": (lambda: values().gather(1, among(128, 16, 64)),),
    "take": (lambda: values().take(among(2048, 64)),),
    "_fft_r2c": (lambda: torch.fft.rfft(values()).real,),
    "index_add": (lambda: values().index_add(0, among(16, 8), values(8, 128)),),
    "index_copy": (lambda: values().index_copy(0, torch.arange(8), values(8, 128)),),
    "put": (lambda: values().put(torch.arange(64), values(64)),),
    "complex": (lambda: torch.complex(values(), values()).real,),
    "scatter_reduce": (scattered("sum"), scattered("mean")),
    "nll_loss_forward": (lambda: aten.nll_loss_forward(values(), among(128, 16), None, 1, -100)[0],),
    "nll_loss2d_forward": (
        lambda: aten.nll_loss2d_forward(values(2, 8, 4, 4), among(8, 2, 4, 4), None, 1, -100)[0],
    ),
    # gates
    "relu": (of(torch.relu),),
    "elu": (of(functional.elu), of(functional.selu), in_place(aten.elu_)),
    "celu": (of(functional.celu), in_place(aten.celu_)),
    "leaky_relu": (of(functional.leaky_relu), in_place(aten.leaky_relu_)),
    "threshold": (of(functional.threshold, 0.1, 0.0),),
    **{
        name: (of(getattr(functional, name)),)
        for name in ("hardtanh", "hardswish", "hardsigmoid", "hardshrink", "softshrink")
    },
    "abs": (of(torch.abs),),
    "threshold_backward": (of_two(aten.threshold_backward, 0),),
    "leaky_relu_backward": (of_two(aten.leaky_relu_backward, 0.1, False),),
    "hardtanh_backward": (of_two(aten.hardtanh_backward, -1, 1),),
    "hardshrink_backward": (of_two(aten.hardshrink_backward, 0.5),),
    "softshrink_backward": (of_two(aten.softshrink_backward, 0.5),),
    "hardswish_backward": (of_two(aten.hardswish_backward),),
    "clamp": (of(torch.clamp, -0.5, 0.5), lambda: values().clamp(values() - 1, values() + 1)),
    "clamp_min": (of(torch.clamp_min, 0), of_two(torch.clamp_min)),
    "clamp_max": (of(torch.clamp_max, 0), of_two(torch.clamp_max)),
    "_prelu_kernel": (lambda: functional.prelu(values(), values(128)),),
    "_prelu_kernel_backward": (lambda: aten._prelu_kernel_backward(values(), values(), values(1, 128)),),
    "rrelu_with_noise": (
        rrelu(aten.rrelu_with_noise, False),
        rrelu(aten.rrelu_with_noise, True),
        rrelu(lambda x, *rest: aten.rrelu_with_noise_(x * 1, *rest), True),
    ),
    "rrelu_with_noise_functional": (rrelu(aten.rrelu_with_noise_functional, True),),
    "rrelu_with_noise_backward": (
        lambda: aten.rrelu_with_noise_backward(
            values(), values(), torch.rand(16, 128), 0.1, 0.3, True, False
        ),
    ),
    **{name: (of_two(getattr(torch, name)),) for name in ("maximum", "minimum", "fmax", "fmin")},
    "sgn": (of(torch.sgn),),
    "nan_to_num": (of(torch.nan_to_num),),
    "nansum": (of(torch.nansum),),
    # masks
    "where": (lambda: torch.where(mask(), values(), values()),),
    "masked_fill": (lambda: values().masked_fill(mask(), 0.0),),
    "masked_scatter": (lambda: values().masked_scatter(mask(), values()),),
    "masked_scatter_backward": (lambda: aten.masked_scatter_backward(values(), mask(), [16, 128]),),
    "masked_select": (lambda: values().masked_select(mask()),),
    "_unsafe_masked_index": (masked_index,),
    "_unsafe_masked_index_put_accumulate": (masked_index_put,),
    "native_dropout": (of(aten.native_dropout, 0.5, True),),
    "native_dropout_backward": (lambda: aten.native_dropout_backward(values(), mask(), 2.0),),
    "fake_quantize_per_channel_affine_cachemask": (quantized_by_channel,),
    "fake_quantize_per_tensor_affine_cachemask": (
        of(aten.fake_quantize_per_tensor_affine_cachemask, 0.1, 0, -8, 7),
    ),
    "_fake_quantize_per_tensor_affine_cachemask_tensor_qparams": (quantized_by_tensors,),
    "_fused_moving_avg_obs_fq_helper": (quantized_by_observer,),
    # divisors, roots, logarithms, powers and angles
    "div": (of_two(torch.div), lambda: values() / positive(16, 1)),
    "addcdiv": (lambda: torch.addcdiv(values(), values(), values()),),
    **{
        name: (of(getattr(torch, name)),)
        for name in ("reciprocal", "exp", "exp2", "expm1", "tan", "angle", "sin", "cos", "sinc", "sinh")
    },
    **{name: (of(getattr(torch, name)),) for name in ("cosh", "atan", "asinh", "i0")},
    **{name: (of_positive(getattr(torch, name)),) for name in ("sqrt", "log", "log2", "log10")},
    "renorm": (of(torch.renorm, 2, 0, 1.0),),
    "xlogy": (lambda: torch.xlogy(values(), positive()),),
    "pow": (
        lambda: torch.pow(positive(), torch.randn(16, 128).requires_grad_()),
        of(lambda x: torch.pow(2.5, x)),
    ),
    "ldexp": (of_two(torch.ldexp),),
    "prod": (lambda: values(16, 8).prod(1), lambda: values(8).prod()),
    "cumprod": (lambda: values(16, 8).cumprod(1),),
    "hypot": (of_two(torch.hypot),),
    "copysign": (of_two(torch.copysign),),
    "softplus": (of(functional.softplus),),
    "atan2": (of_two(torch.atan2),),
    "log_sigmoid_forward": (of(functional.logsigmoid),),
    # norms
    "var": (of(torch.var, 1),),
    "var_mean": (of(torch.var_mean, 1),),
    "std": (of(torch.std, 1),),
    "std_mean": (of(torch.std_mean, 1),),
    "norm": (of(aten.norm, 2), of(aten.norm, 1), of(aten.norm, 3.0, [1])),
    "linalg_vector_norm": tuple(of(torch.linalg.vector_norm, order, 1) for order in (0.5, 1, 2, 3)),
    "_weight_norm_interface": (lambda: aten._weight_norm_interface(values(), positive(16, 1), 0)[0],),
    "native_layer_norm": (lambda: functional.layer_norm(values(), [128], positive(128), values(128)),),
    "native_group_norm": (group_norm,),
    "native_batch_norm": (batch_norm(aten.native_batch_norm, True, 0.1, 1e-5),),
    "_native_batch_norm_legit": (batch_norm(aten._native_batch_norm_legit, True, 0.1, 1e-5),),
    "_native_batch_norm_legit_no_training": (
        batch_norm(aten._native_batch_norm_legit_no_training, 0.1, 1e-5),
    ),
    "_batch_norm_with_update": (batch_norm(aten._batch_norm_with_update, 0.1, 1e-5),),
    "_batch_norm_no_update": (batch_norm(aten._batch_norm_no_update, 0.1, 1e-5),),
    # ends, softmaxes and attention
    "sigmoid": (of(torch.sigmoid),),
    "tanh": (of(torch.tanh),),
    "_softmax": (of(torch.softmax, -1),),
    "_safe_softmax": (of(torch._safe_softmax, -1),),
    "_masked_softmax": (lambda: aten._masked_softmax(values(), mask(), 1, 2),),
    "_log_softmax": (of(torch.log_softmax, -1),),
    "logsumexp": (of(torch.logsumexp, -1),),
    "logaddexp": (of_two(torch.logaddexp),),
    "logaddexp2": (of_two(torch.logaddexp2),),
    "_scaled_dot_product_flash_attention_for_cpu": (attention,),
    "mkldnn_rnn_layer": (lstm,),
    "lerp": (lambda: torch.lerp(values(), values(), torch.rand(16, 128).requires_grad_()),),
}
