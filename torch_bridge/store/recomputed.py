"""Saved tensors that are not stored but recomputed: what they are made of is stored anyway.

A tensor is recomputed if cheap operations (``facts/recompute.py``) made it of recomputation inputs alone:
tensors that are stored by then, compressed, as bits, exactly or offloaded, or recomputed themselves; small
tensors and parameters, which are copied for it; and large parameters. That is decided when the tensor is
saved, and what is saved later is no input: nothing waits undecided but what one operation saves. In a GPT
inputs are saved before what is made of them.

No tensor is more than ``MOST_OPERATIONS`` operations from what is stored, nor do these compute more than
``MOST_WORK`` values for each of its own; behind matrix products, no more than ``MOST_PRODUCTS`` of them stand
in a row: queries, the layer behind attention, and the first of an MLP, so that each layer of a transformer
stores what it was given. Every state of a storage has one recomputed entry for all views.
It holds its inputs; recipes only say which they are, by states of storages. An input that stays as it is
raises autograd's own error if it was written to since.

What attention gives is made of what its own node holds instead (``attention.py``); other tensors may start
from it, and are not made of it otherwise.

After Chen et al., "Training Deep Nets with Sublinear Memory Cost" (arXiv 1604.06174): what is cheap is
computed anew. Compiled graphs choose what to start from by a minimal cut, before they run (PyTorch's
``min_cut_rematerialization_partition``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from time import perf_counter
from typing import Any, TypeAlias

import torch

from ..backends import streams
from ..facts.facts import Facts
from ..facts.geometry import Geometry, Region, region_of
from ..facts.need import Need
from ..facts.origin import Operand, Origin
from ..facts.products import is_wide
from ..facts.recompute import Recipe
from ..facts.watch import PARAMETER, Watch
from ..internals import as_recorded
from ..policy.decision import Decision, widest
from .entries import NOBODY, Entry, Exact, Joint, Live, Memory, Source
from .verdicts import Verdicts

MOST_OPERATIONS = 12
MOST_WORK = 16
MOST_PRODUCTS = 3
MOST_BEHIND_PRODUCTS = 256  # operations, with all that made the operands

# Logits of this size are what a mask has made of them.
MASKED = 1e3

# Mean magnitude of a tanh that is made of what has 4 bits. The gradient has an error of 0.3 at 0.82.
MOST_SATURATED = 0.75

# A recomputation input that no one stored is copied if it is at most this part of what is recomputed.
SMALL = 1 / 64
# What a matrix product is given, or a cast of that, is copied if it is at most this part.
SMALL_FACTOR = 1 / 4

# fp16 ends here: what came close to it would become infinite with operands that are a little larger.
_LARGEST_HALF = torch.finfo(torch.float16).max

# Sums, products and copies in a row that take less time than what they are made of takes to keep.
_LIGHT = 4

Start = Entry | Exact
Input: TypeAlias = "tuple[int | str, Start | Redone, Geometry]"


class Redone:
    """An operation that is done again.

    Args:
        recipe: of the operation.
        inputs: by the places or names of arguments: what each operand is part of, and where it lies in it.

    Attributes:
        operations, work: done in all, and values that these compute.
        bits: of a value, of what it starts from in fewest; infinite of what is exact.
        cost: of the operations until the next tensor that may be kept; light ones cost 1.
        is_product: whether it is a matrix product, which is done once for all operations that it is given to.
        products: of which one was given what another made.
        is_exact: whether everything that it starts from comes back as it was.
    """

    __slots__ = (
        *("_args", "_dtype", "_flops", "_geometry", "_inputs", "_kwargs", "_may_overflow", "_over", "_way"),
        *("bits", "cost", "is_exact", "is_product", "operations", "products", "work"),
    )

    def __init__(self, recipe: Recipe, inputs: list[Input]) -> None:
        self._way, self._args = recipe.way, list(recipe.args)
        self._kwargs = dict(recipe.kwargs)
        self._dtype, self._geometry, self._inputs = recipe.dtype, recipe.geometry, inputs
        self.operations, self.work, self.is_exact, self.bits = 1, recipe.geometry.count, True, float("inf")
        self.cost = 1 if recipe.way.is_light else _LIGHT + 1
        self.is_product, self.products = recipe.inner > 0, 0
        self._flops = {id(self): recipe.flops} if recipe.inner else {}
        self._over: int | None = None
        for place, part, where in inputs:
            _put(None, place, self._args, self._kwargs)  # a recipe is not held any longer
            self.is_exact = self.is_exact and part.is_exact
            if not part.is_exact:
                self.bits = min(self.bits, part.bits)
            if isinstance(part, (Redone, Recomputed)):
                self.operations += part.operations
                self.work += part.work
                self.products = max(self.products, part.products)
            if isinstance(part, Redone):
                self.cost += part.cost
                self._flops |= part._flops
                if (
                    recipe.way.takes_out
                    and not part.is_product
                    and isinstance(place, int)
                    and self._lies_like(part, where)
                ):
                    self._over = place
        self.products += self.is_product
        self._may_overflow = not self.is_exact and self._dtype == torch.float16

    @property
    def flops(self) -> int:
        """Floating-point operations of matrix products, of those alone that no other entry does."""
        return sum(self._flops.values())

    @property
    def inputs(self) -> list[Input]:
        """By the places or names of arguments: what each operand is part of, and where it lies in it."""
        return self._inputs

    @property
    def saturates(self) -> bool:
        """Whether its result nears an end and never passes it."""
        return self._way.saturates

    def is_whole(self, where: Geometry) -> bool:
        """Whether an operand that lies there is all of its result."""
        return where is self._geometry

    def view(self, made: torch.Tensor, where: Geometry) -> torch.Tensor:
        """What lies there of its result, which was made."""
        if self.is_whole(where):
            return made
        return made.as_strided(where.size, where.stride, made.storage_offset() + where.offset)

    def _lies_like(self, part: Redone, where: Geometry) -> bool:
        """Whether the result can be written over an operand, which no one else has."""
        mine = self._geometry
        is_whole = part.is_whole(where) and part._dtype == self._dtype
        return is_whole and (where.size, where.stride) == (mine.size, mine.stride)

    @property
    def is_light(self) -> bool:
        """Whether it is quicker to run it twice than to keep what it made."""
        return self.cost <= _LIGHT

    def add_starts(self, starts: dict[Start, None]) -> None:
        """Add everything that it starts from, each once."""
        for _, part, _ in self._inputs:
            if isinstance(part, Redone):
                part.add_starts(starts)
            else:
                starts[part] = None

    def run(self, memories: dict[Start | Redone, torch.Tensor]) -> torch.Tensor:
        """The operation's result as it lay in memory, from the memories of all recomputation inputs.

        What matrix products give is added to these.
        """
        args, kwargs = list(self._args), dict(self._kwargs)
        for place, part, where in self._inputs:
            if isinstance(part, Redone):
                made = part.view(part._run_once(memories), where)
            elif isinstance(part, Exact):
                made = memories[part].as_strided(where.size, where.stride, where.offset)
            else:
                made = part.memory.view(memories[part], where)
            _put(made, place, args, kwargs)
        compute = self._way.compute
        if self._over is not None:
            made = compute(self.is_exact, *args, out=args[self._over], **kwargs)
            return made.clamp_(-_LARGEST_HALF, _LARGEST_HALF) if self._may_overflow else made
        return self.finish(compute(self.is_exact, *args, **kwargs))

    def _run_once(self, memories: dict[Start | Redone, torch.Tensor]) -> torch.Tensor:
        if not self.is_product:
            return self.run(memories)
        if self not in memories:
            memories[self] = self.run(memories)
        return memories[self]

    def finish(self, made: torch.Tensor) -> torch.Tensor:
        """What the operation gave, with finite values and strides as it had."""
        if self._may_overflow:
            made = made.clamp(-_LARGEST_HALF, _LARGEST_HALF)
        if made.stride() != self._geometry.stride:
            made = made.new_empty_strided(self._geometry.size, self._geometry.stride).copy_(made)
        return made


class Recomputed(Entry):
    """A region that is computed anew; it stores nothing itself.

    Args:
        source, region, values: as of ``Entry``; the region is a run of memory.
        redone: what makes all of it; the time that it takes is added to its row in the report.

    Attributes:
        operations, products, work: of what makes it.
        redone: as given.
    """

    operations: int
    products: int
    work: int

    def __init__(self, source: Source, region: Region, values: torch.Tensor, redone: Redone) -> None:
        super().__init__(source, region, None, values, None)
        self.redone = redone
        self._unsaved = [region]
        self._starts: dict[Start, None] = {}
        redone.add_starts(self._starts)
        self.operations, self.work, self.products = redone.operations, redone.work, redone.products

    def save(self, region: Region) -> int:
        """A region of it is saved; how many of its elements were not yet."""
        if not self._unsaved:
            return 0
        rest = [part for piece in self._unsaved for part in piece.split(region)[1]]
        saved = sum(piece.count for piece in self._unsaved) - sum(piece.count for piece in rest)
        self._unsaved = rest
        return saved

    @property
    def is_stored(self) -> bool:
        return False

    @property
    def is_exact(self) -> bool:
        return self.redone.is_exact

    def serves(self, decision: Decision) -> bool:
        if self.is_exact or decision.recompute == "lossy":
            return True
        return not any(decision.least) and decision.normed is None

    @property
    def bits(self) -> float:
        return self.redone.bits

    @property
    def is_light(self) -> bool:
        return self.redone.is_light

    @property
    def is_product(self) -> bool:
        return self.redone.flops > 0

    @property
    def needs(self) -> list[Entry]:
        return [start for start in self._starts if isinstance(start, Entry)]

    def write_to(self, memory: torch.Tensor | None, where: Memory) -> torch.Tensor:
        if (doubted := self.doubted) is not None:
            return self._put_into(memory, doubted, where)
        memories: dict[Start | Redone, torch.Tensor] = {}
        for start in self._starts:
            if isinstance(start, Exact):
                memories[start] = start.tensor()
                streams.hold(memories[start])
            else:
                start.memory.lend(NOBODY)
                memories[start] = start.memory.of(start)
        began = perf_counter()
        with as_recorded():
            made = self.redone.run(memories)
        self.sums.seconds += perf_counter() - began
        return self._put_into(memory, made, where)

    def _put_into(self, memory: torch.Tensor | None, made: torch.Tensor, where: Memory) -> torch.Tensor:
        values = made.as_strided((self.region.count,), (1,), made.storage_offset())
        if memory is None:
            return values
        where.view(memory, self.region).copy_(values)
        return memory


def source_of(origin: Origin, tensor: torch.Tensor, version: int) -> Source:
    """Where what is stored of a storage's state is found, as a tensor of that version has it."""
    source: Source | None = origin.source(version, tensor.dtype)
    if source is None:
        source = Source(origin.storage, tensor, version)
        origin.sources += (source,)
    return source


class Planner:
    """Finds what saved tensors can be recomputed from.

    Args:
        watch: that recorded how they were made.
        verdicts: on sums that are small beside what is added.

    Attributes:
        copied: bytes of inputs that were copied for what was planned last.
    """

    def __init__(self, watch: Watch, verdicts: Verdicts) -> None:
        self._watch, self._verdicts = watch, verdicts
        self.copied = 0

    def plan(
        self, tensor: torch.Tensor, origin: Origin, facts: Facts, only_exact: bool, products: bool = False
    ) -> tuple[Redone, Region] | None:
        """What makes the memory of a saved tensor, and all of that memory; None if nothing can.

        Args:
            only_exact: whether nothing lossy may be among its inputs.
            products: whether matrix products that are not wide may be among the operations.
        """
        recipe = origin.recipe
        if recipe is None or recipe.version != tensor._version or recipe.dtype != tensor.dtype:
            return None
        region, whole = region_of(tensor), recipe.geometry.region
        if whole.has_gaps or not region.is_within(whole):
            return None
        self.copied, self._facts, self._sums = 0, facts, 0
        self._products, self._nbytes = products, region.count * tensor.element_size()
        self._known: dict[tuple[int, bool], Redone] = {}
        redone = self._redo(recipe, origin, only_exact)
        self._known.clear()  # they keep what they are made from
        if redone is None or not _is_near(redone, region):
            return None
        if not redone.is_exact and (
            (facts.need is Need.PROBABILITIES and self._amplifies(recipe, redone))
            or (facts.need is Need.TANH and self._saturates(tensor, redone))
        ):
            return None
        return redone, whole

    def _saturates(self, tensor: torch.Tensor, redone: Redone) -> bool:
        """Whether most of a tanh is so near its ends that the error of its argument counts where it is not.

        Not of a polynomial, as in GELU, whose own slope does not follow the tanh's.
        """
        if _most_uses(redone) > 1:
            return False
        mean = _mean(tensor)
        return self._verdicts.ask(("saturates", self._facts), lambda: ~(mean <= MOST_SATURATED))

    def _amplifies(self, recipe: Recipe, redone: Redone) -> bool:
        """Whether a softmax's logits spread more widely than what it is recomputed from is enough for."""
        logits = recipe.args[0]
        memory = self._memory(logits.origin, logits.dtype, logits.geometry.region)
        if memory is None:
            return True
        starts: dict[Start, None] = {}
        redone.add_starts(starts)
        bound = min(map(_widest, starts))

        def is_wider() -> torch.Tensor:
            values = logits.geometry.region.values(memory).float()
            mean = torch.where(values.abs() < MASKED, values, 0).square().mean()
            return ~(mean.sqrt() <= bound)

        return self._verdicts.ask(("amplifies", self._facts), is_wider)

    def _redo(
        self, recipe: Recipe, origin: Origin, only_exact: bool, is_factor: bool = False
    ) -> Redone | None:
        """What makes a state of a storage as its recipe says; None if nothing can, or not well enough.

        Args:
            recipe, origin: of the storage.
            only_exact: whether nothing lossy may be among its inputs.
            is_factor: whether a matrix product is given it.
        """
        if recipe.inner and not self._products and not is_wide(recipe.inner, recipe.geometry.size[-1]):
            return None
        only_exact = only_exact or recipe.way.needs_exact
        key = id(recipe), only_exact
        if recipe.inner and (known := self._known.get(key)) is not None:
            return known
        inputs: list[Input] = []
        values: list[tuple[int | str, Any]] = [*enumerate(recipe.args), *recipe.kwargs.items()]
        places = [(place, operand) for place, operand in values if type(operand) is Operand]
        operands = [operand for _, operand in places]
        feeds = recipe.inner > 0 or (is_factor and len(operands) == 1)
        for place, operand in places:
            if operand.origin.parameter is not None:
                found: Start | Redone | None = self._parameter(operand)
            else:
                found = (
                    self._stored(operand, only_exact)
                    or self._made(operand, only_exact, feeds)
                    or self._copy(operand, feeds)
                )
            if found is None:
                return None
            inputs.append((place, found, operand.geometry))
        redone = Redone(recipe, inputs)
        if recipe.inner:
            self._known[key] = redone
        if recipe.way.may_cancel and not redone.is_exact and not _is_of_one(recipe, inputs):
            parts = zip(operands, (part for _, part, _ in inputs), strict=True)
            lossy = [(operand, part) for operand, part in parts if not part.is_exact]
            self._sums += 1
            question = "cancels", self._facts, self._sums
            if self._is_small(redone, question, recipe, origin, lossy):
                return None
        return redone

    def _is_small(
        self,
        redone: Redone,
        key: Hashable,
        recipe: Recipe,
        origin: Origin,
        lossy: list[tuple[Operand, Start | Redone]],
    ) -> bool:
        """Whether a sum is small beside what was added."""
        if not redone.products:
            operands = [operand for operand, _ in lossy]
            return self._verdicts.ask(key, lambda: self._cancels(recipe, origin, operands))
        # What a layer adds to its input is gone by now: it is made again once, in the first step.
        if (known := self._verdicts.known(key)) is not None:
            return known
        return self._verdicts.ask(key, lambda: self._is_under_half(recipe, origin, lossy))

    def _is_under_half(
        self, recipe: Recipe, origin: Origin, lossy: list[tuple[Operand, Start | Redone]]
    ) -> torch.Tensor | bool:
        """Whether a sum is smaller than half of what was added, or may be."""
        made = self._mean(origin, recipe.dtype, recipe.geometry.region)
        if made is None:
            return True
        added = [_mean(_values(part, operand.geometry)) for operand, part in lossy]
        return ~(2 * made >= torch.stack(added).max())  # NaNs may be anything

    def _cancels(self, recipe: Recipe, origin: Origin, operands: list[Operand]) -> torch.Tensor | bool:
        """Whether a sum is smaller than what was added, whose error it has then, or may be."""
        made = self._mean(origin, recipe.dtype, recipe.geometry.region)
        added = [self._mean(one.origin, one.dtype, one.geometry.region) for one in operands]
        known = [one for one in added if one is not None]
        if made is None or len(known) < len(added):
            return True
        return ~(made >= torch.stack(known).max())  # NaNs may be anything

    def _mean(self, origin: Origin, dtype: torch.dtype, region: Region) -> torch.Tensor | None:
        """The mean magnitude of a state of a storage; None if that is gone."""
        memory = self._memory(origin, dtype, region)
        if memory is None:
            return None
        return _mean(memory.as_strided(region.size, region.stride, region.offset))

    def _stored(self, operand: Operand, only_exact: bool) -> Start | Redone | None:
        """What is stored of an operand; of what is light to make the way, so that it takes no memory."""
        origin = operand.origin
        source: Source | None = origin.source(operand.version, operand.dtype)
        if source is None:
            return None
        region = operand.geometry.region
        is_gathered = origin.constant.startswith(PARAMETER) and origin.parameter is None
        # FSDP frees it even if a node holds it; and what was written to past its version is another one.
        may_stay = not is_gathered and self._watch.is_current(origin)
        left = source.left(region) if may_stay else None
        if left is not None:
            source.is_input = True
            return left
        for found in source.holding(region):
            if found.is_exact or not only_exact:
                return found.redone if isinstance(found, Recomputed) and found.is_light else found
        return None

    def _parameter(self, operand: Operand) -> Start | None:
        """A copy of a small parameter of the model, which all share, or a large one itself.

        What FSDP gathered has an origin without parameter, and is copied or no input: it may be gone when it
        is needed. So is what DeepSpeed gathers, whose parameters have an identity of DeepSpeed's.
        """
        origin, region = operand.origin, operand.geometry.region
        parameter = origin.parameter() if origin.parameter is not None else None
        if parameter is None or parameter._version != operand.version or parameter.dtype != operand.dtype:
            return None
        source = source_of(origin, parameter, operand.version)
        for entry in source.holding(region):
            if entry.codec is None and entry.is_stored:
                return entry
        if (copied := self._copy(operand)) is not None:
            return copied
        is_there = self._watch.is_current(origin) and parameter.untyped_storage() is origin.storage()
        return Live(parameter) if is_there and not hasattr(parameter, "ds_id") else None

    def _made(self, operand: Operand, only_exact: bool, is_factor: bool) -> Redone | None:
        recipe = operand.origin.recipe
        if recipe is None or (recipe.version, recipe.dtype) != (operand.version, operand.dtype):
            return None
        return self._redo(recipe, operand.origin, only_exact, is_factor)

    def _copy(self, operand: Operand, is_factor: bool = False) -> Entry | None:
        """A copy of a small tensor that is still there."""
        region, origin = operand.geometry.region, operand.origin
        nbytes = region.count * operand.dtype.itemsize
        most = SMALL_FACTOR if is_factor and not origin.constant else SMALL
        if nbytes > most * self._nbytes:
            return None
        whole = self._memory(origin, operand.dtype, region)
        if whole is None:
            return None
        values = region.values(whole).clone()
        self.copied += nbytes
        return Entry(source_of(origin, whole, operand.version), region, None, values, values)

    def _memory(self, origin: Origin, dtype: torch.dtype, region: Region) -> torch.Tensor | None:
        """All of a storage, if it is still there and nobody wrote to it since."""
        storage = origin.storage()
        if storage is None or not self._watch.is_current(origin):
            return None
        if storage.nbytes() < region.end * dtype.itemsize:  # FSDP has let go of it
            return None
        return torch.empty(0, dtype=dtype, device=storage.device).set_(storage)


def _values(part: Start | Redone, where: Geometry) -> torch.Tensor:
    """What lies in a part there, decompressed or made again."""
    if isinstance(part, Exact):
        return part.tensor().as_strided(where.size, where.stride, where.offset)
    if not isinstance(part, Redone):
        return part.memory.view(part.memory.of(part), where)
    starts: dict[Start, None] = {}
    part.add_starts(starts)
    memories: dict[Start | Redone, torch.Tensor] = {
        one: one.tensor() if isinstance(one, Exact) else one.memory.of(one) for one in starts
    }
    with as_recorded():
        return part.view(part.run(memories), where)


def _mean(values: torch.Tensor) -> torch.Tensor:
    """The mean magnitude."""
    dtype = torch.promote_types(values.dtype, torch.float32)
    return torch.linalg.vector_norm(values, 1, dtype=dtype).float() / max(1, values.numel())


def _is_near(redone: Redone, region: Region) -> bool:
    """Whether few operations are between a region and what is stored."""
    if redone.products:
        return redone.products <= MOST_PRODUCTS and redone.operations <= MOST_BEHIND_PRODUCTS
    return redone.operations <= MOST_OPERATIONS and redone.work <= MOST_WORK * region.count


def _widest(start: Start) -> float:
    """How widely logits may spread that are made of it."""
    if start.is_exact or isinstance(start, Exact):
        return float("inf")
    parts = start.parts if isinstance(start, Joint) else start.needs
    return min(map(_widest, parts)) if parts else widest(start.strength)


def _put(value: Any, place: int | str, args: list[Any], kwargs: dict[str, Any]) -> None:
    if isinstance(place, str):
        kwargs[place] = value
    else:
        args[place] = value


def _is_of_one(recipe: Recipe, inputs: list[Input]) -> bool:
    """Whether a sum is a function of each value of one tensor, as ``x + x ** 3``, or ``1 + tanh(x)``.

    Of a number and what saturates: how near that is to its end has no larger error than its argument.
    """
    if any(isinstance(value, (int, float)) and value for value in recipe.args):
        parts = [part.redone if isinstance(part, Recomputed) else part for _, part, _ in inputs]
        return all(isinstance(part, Redone) and part.saturates for part in parts)
    leaves: set[tuple[Start, Geometry]] = set()
    return all(_is_pointwise(part, where, leaves) for _, part, where in inputs) and len(leaves) == 1


def _most_uses(redone: Redone) -> int:
    """How often the operations that make a tensor value by value are given the same lossy one at most."""
    uses, waiting = Counter[tuple[Any, Geometry]](), [redone]
    while waiting:
        for _, part, where in waiting.pop().inputs:
            made = part.redone if isinstance(part, Recomputed) else part
            if isinstance(made, Redone) and not made.is_product:
                waiting.append(made)
            elif not made.is_exact:
                uses[made, where] += 1
    return max(uses.values(), default=0)


def _is_pointwise(part: Start | Redone, where: Geometry, leaves: set[tuple[Start, Geometry]]) -> bool:
    """Whether all of it is made of lossy tensors, value by value; these are added to the leaves."""
    if part.is_exact:
        return False
    if not isinstance(part, Redone):
        leaves.add((part, where))
        return True
    return part.is_whole(where) and all(_is_pointwise(*one[1:], leaves) for one in part.inputs)
