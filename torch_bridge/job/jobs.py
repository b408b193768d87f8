"""What can be explained: a model as it trains, a batch and a loss, from options, a config or a function."""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from textwrap import shorten
from typing import Any

import torch

from golden.floats import FLOAT_TYPES

from ..calibration.calibration import Loss
from . import train

_LENGTH = 128  # tokens of a sequence, of a model that has as many positions
_LONGEST = 400  # characters of a cause's text: some list all that there is
_KINDS = ("CausalLM", "Seq2SeqLM", "MaskedLM")


class JobError(ValueError):
    """What is to be explained cannot be run; the message names it and has the cause's type and text."""


@contextmanager
def saying(what: str) -> Iterator[None]:
    """Raise a JobError with these words for whatever a user's code or a library raises."""
    try:
        yield
    except JobError:
        raise
    except Exception as error:
        text = shorten(str(error), _LONGEST, placeholder=" ...")
        raise JobError(f"{what}: {type(error).__name__}{f': {text}' if text else ''}") from error


@dataclass(frozen=True, eq=False)
class Job:
    """What is explained: a model as it trains, a batch, and the loss of both."""

    name: str
    model: torch.nn.Module
    batch: Any
    loss: Loss

    def checked_loss(self, model: torch.nn.Module, batch: Any) -> torch.Tensor:
        """The loss; raises JobError if that fails, or gives nothing to begin a backward pass from."""
        with saying(f"the forward pass of {self.name} failed"):
            loss = self.loss(model, batch)
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            raise JobError(f"the loss of {self.name} must be a tensor of one value, not {_kind_of(loss)}")
        if not loss.requires_grad:
            raise JobError(f"the loss of {self.name} must need a gradient: no parameter in it requires one")
        return loss


def load(what: str, batch: int = 4, length: int | None = None) -> Job:
    """What a user names.

    Args:
        what: a JSON file with options of ``train.Options``, such as ``train`` writes; a Hugging Face
            config, the file or its folder; or "module:function", which returns model and batch, and the
            loss as a function of both if it is not ``model(**batch).loss``.
        batch, length: sequences, and tokens of each, for a Hugging Face config; by default 128 tokens, or
            as many as the model has positions.

    Raises:
        ValueError: it is none of these, or does not work.
        FileNotFoundError: there is no such file.
    """
    path = Path(what)
    if not path.exists() and ":" in what:
        return _from_function(what)
    if path.is_dir():
        path /= "config.json"
    if not path.is_file():
        raise FileNotFoundError(f"there must be a config, or a function as module:name, not {what!r}")
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"a config must be JSON, which {str(path)!r} is not: {error}") from None
    if isinstance(config, dict) and "model_type" in config:
        return _from_transformers(what, config, batch, length)
    if isinstance(config, dict) and str(config.get("config")) in train.CONFIGS:
        return _from_options(what, config)
    names = ", ".join(train.CONFIGS)
    raise ValueError(f"a config must have a model_type, or a config of {names}, which {what!r} has not")


def _from_function(what: str) -> Job:
    module, _, name = what.partition(":")
    if not all(part.isidentifier() for part in [*module.split("."), name]):
        raise ValueError(f"a function must be given as module:name, not {what!r}")
    sys.path.insert(0, "")
    try:
        with saying(f"{module} cannot be imported"):
            function = getattr(import_module(module), name, None)
    finally:
        sys.path.remove("")
    if not callable(function):
        raise ValueError(f"{module} must have a function {name}, which it has not")
    try:
        inspect.signature(function).bind()
    except TypeError as error:
        raise ValueError(f"the function {what} must take no arguments: {error}") from None
    with saying(f"the function {what} failed"):
        made = function()
    if not isinstance(made, tuple) or len(made) not in (2, 3):
        raise ValueError(f"{what} must return model and batch, and the loss if need be, not {_kind_of(made)}")
    model, batch, *loss = made
    if not isinstance(model, torch.nn.Module):
        raise ValueError(f"the model that {what} returns must be a module, not {_kind_of(model)}")
    if loss and not callable(loss[0]):
        raise ValueError(f"the loss that {what} returns must be a function, not {_kind_of(loss[0])}")
    return Job(what, model, batch, loss[0] if loss else _loss_of_transformers)


def _from_transformers(what: str, given: dict[str, Any], batch: int, length: int | None) -> Job:
    import transformers

    if str(given["model_type"]) not in transformers.CONFIG_MAPPING:
        raise ValueError(f"model_type must be one that transformers has, not {given['model_type']!r}")
    with saying(f"transformers takes no such config as {what}"):
        config = transformers.AutoConfig.for_model(**given)
        sizes = config.get_text_config()
    for name in _KINDS:
        kind = getattr(transformers, f"AutoModelFor{name}")
        if type(config) in kind._model_mapping:
            break
    else:
        raise ValueError(
            f"model_type must be a language model's, not {given['model_type']!r}: give a function"
        )
    if name == "Seq2SeqLM" and getattr(config, "decoder_start_token_id", None) is None:
        raise ValueError(
            f"a config with a decoder must have a decoder_start_token_id, which {what!r} has not"
        )
    words = _size(what, sizes, "vocab_size")
    if words is None:
        raise ValueError(f"a config must have a vocab_size, which {what!r} has not: give a function")
    positions = _size(what, sizes, "max_position_embeddings")
    if length is None:
        length = min(_LENGTH, positions or _LENGTH)
    if positions is not None and length > positions:
        raise ValueError(f"length must be at most the model's {positions} positions, not {length}")
    tokens = torch.randint(words, (batch, length), generator=torch.Generator().manual_seed(0))
    with saying(f"transformers makes no model of {what}"):
        model = kind.from_config(config).train()
    return Job(what, model, {"input_ids": tokens, "labels": tokens}, _loss_of_transformers)


def _size(what: str, config: Any, name: str) -> int | None:
    """A size that a config has, or None; raises ValueError for one that is none."""
    size = getattr(config, name, None)
    if size is not None and (type(size) is not int or size < 1):
        raise ValueError(f"{name} of {what} must be a positive whole number, not {size!r}")
    return size


def _from_options(what: str, config: dict[str, Any]) -> Job:
    default = train.Options()
    # Of the options those that a page depends on; a scheme's are of the command line.
    given = {name: config.get(name, getattr(default, name)) for name in _RULES}
    for name, (is_right, rule) in _RULES.items():
        if not is_right(given[name]):
            raise ValueError(f"{name} of {what} must be {rule}, not {given[name]!r}")
    options = train.Options(**given, device="cpu")
    subject = train.subject_of(options)
    draws = torch.Generator().manual_seed(options.seed)
    tokens = train.draw(subject.seen, options.batch, subject.length, draws)
    return Job(what, subject.model, tokens, lambda model, batch: train.loss_of(model, options, batch))


def _one_of(names: Any) -> tuple[Any, str]:
    return lambda value: isinstance(value, str) and value in names, f"one of {', '.join(names)}"


_RULES = {
    "config": _one_of(train.CONFIGS),
    "dtype": _one_of(FLOAT_TYPES),
    "attention": _one_of(train.ATTENTIONS),
    "fused": (lambda value: isinstance(value, bool), "true or false"),
    "batch": (lambda value: type(value) is int and value >= 1, "a positive whole number"),
    "seed": (lambda value: type(value) is int and value >= 0, "a whole number from 0 up"),
    "dropout": (lambda value: type(value) in (int, float) and 0 <= value < 1, "a number from 0 to below 1"),
}


def _loss_of_transformers(model: torch.nn.Module, batch: Any) -> torch.Tensor:
    output = model(**batch)
    loss = getattr(output, "loss", None)
    if loss is None:
        raise JobError(
            f"the output of a model must have a loss, which {_kind_of(output)} has not: "
            "return a function of the loss besides model and batch"
        )
    return loss


def _kind_of(thing: Any) -> str:
    """What something is, for a message: a model or a batch would fill a screen."""
    if isinstance(thing, torch.Tensor):
        return f"{str(thing.dtype).removeprefix('torch.')}{list(thing.shape)}"
    if isinstance(thing, tuple):
        return f"({', '.join(map(_kind_of, thing))})"
    is_short = thing is None or isinstance(thing, int | float | str)
    return repr(thing) if is_short else type(thing).__name__
