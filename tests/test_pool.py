"""Pooled activations: outputs and gradients of inputs are exact, those of weights are those of means."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from golden import PlaneFormat
from torch_bridge import Compressor
from torch_bridge.schemes import pool


def random(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def made(cls, *args, **kwargs):
    torch.manual_seed(1)
    return cls(*args, **kwargs)


def converted(model, kernel=2, **kwargs):
    model = copy.deepcopy(model)
    pool.convert(model, kernel, **kwargs)
    return model


def pooled(x, kernel):
    """An image with every pixel replaced by the mean of its square: float[..., height, width]."""
    out = torch.empty_like(x)
    for top in range(0, x.shape[-2], kernel):
        for left in range(0, x.shape[-1], kernel):
            square = (..., slice(top, top + kernel), slice(left, left + kernel))
            out[square] = x[square].mean((-2, -1), keepdim=True)
    return out


def run(model, x, autocast=False):
    """The output, and the gradients of the input and of all parameters, for one loss."""
    model.zero_grad()
    x = x.detach().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        out = model(x * 1)
    out.backward(random(*out.shape, seed=9).to(out.dtype))
    return out.detach(), x.grad, {name: p.grad for name, p in model.named_parameters()}


def saved_bytes(model, x):
    """Bytes of the storages that autograd saves, parameters left out."""
    sizes = {}
    parameters = {p.untyped_storage().data_ptr() for p in model.parameters()}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters:
            sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        out = model(x)
    del out
    return sum(sizes.values())


# Convolutions

CONVOLUTIONS = {
    "plain": {},
    "padding": {"padding": 1},
    "stride": {"stride": 2, "padding": 1},
    "unequal": {"kernel_size": (3, 2), "stride": (1, 2), "padding": (0, 1), "dilation": (2, 1)},
    "dilation": {"dilation": 2, "padding": 2},
    "groups": {"groups": 2},
    "depthwise": {"groups": 4, "out_channels": 4, "padding": 1},
    "1x1": {"kernel_size": 1},
    "1x1 and stride": {"kernel_size": 1, "stride": 2},
    "valid": {"padding": "valid"},
    "same": {"padding": "same"},
    "no bias": {"bias": False},
}


def kernels_for(settings, layout):
    """Without AVX-512 oneDNN's weight gradient of such a convolution corrupts the heap (torch 2.13)."""
    is_hit = settings == CONVOLUTIONS["1x1 and stride"] and layout == "channels_last"
    has_avx512 = torch.backends.cpu.get_cpu_capability().startswith("AVX512")
    return torch.backends.mkldnn.flags(enabled=has_avx512 or not is_hit)


def convolution(**settings):
    return made(nn.Conv2d, **{"in_channels": 4, "out_channels": 6, "kernel_size": 3} | settings)


@pytest.mark.parametrize("layout", ["contiguous", "channels_last", "sliced"])
@pytest.mark.parametrize(("size", "kernel"), [((12, 8), 2), ((9, 11), 2), ((9, 7), 4)])
@pytest.mark.parametrize("settings", CONVOLUTIONS.values(), ids=CONVOLUTIONS)
def test_a_convolution_has_exact_outputs_and_the_weight_gradient_of_means(settings, size, kernel, layout):
    plain = convolution(**settings)
    x = random(2, 4, *size)
    if layout == "channels_last":
        plain, x = (thing.to(memory_format=torch.channels_last) for thing in (plain, x))
    elif layout == "sliced":
        x = random(2, 4, size[0], 2 * size[1])[..., ::2]
    with kernels_for(settings, layout):
        out, x_grad, grads = run(plain, x)
        found, found_x_grad, found_grads = run(converted(plain, kernel), x)
        _, _, expected = run(plain, pooled(x, kernel))
    assert torch.equal(found, out)
    assert found.stride() == out.stride()
    assert torch.equal(found_x_grad, x_grad)
    torch.testing.assert_close(found_grads["weight"], expected["weight"], rtol=1e-4, atol=1e-4)
    assert not torch.allclose(found_grads["weight"], grads["weight"], rtol=0.01)
    if plain.bias is not None:
        assert torch.equal(found_grads["bias"], grads["bias"])


@pytest.mark.filterwarnings("ignore:Using padding='same'")
@pytest.mark.parametrize("mode", ["reflect", "circular", "replicate", "zeros"])
@pytest.mark.parametrize("padding", [(1, 2), "same"], ids=str)
def test_other_paddings_are_pooled_with_the_image(mode, padding):
    plain = convolution(kernel_size=(4, 5), padding=padding, padding_mode=mode)
    x = random(2, 4, 10, 9)
    out, x_grad, _ = run(plain, x)
    found, found_x_grad, found_grads = run(converted(plain), x)
    assert torch.equal(found, out)
    assert torch.equal(found_x_grad, x_grad)
    if mode == "zeros":
        padded = x if padding == (1, 2) else functional.pad(x, (0, 0, 0, 1))
        rest = padding if padding == (1, 2) else (1, 2)
    else:
        left_right_top_bottom = (2, 2, 1, 1 if padding == (1, 2) else 2)
        padded, rest = functional.pad(x, left_right_top_bottom, mode), 0
    reference = convolution(kernel_size=(4, 5), padding=rest)
    _, _, expected = run(reference, pooled(padded, 2))
    torch.testing.assert_close(found_grads["weight"], expected["weight"], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("size", [(1, 1), (1, 3), (3, 2)])
@pytest.mark.parametrize("kernel", [2, 4])
def test_images_may_be_smaller_than_the_kernel(size, kernel):
    plain = convolution(padding=1)
    x = random(2, 4, *size)
    out, x_grad, _ = run(plain, x)
    found, found_x_grad, grads = run(converted(plain, kernel), x)
    _, _, expected = run(plain, pooled(x, kernel))
    assert torch.equal(found, out)
    assert torch.equal(found_x_grad, x_grad)
    torch.testing.assert_close(grads["weight"], expected["weight"], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["float64", "bfloat16", "autocast"])
def test_other_types_are_exact_too(kind):
    dtype = torch.float32 if kind == "autocast" else getattr(torch, kind)
    plain = nn.Sequential(convolution(padding=1), nn.ReLU()).to(dtype)
    x = random(2, 4, 12, 12).to(dtype)
    out, x_grad, _ = run(plain, x, kind == "autocast")
    found, found_x_grad, grads = run(converted(plain), x, kind == "autocast")
    assert torch.equal(found, out)
    assert torch.equal(found_x_grad, x_grad)
    gradient = random(2, 6, 12, 12, seed=9).to(dtype) * (out > 0)
    expected = torch.nn.grad.conv2d_weight(
        pooled(x.double(), 2), plain[0].weight.shape, gradient.double(), padding=1
    )
    assert grads["0.weight"].dtype == dtype
    error = (grads["0.weight"] - expected).norm() / expected.norm()
    assert error < (1e-12 if kind == "float64" else 0.02)


def test_one_image_without_a_batch():
    plain = convolution(padding=1)
    x = random(4, 8, 8)
    found, x_grad, grads = run(converted(plain), x)
    out, exact, _ = run(plain, x)
    assert torch.equal(found, out)
    assert torch.equal(x_grad, exact)
    _, _, expected = run(plain, pooled(x, 2))
    torch.testing.assert_close(grads["weight"], expected["weight"])


def test_an_image_of_squares_has_the_exact_gradient():
    plain = convolution(padding=1)
    x = pooled(random(2, 4, 8, 8), 2)
    _, _, expected = run(plain, x)
    _, _, found = run(converted(plain), x)
    torch.testing.assert_close(found["weight"], expected["weight"])


def test_one_layer_used_twice_adds_its_gradients():
    layer = convolution(out_channels=4, padding=1)
    ours = converted(layer)
    x = random(2, 4, 8, 8)
    _, x_grad, found = run(nn.Sequential(ours, ours), x)
    out, exact, _ = run(nn.Sequential(layer, layer), x)
    assert torch.equal(x_grad, exact)
    middle = layer(x).detach()
    gradient = random(*out.shape, seed=9)
    outer = torch.nn.grad.conv2d_weight(pooled(middle, 2), layer.weight.shape, gradient, padding=1)
    through = torch.nn.grad.conv2d_input(middle.shape, layer.weight, gradient, padding=1)
    inner = torch.nn.grad.conv2d_weight(pooled(x, 2), layer.weight.shape, through, padding=1)
    torch.testing.assert_close(found["0.weight"], outer + inner, rtol=1e-4, atol=1e-4)


# Linear layers


@pytest.mark.parametrize("count", [8, 9, 1, 3])
@pytest.mark.parametrize("kernel", [2, 4])
@pytest.mark.parametrize("autocast", [False, True])
def test_a_linear_layer_has_the_weight_gradient_of_the_means_of_tokens(count, kernel, autocast):
    plain = made(nn.Linear, 5, 7)
    x = random(2, 3, count, 5)
    out, x_grad, grads = run(plain, x, autocast)
    found, found_x_grad, found_grads = run(converted(plain, kernel, tokens=True), x, autocast)
    assert torch.equal(found, out)
    assert torch.equal(found_x_grad, x_grad)
    assert torch.equal(found_grads["bias"], grads["bias"])
    means = torch.cat([part.mean(-2, True).expand_as(part) for part in x.split(kernel, -2)], -2)
    _, _, expected = run(plain, means)
    tolerance = 0.05 if autocast else 1e-5
    torch.testing.assert_close(found_grads["weight"], expected["weight"], rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("shape", [(0, 3, 5), (2, 0, 5)])
def test_a_linear_layer_may_be_given_nothing(shape):
    plain = made(nn.Linear, 5, 7)
    x = random(*shape)
    _, x_grad, grads = run(plain, x)
    _, found_x_grad, found_grads = run(converted(plain, 2, tokens=True), x)
    assert torch.equal(found_x_grad, x_grad)
    assert torch.equal(found_grads["weight"], grads["weight"])


def test_without_tokens_a_linear_layer_is_plain():
    plain = made(nn.Linear, 5, 7)
    for x in (random(5), random(4, 5)):
        _, _, exact = run(plain, x)
        _, _, found = run(converted(plain, tokens=True), x)
        assert torch.equal(found["weight"], exact["weight"])
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    assert pool.convert(model) == ["1"]
    assert type(model[0]) is nn.Linear


@pytest.mark.parametrize(("layer", "size"), [(nn.Conv2d(4, 4, 1), (4, 8, 8)), (nn.Linear(5, 4), (8, 5))])
def test_under_autocast_means_are_kept_in_the_type_of_the_computation(layer, size):
    kept = []
    with (
        torch.autocast("cpu", torch.bfloat16),
        torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor), lambda _: None),
    ):
        converted(layer, tokens=True)(random(2, *size))
    assert {tensor.dtype for tensor in kept if not isinstance(tensor, nn.Parameter)} == {torch.bfloat16}


# ReLU


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (511,), (2, 3, 5, 7)])
def test_the_gradient_of_a_relu_is_exact(shape, dtype, inplace):
    x = random(*shape).to(dtype)
    for index, value in enumerate((0.0, -0.0, float("nan"), float("inf"), -float("inf"))):
        if x.numel() > 5:
            x.view(-1)[index] = value
    out, x_grad, _ = run(nn.ReLU(inplace), x)
    found, found_x_grad, _ = run(converted(nn.ReLU(inplace)), x)
    for ours, exact in ((found, out), (found_x_grad, x_grad)):
        torch.testing.assert_close(ours, exact, rtol=0, atol=0, equal_nan=True)


def test_a_relu_in_place_writes_to_its_input():
    layer, x = converted(nn.ReLU(inplace=True)), random(40).requires_grad_()
    y = x * 1
    assert layer(y) is y
    assert (y >= 0).all()


def test_a_relu_keeps_the_layout():
    x = random(2, 4, 6, 6).to(memory_format=torch.channels_last)
    out, x_grad, _ = run(nn.ReLU(), x)
    found, found_x_grad, _ = run(converted(nn.ReLU()), x)
    assert (found.stride(), found_x_grad.stride()) == (out.stride(), x_grad.stride())
    assert torch.equal(found_x_grad, x_grad)


def test_a_relu_keeps_a_bit_for_each_value():
    x = random(64, 64).requires_grad_()
    assert saved_bytes(converted(nn.ReLU()), x * 1) == 64 * 64 // 8


# Models


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = (nn.Conv2d(8, 8, 3, padding=1, bias=False) for _ in range(2))
        self.norms = nn.ModuleList(nn.BatchNorm2d(8) for _ in range(2))
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x):
        y = self.relu(self.norms[0](self.first(x)))
        return self.relu(x + self.norms[1](self.second(y)))


def net():
    torch.manual_seed(0)
    head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10))
    return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), Block(), Block(), head)


def test_all_but_the_gradients_of_convolutions_is_exact():
    plain = net()
    model = converted(plain)
    x = random(4, 3, 16, 16)
    out, x_grad, exact = run(plain, x)
    found, found_x_grad, grads = run(model, x)
    assert torch.equal(found, out)
    assert torch.equal(found_x_grad, x_grad)
    for name, gradient in grads.items():
        assert torch.equal(gradient, exact[name]) == (gradient.dim() != 4), name
    for name, buffer in model.named_buffers():
        assert torch.equal(buffer, plain.get_buffer(name)), name


@pytest.mark.parametrize(("kernel", "share"), [(2, 1 / 4), (4, 1 / 16)])
def test_what_is_saved_falls(kernel, share):
    plain = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
    x = random(4, 8, 32, 32)
    statistics = 2 * 8 * 4
    moving = saved_bytes(nn.BatchNorm2d(8), x) - x.nbytes - statistics  # buffers, by the version of PyTorch
    assert saved_bytes(plain, x) == 3 * x.nbytes + statistics + moving
    expected = (1 + share + 1 / 32) * x.nbytes
    assert saved_bytes(converted(plain, kernel), x) == expected + statistics + moving


def test_the_state_of_the_model_stays_and_so_do_hooks():
    plain = net()
    model = copy.deepcopy(plain)
    calls = []
    model[0].register_forward_hook(lambda *_: calls.append(1))
    layers = dict(model.named_modules())
    assert pool.convert(model) == [
        "0",
        "1",
        *(f"{block}.{layer}" for block in (2, 3) for layer in ("first", "second", "relu")),
    ]
    assert all(layers[name] is layer for name, layer in model.named_modules())
    model(random(1, 3, 8, 8))
    assert calls == [1]
    assert list(model.state_dict()) == list(plain.state_dict())
    plain.load_state_dict(model.state_dict())
    model.load_state_dict(plain.state_dict())


def test_without_gradients_nothing_is_kept_and_nothing_is_new(monkeypatch):
    model = converted(net(), tokens=True)
    for function in (pool.PooledConv2dFunction, pool.PooledLinearFunction, pool._ReLU):
        monkeypatch.setattr(function, "apply", None)
    with torch.no_grad():
        model(random(2, 3, 8, 8))
    with torch.inference_mode():
        model.eval()(random(2, 3, 8, 8))


def test_evaluation_with_gradients_is_exact_as_well():
    plain = net().eval()
    x = random(4, 3, 8, 8)
    for found, expected in zip(run(converted(plain), x)[:2], run(plain, x)[:2], strict=True):
        assert torch.equal(found, expected)


def test_a_frozen_weight_is_left_to_pytorch():
    plain = nn.Sequential(convolution(padding=1), nn.ReLU())
    plain[0].weight.requires_grad_(False)
    x = random(2, 4, 8, 8)
    found, expected = run(converted(plain), x), run(plain, x)
    assert torch.equal(found[1], expected[1])
    assert found[2]["0.weight"] is None


def test_an_image_needs_no_gradient():
    plain = convolution(padding=1)
    x = random(2, 4, 8, 8)
    model = converted(plain)
    model(x).square().sum().backward()
    gradient = 2 * plain(x).detach()
    expected = torch.nn.grad.conv2d_weight(pooled(x, 2), plain.weight.shape, gradient, padding=1)
    torch.testing.assert_close(model.weight.grad, expected, rtol=1e-4, atol=1e-4)


def test_subclasses_and_other_names_are_left_alone():
    class Special(nn.Conv2d):
        pass

    model = nn.ModuleDict(
        {"special": Special(3, 3, 3), "mine": nn.Conv2d(3, 3, 3), "other": nn.Conv2d(3, 3, 3)}
    )
    assert pool.convert(model, names="mi*") == ["mine"]
    with pytest.raises(ValueError, match="names must fit"):
        pool.convert(model, names=["mine", "special"])
    assert [type(layer) for layer in model.values()] == [Special, pool.PooledConv2d, nn.Conv2d]


class Checkpointed(nn.Sequential):
    reentrant = False

    def forward(self, x):
        return checkpoint(super().forward, x, use_reentrant=self.reentrant)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoints_compute_the_same(reentrant):
    plain, x = net()[:2], random(2, 3, 8, 8)
    model, other = converted(plain), Checkpointed(*converted(plain))
    other.reentrant = reentrant
    exact, expected, found = run(plain, x), run(model, x), run(other, x)
    assert torch.equal(found[0], exact[0])
    assert torch.equal(found[1], exact[1])
    for name, gradient in expected[2].items():
        assert torch.equal(found[2][name], gradient)
    assert not torch.equal(found[2]["0.weight"], exact[2]["0.weight"])
    assert saved_bytes(other, x.requires_grad_()) == x.nbytes != saved_bytes(model, x)


def test_pooled_inputs_are_compressed_like_other_tensors():
    model = converted(net())
    x = random(4, 3, 16, 16)
    exact = run(model, x)[2]
    model.zero_grad()
    with Compressor(model, PlaneFormat("fp32", 64, 128), min_values=64) as saver:
        out = model(x)
    out.backward(random(*out.shape, seed=9))
    for name, parameter in model.named_parameters():
        assert (parameter.grad - exact[name]).norm() <= 0.05 * exact[name].norm(), name
    rows = {row.shape: row.kept for row in saver.report().rows}
    assert rows[4, 8, 8, 8] == "compressed"
    assert saver.report().ratio > 1.3


def test_a_second_derivative_is_refused():
    for model, x in ((convolution(), random(1, 4, 8, 8)), (nn.ReLU(), random(40))):
        x.requires_grad_()
        (grad,) = torch.autograd.grad(converted(model)(x).square().sum(), x, create_graph=True)
        with pytest.raises(RuntimeError, match="once_differentiable"):
            grad.sum().backward()


@pytest.mark.parametrize("kernel", [3, 0, 1, 8, 2.5, 2.0, "2"])
def test_a_wrong_kernel_is_named(kernel):
    with pytest.raises(ValueError, match=f"kernel must be 2 or 4, not {kernel!r}"):
        pool.convert(net(), kernel)


def test_what_is_no_model_is_named():
    with pytest.raises(ValueError, match=r"model must be a torch\.nn\.Module, not None"):
        pool.convert(None)


def test_no_layer_is_an_error():
    with pytest.raises(ValueError, match=r"names must fit a layer that can be converted, not \['x'\]"):
        pool.convert(net(), names=["x"])
