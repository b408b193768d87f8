"""The table of kernels: which entry describes what a call saves, and that what none describes is unknown."""

import warnings

import pytest
import torch

from torch_bridge import internals
from torch_bridge.facts.functions import FUNCTIONS, GRADIENT, NOT_TRAINED, WEIGHT, needs_of, packages_of
from torch_bridge.facts.need import LOG_SUM_EXP, NORM, Exact, Need, normed

TOKENS, WIDTH, HEADS = 32, 64, 4
ACTIVATION = torch.zeros(TOKENS, WIDTH)
WEIGHTS, ROWS = torch.zeros(WIDTH), torch.zeros(TOKENS)
QUERY, SUMS = torch.zeros(1, TOKENS, HEADS, WIDTH // HEADS), torch.zeros(1, HEADS, TOKENS)
BIAS = torch.zeros(1, HEADS, TOKENS, TOKENS)


def test_this_torch_has_all_that_the_bridge_takes_of_it():
    internals.has.cache_clear()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert all(internals.has(feature) for feature in ("savers", "storages", "recomputation"))


def test_a_function_that_nobody_has_read_is_unknown():
    assert needs_of("SomebodysKernel", [ACTIVATION]) is None


@pytest.mark.parametrize(
    "module", ["my_model.layers", "flash_attention", "flash_attn2", "my.flash_attn", "transformers_modules.x"]
)
def test_a_class_of_another_package_is_unknown(module):
    tensors = [QUERY, QUERY, QUERY, QUERY, SUMS]
    assert needs_of("flash_attn.flash_attn_interface.FlashAttnFunc", tensors) is not None
    assert needs_of(f"{module}.FlashAttnFunc", tensors) is None


def test_every_entry_names_its_packages():
    for name, entries in FUNCTIONS.items():
        assert all(entry.packages for entry in entries), name
        assert packages_of(name) == sorted({one for entry in entries for one in entry.packages})


@pytest.mark.parametrize("tensors", [[], [QUERY] * 4, [*[QUERY] * 4, SUMS, QUERY]])
def test_another_number_of_tensors_is_unknown(tensors):
    assert needs_of("flash_attn.flash_attn_interface.FlashAttnVarlenFunc", tensors) is None


@pytest.mark.parametrize(
    "name",
    [
        "flash_attn.flash_attn_interface.FlashAttnFunc",
        "flash_attn_interface.FlashAttnFunc",
        "xformers.ops.fmha._fMHA",
        "torch._library.autograd.GeneratedBackwardFor_flash_attn_3__flash_attn_forward_default",
    ],
)
def test_attention_needs_its_logits_and_its_sums(name):
    needs = needs_of(name, [QUERY, QUERY, QUERY, QUERY, SUMS])
    assert needs == (Need.LOGITS, Need.LOGITS, Need.ATTENDED, Need.ATTENDED, LOG_SUM_EXP)


def test_sums_are_never_taken_for_outputs_where_kernels_share_a_name():
    packed = torch.zeros(1, TOKENS, 2, HEADS, WIDTH // HEADS)
    needs = needs_of(
        "flash_attn.flash_attn_interface.FlashAttnKVPackedFunc", [QUERY, packed, QUERY, SUMS, BIAS]
    )
    assert needs == (Need.LOGITS, Need.LOGITS, Need.ATTENDED, LOG_SUM_EXP, Need.LOGITS_BIAS)
    needs = needs_of(
        "flash_attn.flash_attn_interface.FlashAttnKVPackedFunc", [QUERY, QUERY, QUERY, QUERY, SUMS]
    )
    assert needs[-1] is LOG_SUM_EXP


def test_patterns_stand_for_all_backends_of_a_kernel():
    for name in ("LigerRMSNormFunction", "_LigerRMSNormCuTeDSLFunction", "_LigerRMSNormCuTileFunction"):
        assert needs_of(f"liger_kernel.ops.{name}", [ACTIVATION, WEIGHTS, ROWS]) == (
            Need.VALUES,
            WEIGHT,
            NORM,
        )


def test_only_inputs_that_are_trained_through_are_lossy_in_a_recomputation():
    trained = ACTIVATION.clone().requires_grad_()
    needs = needs_of("torch.utils.checkpoint.CheckpointFunction", [trained, ACTIVATION, trained])
    assert needs == (Need.VALUES, NOT_TRAINED, Need.VALUES)


def test_a_chain_of_operations_is_a_norm_only_with_statistics_of_rows():
    chain = "transformer_engine.pytorch.ops.fuser._OperationFuserAutogradFunction"
    assert needs_of(chain, [ACTIVATION, ROWS]) == (Need.VALUES, NORM)
    assert needs_of(chain, [ACTIVATION, ROWS, ROWS]) == (normed(), NORM, NORM)
    assert needs_of(chain, [ACTIVATION, ACTIVATION]) is None
    assert needs_of(chain, [ACTIVATION, torch.zeros(WIDTH, WIDTH)]) is None


def test_an_output_that_is_divided_by_a_weight_keeps_its_relative_error():
    name = "apex.normalization.fused_layer_norm.FusedLayerNormAffineFunction"
    assert needs_of(name, [ACTIVATION, WEIGHTS, WEIGHTS, ROWS, ROWS])[0] is normed()
    assert needs_of(name, [ACTIVATION, WEIGHTS, WEIGHTS, ROWS])[0] is Need.RELATIVE


def test_gradients_of_a_fused_loss_are_exact():
    for number in (1, 2, 3):
        needs = needs_of(
            "liger_kernel.ops.fused_linear_cross_entropy.LigerFusedLinearCrossEntropyFunction",
            [ACTIVATION.requires_grad_()] * number,
        )
        assert needs == (GRADIENT,) * number


def test_entries_of_a_name_differ_in_what_they_describe():
    """Where two describe the same tensors, the first alone would ever hold."""
    for name, entries in FUNCTIONS.items():
        described = [
            (entry.packages, len(entry.slots), [need is Need.ATTENDED for _, need in entry.slots])
            for entry in entries
        ]
        assert all(one not in described[:i] for i, one in enumerate(described)), name


def test_no_statistic_and_no_weight_is_lossy():
    exact = (
        "rstd",
        "rsigma",
        "invvar",
        "invstd",
        "mean",
        "lse",
        "sum",
        "weight",
        "cos",
        "sin",
        "bias",
        "scale",
    )
    allowed = {Need.LOGITS_BIAS}
    for name, entries in FUNCTIONS.items():
        for slot in (slot for entry in entries for slot in entry.slots):
            if any(word in slot.name for word in exact) and slot.name not in ("attn_weights",):
                assert isinstance(slot.need, Exact) or slot.need in allowed, (name, slot)
