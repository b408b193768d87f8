"""The planner's promise: a training step needs what it says, and the planner needs no memory for it."""

import gc
import json
import re
import resource
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import transformers

from bench import planning
from torch_bridge import Compressor
from torch_bridge.internals import under_always
from torch_bridge.job import peak
from torch_bridge.job.cli import main
from torch_bridge.planner import DryRunError, config_of, estimates, plan, treatments
from torch_bridge.planner.dry import DryRun
from torch_bridge.planner.estimates import Training
from torch_bridge.planner.lora import LowRank
from torch_bridge.schemes.checkpointing import checkpoint_activations

from .families import SEQUENCES, T5, TEXT

WIDTH, HEADS, LAYERS, BATCH, LENGTH = 128, 4, 3, 2, 128
TOLERANCE = 0.05
PARTS = ("parameters", "gradients", "optimizer", "activations", "workspace")
SIZES = {
    **TEXT,
    "vocab_size": 512,
    "hidden_size": WIDTH,
    "intermediate_size": 3 * WIDTH,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "max_position_embeddings": LENGTH,
}
GROUPED = {**SIZES, "num_key_value_heads": 2, "head_dim": WIDTH // HEADS}
NAMED_AS_GPT2 = {"n_embd": WIDTH, "n_layer": LAYERS, "n_head": HEADS, "n_positions": LENGTH}
MODELS = {
    "gpt2": {**TEXT, "vocab_size": 512, **NAMED_AS_GPT2},
    "gpt_neo": {
        **SIZES,
        "num_layers": LAYERS,
        "num_heads": HEADS,
        "attention_types": [[["global"], LAYERS]],
    },
    "llama": GROUPED,
    "qwen3": GROUPED,
    "gemma2": {**GROUPED, "query_pre_attn_scalar": 32},
    "opt": {**SIZES, "ffn_dim": 3 * WIDTH, "word_embed_proj_dim": WIDTH},
    "phi": SIZES,
    "bert": SIZES,
    "t5": {**T5, "d_model": WIDTH, "d_kv": WIDTH // HEADS, "d_ff": 3 * WIDTH, "vocab_size": 512},
    "bart": {**SEQUENCES, "d_model": WIDTH, "vocab_size": 512, "max_position_embeddings": LENGTH},
}
EXPERTS = {"mixtral": {**GROUPED, "num_local_experts": 4}}
RANDOM_STATE = torch.get_rng_state().nbytes  # that a checkpoint keeps, where no operation makes it
SCALARS = 256  # bytes of numbers that operations are given, whose memory a dry run does not see
TREATMENTS = (
    treatments.BASELINE,
    treatments.FOUR_BITS,
    treatments.PLANES,
    treatments.CHECKPOINTING,
)

CASES = [(name, dtype) for name in MODELS for dtype in ("fp32", "bf16-autocast")]
CASES += [("gpt2", "bf16"), ("llama", "bf16"), ("mixtral", "bf16")]
TIMED_CASES = [(name, ("fp32", "bf16-autocast")[number % 2]) for number, name in enumerate(MODELS)]


def training_of(name, dtype="fp32", **options):
    config = transformers.AutoConfig.for_model(name, **(MODELS | EXPERTS)[name])
    options = {"batch": BATCH, "length": LENGTH, "device": "cpu", **options}
    return Training(config=config, dtype=dtype, **options)


def measured(training, treatment):
    """Bytes that a step allocates over those before it, at most and between its passes; what is stored."""
    torch.manual_seed(0)
    model = training.build()
    vocabulary = training.config.get_text_config().vocab_size
    tokens = torch.randint(5, vocabulary, (training.batch, training.length))
    batch = {"input_ids": tokens, "labels": tokens}
    optimizer = estimates.OPTIMIZERS[training.optimizer](
        [p for p in model.parameters() if p.requires_grad], False
    )
    saver = None if treatment.options is None else Compressor(model, **treatment.options_for(model))

    def step():
        checkpointing = checkpoint_activations(model) if treatment.is_checkpointed else nullcontext()
        with checkpointing, saver or nullcontext():
            loss = training.loss(model, batch)
        yield
        loss.backward()
        optimizer.step()

    for _ in range(2):
        for _ in step():
            pass
        optimizer.zero_grad(set_to_none=True)
        gc.collect()
    return peak.measure(step, torch.device("cpu")), saver.stored_bytes if saver else None


def wrong_of(training, compared):
    """What a plan says that a step does not need."""
    wrong = []
    for found in estimates.estimate(training, compared):
        real, stored = measured(training, found.treatment)
        planned = found.gradients + found.activations + found.workspace
        kept = found.kept + RANDOM_STATE * LAYERS * found.treatment.is_checkpointed
        what = f"{found.treatment.name}: stored {found.stored} of {stored}, kept {kept} of {real.kept}, "
        what += f"peak {planned} of {real.peak}"
        is_stored, is_peak = (
            stored in (None, found.stored),
            planned == pytest.approx(real.peak, rel=TOLERANCE),
        )
        # How many checkpoints of an encoder with a decoder keep a state is known to one.
        near = SCALARS + RANDOM_STATE * found.treatment.is_checkpointed
        if not (is_stored and is_peak and kept == pytest.approx(real.kept, abs=near)):
            wrong.append(what)
    return wrong


@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_a_step_needs_what_was_planned(name, dtype):
    assert wrong_of(training_of(name, dtype), TREATMENTS) == []


@pytest.mark.parametrize(("name", "dtype"), TIMED_CASES)
def test_a_step_with_a_time_needs_what_was_planned(name, dtype):
    """Products are done again as far as sums allow it: of values, which a plan has none of."""
    assert wrong_of(training_of(name, dtype), (treatments.TIMED, treatments.LAYER_INPUTS)) == []


def estimated(training, *chosen):
    return estimates.estimate(training, chosen or (treatments.BASELINE,))


def test_a_model_of_70_billion_parameters_needs_no_memory():
    training = Training(config=config_of("llama-3-70b"), length=8192)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    (found,) = estimated(training)
    assert found.parameters > 141e9
    assert found.kept > 200e9
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1 << 20, "in kB: less than 1 GiB"


def test_zero_shares_state_then_gradients_then_weights():
    whole, *stages = (
        estimated(training_of("llama", zero=stage, processes=4 if stage else 1))[0] for stage in range(4)
    )
    assert [stage.optimizer for stage in stages] == pytest.approx([whole.optimizer / 4] * 3, rel=0.001)
    assert stages[0].parameters == stages[1].parameters == whole.parameters
    assert stages[2].parameters == pytest.approx(whole.parameters / 4, rel=0.01)
    assert {stage.kept for stage in stages} == {whole.kept}


def test_adapters_leave_weights_without_gradients_and_state():
    training = training_of("llama", lora=4)
    model = training.build()
    trained = sum(one.numel() for one in model.parameters() if one.requires_grad)
    layers = [layer for layer in model.modules() if isinstance(layer, LowRank)]
    assert len(layers) == 7 * LAYERS
    assert trained == sum(4 * sum(layer.layer.weight.shape) for layer in layers)
    (found,) = estimated(training)
    real, _ = measured(training, treatments.BASELINE)
    assert found.kept == pytest.approx(real.kept, abs=SCALARS)
    moments = 8 * trained
    assert moments <= found.optimizer < moments + 100 * len(layers)


def test_the_loss_by_chunks_is_the_loss_and_keeps_no_logits():
    whole, parts = training_of("llama"), training_of("llama", loss_chunk=100)
    model, tokens = whole.build(), torch.randint(5, 512, (2, 40))
    batch = {"input_ids": tokens, "labels": tokens}
    assert parts.loss(model, batch).item() == pytest.approx(whole.loss(model, batch).item(), rel=1e-5)
    logits = BATCH * LENGTH * 512 * 4
    assert estimated(parts)[0].kept < estimated(whole)[0].kept - 0.9 * logits


def test_on_cuda_dropout_keeps_booleans_and_is_part_of_attention():
    here, there = (estimated(training_of("gpt2", device=device))[0] for device in ("cpu", "cuda"))
    probabilities = BATCH * HEADS * LENGTH * LENGTH * 4
    assert here.kept - there.kept > 2 * LAYERS * probabilities


@pytest.mark.parametrize("optimizer", estimates.OPTIMIZERS)
def test_the_optimizers_state_is_counted(optimizer):
    (found,) = estimated(training_of("llama", "bf16", optimizer=optimizer))
    weights = sum(one.numel() for one in training_of("llama").build().parameters())
    bytes_each = {"adamw": 4, "adamw-fused": 4, "adamw-fp32-copy": 12, "sgd": 0, "sgd-momentum": 2}[optimizer]
    assert found.optimizer == pytest.approx(bytes_each * weights, rel=0.001)


def test_what_depends_on_values_is_an_error_that_names_the_operation():
    dry = DryRun()
    with under_always(dry), pytest.raises(DryRunError, match="nonzero cannot be run without values"):
        torch.rand(1 << 20).nonzero()


def test_a_dry_run_computes_what_is_small_and_known_and_nothing_else():
    dry = DryRun()
    with under_always(dry):
        known, unknown = torch.arange(8) + 1, torch.rand(1 << 40)
        assert known.tolist() == [1, 2, 3, 4, 5, 6, 7, 8]
        twice = 2 * unknown
    ledger = dry.ledger
    assert ledger.bytes_of(ledger.live()) == 2 * (4 << 40) + 64
    del unknown
    assert dry.number(twice) in ledger.live()
    assert ledger.peak()[0] >= 8 << 40


def test_what_a_kernel_converts_to_write_over_it_is_counted():
    rows, divisors = torch.rand(512, 512).bfloat16(), torch.rand(512, 1) + 1
    real = peak.measure(lambda: iter([rows.div_(divisors)]), torch.device("cpu"))
    with under_always(dry := DryRun()):
        rows, divisors = torch.rand(512, 512).bfloat16(), torch.rand(512, 1) + 1
        dry.ledger.forget()
        before = dry.ledger.bytes_of(dry.ledger.live())
        rows.div_(divisors)
    assert dry.ledger.peak()[0] - before == real.peak == 2 * 4 * 512 * 512


def test_no_code_in_which_ctrl_c_is_lost_runs_when_a_tensor_dies():
    """Python reports an exception of a weak reference's callback, and goes on."""
    called = []
    with under_always(dry := DryRun()):
        tensor = torch.rand(1 << 20)
        sys.setprofile(
            lambda frame, event, _: called.append(frame.f_code.co_name) if event == "call" else None
        )
        try:
            del tensor
        finally:
            sys.setprofile(None)
    assert called == []
    assert dry.ledger.live() == set()
    assert dry.ledger.peak()[0] == 4 << 20


def test_the_largest_batch_fits_and_one_more_does_not():
    training, memory = training_of("llama", batch=1), 100_000_000
    found = plan("llama", training, memory, largest=True)
    for one in found.estimates[:3]:
        largest = found.largest[one.treatment.name]
        peaks = [
            estimated(replace(training, batch=batch), one.treatment)[0].peak
            for batch in (largest, largest + 1)
        ]
        assert peaks[0] <= memory < peaks[1]


@pytest.mark.parametrize("treatment", treatments.TREATMENTS, ids=lambda one: one.name)
def test_the_code_to_paste_runs(treatment):
    training = training_of("llama")
    tokens = torch.randint(5, 512, (2, 32))
    model = training.build()
    exec(treatment.code, {"model": model, "batch": {"input_ids": tokens, "labels": tokens}})
    assert all(one.grad is not None for one in model.parameters())


# The command line


def test_the_command_prints_a_table_and_code_and_writes_json(tmp_path, capsys):
    path = tmp_path / "plan.json"
    command = ["plan", "smollm2-135m", "--length", "512", "--device-memory", "4GB", "--json", str(path)]
    assert main(command, package="bitstash") == 0
    printed = capsys.readouterr().out
    assert "Recommended: baseline" in printed
    assert "loss.backward()" in printed
    record = json.loads(path.read_text())
    assert record["memory"] == 4_000_000_000
    assert [row["policy"] for row in record["rows"]] == [one.name for one in treatments.TREATMENTS]
    for row in record["rows"]:
        assert row["peak"] == sum(row[part] for part in PARTS)
        assert row["policy"] in printed


def test_the_recommended_policy_is_the_first_that_fits():
    found = plan("llama", training_of("llama"), 10**12)
    assert found.recommended is found.estimates[0]
    least = min(one.peak for one in found.estimates)
    tight = replace(found, memory=least)
    assert tight.recommended.peak == least
    none = replace(found, memory=least - 1)
    assert none.recommended is None
    assert "Nothing fits" in none.advice


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["foo"], "MODEL must be one of gpt2, .*, not 'foo'"),
        (["."], "MODEL must be a config.json or its folder: there is no file 'config.json'"),
        (["gpt2", "--length", "2048"], "length must be at most the model's 1024 positions, not 2048"),
        (
            ["gpt2", "--batch", "9" * 20],
            "batch times length must be at most 1,099,511,627,776 tokens, not 102,",
        ),
        (["gpt2", "--json", "."], "--json must be a file, not the folder '.'"),
        (["gpt2", "--device-memory", "24"], "must be a size in B, MB, .*, as 24GB, not '24'"),
        (["gpt2", "--zero", "3"], "processes must be at least 2 with ZeRO, which shares among them, not 1"),
        (
            ["gpt2", "--reserve", "30GB"],
            "reserve must be less than the device's 24,000,000,000 bytes, not 30000000000",
        ),
        (
            ["gpt2", "--lora", "8", "--lora-layers", "x"],
            "lora-layers must fit the name of a linear layer, not 'x'",
        ),
    ],
)
def test_wrong_arguments_are_errors_that_name_them(arguments, message, capsys, monkeypatch):
    monkeypatch.chdir(Path(__file__).parent)
    with pytest.raises(SystemExit):
        main(["plan", *arguments], package="bitstash")
    assert re.search(message, capsys.readouterr().err)


def test_a_config_of_which_no_model_can_be_made_is_an_error(tmp_path, capsys):
    config = {"model_type": "llama", "vocab_size": 512, "hidden_size": 0}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(SystemExit):
        main(["plan", str(tmp_path)], package="bitstash")
    assert "transformers makes no llama of the config: 0.0 cannot be raised" in capsys.readouterr().err


def test_a_model_that_cannot_run_is_an_error():
    training = training_of("llama")
    training.config.num_key_value_heads = 3
    with pytest.raises(DryRunError, match=r"the model cannot run: The size of tensor a .4. must"):
        estimated(training)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no file that is always full")
def test_a_full_disk_is_an_error_after_the_table(tmp_path, capsys):
    training_of("llama").config.save_pretrained(tmp_path)
    with pytest.raises(SystemExit):
        main(["plan", str(tmp_path), "--length", "64", "--json", "/dev/full"], package="bitstash")
    printed = capsys.readouterr()
    assert "Recommended: baseline" in printed.out
    assert "--json could not be written: [Errno 28] No space left on device" in printed.err


def test_a_folder_with_a_config_is_a_model(tmp_path):
    training_of("llama").config.save_pretrained(tmp_path)
    assert config_of(str(tmp_path)).hidden_size == WIDTH


def test_the_page_has_the_tables_of_its_record():
    text = planning.PAGE.read_text()
    assert planning.page(text, json.loads(planning.RECORD.read_text())) == text
    assert tuple(json.loads(planning.RECORD.read_text())) == planning.COMMANDS
