"""Every scheme trains, and does to memory and gradients what it says."""

import contextlib
import copy
from dataclasses import replace

import pytest
import torch

from torch_bridge import Compressor, Offload, Policy
from torch_bridge.job import compare, train
from torch_bridge.job.peak import measure, name_of
from torch_bridge.schemes import Scheme, schemes
from torch_bridge.schemes.checkpointing import checkpoint_activations

from .test_offload import open_files, settle

EXACT = {"baseline", "offload", "checkpointing"}


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    train.CONFIGS["tiny"] = {
        "n_layer": 2,
        "n_embd": 64,
        "n_head": 2,
        "n_positions": 32,
        "vocab_size": 256,
    }
    train.LEARNING_RATES["tiny"] = 1e-3
    folder = tmp_path_factory.mktemp("offload")
    yield train.Options(
        config="tiny", steps=6, batch=4, validations=1, offload_dir=folder, offload_amount="all"
    )
    del train.CONFIGS["tiny"], train.LEARNING_RATES["tiny"]


@pytest.mark.parametrize("scheme", schemes.NAMES)
def test_every_scheme_trains_gpt2(small, scheme):
    baseline = train.run(small)
    found = train.run(replace(small, scheme=scheme))
    assert open_files(small.offload_dir) == 0
    assert not found["interrupted"]
    assert len(found["train_loss"]) == small.steps
    same = found["train_loss"] == baseline["train_loss"]
    assert same == (scheme in EXACT)
    assert found["val_loss"] == pytest.approx(baseline["val_loss"], rel=0.05)
    assert found["val_loss"] < baseline["train_loss"][0] - 0.1
    if "offload" in scheme:
        assert found["offloaded_bytes"] > 0.9 * found["stored_bytes"]
    if any(name in scheme for name in ("checkpointing", "compact", "pool")):
        assert found["original_bytes"] < baseline["original_bytes"]
    else:
        assert found["original_bytes"] == baseline["original_bytes"]


def test_a_scheme_needs_what_its_name_says():
    with pytest.raises(ValueError, match=r"scheme must be one of baseline, .*, not 'zip'"):
        Scheme("zip")
    with pytest.raises(
        ValueError, match="scheme 'planes' must have a format of that name or a Policy, not None"
    ):
        Scheme("planes")
    with pytest.raises(ValueError, match="scheme 'offload' must have an Offload, not None"):
        Scheme("offload")


# Recompute


class Blocks(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(
            torch.nn.Sequential(torch.nn.Linear(32, 128), torch.nn.GELU(), torch.nn.Linear(128, 32))
            for _ in range(3)
        )

    def forward(self, x):
        for layer in self.layers:
            x = x + torch.nn.functional.dropout(layer(x), 0.1)
        return x


def gradients(model, around):
    torch.manual_seed(1)
    with around as context:
        loss = model(torch.ones(50, 32)).square().sum()
    return torch.autograd.grad(loss, list(model.parameters())), context


def test_recomputed_gradients_are_the_same_and_less_is_kept():
    model = Blocks()
    exact, kept = gradients(model, Compressor(model, Policy([])))

    def step():
        with Compressor(model, Policy([])) as saver, checkpoint_activations(model) as names:
            loss = model(torch.ones(50, 32)).square().sum()
        assert names == ["layers.0", "layers.1", "layers.2"]
        yield saver
        loss.backward()

    again, _names = gradients(model, checkpoint_activations(model))
    assert all(torch.equal(a, b) for a, b in zip(exact, again, strict=True))
    assert measure(step, torch.device("cpu")).between.original_bytes < kept.original_bytes / 2


class Stateful(torch.nn.Module):
    """A block that writes to its buffers, in place and not, and computes with what it wrote."""

    def __init__(self):
        super().__init__()
        self.linear, self.norm = torch.nn.Linear(32, 32), torch.nn.BatchNorm1d(32)
        self.register_buffer("steps", torch.zeros(()))
        self.register_buffer("scale", torch.ones(32))
        self.register_buffer("previous", None)
        self.register_buffer("mask", torch.ones(32))

    def forward(self, x):
        x = self.norm(self.linear(x)) * self.mask
        self.steps = self.steps + 1
        self.scale.mul_(0.5)
        previous = torch.zeros(32) if self.previous is None else self.previous
        self.previous = x.detach().mean(0)
        return (x * self.scale.clone() * self.steps + previous).sin()


def test_recomputing_leaves_buffers_as_the_forward_pass_left_them():
    torch.manual_seed(0)
    model = Blocks()
    model.layers = torch.nn.ModuleList([Stateful(), Stateful()])
    model.layers.append(model.layers[0])
    plain = copy.deepcopy(model)
    x = torch.randn(50, 32)
    for _ in range(2):
        for one, around in ((plain, contextlib.nullcontext()), (model, checkpoint_activations(model))):
            torch.manual_seed(1)
            with around:
                loss = one(x).square().sum()
            buffers = dict(one.named_buffers())
            values = {name: buffer.clone() for name, buffer in buffers.items()}
            loss.backward(retain_graph=True)
            loss.backward()
            assert all(buffers[name] is buffer for name, buffer in one.named_buffers())
            assert all(torch.equal(values[name], buffer) for name, buffer in buffers.items())
        for a, b in zip(model.buffers(), plain.buffers(), strict=True):
            assert torch.equal(a, b)
        for a, b in zip(model.parameters(), plain.parameters(), strict=True):
            assert torch.equal(a.grad, b.grad)


def test_recomputed_blocks_compile():
    torch.manual_seed(0)
    model = torch.nn.ModuleList(
        torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.BatchNorm1d(32)) for _ in range(2)
    )
    plain, x = copy.deepcopy(model), torch.randn(50, 32)

    def run(model):
        return model[1](model[0](x).tanh()).tanh().sum()

    run(plain).backward()
    with checkpoint_activations(model):
        loss = torch.compile(run, backend="aot_eager", fullgraph=True)(model)
    loss.backward()
    for a, b in zip(model.buffers(), plain.buffers(), strict=True):
        torch.testing.assert_close(a, b)
    for a, b in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad)


def test_blocks_may_be_in_lists_of_lists_and_the_model_a_list():
    model = torch.nn.ModuleList([torch.nn.ModuleList([Blocks(), Blocks()]), torch.nn.Linear(2, 2)])
    with checkpoint_activations(model) as names:
        assert names == ["0.0", "0.1", "1"]


def test_nothing_of_recomputation_stays_in_the_model():
    model = Blocks()

    def own(x):
        return 2 * x

    model.layers[1].forward = own
    with checkpoint_activations(model):
        assert "forward" in vars(model.layers[0])
    assert "forward" not in vars(model.layers[0])
    assert vars(model.layers[1])["forward"] is own


def test_a_model_without_blocks_is_an_error():
    with (
        pytest.raises(ValueError, match=r"blocks in an nn\.ModuleList, Linear has none"),
        checkpoint_activations(torch.nn.Linear(2, 2)),
    ):
        pass


def test_peaks_are_those_of_the_allocator():
    def step():
        a = torch.empty(1000, dtype=torch.uint8)
        b = torch.empty(5000, dtype=torch.uint8)
        del b
        yield "between"
        c = torch.empty(3000, dtype=torch.uint8)
        del a, c

    found = measure(step, torch.device("cpu"))
    assert (found.kept, found.peak, found.between) == (1000, 6000, "between")


def test_memory_is_not_measured_on_a_device_that_only_looks_like_a_cpu():
    assert name_of(torch.device("cpu")) == "cpu"
    message = "device must be cpu or cuda, whose memory can be measured, not 'xpu:1'"
    with pytest.raises(ValueError, match=message):
        measure(lambda: iter(()), torch.device("xpu:1"))
    with pytest.raises(ValueError, match=message):
        compare.Task(device=torch.device("xpu:1"))


def test_offloading_halves_the_peak_and_planes_write_a_third(small, tmp_path):
    model, forward = train.warmed_up(replace(small, config="small", batch=4, steps=1))
    peaks, written = {}, {}
    for name in ("baseline", "offload", "planes+offload"):
        disk = Offload(tmp_path, amount="all") if "offload" in name else None
        scheme = Scheme(name, small.format, offload=disk)

        def step(scheme=scheme, disk=disk):
            with scheme.around(model) as saver:
                loss = forward()
            if disk:
                settle(disk)
            yield saver
            loss.backward()

        for _ in step():
            pass
        model.zero_grad(set_to_none=False)
        before = disk.stored_bytes if disk else 0
        peaks[name] = measure(step, torch.device("cpu")).peak
        written[name] = disk.stored_bytes - before if disk else 0
    assert peaks["offload"] < 0.53 * peaks["baseline"]
    assert written["offload"] > 3 * written["planes+offload"] > 0
