"""Where compression once ruined gradients or memory: cases of ``bench/known_cases.py``, each with its bound.

Those of kernels are in ``test_kernels.py``, those of families of models in ``test_families.py``.
"""

import pytest

from bench import known_cases


def test_weights_that_deepspeed_gathers_are_let_go_of():
    pytest.importorskip("deepspeed", reason="DeepSpeed is not installed, which gathers and frees weights")
    (row,) = known_cases.gathered()
    assert (row.blind, row.bitstash) == ("100%", "0%")


def test_a_few_large_tokens_do_not_ruin_the_gradients_of_a_norm():
    for row in known_cases.norms():
        assert row.blind > 1
        assert row.bitstash < 0.02, row


def test_hooks_of_others_are_named():
    (row,) = known_cases.others()
    assert "save_on_cpu" in row.bitstash


def test_tables_of_rotary_embeddings_are_exact():
    for row in known_cases.rotary_tables():
        assert row.blind > 0.1
        assert row.bitstash == 0, row


def test_a_mean_of_many_times_the_spread_costs_a_norm_no_precision():
    rows = [*known_cases.means()]
    assert sum(row.blind > 1 for row in rows) == 4  # 35 and 100 times
    assert all(row.bitstash < 0.2 for row in rows), rows


def test_the_error_of_attention_has_a_bound_whatever_its_logits():
    for row in known_cases.attention():
        assert row.bitstash < 0.4, row


def test_neither_a_peaked_softmax_nor_a_mean_of_the_values_costs_attention_precision():
    rows = [*known_cases.sinks()]
    assert max(row.blind for row in rows) > 10
    assert all(row.bitstash < 0.25 for row in rows), rows


def test_a_small_token_survives_beside_a_large_one_at_every_width():
    rows = [*known_cases.widths()]
    assert (
        sum(row.blind > 1 for row in rows) == 4
    )  # of 64, 192, 576 and 960, which are no multiples of a block
    for row in rows:
        assert row.bitstash < 0.2, row
