"""The table of what backward passes need, against the formulas of the installed PyTorch."""

import math
from collections import defaultdict

import pytest
import torch
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from torch_bridge.facts import needs
from torch_bridge.facts.lineage import Autograd
from torch_bridge.facts.need import Exact, Need
from torch_bridge.facts.needs import TABLE, UNKNOWN, need, why
from torch_bridge.facts.operations import operation

from . import saved_noise
from .saved_cases import CASES, among, mask, of, of_positive, of_two, values
from .saved_noise import Gradients, formulas, noisy

# What can only be integers: whatever operation saves it, and of some operations.
INTEGERS = {
    *("index", "indices", "pivots", "targets", "offsets", "offs", "lengths"),
    *("input_lengths", "target_lengths", "philox_seed", "philox_offset", "rng_state", "unused"),
    *("cum_seq_q", "cum_seq_k", "cu_seqlens_q", "cu_seqlens_k"),
}
INTEGERS_OF = {
    *(f"{kind}_max_pool{n}d.result1" for kind in ("adaptive", "fractional") for n in (2, 3)),
    *("max_pool2d_with_indices.result1", "max_pool3d_with_indices.result1", "_pack_padded_sequence.result1"),
    *(f"nll_loss{kind}.target" for kind in ("_forward", "2d_forward", "_backward", "2d_backward")),
    *("frexp.exponent", "multi_margin_loss.target", "multilabel_margin_loss_forward.target"),
    *(f"_embedding_bag.result{n}" for n in (1, 2, 3)),
}
# No formula of derivatives.yaml, but a Function of PyTorch's own.
FUNCTIONS = {"flex_attention"}
# What only some of the supported versions save: read in derivatives.yaml of 2.6, 2.8, 2.10 and 2.13.
SOME_VERSIONS = {
    *("_cudnn_attention_forward", "_foreach_mm", "_fused_rms_norm", "_grouped_mm", "aminmax", "ldexp"),
    *("grid_sampler_2d_backward", "grid_sampler_3d_backward", "_grid_sampler_2d_cpu_fallback_backward"),
    *("cudnn_grid_sampler_backward", "linalg_lstsq.solution", "linalg_lu_factor", "miopen_ctc_loss"),
    "nextafter",
}

# What no CPU computes, or only in a layout of one library.
ELSEWHERE = {
    *("linear", "linear_backward", "matmul", "mkldnn_linear", "mkldnn_adaptive_avg_pool2d"),
    *("convolution_overrideable", "convolution_backward_overrideable", "_nnpack_spatial_convolution"),
    *("_conv_depthwise2d", "conv_depthwise3d", "cudnn_convolution", "cudnn_convolution_transpose"),
    *("miopen_convolution", "miopen_convolution_transpose", "miopen_depthwise_convolution"),
    *("_mps_convolution", "_mps_convolution_transpose", "mps_convolution_backward"),
    *("_fused_dropout", "_fused_rms_norm", "cudnn_batch_norm", "miopen_batch_norm"),
    *("_thnn_fused_lstm_cell", "_thnn_fused_gru_cell", "_cudnn_rnn", "miopen_rnn", "flex_attention"),
    *("_scaled_dot_product_flash_attention", "_flash_attention_forward"),
    *("_scaled_dot_product_efficient_attention", "_efficient_attention_forward"),
    *("_scaled_dot_product_cudnn_attention", "_cudnn_attention_forward"),
    "_scaled_dot_product_fused_attention_overrideable",
}


def saved_by_key():
    """What PyTorch saves that can hold floats, by the keys of the table."""
    found = defaultdict(set)
    for op, overload, slots in formulas().values():
        key = f"{op}.{overload}" if f"{op}.{overload}" in TABLE else op
        is_integer = {slot for slot in slots if slot in INTEGERS or f"{op}.{slot}" in INTEGERS_OF}
        if is_integer != set(slots):
            found[key] |= set(slots) - is_integer
    return found


def test_every_formula_that_saves_floats_is_in_the_table_or_known_to_be_unknown():
    new = {
        key: sorted(slots - TABLE.get(key, {}).keys())
        for key, slots in saved_by_key().items()
        if key not in UNKNOWN and slots - TABLE.get(key, {}).keys()
    }
    assert not new, f"new in this torch: {new}"


def test_the_table_has_nothing_that_pytorch_does_not_save():
    saved = saved_by_key()
    gone = {
        f"{key}.{slot}"
        for key, slots in TABLE.items()
        if key in saved or key not in FUNCTIONS | SOME_VERSIONS
        for slot in slots.keys() - saved.get(key, set())
    } - SOME_VERSIONS
    assert not gone, f"gone in this torch: {gone}"
    assert not UNKNOWN - saved.keys() - SOME_VERSIONS
    assert not UNKNOWN & TABLE.keys()


def names_in_schema(op, overload):
    """Of an operation's arguments and results, as the table has them."""
    packet = getattr(torch.ops.aten, op, None) or getattr(torch.ops.aten, f"{op}_")
    schema = getattr(packet, overload or "default")._schema
    results = [one.name for one in schema.returns]
    numbered = [f"result{n}" if len(results) > 1 else "result" for n in range(len(results))]
    named = [name or number for name, number in zip(results, numbered, strict=True)]
    return {*(one.name for one in schema.arguments), *named}


def test_what_is_saved_has_the_name_of_an_argument_or_a_result():
    written_in_place = {"result"}
    for op, overload, slots in formulas().values():
        assert set(slots) <= names_in_schema(op, overload) | written_in_place, f"{op}.{overload}"


def slots_that_may_be_lossy(key):
    return {slot for slot, entry in TABLE[key].items() if not isinstance(entry, Exact)}


def test_what_may_be_lossy_is_tried_or_needs_another_device():
    lossy = {key for key in TABLE if slots_that_may_be_lossy(key)}
    assert CASES.keys() | ELSEWHERE == lossy
    assert not CASES.keys() & ELSEWHERE


# Of gates elsewhere than at 0 some open or close, as many as there are values within the noise. Where a
# softmax has found one value, its gradient is a small difference of what the noise has changed.
BOUNDS = {
    Need.VALUES: 3 * saved_noise.VALUES_NOISE,
    Need.SIGNS: 3 * saved_noise.SIGNS_NOISE,
    Need.PROBABILITIES: 8 * saved_noise.PROBABILITIES_NOISE,
    Need.LOG_PROBABILITIES: 8 * saved_noise.LARGE_NOISE,
}
RELATIVE_BOUND = 8 * saved_noise.RELATIVE_NOISE


@pytest.mark.parametrize("key", CASES)
def test_noise_that_a_need_allows_leaves_gradients_as_they_are(key):
    tried = set()
    for case in CASES[key]:
        gradients = Gradients(case)
        for place, saved in enumerate(gradients.saved):
            if saved.formula.op != key.partition(".")[0]:
                continue
            tried.add(saved.slot)
            if saved.need is Need.BITS:
                assert saved.tensor.unique().numel() <= 2
                continue
            error = gradients.error(place, lambda tensor, saved=saved: noisy(tensor, saved.need))
            bound = BOUNDS.get(saved.need, RELATIVE_BOUND)
            assert error <= bound, f"{saved.formula.op}, {saved.slot}, {saved.need}: {error:.3g}"
    assert slots_that_may_be_lossy(key) <= tried


def near(function, apart=0.01, *arguments):
    """Of two tensors that are near each other."""

    def case():
        one = values()
        other = (one.detach() + apart * torch.randn(16, 128)).requires_grad_()
        return function(one, other, *arguments)

    return case


def sure(function):
    """A loss of logits that are right, and far from 0."""

    def case():
        targets = mask().float()
        return function((80 * targets - 40 + torch.randn(16, 128)).requires_grad_(), targets)

    return case


def ctc():
    lengths = torch.full((4,), 32), torch.full((4,), 8)
    return functional.ctc_loss((5 * values(32, 4, 16)).log_softmax(-1), 1 + among(15, 4, 8), *lengths)


def one_class(x):
    """A softmax of which one class has nearly all."""
    return (x + 6 * torch.eye(16, 128)).softmax(-1)


def below_one(function):
    return lambda: function((1 - 1e-3 * torch.rand(16, 128)).requires_grad_())


def sampled():
    grid = (torch.rand(2, 32, 32, 2) * 2 - 1).requires_grad_()
    return functional.grid_sample(values(2, 3, 64, 64), grid, align_corners=False)


# Operations, and what they save, which less than their need ruins: noise of a block on what needs more than
# VALUES, noise of each value on what needs to be EXACT.
NEEDY = {
    "relu.result": of(torch.relu),
    "leaky_relu.result": CASES["leaky_relu"][1],
    "threshold.self": of(functional.threshold, 0.1, 0.0),
    "abs.self": of(torch.abs),
    "clamp.self": of(torch.clamp, -0.5, 0.5),
    "div.other": of_two(torch.div),
    "addcdiv.tensor2": CASES["addcdiv"][0],
    "sqrt.result": of_positive(torch.sqrt),
    "log.self": of_positive(torch.log),
    "xlogy.other": CASES["xlogy"][0],
    "pow.self": of_positive(torch.pow, 0.5),
    "prod.result": CASES["prod"][0],
    "hypot.result": of_two(torch.hypot),
    "copysign.result": of_two(torch.copysign),
    "atan2.self": of_two(torch.atan2),
    "linalg_vector_norm.self": of(torch.linalg.vector_norm, 0.5, 1),
    "_log_softmax.result": lambda: torch.log_softmax(20 * values(), -1),
    "mse_loss.self": near(functional.mse_loss),
    "smooth_l1_loss.self": near(functional.smooth_l1_loss),
    "huber_loss.target": near(functional.huber_loss),
    "binary_cross_entropy_with_logits.self": sure(functional.binary_cross_entropy_with_logits),
    "soft_margin_loss.self": sure(lambda x, goal: functional.soft_margin_loss(x, 2 * goal - 1)),
    "_ctc_loss.log_probs": ctc,
    "dist.self": near(torch.dist),
    "_cdist_forward.x1": lambda: torch.cdist(100 + values(8, 4), 100 + values(8, 4), p=1.0),
    "_euclidean_dist.x1": lambda: torch.cdist(100 + values(32, 4), 100 + values(32, 4)),
    "lerp.self": near(lambda one, other: torch.lerp(one, other, torch.rand(16, 128).requires_grad_())),
    "amax.self": of(torch.amax, 1),
    "median.self": of(torch.median),
    "aminmax.max": lambda: tuple(torch.aminmax(values(), dim=1)),
    "scatter_reduce.src": lambda: torch.scatter_reduce(values(32), 0, among(32, 128), values(128), "amax"),
    "logsumexp.result": lambda: (20 * values()).logsumexp(-1),
    "logcumsumexp.result": lambda: (20 * values()).logcumsumexp(-1),
    "acos.self": below_one(torch.acos),
    "atanh.self": below_one(torch.atanh),
    "log1p.self": below_one(lambda x: torch.log1p(-x)),
    "logit.self": below_one(torch.logit),
    "fmod.self": near(lambda one, other: torch.fmod(1 + one * one, 1 + other * other), 1e-4),
    "grid_sampler_2d.grid": sampled,
}


@pytest.mark.parametrize("name", NEEDY)
def test_less_than_a_need_ruins_gradients(name):
    op, _, slot = name.partition(".")
    gradients = Gradients(NEEDY[name])
    places = [n for n, one in enumerate(gradients.saved) if (one.formula.op, one.slot) == (op, slot)]
    needed = gradients.saved[places[0]].need
    assert needed not in (None, Need.VALUES)
    less = Need.RELATIVE if needed is Need.EXACT else Need.VALUES
    bound = RELATIVE_BOUND if needed is Need.EXACT else BOUNDS[Need.VALUES]
    assert gradients.error(places[0], lambda tensor: noisy(tensor, less)) > 1.5 * bound


ONLY_SHAPE = [
    *(f"{kind}_pool{n}d" for kind in ("_adaptive_avg", "avg", "adaptive_max") for n in (2, 3)),
    *("fractional_max_pool2d", "fractional_max_pool3d", "max_pool2d_with_indices", "max_pool3d_with_indices"),
    *(f"{kind}_pad{n}d" for kind in ("reflection", "replication") for n in (1, 2, 3)),
    *("cummax", "cummin", "gather", "take", "masked_select", "_fft_r2c", "index_add", "index_copy", "put"),
    *("complex", "scatter_reduce", "nll_loss_forward", "nll_loss2d_forward"),
]


@pytest.mark.parametrize("key", ONLY_SHAPE)
def test_where_only_the_shape_is_read_no_value_is_needed(key):
    for case in CASES[key]:
        gradients = Gradients(case)
        for place, saved in enumerate(gradients.saved):
            if saved.need is Need.VALUES:
                assert gradients.error(place, lambda tensor: torch.full_like(tensor, torch.nan)) == 0


@pytest.mark.parametrize(
    ("op", "overload", "slot", "arguments", "expected"),
    [
        ("relu", "default", "result", {}, Need.SIGNS),
        ("relu_", "", "result", {}, Need.SIGNS),
        ("relu", "", "self", {}, None),
        ("my_kernel", "", "self", {}, None),
        ("sum", "dim_IntList", "self", {}, None),
        ("div", "Tensor", "other", {}, Need.RELATIVE),
        ("_linalg_det", "", "LU", {}, Need.EXACT),
        ("pow", "Tensor_Tensor", "self", {}, Need.RELATIVE),
        *(("pow", "Tensor_Scalar", "self", {"exponent": n}, Need.VALUES) for n in (0, 1, 3.0, 4)),
        ("pow", "Tensor_Scalar", "self", {"exponent": 2.0}, Need.SQUARED),
        *(("pow", "Tensor_Scalar", "self", {"exponent": n}, Need.RELATIVE) for n in (-1, 0.5, 1e-5, 9)),
        ("pow_", "Tensor_Scalar", "self", {}, Need.RELATIVE),
        ("norm", "Scalar", "self", {"p": 2}, Need.RELATIVE),
        ("norm", "ScalarOpt_dim", "self", {"p": math.inf}, Need.EXACT),
        ("linalg_vector_norm", "", "self", {"ord": -math.inf}, Need.EXACT),
        ("scatter_reduce", "two", "src", {"reduce": "mean"}, Need.VALUES),
        ("scatter_reduce", "two", "src", {"reduce": "prod"}, Need.EXACT),
        ("scatter_reduce", "two", "src", {}, Need.EXACT),
        ("_cudnn_rnn", "", "result0", {"mode": 1}, Need.TANH),
        ("_cudnn_rnn", "", "result0", {"mode": 2}, Need.RELATIVE),
        ("mul", "Tensor", "self", {"self": 2, "other": 3}, Need.VALUES),
    ],
)
def test_a_need_is_found_by_operation_overload_and_arguments(op, overload, slot, arguments, expected):
    assert need(op, overload, slot, arguments) is expected


class Products(TorchDispatchMode):
    """Notes what products need of their factors."""

    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.mul.Tensor:
            of_tensor = Autograd().of_tensor
            self.found += [operation(func).need(slot, args, {}, of_tensor) for slot in ("self", "other")]
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    "loss",
    [
        lambda x, goal: functional.cross_entropy(x, goal),
        lambda x, goal: functional.kl_div(x.log_softmax(-1), goal, reduction="batchmean"),
        lambda x, goal: (goal.view(4, 4, 128) * x.log_softmax(-1).view(4, 4, 128)).sum(),
    ],
    ids=["cross_entropy", "kl_div", "views"],
)
def test_targets_of_a_log_softmax_are_known_when_the_product_runs(loss):
    x, goal = values(), values().detach().softmax(-1)
    with Products() as products:
        loss(x, goal)
    assert products.found == [Need.LOG_PROBABILITIES] * 2


def test_a_report_has_a_reason():
    assert why("native_layer_norm", "default", "result1", {}) == "norm statistics"
    assert why("mse_loss", "", "target", {}) == "a loss that may be near its least"
    assert why("_log_softmax", "", "result", {}) == "log-softmax"
    assert why("my_kernel", "", "self", {}) == "unknown operation"
    assert why("linalg_vector_norm", "", "self", {"ord": math.inf}) == "looked for among the inputs"


def test_an_operation_stands_in_the_table_once():
    with pytest.raises(ValueError, match="not 'relu' in two"):
        needs._rows("relu", {"self": Need.VALUES})
