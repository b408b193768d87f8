"""The front end for ``torch.compile``: a partitioner that keeps compressed bytes between the two graphs."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, Self

import torch
from torch.fx import GraphModule, Node

import golden

from .. import backends
from ..backends.dtypes import AnyFormat
from ..facts.facts import Facts
from ..policy import Policy, as_policy
from ..report import Report
from ..report.curve import Curve, together
from ..report.report import Sums, Tally
from ..report.rows import COMPRESSED, INFINITIES, RECOMPUTED
from ..store.budget import Budget, check_time
from ..store.codecs import Codecs
from ..store.questions import TOO_MUCH
from . import operators  # noqa: F401  # graphs from a cache call them
from .cached import Cached
from .joint import Joint, flops_of_graph, geometry_of, is_tensor
from .measured import CHOICES, sizes_of, text_of_all
from .plan import Entry, Plan
from .rewrite import Rewriter, merged
from .saved import saved_tensors
from .written import keep_before_writing

_ANEW = "torch.compiler.config.force_disable_caches = True compiles anew"
_OFFLOADED = "cpu_offload_"  # how PyTorch names what it moves there
PARTITIONER = "kept by the partitioner"


class Partitioner:
    """Splits a joint graph into forward and backward pass, with compressed tensors between them.

    For ``torch.compile(model, options={"custom_partitioner_fn": Partitioner(policy)})``; ``compile``
    writes the same in one word. The tensors that the model's operations save are decided on as with hooks: by
    the same facts, the same table of operations and the same policy. What PyTorch's own minimal cut keeps
    beyond these, or recomputes, stays exact. Copies of parameters, as autocast makes, are made again: where a
    parameter changes before the backward pass PyTorch raises, as without autocast.

    Args:
        policy: which tensors are compressed, and how far; a fixed-mode format stands for
            ``Policy.default(fmt)``. By default the Hadamard format in ``bits`` bits a value.
        backend: one of ``torch_bridge.backends.NAMES`` but those behind a memory engine.
        bits: of a value, where there is no policy: 2, 3 or 4.
        time: of a step, for matrix products that are done again, as of a Compressor. Each graph has its own
            step of so much time: all that can be is recomputed in a plan of the graph, of which the best is
            picked. Queries and keys are recomputed from exact tensors only, and no sum that may cancel.
        min_values: tensors with fewer distinct values stay exact.
        offload: what is compressed on a GPU waits for the backward pass in the CPU's memory. PyTorch moves
            it, as ``torch._functorch.config.activation_offload_*`` say.

    Raises:
        ValueError: an argument is none of these, or no rule of the policy recomputes products and there is
            a time.
        RuntimeError: this torch has no custom partitioners.

    Examples:
        >>> model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU(), torch.nn.Linear(64, 64))
        >>> partitioner = Partitioner(bits=4)
        >>> compiled = torch.compile(model, backend=partitioner.aot_eager())
        >>> compiled(torch.randn(64, 64)).square().mean().backward()
        >>> partitioner.report().ratio > 4
        True
    """

    def __init__(
        self,
        policy: AnyFormat | Policy | None = None,
        backend: str = "auto",
        *,
        bits: int | None = None,
        time: float | None = None,
        min_values: int = 1024,
        offload: bool = False,
    ) -> None:
        if not isinstance(min_values, int) or min_values < 0:
            raise ValueError(f"min_values must be a number of values, not {min_values!r}")
        if not isinstance(offload, bool):
            raise ValueError(f"offload must be True or False, not {offload!r}")
        check_time(time)
        if backend in backends.IN_PLACE:
            names = ", ".join(name for name in backends.NAMES if name not in backends.IN_PLACE)
            raise ValueError(f"backend must be one of {names}, not {backend!r}")
        self._policy, self._backend = as_policy(policy, bits, products=time is not None), backend
        self._time, self._min_values, self._offload = time, min_values, offload
        Codecs(self._policy, backend)  # what is wrong with a format shows now
        self._tally, self._graphs, self._told = Tally(), 0, set[str]()
        self._chosen: list[_Chosen] = []
        self._curves: list[tuple[int, Curve]] = []
        self._cached = Cached()
        _register()

    def __call__(
        self, gm: GraphModule, joint_inputs: Sequence[object], **kwargs: Any
    ) -> tuple[GraphModule, GraphModule]:
        """As PyTorch calls a partitioner: a joint graph -> the graphs of the two passes."""
        from torch._functorch import config
        from torch._functorch.partitioners import min_cut_rematerialization_partition

        self._cached.miss()
        gm.graph.eliminate_dead_code()
        constants = kwargs.get("static_lifetime_input_indices")
        joint = Joint(gm.graph, constants)
        if keep_before_writing(joint):
            gm.recompile()
            joint = Joint(gm.graph, constants)
        plan = self._plan(joint)
        rewriter = Rewriter(joint, plan, self._backend) if plan.changes else None
        if rewriter is not None:
            rewriter.run()
            if self._offload:
                self._mark(rewriter)
            if config.cse:
                gm.graph = merged(gm.graph, rewriter.inserted)
            gm.recompile()
        is_offloading = config.enable_activation_offloading or self._offload
        cse = config.cse and rewriter is None
        with config.patch(cse=cse, enable_activation_offloading=is_offloading):
            forward, backward = min_cut_rematerialization_partition(gm, joint_inputs, **kwargs)
        self._tell(plan)
        self._count(joint, plan, rewriter, forward, kwargs["num_fwd_outputs"])
        return forward, backward

    def _mark(self, rewriter: Rewriter) -> None:
        """Say what PyTorch is to move to the CPU's memory."""
        for node in rewriter.stored:
            if _is_on_gpu(node):
                node.meta["should_offload"] = True
            else:
                self._warn(
                    "offload=True", "offload=True moves nothing of a graph whose tensors are on the CPU"
                )

    def _plan(self, joint: Joint) -> Plan:
        """What becomes of a graph's tensors; with products that are done again, after what these cost."""
        saved, budget = saved_tensors(joint), Budget(self._time)
        make = partial(Plan, joint, self._policy, self._min_values, saved, budget, _is_captured(joint))
        plan = make()
        if not self._policy.products:
            return plan
        flops = flops_of_graph(joint)
        budget.close(flops, plan.stored_bytes)
        if budget.curve is None:
            return plan
        self._curves.append((flops, budget.curve))
        return make()

    def aot_eager(self) -> Callable[..., Any]:
        """A backend for ``torch.compile`` that runs the two graphs as they are, without Inductor."""
        from torch._dynamo.backends.common import aot_autograd
        from torch._dynamo.backends.debugging import boxed_nop

        return aot_autograd(fw_compiler=boxed_nop, partition_fn=self)

    def report(self) -> Report:
        """Every tensor that the graphs compiled so far save, those of all graphs added up.

        Sizes that change from step to step are as they were when a graph was compiled. A graph that is
        compiled anew, as for other sizes, counts again. One from a cache of torch.compile does not count: a
        warning says how many there are.

        Raises:
            RuntimeError: no graph was compiled yet.
        """
        if not self._graphs:
            raise RuntimeError(
                "there is nothing to report: no graph with a backward pass was compiled, or all came from "
                f"a cache of torch.compile ({_ANEW})"
            )
        if self._cached.count:
            warnings.warn(
                f"the report lacks what {self._cached.count} graphs save, which came from a cache of "
                f"torch.compile ({_ANEW})",
                RuntimeWarning,
                stacklevel=2,
            )
        for one in self._chosen:
            one.look(self._tally)
        return replace(self._tally.report(), curve=together(self._curves) if self._curves else None)

    def uuid(self) -> str:
        """What PyTorch's caches of compiled graphs tell partitioners by: the policy, and the source."""
        self._cached.look_up()
        given = (self._policy.rules, self._backend, self._time, self._min_values, self._offload)
        parts = (*given, _source())
        return hashlib.sha256(repr(parts).encode()).hexdigest()

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self  # the compiler copies its options, and the report is one

    # The report

    def _tell(self, plan: Plan) -> None:
        for name, (module, nbytes) in plan.unknown.items():
            self._warn(
                name,
                f"{name!r} in module {module!r} reads {nbytes:,} bytes in the backward pass that stay "
                "exact: what it needs of them is not known. If it bears small errors: "
                f'Policy([Rule(fmt, saved_by="{name}"), *policy.rules])',
            )

    def _warn(self, about: str, message: str) -> None:
        """Warn, once for each subject."""
        if about not in self._told:
            self._told.add(about)
            warnings.warn(message, RuntimeWarning, stacklevel=3)

    def _count(
        self, joint: Joint, plan: Plan, rewriter: Rewriter | None, forward: GraphModule, outputs: int
    ) -> None:
        """Count what the forward graph hands over."""
        self._graphs += 1
        stored = {node.name: entry for node, entry in rewriter.stored.items()} if rewriter else {}
        tensors = {node.name: node for node in joint.nodes if node not in joint.tangents and is_tensor(node)}
        constants = {name: joint.constant(node) for name, node in tensors.items()}
        # What is kept may be another view of an entry's memory.
        memory: dict[str, object] = {
            name: (joint.root(node), joint.region(node)) for name, node in tensors.items()
        }
        exact: dict[object, Entry] = {
            memory[entry.node.name]: entry for entry in plan.entries if entry.kind == "exact"
        }
        for entry in plan.entries:
            if entry.kind in ("recomputed", "again"):
                self._add(entry.facts, RECOMPUTED, _nbytes(entry.node), 0)
        sizes: dict[Entry, int] = {}  # of a norm's input several tensors are kept
        out = forward.graph.find_nodes(op="output")[0].args[0]
        for node in dict.fromkeys(out[outputs:]):
            if not isinstance(node, Node) or not is_tensor(node):
                continue
            name = node.name.removeprefix(_OFFLOADED)
            found = stored.get(name) or exact.get(memory.get(name))
            if found is None:
                facts = _facts_of_other(node, constants.get(name, ""))
                self._add(facts, constants.get(name) or PARTITIONER, _nbytes(node), _nbytes(node))
            else:
                before = sizes.get(found, 0) if name in stored else 0  # views share their memory
                sizes[found] = before + _nbytes(node)
        for entry, nbytes in sizes.items():
            original = _nbytes(entry.node)
            if rewriter is None or entry not in rewriter.places:
                self._add(entry.facts, entry.kept, original, nbytes)
                continue
            takes = sizes_of(text_of_all(entry.formats), geometry_of(entry.node).region.count, entry.row)
            sums = self._add(entry.facts, entry.kept, original, takes[0])
            self._chosen.append(_Chosen(rewriter.places[entry], sums, original, takes))

    def _add(self, facts: Facts, kept: str, original: int, nbytes: int) -> Sums:
        return self._tally.add(facts, facts.made_by, kept, original, nbytes)


@dataclass
class _Chosen:
    """A tensor whose format is chosen when the graph runs.

    Attributes:
        place: by which the choice is known.
        sums: of the row that counts it.
        original: bytes of it.
        takes: bytes in each format.
        level: the format that it is counted with.
    """

    place: str
    sums: Sums
    original: int
    takes: list[int]
    level: int = 0

    def look(self, tally: Tally) -> None:
        """Count it as it was kept last."""
        level, before = CHOICES.chosen(self.place), self.takes[self.level]
        if level != self.level:
            why = TOO_MUCH.get(self.sums.facts.need, INFINITIES)
            kept = COMPRESSED if self.takes[level] < self.original else why
            self.sums = tally.move(self.sums, kept, self.original, (before, self.takes[level]))
            self.level = level


def _is_captured(joint: Joint) -> bool:
    """Whether a GPU is to record the graph and to replay it."""
    from torch._inductor import config

    values = (node.meta["val"] for node in joint.nodes if is_tensor(node))
    return bool(config.triton.cudagraphs) and any(value.device.type == "cuda" for value in values)


def _is_on_gpu(node: Node) -> bool:
    return bool(node.meta["val"].device.type != "cpu")


def _nbytes(node: Node) -> int:
    value = node.meta["val"]
    return geometry_of(node).region.count * value.element_size()


def _facts_of_other(node: Node, constant: str) -> Facts:
    """What is known of a tensor that the partitioner chose to keep."""
    geometry, value = geometry_of(node), node.meta["val"]
    made_by = "" if node.op == "placeholder" else str(node.target).rpartition("aten.")[2].partition(".")[0]
    count = geometry.region.count
    return Facts("", "", None, made_by, constant, "", value.dtype, geometry.size, count, value.requires_grad)


@cache
def _register() -> None:
    """Tell Inductor that this is a partitioner. To derive from its class would import the compiler."""
    try:
        from torch._functorch.partitioners import _has_tag_must_be_in_backward  # noqa: F401
        from torch._inductor.custom_graph_pass import CustomPartitionerFn
    except ImportError as error:
        message = f"a compiled graph can be partitioned by torch 2.9 or newer, not {torch.__version__!r}"
        raise RuntimeError(message) from error
    CustomPartitionerFn.register(Partitioner)


@cache
def _source() -> str:
    """A hash of everything that decides what a graph becomes."""
    root, found = Path(__file__).parent.parent, hashlib.sha256()
    packages = (root / name for name in ("backends", "compiled", "facts", "policy", "store"))
    for folder in (Path(golden.__file__).parent, root, *packages):
        for path in sorted(folder.glob("*.py")):
            found.update(path.read_bytes())
    return found.hexdigest()
