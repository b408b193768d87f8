"""The command line: ``python -m bitstash train``, ``demo``, ``compare``, ``explain`` and ``plan``."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from golden import plane
from golden.floats import FLOAT_TYPES

from .. import backends, planner
from ..backends.quant_format import BITS
from ..planner.plans import rates_of
from ..schemes import schemes
from ..schemes.pool import KERNELS
from ..schemes.schemes import FORMATS
from . import compare, explain, jobs, train

# What command lines need beside what the bridge needs.
_EXTRAS = ("matplotlib", "plotly", "transformers")
INTERRUPTED = 130  # as shells report a program that Ctrl-C ended


def main(arguments: Sequence[str] | None = None, package: str = "torch_bridge") -> int:
    """Run a command of ``python -m package``; the result is the exit status."""
    parser = _parser(package)
    options = parser.parse_args(arguments)
    try:
        return options.command(options, parser)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in _EXTRAS:
            raise
        parser.exit(1, f"{missing} is not installed: pip install 'bitstash[train]'\n")


def _parser(package: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=f"python -m {package}", description="Train through the compressor.")
    commands = parser.add_subparsers(required=True, metavar="command")

    command = commands.add_parser("train", help="train a GPT-2", formatter_class=_Formatter)
    command.set_defaults(command=_train)
    add, default = command.add_argument, train.Options()
    add(
        "--config",
        choices=train.CONFIGS,
        default=default.config,
        help="size of the model; a byte is a token, also with the 50,257 of gpt2",
    )
    add("--data", type=Path, metavar="FILE", help="text to train on; by default Python's help topics")
    add("--scheme", choices=schemes.NAMES, default=default.scheme, help="how activations are kept")
    add("--dtype", choices=FLOAT_TYPES, default=default.dtype, help="of format and activations")
    add("--block", type=int, metavar="VALUES", help="in a block; by default 64, with hadamard 128")
    add(
        "--target",
        type=int,
        metavar="BYTES",
        help="of a compressed block; by default 3.2x or, for 16 bits, 2x; with hadamard 4 bits a value",
    )
    add("--rounding", choices=plane.ROUNDINGS, help="of values that lose bits; by default nearest")
    add("--bits", type=int, choices=BITS, default=default.bits, help="of a value, for quantisation")
    add(
        "--recompute",
        action=argparse.BooleanOptionalAction,
        default=default.recompute,
        help="compute anew what cheap operations made of what is kept",
    )
    add("--fused", action="store_true", help="GELU as one operation, not as Hugging Face spells it")
    add("--backend", choices=backends.NAMES, default=default.backend, help="codec to run")
    add("--offload-dir", type=Path, metavar="DIR", default=default.offload_dir, help="on an SSD")
    add(
        "--offload-amount",
        type=_amount,
        metavar="BYTES",
        default=default.offload_amount,
        help="of a step, or all, or adaptive: as much as the disk was measured to keep up with",
    )
    add("--rank", type=_number(float, 0.0, 1.0), default=default.rank, help="of CompAct, a share of a width")
    add("--kernel", type=int, choices=KERNELS, default=default.kernel, help="tokens to pool")
    add("--steps", type=_number(int, 1), default=default.steps, help="optimizer steps")
    add("--batch", type=_number(int, 1), default=default.batch, help="sequences a step")
    add("--lr", type=_number(float, 0.0), help="peak learning rate; by default the config's")
    add(
        "--seed",
        type=_number(int, 0, (1 << 63) - 1),
        default=default.seed,
        help="of weights, batches and dropout",
    )
    add("--attention", choices=train.ATTENTIONS, default=default.attention, help="implementation")
    add("--dropout", type=_number(float, 0.0, 0.99), default=default.dropout, help="probability")
    add("--device", help="cpu or cuda; by default CUDA if there is one")
    add("--threads", type=_number(int, 1, 1 << 16), help="CPU threads; by default PyTorch's choice")
    add("--out", type=Path, metavar="FILE.json", default=Path("build/train/run.json"), help="result")

    command = commands.add_parser("demo", help="compare runs; write loss.png and summary.json")
    command.set_defaults(command=_demo)
    command.add_argument("--out", type=Path, metavar="DIR", default=Path("build/train"), help="directory")

    command = commands.add_parser(
        "compare",
        help="memory and time of every scheme; write rok.json and rok.png",
        formatter_class=_Formatter,
    )
    command.set_defaults(command=_compare)
    add, task = command.add_argument, compare.Task()
    add("--config", choices=compare.CONFIGS, default=task.config, help="sizes; gpt2 for the real ones")
    add("--model", nargs="+", choices=compare.MODELS, default=compare.MODELS, help="which")
    add("--scheme", nargs="+", choices=compare.SCHEMES, default=list(compare.SCHEMES), help="which")
    add("--batch", nargs="+", type=_number(int, 1), default=compare.BATCHES, help="sequences a step")
    add("--steps", type=_number(int, 1), default=task.steps, help="optimizer steps of each row")
    add("--rounds", type=_number(int, 1), default=task.rounds, help="over all rows; times are medians")
    add("--device", help="cpu or cuda; by default CUDA if there is one")
    add("--threads", type=_number(int, 1, 1 << 16), help="CPU threads; by default PyTorch's choice")
    add("--offload-dir", type=Path, metavar="DIR", default=task.offload_dir, help="on an SSD")
    add("--offload-amount", type=_amount, metavar="BYTES", default=task.amount, help="of a step")
    add("--out", type=Path, metavar="DIR", default=Path("build/rok"), help="directory")

    command = commands.add_parser(
        "explain",
        help="where a model's activation memory goes, and what could be done: a page of plots",
        formatter_class=_Formatter,
    )
    command.set_defaults(command=_explain)
    add = command.add_argument
    add("what", help="a job's options or a Hugging Face config, as JSON, or module:function")
    add("--scheme", choices=FORMATS, default="hadamard", help="format of what is not recomputed")
    add("--bits", type=_number(float, 1, 32), default=4.0, metavar="BITS", help="of a value of 32")
    add("--batch", type=_number(int, 1), default=4, help="sequences, for a Hugging Face config")
    add(
        "--length",
        type=_number(int, 1),
        help="tokens of each, for a Hugging Face config; by default 128, or the model's positions if fewer",
    )
    add("--budgets", action=argparse.BooleanOptionalAction, default=True, help="measure smaller budgets")
    add(
        "--compiled",
        nargs="?",
        const="inductor",
        choices=("inductor", "aot_eager"),
        help="compile the model, with compression inside the graphs; without budgets",
    )
    add("--out", type=Path, metavar="FILE.html", default=Path("build/explain.html"), help="the page")
    _add_plan(commands)
    return parser


def _add_plan(commands: Any) -> None:
    command = commands.add_parser(
        "plan",
        help="whether a training fits into a device's memory, with which policy: without weights, in seconds",
        formatter_class=_Formatter,
    )
    command.set_defaults(command=_plan)
    add, whole = command.add_argument, _number(int, 1)
    add(
        "model",
        metavar="MODEL",
        help=f"one of {', '.join(planner.BUILT_IN)}; a model type of transformers; a config.json or "
        "its folder; or a name in the local Hugging Face cache",
    )
    add("--batch", type=whole, default=1, help="sequences of a step")
    add("--length", type=whole, default=1024, help="tokens of each")
    add(
        "--dtype",
        choices=planner.DTYPES,
        default="bf16",
        help="bf16: weights, gradients and moments are bf16; bf16-autocast: they are fp32, and the forward "
        "pass runs under autocast",
    )
    add("--device-memory", type=_bytes, default="24GB", metavar="SIZE", help="as 24GB, or 24GiB")
    add("--reserve", type=_bytes, default="1GB", metavar="SIZE", help="kept free: CUDA context, libraries")
    add("--device", choices=planner.DEVICES, default="cuda", help="whose kernels run")
    add(
        "--compiler",
        choices=planner.COMPILERS,
        help="plan a model that torch.compile compiles; by default an eager one",
    )
    add("--optimizer", choices=planner.OPTIMIZERS, default="adamw-fused", help="whose state is counted")
    add("--attention", choices=train.ATTENTIONS, help="implementation; by default as transformers chooses")
    add("--checkpointing", action="store_true", help="compare policies on top of activation checkpointing")
    add("--zero", type=int, choices=range(4), default=0, help="stage of ZeRO or FSDP")
    add("--processes", type=whole, default=1, help="that share what ZeRO shards")
    add("--lora", type=_number(int, 0), default=0, metavar="RANK", help="train adapters; 0: the weights")
    add("--lora-layers", default="*", metavar="PATTERN", help="names of layers that have adapters")
    add(
        "--loss-chunk",
        type=_number(int, 0),
        default=0,
        metavar="TOKENS",
        help="logits and loss for so many tokens at a time, recomputed; 0: all at once",
    )
    add("--largest-batch", action="store_true", help="find the largest batch that fits")
    add("--json", type=Path, metavar="FILE", help="write the plan there as well")


class _Formatter(argparse.ArgumentDefaultsHelpFormatter):
    """Shows defaults, where there are any."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        return super()._get_help_string(action) if action.default is not None else action.help


def _number(kind: Callable[[str], float], least: float, most: float = float("inf")) -> Callable[[str], float]:
    def parse(text: str) -> float:
        try:
            number = kind(text)
        except ValueError:
            number = float("nan")
        if not least <= number <= most:
            limits = f"at least {least}" if most == float("inf") else f"from {least} to {most}"
            noun = "a whole number" if kind is int else "a number"
            raise argparse.ArgumentTypeError(f"must be {noun} of {limits}, not {text!r}")
        return number

    return parse


_UNITS = {"B": 1, "MB": 10**6, "GB": 10**9, "TB": 10**12, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}


def _bytes(text: str) -> int:
    found = re.fullmatch(r"(\d+(?:\.\d+)?) ?([A-Za-z]+)", text)
    if found is None or found[2] not in _UNITS:
        raise argparse.ArgumentTypeError(f"must be a size in {', '.join(_UNITS)}, as 24GB, not {text!r}")
    return int(float(found[1]) * _UNITS[found[2]])


def _amount(text: str) -> int | str:
    return text if text in ("all", "adaptive") else int(_number(int, 0)(text))


def _check_file(path: Path, option: str = "--out") -> None:
    """Raises OSError if what is measured could not be written there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir():
        raise IsADirectoryError(f"{option} must be a file, not the folder {str(path)!r}")
    if not os.access(path.parent, os.W_OK):
        raise PermissionError(f"{option} must be in a folder that can be written to, not {str(path)!r}")


def _train(given: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    names = {field.name for field in fields(train.Options)}
    options = train.Options(**{name: value for name, value in vars(given).items() if name in names})
    if given.threads:
        torch.set_num_threads(given.threads)
    try:
        _check_file(given.out)
        with closing(options.make_scheme()) as scheme:
            if scheme.compresses:
                backends.get(options.backend, options.format)
        if options.data is not None and not options.data.is_file():
            raise FileNotFoundError(f"--data must be a text file, not {str(options.data)!r}")
        result = train.run(options, progress=True)
    except (ValueError, OSError, ImportError) as error:
        parser.error(str(error))
    train.write(result, given.out)
    done = len(result["train_loss"])
    loss = "not measured" if result["val_loss"] is None else f"{result['val_loss']:.4f}"
    ratio = "" if result["ratio"] is None else f", ratio {result['ratio']:.2f}"
    print(f"{done} of {options.steps} steps, validation loss {loss}{ratio}; wrote {given.out}")
    return INTERRUPTED if result["interrupted"] else 0


def _compare(given: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    if given.threads:
        torch.set_num_threads(given.threads)
    try:
        given.out.mkdir(parents=True, exist_ok=True)
        device = train.Options(device=given.device).torch_device
        disk = given.offload_dir, given.offload_amount
        task = compare.Task(given.config, given.steps, given.rounds, device, *disk)
        compare.compare(task, given.model, given.scheme, given.batch, given.out)
    except (ValueError, OSError) as error:
        parser.error(str(error))
    return 0


def _explain(given: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    try:
        _check_file(given.out)
        fmt = explain.format_of(given.scheme, given.bits)
        job = jobs.load(given.what, given.batch, given.length)
        report = explain.explain(job, fmt, given.out, budgets=given.budgets, compiled=given.compiled)
    except (ValueError, OSError, ImportError) as error:
        parser.error(str(error))
    original, stored = report.original_bytes / 1e6, report.stored_bytes / 1e6
    print(f"{original:.1f} MB saved, {stored:.1f} MB kept; wrote {given.out}")
    return 0


def _plan(given: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    names = {field.name for field in fields(planner.Training)}
    options = {name: value for name, value in vars(given).items() if name in names}
    try:
        if given.json is not None:
            _check_file(given.json, "--json")
        training = planner.Training(config=planner.config_of(given.model), **options)
        found = planner.plan(
            *(given.model, training, given.device_memory, given.reserve),
            is_checkpointed=given.checkpointing,
            largest=given.largest_batch,
        )
    except (ValueError, OSError, MemoryError, planner.DryRunError) as error:
        parser.error(str(error))
    rates = None
    if given.device == "cpu" or torch.cuda.is_available():
        rates = rates_of(found.estimates, torch.device(given.device))
    console = Console(width=None if sys.stdout.isatty() else 150)
    console.print(found.table(rates))
    console.print(found.advice, markup=False, highlight=False)
    if given.json is not None:
        try:
            given.json.write_text(json.dumps(found.record(), indent=1) + "\n", encoding="utf-8")
        except OSError as error:  # a full disk
            parser.error(f"--json could not be written: {error}")
    return 0


def _demo(given: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    from .demo import MismatchError, demo

    try:
        given.out.mkdir(parents=True, exist_ok=True)
        demo(given.out)
    except OSError as error:
        parser.error(str(error))
    except MismatchError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0
