"""Compressed activations in Megatron-core: torchrun --standalone --nproc-per-node 2 examples/megatron_tp.py

A GPT in tensor parallelism on two GPUs, with Megatron's own schedule.
"""

import os

import torch
from megatron.core import parallel_state
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.pipeline_parallel.schedules import get_forward_backward_func
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
from megatron.core.transformer import TransformerConfig

from bitstash import Compressor

LENGTH, SIZE, CLASSES = 64, 4, 256


def forward_step(batches, model):
    tokens = next(batches)
    positions = torch.arange(LENGTH, device=tokens.device).expand_as(tokens)
    mask = torch.ones(LENGTH, LENGTH, dtype=torch.bool, device=tokens.device).triu(1)[None, None]
    found = model(tokens, positions, mask, labels=tokens.roll(-1, 1))
    return found, lambda losses: (losses.mean(), {"loss": losses.detach().mean()})


def main():
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.is_available() else "cpu"
    if device != "cpu":
        torch.cuda.set_device(device)
    torch.distributed.init_process_group("nccl" if device != "cpu" else "gloo")
    parallel_state.initialize_model_parallel(tensor_model_parallel_size=2)
    torch.manual_seed(0)
    model_parallel_cuda_manual_seed(0)
    config = TransformerConfig(
        num_layers=2,
        hidden_size=128,
        num_attention_heads=4,
        use_cpu_initialization=True,
        tensor_model_parallel_size=2,
        pipeline_dtype=torch.float32,
    )
    model = GPTModel(config, get_gpt_layer_local_spec(), CLASSES, LENGTH).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    saver = Compressor(model)
    schedule = get_forward_backward_func()
    for step in range(4):
        first = torch.randint(CLASSES, (2, SIZE, 1), device=device)
        batches = (first + torch.arange(LENGTH, device=device)) % CLASSES
        with saver:  # forward and backward passes of all micro-batches
            losses = schedule(
                forward_step_func=forward_step,
                data_iterator=iter(batches),
                model=model,
                num_microbatches=len(batches),
                seq_length=LENGTH,
                micro_batch_size=SIZE,
                forward_only=False,
            )
        optimizer.step()
        optimizer.zero_grad()
        if torch.distributed.get_rank() == 0:
            loss = sum(one["loss"].item() for one in losses) / len(losses)
            print(f"step {step}: loss {loss:.3f}, activations {saver.ratio:.2f}x smaller", flush=True)
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
