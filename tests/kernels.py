"""Stand-ins on a CPU for kernels that need a GPU: the same names, the same tensors saved in the same order.

``tests/test_kernels_sources.py`` holds the names against the kernels' own sources. Results and statistics are
written into memory that PyTorch only allocates, as a kernel does: nobody who watches operations sees what
made them. Backward passes are written out from what is saved, and never differentiate the forward pass.
"""

import ctypes
from collections.abc import Callable

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional

EPS = 1e-6


def written(values: Tensor) -> Tensor:
    """The values in memory that no operation of PyTorch was seen to fill, contiguous."""
    return overwrite(torch.empty(values.shape, dtype=values.dtype), values)


def overwrite(memory: Tensor, values: Tensor) -> Tensor:
    """Writes values over contiguous memory of the same size, which no version of a tensor counts."""
    values = values.to(memory.dtype).contiguous()
    ctypes.memmove(memory.data_ptr(), values.data_ptr(), values.nbytes)
    return memory


def of(module: str) -> Callable[[type[Function]], type[Function]]:
    """Says that a class is defined in a kernel's module, by which the bridge knows it."""

    def rename(function: type[Function]) -> type[Function]:
        function.__module__ = module
        return function

    return rename


# Attention


def _logits(q: Tensor, k: Tensor, scale: float, causal: bool) -> Tensor:
    logits = torch.einsum("bqhd,bkhd->bhqk", q.float(), k.float()) * scale
    return (
        logits.masked_fill(torch.ones_like(logits[0, 0], dtype=torch.bool).triu(1), -torch.inf)
        if causal
        else logits
    )


def flash_forward(q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool) -> tuple[Tensor, Tensor]:
    """Outputs [batch, tokens, heads, width] and log-sum-exps [batch, heads, tokens]."""
    logits = _logits(q, k, scale, causal)
    lse = logits.logsumexp(-1)
    out = torch.einsum("bhqk,bkhd->bqhd", (logits - lse[..., None]).exp(), v.float())
    return written(out.to(q.dtype)), written(lse)


def flash_backward(
    dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, scale: float, causal: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of queries, keys and values: probabilities are the exponentials of logits less their sums."""
    probabilities = (_logits(q, k, scale, causal) - lse[..., None]).exp()
    dv = torch.einsum("bhqk,bqhd->bkhd", probabilities, dout.float())
    dp = torch.einsum("bqhd,bkhd->bhqk", dout.float(), v.float())
    delta = (dout.float() * out.float()).sum(-1).transpose(1, 2)
    ds = probabilities * (dp - delta[..., None]) * scale
    dq = torch.einsum("bhqk,bkhd->bqhd", ds, k.float())
    dk = torch.einsum("bhqk,bqhd->bkhd", ds, q.float())
    return written(dq.to(q.dtype)), written(dk.to(k.dtype)), written(dv.to(v.dtype))


@of("flash_attn.flash_attn_interface")
class FlashAttnFunc(Function):
    """FlashAttention 2; tensors of [batch, tokens, heads, width]."""

    @staticmethod
    def forward(ctx, q, k, v, softmax_scale, causal):
        out_padded, softmax_lse = flash_forward(q, k, v, softmax_scale, causal)
        rng_state = torch.empty(2, dtype=torch.int64)
        ctx.save_for_backward(q, k, v, out_padded, softmax_lse, rng_state)
        ctx.options = softmax_scale, causal
        return out_padded

    @staticmethod
    def backward(ctx, dout):
        q, k, v, out, softmax_lse, _ = ctx.saved_tensors
        return *flash_backward(dout, q, k, v, out, softmax_lse, *ctx.options), None, None


@of("xformers.ops.fmha")
class _fMHA(Function):  # noqa: N801
    """xformers' memory-efficient attention."""

    @staticmethod
    def forward(ctx, query, key, value, scale, causal):
        out, lse = flash_forward(query, key, value, scale, causal)
        ctx.save_for_backward(query, key, value, out, lse)
        ctx.options = scale, causal
        return out

    @staticmethod
    def backward(ctx, grad):
        return *flash_backward(grad, *ctx.saved_tensors, *ctx.options), None, None


@of("torch._higher_order_ops.flex_attention")
class FlexAttentionAutogradOp(Function):
    """flex_attention without compilation; tensors of [batch, heads, tokens, width]."""

    @staticmethod
    def forward(ctx, query, key, value, scale, causal):
        q, k, v = (part.transpose(1, 2) for part in (query, key, value))
        out, logsumexp = flash_forward(q, k, v, scale, causal)
        out = out.transpose(1, 2)
        max_scores = written(_logits(q, k, scale, causal).amax(-1))
        kv_num_blocks = torch.ones(1, 1, 1, dtype=torch.int32)
        ctx.save_for_backward(query, key, value, out, logsumexp, max_scores, kv_num_blocks)
        ctx.options = scale, causal
        return out

    @staticmethod
    def backward(ctx, grad_out):
        query, key, value, out, logsumexp, *_ = ctx.saved_tensors
        lies = [part.transpose(1, 2) for part in (grad_out, query, key, value, out)]
        grads = flash_backward(*lies, logsumexp, *ctx.options)
        return *(grad.transpose(1, 2) for grad in grads), None, None


@torch.library.custom_op("flash_attn_3::_flash_attn_forward", mutates_args=())
def _flash_attn_forward(
    q: Tensor, k: Tensor, v: Tensor, softmax_scale: float, causal: bool
) -> tuple[Tensor, Tensor]:
    """FlashAttention 3, where it is an operation of ``torch.library``."""
    return flash_forward(q, k, v, softmax_scale, causal)


def setup_context(ctx, inputs, output):
    q, k, v = inputs[:3]
    out, softmax_lse = output
    ctx.save_for_backward(q, k, v, out, softmax_lse)
    ctx.options = inputs[3:]


def _backward(ctx, dout, *grads):
    return *flash_backward(dout, *ctx.saved_tensors, *ctx.options), None, None


_flash_attn_forward.register_autograd(_backward, setup_context=setup_context)


@of("megatron.core.fusions.fused_softmax")
class ScaledUpperTriangMaskedSoftmax(Function):
    """Megatron's causal softmax of logits of [batches, queries, keys]."""

    @staticmethod
    def forward(ctx, inputs, scale):
        scale_t = torch.tensor([scale])
        hidden = torch.ones(inputs.shape[-2:], dtype=torch.bool).triu(1)
        softmax_results = written((inputs * scale).masked_fill(hidden, -torch.inf).softmax(-1))
        ctx.save_for_backward(softmax_results, scale_t)
        return softmax_results

    @staticmethod
    def backward(ctx, output_grads):
        softmax_results, scale_t = ctx.saved_tensors
        weighed = output_grads * softmax_results
        return written((weighed - softmax_results * weighed.sum(-1, keepdim=True)) * scale_t[0]), None


# Norms of rows of [..., width]


def _norm_backward(
    dy: Tensor, normed: Tensor, w: Tensor, rstd: Tensor, centred: bool
) -> tuple[Tensor, Tensor]:
    """Gradients of input and weight, from normalised values."""
    dw = (dy * normed).flatten(0, -2).sum(0)
    dn = dy * w
    dx = dn - normed * (dn * normed).mean(-1, keepdim=True)
    if centred:
        dx = dx - dn.mean(-1, keepdim=True)
    return written(dx * rstd[..., None]), written(dw)


@of("liger_kernel.ops.rms_norm")
class LigerRMSNormFunction(Function):
    """Liger's RMS norm."""

    @staticmethod
    def forward(ctx, x, w, eps):
        rstd = written((x.square().mean(-1) + eps).rsqrt())
        ctx.save_for_backward(x, w, rstd)
        return written(x * rstd[..., None] * w)

    @staticmethod
    def backward(ctx, dy):
        x, w, rstd = ctx.saved_tensors
        return *_norm_backward(dy, x * rstd[..., None], w, rstd, centred=False), None


@of("liger_kernel.ops.fused_add_rms_norm")
class LigerFusedAddRMSNormFunction(Function):
    """Liger's RMS norm of a sum, which it returns as well."""

    @staticmethod
    def forward(ctx, x, r, w, eps):
        s = written(x + r)
        rstd = written((s.square().mean(-1) + eps).rsqrt())
        ctx.save_for_backward(s, w, rstd)
        return written(s * rstd[..., None] * w), s

    @staticmethod
    def backward(ctx, dy, ds_out):
        s, w, rstd = ctx.saved_tensors
        dx, dw = _norm_backward(dy, s * rstd[..., None], w, rstd, centred=False)
        return dx + ds_out, dx + ds_out, dw, None


@of("liger_kernel.ops.layer_norm")
class LigerLayerNormFunction(Function):
    """Liger's layer norm."""

    @staticmethod
    def forward(ctx, x, w, b, eps):
        mean = written(x.mean(-1))
        rstd = written((x.var(-1, correction=0) + eps).rsqrt())
        ctx.save_for_backward(x, w, b, mean, rstd)
        return written((x - mean[..., None]) * rstd[..., None] * w + b)

    @staticmethod
    def backward(ctx, dy):
        x, w, _, mean, rstd = ctx.saved_tensors
        dx, dw = _norm_backward(dy, (x - mean[..., None]) * rstd[..., None], w, rstd, centred=True)
        return dx, dw, written(dy.flatten(0, -2).sum(0)), None


@of("apex.normalization.fused_layer_norm")
class FusedLayerNormAffineFunction(Function):
    """Apex's layer norm; memory-efficient, the normalised values are computed back from the output."""

    @staticmethod
    def forward(ctx, input, weight, bias, eps, memory_efficient):
        input_, weight_, bias_ = input.contiguous(), weight.contiguous(), bias.contiguous()
        mean = written(input_.mean(-1))
        invvar = written((input_.var(-1, correction=0) + eps).rsqrt())
        output = written((input_ - mean[..., None]) * invvar[..., None] * weight_ + bias_)
        if memory_efficient:
            ctx.save_for_backward(output, weight_, bias_, None, invvar)
        else:
            ctx.save_for_backward(input_, weight_, bias_, mean, invvar)
        return output

    @staticmethod
    def backward(ctx, grad_output):
        input_or_output, weight_, bias_, mean, invvar = ctx.saved_tensors
        if mean is None:
            normed = (input_or_output - bias_) / weight_
        else:
            normed = (input_or_output - mean[..., None]) * invvar[..., None]
        dx, dw = _norm_backward(grad_output, normed, weight_, invvar, centred=True)
        return dx, dw, written(grad_output.flatten(0, -2).sum(0)), None, None


@of("apex.normalization.fused_layer_norm")
class FusedRMSNormAffineFunction(Function):
    """Apex's RMS norm, likewise."""

    @staticmethod
    def forward(ctx, input, weight, eps, memory_efficient):
        input_, weight_ = input.contiguous(), weight.contiguous()
        invvar = written((input_.square().mean(-1) + eps).rsqrt())
        output = written(input_ * invvar[..., None] * weight_)
        ctx.memory_efficient = memory_efficient
        if memory_efficient:
            ctx.save_for_backward(output, weight_, invvar)
        else:
            ctx.save_for_backward(input_, weight_, invvar)
        return output

    @staticmethod
    def backward(ctx, grad_output):
        input_or_output, weight_, invvar = ctx.saved_tensors
        normed = input_or_output / weight_ if ctx.memory_efficient else input_or_output * invvar[..., None]
        return *_norm_backward(grad_output, normed, weight_, invvar, centred=False), None, None


@of("transformer_engine.pytorch.ops.fuser")
class _OperationFuserAutogradFunction(Function):
    """Transformer Engine's chain of operations, where it is a layer norm."""

    @staticmethod
    def forward(ctx, input_, weight, bias, eps):
        x = input_.view(-1, input_.shape[-1])
        means = written(x.mean(-1))
        rstdevs = written((x.var(-1, correction=0) + eps).rsqrt())
        ctx.save_for_backward(x, means, rstdevs)
        ctx.weight, ctx.shape = weight.detach(), input_.shape
        return written((x - means[:, None]) * rstdevs[:, None] * weight + bias).view(input_.shape)

    @staticmethod
    def backward(ctx, grad_output):
        x, means, rstdevs = ctx.saved_tensors
        dy = grad_output.reshape(x.shape)
        dx, dw = _norm_backward(
            dy, (x - means[:, None]) * rstdevs[:, None], ctx.weight, rstdevs, centred=True
        )
        return dx.view(ctx.shape), dw, written(dy.sum(0)), None


# Activations and rotations


def _gelu_gradient(x: Tensor) -> Tensor:
    """Of the approximation with a tanh."""
    tanh = torch.tanh(0.7978845608 * x * (1 + 0.044715 * x * x))
    return 0.5 * (1 + tanh) + 0.5 * x * (1 - tanh * tanh) * (0.7978845608 + 0.1070322243 * x * x)


def _silu_gradient(x: Tensor) -> Tensor:
    sigmoid = x.sigmoid()
    return sigmoid * (1 + x * (1 - sigmoid))


@of("liger_kernel.ops.swiglu")
class LigerSiLUMulFunction(Function):
    """Liger's SwiGLU, of two tensors."""

    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return written(functional.silu(a) * b)

    @staticmethod
    def backward(ctx, dc):
        a, b = ctx.saved_tensors
        return written(dc * b * _silu_gradient(a)), written(dc * functional.silu(a))


@of("liger_kernel.ops.geglu")
class LigerGELUMulFunction(Function):
    """Liger's GeGLU, of two tensors."""

    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return written(functional.gelu(a, approximate="tanh") * b)

    @staticmethod
    def backward(ctx, dc):
        a, b = ctx.saved_tensors
        gate = functional.gelu(a, approximate="tanh")
        return written(dc * b * _gelu_gradient(a)), written(dc * gate)


@of("megatron.core.fusions.fused_bias_gelu")
class GeLUFunction(Function):
    """Megatron's GELU of a sum with a bias."""

    @staticmethod
    def forward(ctx, input, bias):
        ctx.save_for_backward(input, bias)
        return written(functional.gelu(input + bias, approximate="tanh"))

    @staticmethod
    def backward(ctx, grad_output):
        input, bias = ctx.saved_tensors
        grad = written(grad_output * _gelu_gradient(input + bias))
        return grad, grad.flatten(0, -2).sum(0)


@of("megatron.core.fusions.fused_bias_swiglu")
class SwiGLUFunction(Function):
    """Megatron's SwiGLU, of the two halves of a tensor."""

    @staticmethod
    def forward(ctx, input):
        input_for_backward = input
        ctx.save_for_backward(input_for_backward)
        gate, up = input.chunk(2, -1)
        return written(functional.silu(gate) * up)

    @staticmethod
    def backward(ctx, grad_output):
        (input,) = ctx.saved_tensors
        gate, up = input.chunk(2, -1)
        return written(
            torch.cat((grad_output * up * _silu_gradient(gate), grad_output * functional.silu(gate)), -1)
        )


@of("liger_kernel.ops.rope")
class LigerRopeFunction(Function):
    """Liger's rotation of [batch, heads, tokens, width], by tables of [batch, tokens, width]."""

    @staticmethod
    def forward(ctx, q, k, cos, sin):
        ctx.save_for_backward(cos, sin)
        return written(_rotate(q, cos, sin)), written(_rotate(k, cos, sin))

    @staticmethod
    def backward(ctx, dq, dk):
        cos, sin = ctx.saved_tensors
        return written(_rotate(dq, cos, -sin)), written(_rotate(dk, cos, -sin)), None, None


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return x * cos[:, None] + torch.cat((-second, first), -1) * sin[:, None]


# Linear layers


@of("megatron.core.tensor_parallel.layers")
class LinearWithGradAccumulationAndAsyncCommunication(Function):
    """Megatron's linear layer, in a group of one."""

    @staticmethod
    def forward(ctx, input, weight):
        ctx.save_for_backward(input, weight)
        return written(input @ weight.t())

    @staticmethod
    def backward(ctx, grad_output):
        input, weight = ctx.saved_tensors
        flat = grad_output.flatten(0, -2)
        return written(grad_output @ weight), written(flat.t() @ input.flatten(0, -2))


@of("deepspeed.runtime.zero.linear")
class LinearFunctionForZeroStage3(Function):
    """DeepSpeed's linear layer."""

    @staticmethod
    def forward(ctx, input, weight, bias):
        ctx.save_for_backward(input, weight, bias)
        return written(input @ weight.t() + bias)

    @staticmethod
    def backward(ctx, grad_output):
        input, weight, _ = ctx.saved_tensors
        flat = grad_output.flatten(0, -2)
        return written(grad_output @ weight), written(flat.t() @ input.flatten(0, -2)), written(flat.sum(0))


# Losses


@of("megatron.core.tensor_parallel.cross_entropy")
class _VocabParallelCrossEntropy(Function):
    """Megatron's cross-entropy, in a group of one: of logits of [..., vocabulary], a loss for each target."""

    @staticmethod
    def forward(ctx, vocab_parallel_logits, target):
        logits = vocab_parallel_logits.float()
        exp_logits = torch.exp(logits - logits.amax(-1, keepdim=True))
        target_mask = torch.zeros_like(target, dtype=torch.bool)
        masked_target_1d = target.reshape(-1)
        sum_exp_logits = exp_logits.sum(-1)
        predicted = exp_logits.view(-1, logits.shape[-1])[
            torch.arange(len(masked_target_1d)), masked_target_1d
        ]
        loss = sum_exp_logits.log() - predicted.view_as(target).log()
        exp_logits.div_(sum_exp_logits.unsqueeze(-1))
        ctx.save_for_backward(exp_logits, target_mask, masked_target_1d)
        ctx.dtype = vocab_parallel_logits.dtype
        return loss

    @staticmethod
    def backward(ctx, grad_output):
        softmax, target_mask, masked_target_1d = ctx.saved_tensors
        grad_2d = softmax.view(-1, softmax.shape[-1])
        grad_2d[torch.arange(len(grad_2d)), masked_target_1d] -= 1.0 - target_mask.view(-1).float()
        return softmax.mul_(grad_output.unsqueeze(-1)).to(ctx.dtype), None


@of("liger_kernel.ops.vocab_parallel_cross_entropy")
class LigerVocabParallelCEFunction(Function):
    """Liger's, likewise, but that the exponentials are divided by their sum in the backward pass."""

    @staticmethod
    def forward(ctx, vocab_parallel_logits, target):
        logits = vocab_parallel_logits.float()
        exp_buf = written((logits - logits.amax(-1, keepdim=True)).exp())
        sum_exp_local = written(exp_buf.sum(-1))
        flat_target = target
        ctx.save_for_backward(exp_buf, sum_exp_local, flat_target)
        return written(sum_exp_local.log() - exp_buf[torch.arange(len(target)), target].log())

    @staticmethod
    def backward(ctx, grad_output):
        exp_buf, sum_exp_global, flat_target = ctx.saved_tensors
        probabilities = exp_buf / sum_exp_global[:, None]
        probabilities[torch.arange(len(flat_target)), flat_target] -= 1
        return written(probabilities * grad_output[:, None]), None


@of("liger_kernel.ops.cross_entropy")
class LigerCrossEntropyFunction(Function):
    """Liger's mean cross-entropy of logits of [tokens, vocabulary], over which it writes their gradient."""

    @staticmethod
    def forward(ctx, _input, target):
        logarithms = _input.float().log_softmax(-1)
        loss = written(-logarithms[torch.arange(len(target)), target].mean())
        gradient = (logarithms.exp() - functional.one_hot(target, _input.shape[-1])) / len(target)
        overwrite(_input, gradient)
        ctx.save_for_backward(_input.detach())
        return loss

    @staticmethod
    def backward(ctx, grad_output):
        (_input,) = ctx.saved_tensors
        return written(_input * grad_output), None


@of("liger_kernel.ops.fused_linear_cross_entropy")
class LigerFusedLinearCrossEntropyFunction(Function):
    """Liger's mean cross-entropy of a linear layer's output, which is never kept; its gradients are."""

    @staticmethod
    def forward(ctx, _input, weight, target):
        logarithms = (_input @ weight.t()).float().log_softmax(-1)
        loss = written(-logarithms[torch.arange(len(target)), target].mean())
        of_logits = (logarithms.exp() - functional.one_hot(target, len(weight))) / len(target)
        grad_input, grad_weight = written(of_logits @ weight), written(of_logits.t() @ _input)
        grad_bias = None
        ctx.save_for_backward(grad_input.detach(), grad_weight.detach(), grad_bias)
        return loss

    @staticmethod
    def backward(ctx, grad_output):
        grad_input, grad_weight, _ = ctx.saved_tensors
        return written(grad_input * grad_output), written(grad_weight * grad_output), None
