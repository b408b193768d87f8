"""The pack and unpack hooks of one forward pass: who saves a tensor, and what autograd holds in its place."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Sequence
from functools import lru_cache
from math import prod
from typing import Any

import torch

from .facts import functions
from .facts.deciding import of_squared
from .facts.facts import Facts
from .facts.geometry import Geometry, is_plain, local_of
from .facts.need import Known, Need
from .facts.operations import Operation
from .facts.products import wide_input
from .facts.watch import Thread, Watch, strided
from .internals import (
    detached,
    function_that_saves,
    is_compiling,
    never_compile,
    sequence_number,
    uncompiled,
    unseen,
)
from .keep import OPTED_OUT, opt_out
from .offload import Step
from .policy import Decision, Policy
from .report.report import Tally
from .store.attention import Logits, Node, logits_of, may_be_again
from .store.decompressed import Decompressed
from .store.entries import NOBODY, Entry, Exact, Packed
from .store.recomputed import source_of
from .store.saved import Saved, node_of
from .store.store import Store

is_grad_enabled, Parameter = torch.is_grad_enabled, torch.nn.Parameter

NOT_PLAIN = "not a plain strided tensor"
MOST_PLACES = 1 << 14  # that are remembered


class Sharded:
    """What autograd holds for a DTensor: what became of its local part, and how to wrap that again."""

    __slots__ = ("_kind", "_parts", "_rest", "_size", "_stride", "packed")

    def __init__(self, tensor: torch.Tensor, packed: Exact | Packed | Saved) -> None:
        self.packed, self._kind = packed, type(tensor)
        names, self._rest = tensor.__tensor_flatten__()  # type: ignore[attr-defined]
        self._parts = {name: getattr(tensor, name) for name in names if name != "_local_tensor"}
        self._size, self._stride = tensor.shape, tensor.stride()

    def wrap(self, local: torch.Tensor) -> torch.Tensor:
        """The DTensor of a local part."""
        parts = self._parts | {"_local_tensor": local}
        return self._kind.__tensor_unflatten__(parts, self._rest, self._size, self._stride)  # type: ignore


class Pass:
    """One forward pass. It holds numbers and names: what is stored belongs to autograd's graph.

    Who saves a tensor is told by the number of the node that does: an operation saves its inputs just before
    it runs and its results just after, and its node has the same number all the while.

    Args:
        policy: what decides.
        watch: of the forward pass.
        store: that keeps what it saves.
        tally: where that is counted.
        step: where tensors go, None if they stay in their memory.
        min_values: tensors with fewer stay exact.
        places: what was decided so far, by places in the model; of all steps.
        told: whom a warning has named as unknown; of all steps.
    """

    def __init__(
        self,
        policy: Policy,
        watch: Watch,
        store: Store,
        tally: Tally,
        step: Step | None,
        min_values: int,
        places: dict[Any, tuple[Facts, Decision]],
        told: set[str],
    ) -> None:
        self._policy, self._watch, self._store = policy, watch, store
        self.tally, self.step = tally, step
        self._min_values, self._places, self._told = min_values, places, told
        self._decompressed = Decompressed()
        self._lock = threading.RLock()
        self._parameters = set[int]()  # that were counted
        self._again: tuple[int, Node] | None = None  # the attention that ran last, by its node's number

    # Packing

    def pack(self, tensor: torch.Tensor) -> Exact | Packed | Saved | Sharded:
        """The pack hook: what autograd keeps in place of a tensor."""
        if is_compiling() is not None:
            return uncompiled(Pass.pack, self, tensor)
        function = function_that_saves()
        if type(tensor) is Parameter and not function and tensor.is_leaf:
            return self._pack_parameter(tensor)
        if is_plain(tensor):
            return self._pack(tensor, function)
        local = local_of(tensor)
        if local is tensor or not is_plain(local):
            return self._pack_strange(tensor)
        self._watch.note_part(tensor, local)
        held = self._pack(local, function)
        if isinstance(held, Saved):
            held.requires_grad = tensor.requires_grad  # which its local part never says
        return Sharded(tensor, held)

    def _pack_parameter(self, tensor: torch.Tensor) -> Exact:
        """A parameter itself, which stays whoever saves it; counted where it is saved first."""
        why = self._watch.origin(tensor).constant
        if id(tensor) not in self._parameters:
            self._parameters.add(id(tensor))
            module, nbytes = self._watch.module, tensor.nbytes
            facts = _of_parameter(why, module, tensor.dtype, tensor.shape, tensor.requires_grad)
            with self._lock:
                self.tally.add(facts, "", why, nbytes, nbytes)
        return Exact(tensor, None)

    def _pack_strange(self, tensor: torch.Tensor) -> Exact:
        nbytes, op = tensor.numel() * tensor.element_size(), node_of(tensor)
        is_ragged = tensor.is_nested and tensor.layout is torch.strided  # these have no sizes
        shape = (tensor.numel(),) if is_ragged else tuple(tensor.shape)
        facts = Facts("", "", None, op, "", self._watch.module, tensor.dtype, shape, tensor.numel(), True)
        with self._lock:
            self.tally.add(facts, op, NOT_PLAIN, nbytes, nbytes)
        return Exact(tensor.detach(), None)

    def _pack(self, tensor: torch.Tensor, function: str) -> Exact | Packed | Saved:
        thread, number, stays = self._watch.thread, sequence_number(), opt_out.holds
        if stays:
            self.settle()
        origin = self._watch.origin(tensor)
        saved = Saved(tensor, detached(tensor), origin, thread.modules[-1], number, function)
        if stays:
            with self._lock, unseen():
                return self._keep_all(saved, OPTED_OUT)
        op = thread.operation
        # Of an operation in place on a view autograd makes two nodes.
        if op is not None and not function and not op.is_clone:
            behind = number - thread.number
            if behind == 0 or (behind == 2 and op.written and origin.op == op.name):
                saved.result_of, saved.needs = op, thread.needs
        thread.waiting.append(saved)
        return saved

    def before(self, thread: Thread, op: Operation, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Keep what this thread saved before an operation: it saved its arguments, or others did before."""
        waiting, number = thread.waiting, sequence_number()
        last = waiting[-1]
        if op.is_clone and last.number == number and last.result_of is None:
            return  # of what it writes to an operation saves a clone, which has no node of its own
        if (op.is_view or op.is_copy) and all(one.squared for one in waiting):
            return  # what becomes of their squares is not known yet
        thread.waiting = []  # what fails to be kept is not tried again
        mine: list[Saved] = []
        others = waiting
        if is_grad_enabled():
            others = []
            for one in waiting:
                is_mine = one.number == number and not (one.function or one.result_of)
                (mine if is_mine else others).append(one)
        with self._lock, unseen():
            if others:
                summed = [one for one in others if one.squared and self._is_summed(one, op, args)]
                self._settle([one for one in others if one not in summed])
                thread.waiting += summed
            if mine:
                thread.waiting += self._keep_inputs(mine, op, args, kwargs)

    def _keep_inputs(
        self, mine: list[Saved], op: Operation, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> list[Saved]:
        """Keep what an operation's node saves of its arguments; what is none of these."""
        places: list[int | str | None] = []
        has_node = False
        for saved in mine:
            place = _place(saved, args, kwargs, places)
            has_node = has_node or (place is not None and saved.requires_grad)
            if place is None and op.written and saved.origin.op:
                place = 0  # a clone of what it writes to, and which is no input any more when it is needed
                saved.origin.recipe = None
            places.append(place)
        has_node = has_node or any(saved.requires_grad for saved in mine)
        if not has_node and not any(tensor.requires_grad for tensor in strided([*args, *kwargs.values()])):
            return mine
        lineages = self._watch.thread.lineages
        is_again = op.is_attention and self._policy.recomputes and self._is_again(op, args, kwargs, places)
        wide = wide_input(op.recomputation, args)
        held: dict[int | str, tuple[Entry | Exact, Geometry]] = {}
        for saved, place in zip(mine, places, strict=True):
            if place is None:
                continue
            if saved.packed is None:
                slot = place if isinstance(place, str) else op.arguments[place] if op.arguments else ""
                need = op.need(slot, args, kwargs, lineages.of_tensor)
                is_table = op.is_pointwise and not saved.requires_grad and _is_broadcast(saved, args, kwargs)
                if need is Need.LOGITS and self._store.logits is None:
                    self._store.logits = logits_of(op, args, kwargs)
                if need is Need.SQUARED:
                    saved.squared = op.in_table, slot, is_table
                    continue
                self._keep(saved, op.in_table, slot, need, is_table, is_again, place == wide)
            packed = saved.packed
            if is_again and packed is not None:
                held[place] = packed.entry if isinstance(packed, Packed) else packed, saved.geometry
        self._store.logits = None
        self._again = (mine[0].number, Node(op, args, kwargs, held)) if is_again else None
        return [saved for saved, place in zip(mine, places, strict=True) if place is None or saved.squared]

    def _is_summed(self, saved: Saved, then: Operation, args: tuple[Any, ...]) -> bool:
        """Whether the next operation sums what was squared: more may follow, if that is still there."""
        assert saved.values is not None
        assert saved.squared is not None
        given = list(strided(args))
        is_sum = then.is_reduction or (then.is_product and all(one.requires_grad for one in given))
        if saved.square is not None or not is_sum:
            return False
        for one in given:
            origin = self._watch.origin(one)
            if one.numel() == saved.values.numel() and origin.op.rstrip("_") == saved.squared[0]:
                saved.square = origin
        return saved.square is not None

    def _keep_squared(self, saved: Saved) -> None:
        """Keep what was squared, now that it is known what is done with the square."""
        assert saved.squared is not None
        op, slot, is_table = saved.squared
        is_summed = saved.square is not None and saved.square.storage() is None
        self._keep(saved, op, slot, of_squared(is_summed), is_table, False, False)

    def _keep_result(self, saved: Saved, op: Operation) -> None:
        """Keep what an operation's node saves of its results."""
        number = op.numbers.get(saved.origin.op)
        slot, need = ("", None) if number is None else (op.results[number], saved.needs[number])
        if self._again is not None and self._again[0] == saved.number and number in (0, 1):
            facts, _ = self._decided(saved, op.in_table, slot, need)
            packed = self._store.keep_result(self._again[1], number, saved, facts)
            if packed is not None:
                saved.become(packed)
                return
        self._keep(saved, op.in_table, slot, need)

    def _is_again(
        self,
        op: Operation,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        places: Sequence[int | str | None],
    ) -> bool:
        """Whether attention is done again for its node: if that holds all it needs, and the rules agree."""
        operands = {_where(tensor) for tensor in strided([*args, *kwargs.values()])}
        if len({*places} - {None}) < len(operands) or not may_be_again(op, args, kwargs):
            return False
        query, value, module = args[0], args[2], self._watch.module
        shape = *query.shape[:-1], value.shape[-1]
        each = (
            (op.results.get(0, ""), op.name, query.dtype, shape),
            (op.results.get(1, ""), f"{op.name}.1", torch.float32, shape[:-1]),
        )
        return all(
            self._policy.decide(
                Facts(op.in_table, slot, Need.ATTENDED, name, "", module, dtype, size, prod(size), True)
            ).recompute
            == "lossy"
            for slot, name, dtype, size in each
        )

    def end(self) -> None:
        """Nothing more is saved, nor is a result of the last attention."""
        if is_compiling() is not None:
            uncompiled(Pass.end, self)
            return
        self.settle()
        self._store.end()
        self._again = None

    def settle(self) -> None:
        """Keep what this thread saved since its last operation: no operation of torch did."""
        waiting = self._watch.thread.waiting
        if waiting:
            with self._lock, unseen():
                found = list(waiting)
                waiting.clear()
                self._settle(found)

    def _settle(self, waiting: list[Saved]) -> None:
        """Keep results, what Functions saved, call by call, and what nobody is known to have saved."""
        calls: dict[tuple[int, str], list[Saved]] = {}
        for saved in waiting:
            if saved.packed is None and saved.values is not None:
                if saved.squared:
                    self._keep_squared(saved)
                elif saved.result_of is not None:
                    self._keep_result(saved, saved.result_of)
                else:
                    calls.setdefault((saved.number, saved.function), []).append(saved)
        for (_, function), all_saved in calls.items():
            floats = [one for one in all_saved if one.values.is_floating_point()]  # type: ignore[union-attr]
            needs = functions.needs_of(function, [_as_saved(one) for one in floats]) if function else None
            unknown, name = 0, function.rpartition(".")[2]
            if needs is not None and Need.LOGITS in needs:
                at = [one.values for one, need in zip(floats, needs, strict=True) if need is Need.LOGITS]
                self._store.logits = Logits(at)  # type: ignore[arg-type]
            for saved in all_saved:
                assert saved.values is not None
                saved.origin.recipe = None  # a kernel may have written to it unseen
                nbytes = saved.values.nbytes
                place = floats.index(saved) if saved in floats else -1
                need = needs[place] if needs is not None and place >= 0 else None
                if self._keep(saved, name, str(place) if place >= 0 else "", need):
                    unknown += nbytes
            self._store.logits = None
            if unknown:
                self._tell(function, all_saved[0].module, unknown)

    def _tell(self, function: str, module: str, nbytes: int) -> None:
        """Name who saved tensors that stay exact because nobody knows what their backward pass needs."""
        if function in self._told:
            return
        self._told.add(function)
        name = function.rpartition(".")[2]
        if name == "CompiledFunction":
            warnings.warn(
                f"a compiled graph in module {module!r} saves {nbytes:,} bytes that stay exact: hooks "
                "cannot tell what it needs of them. To compress inside the graph write "
                "bitstash.compile(model, policy) in place of torch.compile(model), without a Compressor",
                RuntimeWarning,
                stacklevel=2,
            )
            return
        who = f"autograd.Function {function!r}" if function else "an unknown operation"
        if packages := functions.packages_of(name):
            who += f", no class of {' or '.join(packages)},"
        rule = f'Rule(fmt, saved_by="{name}")'
        warnings.warn(
            f"{who} in module {module!r} saves {nbytes:,} bytes that stay exact: what its backward pass "
            f"needs of them is not known. If it bears small errors: Policy([{rule}, *policy.rules])",
            RuntimeWarning,
            stacklevel=2,
        )

    def _keep(self, saved: Saved, saved_by: str, slot: str, need: Known | None, *traits: bool) -> bool:
        """Keep a tensor; whether it stays exact because nobody knows what is needed of it."""
        facts, decision = self._decided(saved, saved_by, slot, need, *traits)
        saved.become(self._store.keep(saved, facts, decision))
        return decision.unknown and facts.elements >= self._min_values

    def _decided(
        self, saved: Saved, saved_by: str, slot: str, need: Known | None, *traits: bool
    ) -> tuple[Facts, Decision]:
        """What is known of a tensor and what becomes of it: of a place in the model asked for once.

        Args:
            traits: whether it is a table, is given to attention that is done again, and feeds a wide product.
        """
        origin, tensor = saved.origin, saved.values
        assert tensor is not None
        saved.geometry = geometry = Geometry.of(tensor)
        # Only of these could a format lose what is beside a number that stands for infinity.
        may_be_filled = saved.requires_grad and (need is Need.VALUES or need is None)
        filled = may_be_filled and self._watch.thread.lineages.of_tensor(saved.tensor).filled > 0
        # Written out, as what is unpacked into a tuple goes through a list.
        key = (
            saved_by, slot, id(need), saved.module, geometry, tensor.dtype, origin.op, origin.constant,
            origin.is_statistic, saved.requires_grad, traits, filled,
        )  # fmt: skip
        found = self._places.get(key)
        if found is None:
            shape, count = tuple(geometry.size), geometry.region.count
            is_statistic = origin.is_statistic or (count > 1 and shape[-1:] == (1,))
            facts = Facts(
                *(saved_by, slot, need, origin.op, origin.constant, saved.module, tensor.dtype, shape, count),
                *(saved.requires_grad, is_statistic, filled, *traits),
            )
            if len(self._places) >= MOST_PLACES:  # as with a length of its own in every step
                self._places.clear()
            found = self._places[key] = facts, self._policy.decide(facts)
        return found

    def _keep_all(self, saved: Saved, why: str) -> Exact | Packed:
        """Keep a tensor as it is, whatever others do with it."""
        facts, _ = self._decided(saved, "", "", None)
        assert saved.values is not None
        source = source_of(saved.origin, saved.values, saved.values._version)
        return self._store.leave(saved, facts, source, saved.geometry.region, facts.constant or why)

    # Unpacking

    def unpack(self, packed: Exact | Packed | Saved | Sharded) -> torch.Tensor:
        """The unpack hook: the tensor again, its bits what the format kept of them."""
        if is_compiling() is not None:
            return uncompiled(Pass.unpack, self, packed)
        if type(packed) is Saved and type(packed.packed) is Exact and not (packed.function or self.step):
            return packed.packed.tensor()
        if isinstance(packed, Sharded):
            return packed.wrap(self._unpack(packed.packed))
        return self._unpack(packed)

    def _unpack(self, packed: Exact | Packed | Saved) -> torch.Tensor:
        if type(packed) is Exact and self.step is None:
            return packed.tensor()
        number = packed.number if isinstance(packed, Saved) and packed.function else NOBODY
        with self._lock, unseen():
            if isinstance(packed, Saved):
                if packed.packed is None:
                    self._settle([packed])
                assert packed.packed is not None
                packed = packed.packed
            if self.step is not None:
                self.step.advance()
            if isinstance(packed, Exact):
                return packed.tensor() if number == NOBODY else packed.apart()
            values = self._decompressed.values(packed.entry, number)
            return packed.entry.memory.view(values, packed.geometry)


never_compile(Pass.pack, Pass.unpack, Pass.end)


@lru_cache(MOST_PLACES)
def _of_parameter(
    why: str, module: str, dtype: torch.dtype, shape: tuple[int, ...], requires_grad: bool
) -> Facts:
    return Facts("", "", None, "", why, module, dtype, tuple(shape), prod(shape), requires_grad)


def _as_saved(saved: Saved) -> torch.Tensor:
    """The tensor, as far as a table of Functions asks: its values, and whether it requires a gradient."""
    assert saved.values is not None
    return saved.values.detach().requires_grad_(saved.requires_grad)


def _place(
    saved: Saved, args: tuple[Any, ...], kwargs: dict[str, Any], taken: list[int | str | None]
) -> int | str | None:
    """The place or name of the argument that a saved tensor is, or lies where it does; None if it is none.

    One that others have not taken, if there is one: of queries that are the keys as well both are saved.
    """
    found: int | str | None = None
    place: int | str
    for place, value in enumerate(args):
        if value is saved.tensor:
            if place not in taken:
                return place
            found = place
    if found is not None:
        return found
    assert saved.values is not None
    where = _where(saved.values)
    places: list[tuple[int | str, Any]] = [*enumerate(args), *kwargs.items()]
    for place, value in places:
        if any(_where(tensor) == where for tensor in strided(value)):
            return place
    return None


def _is_broadcast(saved: Saved, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a saved argument has fewer values than another one."""
    assert saved.values is not None
    count = saved.values.numel()
    return any(tensor.numel() > count for tensor in strided([*args, *kwargs.values()]))


def _where(tensor: torch.Tensor) -> tuple[Any, ...]:
    """What tells a tensor among an operation's arguments: where it lies."""
    return tensor.untyped_storage()._cdata, tensor.storage_offset(), tensor.shape, tensor.stride()
