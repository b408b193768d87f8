"""Megatron-core on two ranks: ``torchrun --nproc-per-node 2 -m tests.frameworks.megatron_worker FOLDER``.

Megatron asks for CUDA by name in some places that a CPU does as well; :func:`on_cpu` answers these. With
TORCH_COMPILE_DISABLE=1 its small fusions are not compiled first, which takes a minute.
"""

import logging
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.distributed import finalize_model_grads as finalize
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.pipeline_parallel.schedules import get_forward_backward_func
from megatron.core.tensor_parallel import random
from megatron.core.transformer import TransformerConfig
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules
from torch import nn

from .model import CLASSES, HEADS, LENGTH, WIDE, WIDTH, batches
from .variants import Trained, Variant, compare, copies, write

STEPS, MICRO_BATCHES, SIZE, LAYERS = 2, 4, 2, 4


def on_cpu() -> None:
    """What Megatron asks of CUDA, with a CPU."""
    torch.cuda.current_device = lambda: torch.device("cpu")  # type: ignore[assignment,return-value]
    torch.cuda.synchronize = lambda *_: None  # type: ignore[assignment]
    torch.cuda.manual_seed = lambda seed: None  # type: ignore[assignment]
    torch.cuda.get_rng_state = lambda *_, **__: torch.get_rng_state()  # type: ignore[assignment]
    random._get_cuda_rng_state = random._set_cuda_rng_state = lambda *_, **__: None
    torch.Tensor.cuda = lambda tensor, *_, **__: tensor  # type: ignore[assignment,method-assign]
    zeros = torch.zeros

    def zeros_on_cpu(*size: Any, device: Any = None, **options: Any) -> torch.Tensor:
        return zeros(*size, device="cpu" if device == "cuda" else device, **options)

    torch.zeros = zeros_on_cpu
    random.CheckpointWithoutOutput.__init__.__defaults__ = (
        None,
    )  # False makes it ask for Transformer Engine
    logging.getLogger(random.__name__).setLevel(logging.ERROR)


class Norm(nn.LayerNorm):
    """Megatron's own needs Apex where the sequence is split."""

    def __init__(self, config: TransformerConfig, hidden_size: int, eps: float = 1e-5, **_: Any) -> None:
        super().__init__(hidden_size, eps)
        for parameter in self.parameters():
            parameter.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]


@dataclass(frozen=True)
class Run:
    """How a model is split, and what is recomputed."""

    tensor: int = 1
    pipeline: int = 1
    chunks: int | None = None  # of the model on each rank
    options: tuple[tuple[str, Any], ...] = ()


def run(tensor: int = 1, pipeline: int = 1, chunks: int | None = None, **options: Any) -> Run:
    return Run(tensor, pipeline, chunks, tuple(options.items()))


FULL = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
SELECTIVE = {"recompute_granularity": "selective", "recompute_modules": ["core_attn", "layernorm"]}
RUNS = {
    "TP2": run(tensor=2),
    "TP2, fused": run(
        tensor=2, bias_activation_fusion=True, bias_dropout_fusion=True, cross_entropy_loss_fusion=True
    ),
    "TP2, sequence parallel": run(tensor=2, sequence_parallel=True),
    "TP2, sequence parallel, recompute": run(tensor=2, sequence_parallel=True, **FULL),
    "TP2, selective": run(tensor=2, **SELECTIVE),
    "PP2": run(pipeline=2),
    "PP2, interleaved, selective": run(pipeline=2, chunks=2, **SELECTIVE),
    "PP2, recompute": run(pipeline=2, **FULL),
}


def built(how: Run, config: TransformerConfig) -> list[nn.Module]:
    """The chunks of the model that this rank has, each in Megatron's own data parallelism."""
    layer = get_gpt_layer_local_spec()
    layer.submodules.input_layernorm = layer.submodules.pre_mlp_layernorm = Norm
    chunks = []
    for chunk in range(how.chunks or 1):
        vp_stage = chunk if how.chunks else None
        layers = TransformerBlockSubmodules(
            layer_specs=[layer] * (LAYERS // (how.pipeline * (how.chunks or 1))), layer_norm=Norm
        )
        model = GPTModel(
            config,
            layers,
            CLASSES,
            LENGTH,
            pre_process=parallel_state.is_pipeline_first_stage(ignore_virtual=False, vp_stage=vp_stage),
            post_process=parallel_state.is_pipeline_last_stage(ignore_virtual=False, vp_stage=vp_stage),
            position_embedding_type="rope",
            share_embeddings_and_output_weights=False,
            vp_stage=vp_stage,
        )
        chunks.append(DistributedDataParallel(config, DistributedDataParallelConfig(), model))
    return chunks


def forward_step(tokens: Iterator[torch.Tensor], model: nn.Module) -> tuple[torch.Tensor, Any]:
    batch = next(tokens)
    positions = torch.arange(LENGTH).expand_as(batch)
    mask = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)[None, None]
    found = model(batch, positions, mask, labels=batch.roll(-1, 1))

    def loss_of(losses: torch.Tensor) -> tuple[torch.Tensor, dict[str, float]]:
        loss = losses.float().mean()
        return loss, {"loss": loss.item()}

    return found, loss_of


@lru_cache(maxsize=1)
def split(tensor: int, pipeline: int, chunks: int | None) -> None:
    """Makes Megatron's groups anew, if the last ones were others: those of before stay and cost time."""
    parallel_state.destroy_model_parallel()
    parallel_state.initialize_model_parallel(tensor, pipeline, virtual_pipeline_model_parallel_size=chunks)


def train(how: Run, variant: Variant) -> Trained:
    split(how.tensor, how.pipeline, how.chunks)
    torch.manual_seed(0)
    random.model_parallel_cuda_manual_seed(0, force_reset_rng=True)
    config = TransformerConfig(
        num_layers=LAYERS,
        hidden_size=WIDTH,
        ffn_hidden_size=WIDE,
        num_attention_heads=HEADS,
        use_cpu_initialization=True,
        tensor_model_parallel_size=how.tensor,
        pipeline_model_parallel_size=how.pipeline,
        virtual_pipeline_model_parallel_size=how.chunks,
        pipeline_dtype=torch.float32,
        batch_p2p_comm=False,
        gradient_accumulation_fusion=False,
        deallocate_pipeline_outputs=True,
        **dict(how.options),
    )
    config.finalize_model_grads_func = finalize
    chunks = built(how, config)
    parts = nn.ModuleList(chunks)
    saver, losses, gradients = variant.around(parts), [], []
    step = get_forward_backward_func()
    torch.manual_seed(1)  # dropout
    for tokens in batches(STEPS, MICRO_BATCHES * SIZE):
        for chunk in chunks:
            chunk.zero_grad_buffer()
        with saver:
            found = step(
                forward_step_func=forward_step,
                data_iterator=[iter(tokens.split(SIZE)) for _ in chunks]
                if how.chunks
                else iter(tokens.split(SIZE)),
                model=chunks if how.chunks else chunks[0],
                num_microbatches=MICRO_BATCHES,
                seq_length=LENGTH,
                micro_batch_size=SIZE,
                forward_only=False,
            )
        gradients = gradients or copies(parameter.main_grad for parameter in parts.parameters())
        with torch.no_grad():
            for parameter in parts.parameters():
                parameter -= 0.1 * parameter.main_grad
        mean = torch.tensor(sum(one["loss"] for one in found) / MICRO_BATCHES if found else 0.0)
        if how.pipeline > 1:
            dist.all_reduce(mean)
        losses.append(mean.item())
    return Trained(losses, gradients, copies(parts.parameters()))


if __name__ == "__main__":
    torch.set_num_threads(1)
    on_cpu()
    dist.init_process_group("gloo")
    write(sys.argv[1], {name: compare(partial(train, how)) for name, how in RUNS.items()})
    dist.barrier()
    os._exit(0)  # threads of the group's caches do not outlive Python
