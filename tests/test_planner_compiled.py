"""The planner's promise for compiled models: a step that torch.compile has compiled needs what it says."""

import gc
from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch

import bitstash
from torch_bridge.compiled import measured, operators
from torch_bridge.internals import under_always
from torch_bridge.job import peak
from torch_bridge.job.cli import main
from torch_bridge.planner import estimate_compiled, estimates, plan, treatments
from torch_bridge.planner.dry import DryRun, DryRunError
from torch_bridge.schemes.checkpointing import checkpoint_activations

from .compiling import needs_a_compiler, nothing_compiled
from .test_planner import BATCH, LENGTH, MODELS, RANDOM_STATE, SCALARS, TOLERANCE, training_of

__all__ = ["nothing_compiled"]  # around every test here

DEPTHS = ("num_hidden_layers", "num_layers", "num_decoder_layers", "encoder_layers", "decoder_layers")
CASES = [(name, ("fp32", "bf16-autocast")[number % 2]) for number, name in enumerate(MODELS)]


def compiled_training(name, dtype="fp32", compiler="aot_eager", layers=1, **options):
    training = training_of(name, dtype, compiler=compiler, **options)
    for depth in DEPTHS:
        if isinstance(getattr(training.config, depth, None), int):
            setattr(training.config, depth, layers)
    if name == "gpt_neo":
        training.config.attention_types, training.config.attention_layers = None, ["global"] * layers
    return training


def needed(training, treatment):
    """Bytes that a compiled step allocates over those before it, and what the report says is stored."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = training.build()
    vocabulary = training.config.get_text_config().vocab_size
    tokens = torch.randint(5, vocabulary, (training.batch, training.length))
    batch = {"input_ids": tokens, "labels": tokens}
    optimizer = estimates.OPTIMIZERS[training.optimizer](model.parameters(), False)
    if treatment.options is None:
        compiled = torch.compile(model, backend=training.compiler)
    else:
        compiled = bitstash.compile(model, backend=training.compiler, **treatment.options)

    with torch.no_grad():
        expected = float(training.loss(model, batch))

    def step():
        loss = training.loss(compiled, batch)
        yield loss.item()
        loss.backward()
        optimizer.step()

    losses = []
    with checkpoint_activations(model) if treatment.is_checkpointed else nullcontext():
        for _ in range(2):
            for loss in step():
                losses.append(loss)
            optimizer.zero_grad(set_to_none=True)
            gc.collect()
        found = peak.measure(step, torch.device("cpu"))
    torch._dynamo.reset()
    # No kernel of the plan, which computes nothing, is in a cache of the compiler.
    assert losses[0] == pytest.approx(expected, rel=0.05)
    return found, compiled.report().stored_bytes if treatment.options else None


def holds(training, *compared):
    """What a plan says that a step does not need."""
    wrong = []
    for found in estimate_compiled(training, compared):
        real, stored = needed(training, found.treatment)
        planned = found.gradients + found.activations + found.workspace
        states = RANDOM_STATE * training.config.num_hidden_layers * found.treatment.is_checkpointed
        is_kept = found.kept + states == pytest.approx(real.kept, abs=SCALARS)
        is_peak = planned == pytest.approx(real.peak, rel=TOLERANCE)
        if not (is_kept and is_peak and stored in (None, found.stored)):
            what = f"{found.treatment.name}: stored {found.stored} of {stored}, kept {found.kept} of "
            wrong.append(f"{what}{real.kept}, peak {planned} of {real.peak}")
    return wrong


@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_a_compiled_step_needs_what_was_planned(name, dtype):
    layers = 2 if name == "llama" else 1
    assert holds(compiled_training(name, dtype, layers=layers), treatments.FOUR_BITS) == []


def test_other_treatments_of_a_compiled_model_need_what_was_planned():
    bits = (treatments.FOUR_BITS, treatments.TWO_BITS)  # of which one is enough, and is tried above
    compared = [one for one in treatments.COMPILED if one not in bits]
    assert holds(compiled_training("qwen3"), *compared) == []


@needs_a_compiler
@pytest.mark.timeout(600)
def test_what_inductor_allocates_is_planned_without_its_kernels():
    assert holds(compiled_training("llama", compiler="inductor"), treatments.FOUR_BITS) == []


def test_a_plan_leaves_codecs_and_choices_as_they_were():
    before = operators.codecs, measured.codecs, measured.CHOICES
    estimate_compiled(compiled_training("llama"), [treatments.FOUR_BITS])
    assert (operators.codecs, measured.codecs, measured.CHOICES) == before


def test_a_compiled_plan_needs_no_memory_and_names_its_compiler():
    training = compiled_training("llama", batch=1 << 20)
    found = plan("llama", training, 10**15)
    assert found.estimates[0].kept > BATCH * LENGTH << 30
    assert [one.treatment for one in found.estimates] == list(treatments.COMPILED)
    assert "compiled by aot_eager" in found.title
    assert "compiled = torch.compile(model, backend=" in found.advice


@pytest.mark.parametrize("treatment", treatments.COMPILED, ids=lambda one: one.name)
def test_the_code_to_paste_runs(treatment):
    model = compiled_training("llama").build()
    tokens = torch.randint(5, 512, (2, 32))
    names = {"model": model, "batch": {"input_ids": tokens, "labels": tokens}}
    exec(treatment.compiled_code("aot_eager"), names)
    assert all(one.grad is not None for one in model.parameters())


def test_an_operation_on_operations_without_a_kernel_is_an_error_that_names_it():
    with under_always(DryRun()), pytest.raises(DryRunError, match="cond cannot be run without values"):
        torch.ops.higher_order.cond(torch.tensor(True), torch.sin, torch.cos, (torch.rand(1 << 20),))


def test_wrong_arguments_are_errors():
    training = compiled_training("llama")
    with pytest.raises(ValueError, match=r"time must be none of a compiled model.s options, not 1\.2"):
        estimate_compiled(training, [treatments.TIMED])
    with pytest.raises(ValueError, match="compiler must be None, inductor or aot_eager, not 'tvm'"):
        replace(training, compiler="tvm")
    with pytest.raises(ValueError, match="loss_chunk must be 0 with a compiler, not 64"):
        replace(training, loss_chunk=64)


def test_the_command_plans_a_compiled_model(tmp_path, capsys):
    compiled_training("llama").config.save_pretrained(tmp_path)
    command = ["plan", str(tmp_path), "--length", "64", "--compiler", "aot_eager"]
    assert main(command, package="bitstash") == 0
    printed = capsys.readouterr().out
    assert "compiled by aot_eager" in printed
    assert "Hadamard, 4 bits" in printed
