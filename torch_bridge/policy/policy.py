"""Which saved tensors are compressed, and how far: rules by operation, module, dtype and size."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from fnmatch import fnmatchcase
from functools import cache, partial
from typing import Literal, get_args

import torch
from rich.console import Console
from rich.table import Table

from golden import HadamardFormat, PlaneFormat

from ..backends.dtypes import TORCH_DTYPES, StashFormat, format_for
from ..backends.quant_format import BITS as QUANT_BITS
from ..backends.quant_format import QuantFormat

Keep = StashFormat | Literal["raw", "bits", "derive"]
Of = Literal["values", "logit", "atanh"]

LOG_SOFTMAX, LOG_SUM_EXP, NORM = "log-softmax", "log-sum-exp", "norm statistics"
LOSS_WEIGHT = "weight of the loss"

# What becomes of a gradient where a sigmoid or a tanh ends is in how much is left to 1: their arguments tell,
# so a rule keeps these in a format, see Rule.of.
SATURATES = "how near it is to where it ends"
SQUASHED: dict[str, Of] = {"sigmoid": "logit", "tanh": "atanh"}
# In place they may have written to a part of a storage, beside the other's: gates of a recurrent cell.
SQUASHED |= {"sigmoid_": "atanh", "tanh_": "atanh"}

# What is small, and ruins gradients when it is not exact, by the operations whose output it is; behind the
# point the number of the output.
_EXACT_OPS = {
    "logsumexp": LOG_SUM_EXP,
    "_scaled_dot_product_*attention*.1": LOG_SUM_EXP,
    "_flash_attention_forward.1": LOG_SUM_EXP,
    "_efficient_attention_forward.1": LOG_SUM_EXP,
    "_cudnn_attention_forward.1": LOG_SUM_EXP,
    "native_*_norm.[12]": NORM,
    "_native_batch_norm_legit*.[12]": NORM,
    "_batch_norm_with_update*.[12]": NORM,
    "cudnn_batch_norm.[12]": NORM,
    "miopen_batch_norm.[12]": NORM,
    "_fused_rms_norm.1": NORM,
    "nll_loss*_forward.1": LOSS_WEIGHT,
    "_ctc_loss*": LOG_SUM_EXP,
    "norm": NORM,
    "linalg_vector_norm": NORM,
    "rsqrt": NORM,  # how norms written in plain PyTorch end
}
# How masks are made: that of a dropout on a CPU of Bernoulli values, then scaled; those that attention adds
# of zeros and infinities, which a transform would make NaNs of.
_MASK_OPS = ("bernoulli_", "div_", "where", "masked_fill", "masked_fill_", "triu", "triu_")
# What attention is given that nobody in the step made is such a mask as well, and may have biases in it.
ATTENTION_MASK = "mask of attention"
_ATTENTION = "*scaled_dot_product*"

# Fused attention keeps the log-sum-exps of its logits, not the logits: the backward pass computes these of
# queries, keys and the bias, and takes the exponential of what errors have made of them. In models that were
# trained for long they are in the tens; four bits are enough of queries and keys if outputs and sums are
# computed anew, of what the node holds.
LOGITS = "attention takes the exponential of their products"
BIAS = "attention takes its exponential"
AGAIN = "(again)"  # behind the name of an attention of which that is so
_LOGIT_INPUTS, _LOGIT_INPUTS_AGAIN, _BIAS = "*attention*.[01]", f"*attention*{AGAIN}.[01]", "*attention*.3"
# Otherwise values and outputs need them as well: the difference of what they say vanishes where one key has
# all the attention.
_VALUES, _VALUES_AGAIN, _OUTPUTS = "*attention*.2", f"*attention*{AGAIN}.2", "*attention*"
_LOGIT_BITS_AGAIN = 4
# Eager attention has its probabilities from a softmax, whose backward pass takes differences of what they
# weigh: at two bits the gradients of queries and keys are off by their own size.
PROBABILITIES = "a softmax takes differences of what it weighs"
_PROBABILITIES = ("_softmax", "_safe_softmax")

# fmt: off
# Where backward formulas look for a result among the inputs: no format but an exact one has it there again.
EQUALS = "looked for among the inputs"
_COMPARED = (
    "amax", "amin", "max", "min", "median", "nanmedian", "aminmax", "aminmax.1", "*_reduce", "*_reduce_",
    "linalg_vector_norm(*inf)", "norm(*inf)",
)
# fmt: on

# What backward formulas compare. A format that does not keep the sign and the zeros of each value would open
# gates that were closed. The lists come of the samples of all operations in PyTorch's own tests, whose
# gradients were compared with exact ones; an input's operation stands for the one in place too.
SIGNS_AND_ZEROS = "sign and zeros of each value"
SINGULAR = "near where a formula has no value"
_SIGN = "sign"  # of bits where there is no zero
# fmt: off
_GATE_RESULTS = (
    "relu", "relu_", "threshold*", "leaky_relu*", "hardtanh*", "elu*", "celu*", "rrelu*", "copysign*",
)
_GATE_INPUTS = (
    "relu", "threshold*", "leaky_relu*", "_prelu_kernel", "rrelu*", "hardtanh*", "hardswish*",
    "hardsigmoid*", "elu*", "celu*", "clamp*", "hardshrink*", "softshrink*", "abs", "sgn", "copysign",
    "maximum", "minimum", "fmax", "fmin", "*max_pool*", "*margin_loss*",
)
# What they divide by, or take roots or logarithms of: what is small, beside what is large, must not become 0
# or change its sign. Angles are there as well: what is large among them has to be as exact as what is small.
_DIVISOR_RESULTS = (
    "sqrt*", "reciprocal*", "prod*", "cumprod*", "pow", "pow_", "hypot*", "linalg_*", "_linalg_*", "exp*",
)
_DIVISOR_INPUTS = (
    "dist", "renorm", "div", "addcdiv", "fmod", "remainder", "reciprocal", "sqrt", "rsqrt",
    "log", "log2", "log10", "xlogy", "pow", "pow(-*", "pow(*.*", "pow(*e-*", "prod*", "cumprod*", "std*",
    "linalg_*", "_linalg_*", "norm*", "_cdist*", "cdist*", "_euclidean_dist", "hypot", "atan2",
    "sin", "cos", "sinc", "sinh", "cosh", "atan", "i0", "lu_*", "cholesky*", "triangular_solve",
)
# Near poles that are not at 0, and where positions are looked up, ten bits are too few.
_SINGULAR_INPUTS = (
    "acos", "asin", "acosh", "atanh", "tan", "log1p", "logit", "erfinv", "lgamma", "digamma", "polygamma",
    "mvlgamma", "special_*", "logcumsumexp", "grid_sampler*", "_pdist*", "_foreach_*", "igamma", "igammac",
    "_standard_gamma", "_sample_dirichlet",
)
_SINGULAR_RESULTS = (
    "rsqrt_", "std", "std_mean", "_euclidean_dist", "_cdist*", "_pdist*",
    "dist", "special_*", "logcumsumexp", "multilabel_margin_loss_forward.1", "_weight_norm_interface.1",
    "_foreach_*", "_standard_gamma", "_sample_dirichlet",
)
# fmt: on
_FINE_BITS = 10

# The nearer a prediction is to its target, the less is left of the difference, or of the probabilities that
# must add up, and the more of it is what a format lost of the two.
NEAR_TARGET = "a loss that may be near its least"
_LOSSES = (
    *("mse_loss", "smooth_l1_loss", "huber_loss", "_ctc_loss*", "*_with_logits", "binary_cross_entropy"),
)

# A log-softmax of a byte's 256 classes is small and stays as it is. One of tens of thousands of tokens is a
# sixth of all that GPT-2 saves: docs/training.md has the gradient error of its rate.
_LARGE = 1 << 20
_LOG_SOFTMAX_BITS = 12


# How what an operation saves, or a pattern of it, ends that says which of its tensors it is.
_PLACE = re.compile(r"\.(\d+|\[!?[\d-]+\])$")


def _named(saved_by: str) -> str:
    """The operation, without the number of its tensor."""
    return _PLACE.sub("", saved_by)


@dataclass(frozen=True)
class Rule:
    """What to do with the tensors that fit all of a rule's conditions.

    Args:
        keep: "raw"; "bits", a bit for each value, which only fits tensors with two values at most; "derive",
            to compute it anew from what is stashed anyway, which only fits what cheap operations made of
            that; or a fixed-mode format. A format holds for all float types: another than its own gets, in
            planes, the same block and ratio, otherwise as many bits a value. Integers, and floats that no
            format has, stay raw.
        op: name of the operation that made the tensor, as in ``stash.report()``; a shell pattern
            ("*_norm.1").
        saved_by: name of the operation that saves one of its inputs, in place or not: "div", "pow(0.5)" or
            "norm(inf)", of powers and norms with the exponent, of a product with a log-softmax
            "mul(_log_softmax)", of attention that is done again with "(again)" behind it, which may be left
            out; a shell pattern. Behind a point, at its end, the number of the tensor among those that the
            operation is given: "div.1", "*attention*.[01]". A tensor that such a rule fits shares nothing
            with what another rule stashed of its storage.
        module: name of the module in whose forward pass it is saved, as in ``model.named_modules()``; a
            shell pattern ("transformer.h.0.*").
        dtype: "float32", "bfloat16", "bool", ...; a shell pattern.
        least, most: how many values it has.
        of: "values", or what of them goes into a format in their place, and is undone when they are needed:
            "logit" of values from 0 to 1, "atanh" of those from -1 to 1. Then how near one is to an end is as
            exact as what made it; others come back less exactly than without.
        why: what the report says of tensors that stay raw, and the policy's table of the rule.

    Raises:
        ValueError: an argument is none of these, or no tensor can fit it.
    """

    keep: Keep
    _: KW_ONLY
    op: str = "*"
    saved_by: str = "*"
    module: str = "*"
    dtype: str = "*"
    least: int = 0
    most: int | None = None
    of: Of = "values"
    why: str = ""

    def __post_init__(self) -> None:
        if isinstance(self.keep, StashFormat):
            if self.keep.target is None:
                raise ValueError(
                    "the bridge stashes blocks of a fixed size: a format must have a target, not None"
                )
        elif not isinstance(self.keep, str) or self.keep not in ("raw", "bits", "derive"):
            raise ValueError(f"keep must be 'raw', 'bits', 'derive' or a format, not {self.keep!r}")
        if self.of not in get_args(Of):
            raise ValueError(f"of must be one of {', '.join(get_args(Of))}, not {self.of!r}")
        if self.of != "values" and not isinstance(self.keep, StashFormat):
            raise ValueError(f"of must be 'values' where no format is kept, not {self.of!r}")
        for name in ("op", "saved_by", "module", "dtype"):
            if not isinstance(getattr(self, name), str):
                raise ValueError(f"{name} must be a name or a shell pattern, not {getattr(self, name)!r}")
        if "." in re.sub(r"\(.*\)|\(.*$", "", _named(self.saved_by)):
            raise ValueError(
                "saved_by must end with the number of a tensor if there is a point in it, as 'div.1' or "
                f"'div.[01]', not {self.saved_by!r}"
            )
        if not any(fnmatchcase(name, self.dtype) for name in _dtypes()):
            raise ValueError(f"dtype must be one of torch's, as 'float32', or fit one, not {self.dtype!r}")
        if not isinstance(self.least, int) or self.least < 0:
            raise ValueError(f"least must be a number of values, from 0, not {self.least!r}")
        if self.most is not None and (not isinstance(self.most, int) or self.most < self.least):
            raise ValueError(f"most must be a number of values, from {self.least}, not {self.most!r}")

    @property
    def mixes_values(self) -> bool:
        """Whether its format makes NaNs or zeros of what shares a block with an infinity; planes do not."""
        return isinstance(self.keep, StashFormat) and not isinstance(self.keep, PlaneFormat)

    def fits(self, op: str, module: str, dtype: str, values: int, saved_by: str = "") -> bool:
        """Whether it is about such a tensor; "bits" and "derive" may still not fit it.

        Args:
            saved_by: with the number of the tensor, as "div.1", or without.
        """
        return (
            self.least <= values
            and (self.most is None or values <= self.most)
            and fnmatchcase(op, self.op)
            and fnmatchcase(self._comparable(saved_by), self.saved_by)
            and fnmatchcase(module, self.module)
            and fnmatchcase(dtype, self.dtype)
        )

    def _comparable(self, saved_by: str) -> str:
        """What saves a tensor, as far as ``saved_by`` of the rule goes into it."""
        known = saved_by if AGAIN in self.saved_by else saved_by.replace(AGAIN, "")
        return known if _PLACE.search(self.saved_by) else _named(known)

    def asks_for(self, saver: str) -> bool:
        """Whether it tells what this operation saves from what none does."""
        pattern = _named(self.saved_by)
        known = saver if AGAIN in pattern else saver.replace(AGAIN, "")
        is_of_none = fnmatchcase("", pattern) and pattern == self.saved_by
        return fnmatchcase(known, pattern) != is_of_none


@dataclass(frozen=True)
class Policy:
    """Rules in their order: for each tensor the first holds that fits it, and without one it stays raw.

    Parameters and buffers stay raw whatever the rules say.

    Args:
        rules: the first that fits a tensor holds.

    Example:
        >>> fmt = PlaneFormat("fp32", block=64, target=80)
        >>> policy = Policy([Rule("raw", module="*.ln_f"), *Policy.default(fmt).rules])
        >>> policy.rules[0].fits("add", "transformer.ln_f", "float32", 4096)
        True
    """

    rules: Sequence[Rule]

    def __post_init__(self) -> None:
        rules = tuple(self.rules) if isinstance(self.rules, Iterable) else None
        if rules is None or not all(isinstance(rule, Rule) for rule in rules):
            raise ValueError(f"rules must be a sequence of Rule, not {self.rules!r}")
        object.__setattr__(self, "rules", rules)

    @classmethod
    def default(cls, fmt: StashFormat, *, derive: bool = True) -> Policy:
        """Everything in one format, but for what is exact as bits, has to be exact, or can be derived.

        Booleans, the masks of dropout and those that attention adds become bits; log-sum-exps and norm
        statistics stay raw, and so do small log-softmaxes and what logsumexp takes; of over a million values
        these are kept in 12 bits a value, if the format has fewer. What amax, max, median and their like take
        and give stays raw: their backward pass looks for one in the other. So does what losses of a
        difference, binary cross-entropies and CTC save; small targets that are probabilities, too.

        Norms and distances stay raw, as do inputs of functions with poles elsewhere than at 0.

        Of what a sigmoid or a tanh gives the logit or the inverse hyperbolic tangent is kept, at ten bits a
        value or more, so that its distance to 1 comes back as well, where gradients vanish and logarithms do
        not. A tanh is derived where it can be, and without ``derive`` in the format itself.

        The backward pass of fused attention takes the exponential of products of queries and keys. Where it
        is done again, so that outputs and log-sum-exps are derived, these two have four bits a value or more,
        in planes ten. Elsewhere, with dropout or without ``derive``, they have ten bits, in planes, and so
        have values and outputs. What attention adds to the products has ten bits everywhere.

        So has what backward formulas divide by, or take roots or logarithms of: what division, sqrt, log,
        exp, powers with negative and fractional exponents save.
        Formats other than planes lose the sign and the zeros of single values: what formulas compare is kept
        likewise then, as what ReLU, clamp, max pooling and abs save. A softmax, which may be large, has four
        bits a value or more, without ``derive`` ten, in planes: use log_softmax where its logarithm is taken.
        Where values are mixed, tensors of two values that need no gradient become bits, as do signs.

        Args:
            fmt: of everything else.
            derive: compute anew, in the backward pass, what cheap operations made of what is stashed.

        Raises:
            ValueError: it is no format, or a lossless one, whose blocks vary in size.
        """
        if not isinstance(fmt, StashFormat):
            raise ValueError(f"fmt must be a format, as PlaneFormat, not {fmt!r}")
        masks = [Rule("bits", dtype="bool"), *(Rule("bits", op=op) for op in _MASK_OPS)]
        exact = [Rule("raw", op=op, why=why) for op, why in _EXACT_OPS.items()]
        logs = []
        for about in (
            partial(Rule, op="_log_softmax", why=LOG_SOFTMAX),
            partial(Rule, saved_by="mul(_log_softmax)", why=NEAR_TARGET),  # targets that are probabilities
            partial(Rule, saved_by="logsumexp", why=LOG_SUM_EXP),
        ):
            logs.append(about("raw", most=_LARGE - 1))
            logs += [
                about(finer, dtype=dtype, least=_LARGE) for dtype, finer in _at_least(fmt, _LOG_SOFTMAX_BITS)
            ]
        equal = [Rule("raw", op=op, why=EQUALS) for op in _COMPARED]
        equal += [Rule("raw", saved_by=op, why=EQUALS) for op in _COMPARED]
        losses = [Rule("raw", saved_by=op, why=NEAR_TARGET) for op in _LOSSES]
        signed = [Rule("raw", op=op, why=SINGULAR) for op in _SINGULAR_RESULTS]
        signed += [Rule("raw", saved_by=op, why=SINGULAR) for op in _SINGULAR_INPUTS]
        logits, values = [], []
        if not isinstance(fmt, PlaneFormat):
            logits.append(Rule("bits", op="", saved_by=_ATTENTION))
            logits.append(Rule("raw", op="", saved_by=_ATTENTION, why=ATTENTION_MASK))
        logits.append(Rule("bits", saved_by=_BIAS))
        if not isinstance(fmt, PlaneFormat):
            signed.append(Rule("bits", op=_SIGN))
            if derive:
                values += [Rule(_with_logits(fmt), op=op, why=PROBABILITIES) for op in _PROBABILITIES]
                logits.append(Rule(_with_logits(fmt), saved_by=_LOGIT_INPUTS_AGAIN, why=LOGITS))
                values.append(Rule(fmt, saved_by=_VALUES_AGAIN))
        for dtype, planes in _fine(fmt):
            if planes == format_for(fmt, TORCH_DTYPES[planes.dtype]):
                continue  # it has as many bits itself
            keeps = partial(Rule, planes, dtype=dtype, why=SIGNS_AND_ZEROS)
            signed += [keeps(op=op) for op in _DIVISOR_RESULTS]
            signed += [keeps(saved_by=op) for op in _DIVISOR_INPUTS]
            logits.append(Rule(planes, op=_OUTPUTS, dtype=dtype, why=LOGITS))
            logits.append(Rule(planes, saved_by=_LOGIT_INPUTS, dtype=dtype, why=LOGITS))
            values.append(Rule(planes, saved_by=_VALUES, dtype=dtype, why=LOGITS))
            logits.append(Rule(planes, saved_by=_BIAS, dtype=dtype, why=BIAS))
            if not isinstance(fmt, PlaneFormat):
                signed += [keeps(op=op) for op in (_SIGN, *_GATE_RESULTS)]
                signed += [keeps(saved_by=op) for op in _GATE_INPUTS]
                if not derive:  # of another format than fmt there are planes, as for queries and keys
                    values += [Rule(planes, op=op, dtype=dtype, why=PROBABILITIES) for op in _PROBABILITIES]
        squashed = list(_squashed(fmt, derive))
        again, derived = ([Rule("derive", op=_OUTPUTS)], [Rule("derive")]) if derive else ([], [])
        first = *masks, *again, *exact, *losses, *logs, *equal, *squashed
        return cls([*first, *logits, *signed, *derived, *values, Rule(fmt)])

    @property
    def derives(self) -> bool:
        """Whether any rule derives tensors."""
        return any(rule.keep == "derive" for rule in self.rules)

    @property
    def names_operations(self) -> bool:
        """Whether any rule asks which operation made a tensor, or saves it."""
        return any(rule.op != "*" or rule.saved_by != "*" for rule in self.rules)

    @property
    def names_modules(self) -> bool:
        """Whether any rule asks which module a tensor is saved in."""
        return any(rule.module != "*" for rule in self.rules)

    @property
    def names_savers(self) -> bool:
        """Whether any rule asks which operation saves a tensor."""
        return any(rule.saved_by != "*" for rule in self.rules)

    def asks_for(self, saver: str) -> bool:
        """Whether any rule tells what this operation saves from what none does."""
        return any(rule.asks_for(saver) for rule in self.rules)

    def table(self) -> Table:
        """The rules as a table of rich."""
        table = Table(title="policy")
        savers = ["saved by"] if self.names_savers else []
        for heading in ("module", "operation", *savers, "dtype", "values", "keep", "why"):
            table.add_column(heading, overflow="fold")
        for rule in self.rules:
            by = [rule.saved_by] if savers else []
            table.add_row(rule.module, rule.op, *by, rule.dtype, _range(rule), _name(rule), rule.why)
        return table

    def __str__(self) -> str:
        console = Console(width=180)
        with console.capture() as captured:
            console.print(self.table())
        return captured.get().rstrip()


def _squashed(fmt: StashFormat, derive: bool) -> Iterator[Rule]:
    """What is kept of sigmoids and tanhs."""
    for op, of in SQUASHED.items():
        if derive and op.startswith("tanh"):
            yield Rule("derive", op=op)
        for dtype, planes in [("*", fmt)] if op == "tanh" and not derive else _fine(fmt):
            yield Rule(planes, op=op, of=of, dtype=dtype, why=SATURATES)


def _with_logits(fmt: StashFormat) -> StashFormat:
    """The format, or the next one that is enough for queries, keys and softmaxes where things are derived."""
    if isinstance(fmt, HadamardFormat):
        return replace(fmt, target=max(fmt.target, fmt.block * _LOGIT_BITS_AGAIN // 8))
    if isinstance(fmt, QuantFormat):
        return replace(fmt, bits=max(fmt.bits, _LOGIT_BITS_AGAIN))
    return fmt


def _fine(fmt: StashFormat) -> Iterator[tuple[str, StashFormat]]:
    """Planes with enough bits for what has to keep its sign or must not become 0, see :func:`_planes`."""
    return _at_least(fmt, _FINE_BITS) if isinstance(fmt, PlaneFormat) else _planes(_FINE_BITS)


def _at_least(fmt: StashFormat, bits: int) -> Iterator[tuple[str, StashFormat]]:
    """Planes with no fewer than ``bits`` a value, and the dtypes they are for; see :func:`_planes`.

    But of a quantisation, the one with the most bits.
    """
    if isinstance(fmt, QuantFormat):
        yield "*", replace(fmt, bits=max(QUANT_BITS))
        return
    for dtype, planes in _planes(bits):
        own = format_for(fmt, TORCH_DTYPES[planes.dtype])
        if not isinstance(own, PlaneFormat):
            own = planes
        least = own.block * bits // 8
        yield dtype, own if own.target is not None and own.target >= least else replace(own, target=least)


def _planes(bits: int) -> Iterator[tuple[str, PlaneFormat]]:
    """Planes with that many bits a value, and the dtypes they are for: those of 16 bits, then of 32."""
    for dtypes, dtype in (("*float16", "bf16"), ("*", "fp32")):
        planes = PlaneFormat(dtype, target=None)
        yield dtypes, replace(planes, target=planes.block * bits // 8)


@cache
def _dtypes() -> list[str]:
    """The names of torch's dtypes."""
    dtypes = [value for value in vars(torch).values() if isinstance(value, torch.dtype)]
    return [str(dtype).removeprefix("torch.") for dtype in dtypes]


def _range(rule: Rule) -> str:
    if rule.most is None:
        return f"from {rule.least:,}" if rule.least else "any"
    return f"{rule.least:,} to {rule.most:,}"


def _name(rule: Rule) -> str:
    keep = rule.keep
    if isinstance(keep, str):
        return keep
    assert keep.target is not None
    bits = 8 * keep.target / keep.block
    of = "" if rule.of == "values" else f"{rule.of} in "
    return f"{of}{keep.scheme}, {bits:.3g} bits: {keep.block} {keep.dtype} in {keep.target} bytes"
