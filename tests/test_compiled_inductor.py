"""Partitioners with Inductor, its caches and PyTorch's offloading, and what is wrong in their arguments."""

import os
import pickle
import subprocess
import sys

import pytest
import torch
from torch import nn
from torch._functorch.partitioners import min_cut_rematerialization_partition

import bitstash
from bitstash import Partitioner, Policy
from torch_bridge.compiled import cached
from torch_bridge.compiled import partitioner as partitioner_module

from .compiling import (
    FMT,
    MIN_VALUES,
    blocks,
    compiled,
    needs_a_compiler,
    nothing_compiled,
    step,
)

__all__ = ["nothing_compiled"]  # around every test here


def test_compiled_autograd_runs_the_same_graphs():
    model = blocks(1)
    call = compiled(model)
    expected = step(model, call)
    with torch._dynamo.utils.maybe_enable_compiled_autograd(True, dynamic=False):
        found = step(model, call)
    assert torch.allclose(found, expected, rtol=1e-4, atol=1e-6)


def test_what_is_compressed_on_a_gpu_waits_in_the_memory_of_the_cpu(monkeypatch):
    """The device stands in for a GPU: PyTorch moves what the partitioner marks, here to where it is."""
    model = blocks(1)
    expected = step(model, compiled(model))
    kept = []
    split = min_cut_rematerialization_partition

    def spy(*args, **kwargs):
        forward, backward = split(*args, **kwargs)
        kept.extend(forward.graph.find_nodes(op="output")[0].args[0])
        return forward, backward

    monkeypatch.setattr(partitioner_module, "_is_on_gpu", lambda node: True)
    monkeypatch.setattr("torch._functorch.partitioners.min_cut_rematerialization_partition", spy)
    ours, offloading = (
        Partitioner(FMT, min_values=MIN_VALUES),
        Partitioner(FMT, min_values=MIN_VALUES, offload=True),
    )
    assert ours.uuid() != offloading.uuid()
    reports = []
    for partitioner, moved in ((ours, False), (offloading, True)):
        kept.clear()
        torch.compiler.reset()
        assert torch.equal(step(model, torch.compile(model, backend=partitioner.aot_eager())), expected)
        names = [node.name for node in kept if isinstance(node, torch.fx.Node)]
        assert any(name.startswith("cpu_offload_compress") for name in names) == moved
        assert not (moved and any(name.startswith("compress") for name in names))
        reports.append(partitioner.report())
    assert reports[0] == reports[1]


def test_there_is_nothing_to_offload_from_a_cpu():
    model = blocks(1)
    partitioner = Partitioner(FMT, min_values=MIN_VALUES, offload=True)
    with pytest.warns(RuntimeWarning, match="offload=True moves nothing of a graph whose tensors are on the"):
        step(model, torch.compile(model, backend=partitioner.aot_eager()))


def test_a_compressor_around_a_compiled_model_says_what_to_write():
    model = blocks(1)
    call = torch.compile(model, backend="aot_eager")
    with pytest.warns(RuntimeWarning, match=r"bitstash\.compile\(model, policy\)"):
        step(model, call, around=bitstash.Compressor(model, FMT))


# Inductor


@needs_a_compiler
def test_inductor_agrees_and_its_cache_is_used(tmp_path):
    # One process compiles, with the exact policy as well, and another takes its graphs from the cache.
    counts = [run_inductor(tmp_path) for _ in range(2)]
    assert counts[0] == "misses"
    assert counts[1] == "hits"


INDUCTOR = """
import torch, bitstash, warnings
from torch import nn
from torch._dynamo.utils import counters
torch.set_num_threads(1)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64), nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64))
x = torch.randn(64, 64)
def step(call):
    model.zero_grad()
    call(x).square().mean().backward()
    return torch.cat([part.grad.flatten() for part in model.parameters()])
expected = step(model)
plain = step(torch.compile(model))
torch._dynamo.reset()
exact = step(bitstash.compile(model, bitstash.Policy([bitstash.Rule("exact")])))
assert torch.equal(exact, plain), "an exact policy changed bits"
torch._dynamo.reset()
counters.clear()
call = bitstash.compile(model, bits=4, fullgraph=True)
found = step(call)
assert 0 < (found - expected).norm() / expected.norm() < 0.15
missed = counters["aot_autograd"]["autograd_cache_miss"]
print("misses" if missed else "hits" if counters["aot_autograd"]["autograd_cache_hit"] else dict(counters))
if missed:
    kept = {row.saved_by: row.kept for row in call.report().rows if row.counted}
    assert kept["gelu"] == "compressed", kept
    assert call.report().ratio > 4
else:
    try:
        call.report()
        raise AssertionError("a report of nothing")
    except RuntimeError as error:
        assert "cache" in str(error)
    # Of one more layer, which is in no cache, there is a report: it says that others are not in it.
    partitioner = call.report.__self__
    more = torch.compile(nn.Linear(64, 64), options={"custom_partitioner_fn": partitioner})
    with torch.compiler.config.patch(force_disable_caches=True):
        more(x).square().mean().backward()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        assert partitioner.report().rows
    assert ["lacks what 1 graphs save" in str(one.message) for one in told] == [True], told
"""


def run_inductor(folder):
    variables = os.environ | {"TORCHINDUCTOR_CACHE_DIR": str(folder), "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", INDUCTOR], env=variables, capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip().splitlines()[-1]


def test_graphs_from_a_cache_are_told_from_those_that_were_split(monkeypatch):
    class Compilation:
        pass

    hits, present = [0], [Compilation()]
    monkeypatch.setattr(cached, "cache_hits", lambda: hits[0])
    monkeypatch.setattr(cached, "compilation", lambda: present[0])
    graphs = cached.Cached()
    graphs.look_up()
    hits[0] += 1
    assert graphs.count == 1
    present[0] = Compilation()
    graphs.look_up()
    graphs.miss()
    graphs.look_up()  # for its parts
    hits[0] += 1  # of another partitioner
    assert graphs.count == 1
    present[0] = Compilation()
    with torch.no_grad():
        graphs.look_up()
        hits[0] += 1
    assert graphs.count == 1
    assert pickle.loads(pickle.dumps(graphs)).count == 0  # PyTorch makes keys of partitioners


# Arguments


def test_the_policy_and_the_source_name_a_partitioner_in_caches():
    assert Partitioner(FMT).uuid() == Partitioner(Policy.default(FMT)).uuid()
    others = [Partitioner(bits=2), Partitioner(FMT, min_values=1), Partitioner(FMT, "torch")]
    assert len({Partitioner(FMT).uuid(), *(one.uuid() for one in others)}) == 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"bits": 5}, "bits must be one of 2, 3, 4, not 5"),
        ({"policy": "4"}, "policy must be a format or a Policy, not '4'"),
        ({"backend": "memory"}, "backend must be one of .*triton.*, not 'memory'"),
        ({"min_values": -1}, "min_values must be a number of values, not -1"),
        ({"offload": "cpu"}, "offload must be True or False, not 'cpu'"),
    ],
)
def test_a_partitioner_names_what_is_wrong(arguments, message):
    with pytest.raises(ValueError, match=message):
        Partitioner(**arguments)


def test_compile_names_what_is_wrong():
    with pytest.raises(ValueError, match=r"model must be a torch.nn.Module, not 1"):
        bitstash.compile(1)
    with pytest.raises(ValueError, match="backend must be one of inductor, aot_eager, not 'eager'"):
        bitstash.compile(nn.Linear(1, 1), backend="eager")
    with pytest.raises(ValueError, match=r"codec must be one of auto, .*, not 'memory'"):
        bitstash.compile(nn.Linear(1, 1), codec="memory")
    for options in (3, {"custom_partitioner_fn": print}):
        with pytest.raises(ValueError, match="must be a dictionary without 'custom_partitioner_fn', not "):
            bitstash.compile(nn.Linear(1, 1), options=options)
    for given in ({"options": {"cpp.threads": 1}}, {"mode": "reduce-overhead"}):
        with pytest.raises(ValueError, match="must be None with backend 'aot_eager', which has none, not "):
            bitstash.compile(nn.Linear(1, 1), backend="aot_eager", **given)
    with pytest.raises(RuntimeError, match="no graph with a backward pass was compiled"):
        bitstash.compile(nn.Linear(1, 1), backend="aot_eager").report()
