"""Training through the bridge: equal losses for equal bytes, and a command line that says what is wrong."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest
import torch

from torch_bridge.job import cli, demo, train
from torch_bridge.job.activations import gpt2_activations

TINY = train.Options(scheme="planes", recompute=False, steps=2, batch=1, validations=1, dropout=0.1)


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    """A validation of a few windows."""
    monkeypatch.setattr(train, "_VALIDATION_TOKENS", 1024)


def test_golden_and_torch_train_alike_to_the_last_bit():
    golden = train.run(replace(TINY, backend="golden"))
    ours = train.run(replace(TINY, backend="torch"))
    assert ours["train_loss"] == golden["train_loss"]
    assert ours["val_loss"] == golden["val_loss"]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("scheme", ["planes", "hadamard"])
def test_verilated_and_golden_train_alike_to_the_last_bit(scheme, verilated_library, monkeypatch):
    monkeypatch.setenv("BITSTASH_LIBRARIES", str(verilated_library))
    options = replace(TINY, scheme=scheme, target={"planes": None, "hadamard": 32}[scheme])
    golden, hardware = (train.run(replace(options, backend=backend)) for backend in ("golden", "verilated"))
    assert hardware["train_loss"] == golden["train_loss"]
    assert hardware["val_loss"] == golden["val_loss"]


def test_the_default_model_shrinks_at_least_threefold():
    result = train.run(replace(TINY, steps=1, dropout=0.0))
    assert result["ratio"] >= 3.0
    assert result["ratio"] == result["original_bytes"] / result["stored_bytes"]


def test_what_is_recomputed_shrinks_more():
    tiny = replace(TINY, scheme="hadamard", target=32, steps=1, dropout=0.0)
    stored, recomputed = (train.run(replace(tiny, recompute=recompute)) for recompute in (False, True))
    assert recomputed["original_bytes"] == stored["original_bytes"]
    assert stored["ratio"] < 14 < 25 < recomputed["ratio"]
    fused = train.run(replace(tiny, recompute=True, fused=True))
    assert fused["original_bytes"] < 0.6 * recomputed["original_bytes"]
    assert fused["stored_bytes"] == recomputed["stored_bytes"]


def test_a_seed_gives_every_scheme_the_same_start():
    baseline, *others = (
        train.run(replace(TINY, scheme=scheme)) for scheme in ("baseline", "planes", "quant")
    )
    assert baseline["original_bytes"] <= baseline["stored_bytes"]  # a slice holds all of its memory
    for other in others:
        assert baseline["train_loss"][0] == other["train_loss"][0]
        assert baseline["train_loss"][1] != other["train_loss"][1]
        assert baseline["original_bytes"] == other["original_bytes"]


@pytest.mark.parametrize(("dtype", "attention"), [("bf16", "eager"), ("bf16", "sdpa"), ("fp16", "sdpa")])
def test_sixteen_bits_train_under_autocast(dtype, attention):
    result = train.run(replace(TINY, dtype=dtype, attention=attention))
    assert result["target"] == 64
    assert 2.1 < result["ratio"] < 2.5  # dropout masks take a bit
    assert all(0 < loss < 8 for loss in result["train_loss"])


def test_captured_activations_are_what_autograd_saves():
    saved = gpt2_activations(attention="eager", steps=1)
    shapes = {(tensor.op, tensor.shape) for tensor in saved}
    assert ("_softmax", (1, 6, 128, 128)) in shapes
    assert ("_log_softmax", (128, 256)) in shapes
    assert all(tensor.values.ndim == 1 and tensor.values.dtype == "float32" for tensor in saved)
    probabilities = next(tensor.values for tensor in saved if tensor.op == "_softmax")
    assert probabilities.reshape(-1, 128).sum(axis=1) == pytest.approx(1, abs=1e-5)


def test_a_run_writes_its_result(tmp_path, capsys):
    text = tmp_path / "text"
    text.write_bytes(b"the quick brown fox jumps over the lazy dog. " * 60)
    out = tmp_path / "new" / "run.json"
    arguments = [
        "train",
        "--scheme",
        "planes",
        "--target",
        "96",
        "--steps",
        "3",
        "--batch",
        "1",
        "--threads",
        "1",
    ]
    assert cli.main([*arguments, "--data", str(text), "--out", str(out)]) == 0
    result = json.loads(out.read_text())
    assert (result["scheme"], result["backend"], result["target"]) == ("planes", "auto", 96)
    assert len(result["train_loss"]) == 3
    assert {"ratio", "original_bytes", "stored_bytes", "val_loss", "seconds_per_step"} <= result.keys()
    assert "3 of 3 steps" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--scheme", "zip"], "invalid choice: 'zip'"),
        (["--backend", "gpu"], "invalid choice: 'gpu'"),
        (["--block", "48"], "block must be one of (16, 32, 64, 128), not 48"),
        (["--steps", "0"], "must be a whole number of at least 1, not '0'"),
        (["--device", "foo"], "device must be cpu"),
        (["--device", "meta"], "not 'meta'"),
        (["--seed", str(1 << 63)], f"must be a whole number of from 0 to {(1 << 63) - 1}, not '{1 << 63}'"),
        (["--out", "tests"], "--out must be a file, not the folder 'tests'"),
        (["--out", "tests/test_train.py/run.json"], "tests/test_train.py"),
        (["--steps", "ten"], "must be a whole number of at least 1, not 'ten'"),
        (["--lr", "-1"], "must be a number of at least 0.0, not '-1'"),
        (["--dropout", "1.5"], "must be a number of from 0.0 to 0.99, not '1.5'"),
        (["--scheme", "planes", "--target", "8"], "not 8"),
        (
            ["--scheme", "hadamard", "--rounding", "truncate"],
            "rounding must not be given for hadamard, not 'trun",
        ),
        (["--scheme", "quant", "--block", "64"], "block must not be given for quant, not 64"),
        (["--data", "no/such/file"], "--data must be a text file, not 'no/such/file'"),
        (
            ["--scheme", "planes", "--backend", "verilated", "--target", "93"],
            "library --scheme planes --dtype fp32",
        ),
    ],
)
def test_a_wrong_argument_is_named(arguments, message, capsys):
    with pytest.raises(SystemExit) as stopped:
        cli.main(["train", *arguments])
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err


def test_too_little_text_is_an_error(tmp_path, capsys):
    text = tmp_path / "text"
    text.write_bytes(b"short")
    with pytest.raises(SystemExit):
        cli.main(["train", "--data", str(text)])
    assert "data must have over 1280 tokens, not 5" in capsys.readouterr().err


def test_ctrl_c_leaves_what_was_done(tmp_path):
    out = tmp_path / "run.json"
    command = [
        sys.executable,
        "-m",
        "torch_bridge",
        "train",
        "--steps",
        "100000",
        "--batch",
        "1",
        "--threads",
        "1",
    ]
    process = subprocess.Popen(
        [*command, "--out", str(out)],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
    )
    assert "parameters" in process.stdout.readline()
    time.sleep(3)
    process.send_signal(signal.SIGINT)
    rest, _ = process.communicate(timeout=60)
    assert process.returncode == 130, rest
    result = json.loads(out.read_text())
    assert result["interrupted"]
    assert 0 < len(result["train_loss"]) < 100000


def with_figures_of_a_memory(real):
    """A run with backend "regions" that claims to have gone through a memory."""

    def run(options, **arguments):
        result = real(options, **arguments)
        if options.backend != "regions":
            return result
        dram = {"bytes_per_cycle": 16.0, "latency": 40, "refresh_period": 3900, "refresh_cycles": 175}
        moved = {"accelerator_bytes": 45_400_000, "memory_bytes": 2_840_000}
        return result | moved | {"cycles": 721_000, "cycles_without": 2_850_000, "dram": dram}

    return run


def test_the_demo_writes_its_figure_and_summary(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(train, "run", with_figures_of_a_memory(train.run))
    short = replace(TINY, steps=1)
    long = replace(TINY, steps=3, validations=2)
    workload = train.Options(attention="eager", steps=1, batch=1)
    demo.demo(tmp_path, long=long, short=short, workload=workload, hardware="torch", memory="regions")
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert [(run["scheme"], run["backend"]) for run in summary["runs"]] == [
        ("baseline", "auto"),
        ("planes", "auto"),
        ("hadamard", "auto"),
        ("planes", "torch"),
        ("planes", "golden"),
        ("hadamard", "torch"),
        ("hadamard", "golden"),
        ("hadamard", "regions"),
        ("hadamard", "regions"),
    ]
    printed = " ".join(capsys.readouterr().out.split())
    assert printed.endswith(
        "in a step the accelerator moved 45.4 MB, the memory 2.8 MB; behind a memory of 16 bytes a cycle (40 "
        "cycles of latency, 175 of 3900 cycles for refreshes) that took 0.72 instead of 2.85 million cycles"
    )
    assert {"sign", "exponent", "mantissa", "whole", "plain", "paper"} <= summary["ratios"].keys()
    assert (tmp_path / "loss.png").stat().st_size > 10_000


def test_the_demo_fails_when_the_hardware_differs(tmp_path, monkeypatch):
    real = train.run

    def run(options, **kwargs):
        result = real(options, **kwargs)
        if options.backend == "torch":
            result["train_loss"][-1] += 1e-6
        return result

    monkeypatch.setattr(train, "run", run)
    short = replace(TINY, steps=1)
    with pytest.raises(demo.MismatchError, match="train_loss of planes through torch"):
        demo.demo(tmp_path, long=short, short=short, workload=short, hardware="torch", memory="regions")


@pytest.mark.parametrize("scheme", ["hadamard", "compact"])
def test_an_ended_run_goes_on_as_if_it_had_not_been(scheme, tmp_path):
    options, seen = replace(TINY, scheme=scheme, steps=4, validations=4), []

    def watch(step, model):
        seen.append(step)
        if len(seen) == 3:
            raise KeyboardInterrupt
        return step

    whole, checkpoint = train.run(options, watch=lambda step, _: step), tmp_path / "runs" / "one"
    ended = train.run(options, watch=watch, checkpoint=checkpoint)
    assert ended["interrupted"]
    assert len(ended["train_loss"]) == 3
    with pytest.raises(ValueError, match=r"must be of a run with .*seed=5"):
        train.run(replace(options, seed=5), checkpoint=checkpoint)
    resumed = train.run(options, watch=watch, checkpoint=checkpoint)
    assert seen == [1, 2, 3, 3, 4]
    assert not resumed["interrupted"]
    assert not checkpoint.exists()
    times = {"seconds_per_step": 0}
    assert resumed | times == whole | times


@pytest.mark.parametrize("torn", [b"", b"hello", bytes(1000)])
def test_a_torn_checkpoint_is_named(torn, tmp_path):
    path = tmp_path / "one"
    path.write_bytes(torn)
    with pytest.raises(ValueError, match=r"one must be a whole checkpoint; without it the run begins anew"):
        train.run(TINY, checkpoint=path)
    assert path.read_bytes() == torn


def test_text_without_a_held_out_sequence_is_refused():
    model, text = torch.nn.Identity(), torch.zeros(1280, dtype=torch.long)
    with pytest.raises(ValueError, match="must have over 1280 tokens, not 1280"):
        train.Subject(model, text, 128, 1e-3)
