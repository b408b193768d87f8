"""Does it train as well? Loss by scheme and bits per value: ``python -m bench.convergence``.

Trains two small GPT-2s from scratch with every scheme and seeds 1 to 5, the real GPT-2 with fewer, and
fine-tunes a pretrained SmolLM2 where it is installed (``make finetune``). A seed gives every scheme the same
weights and the same batches. Each run is a process of its own, several at a time with ``--jobs``, or one on
each GPU under ``torchrun``. A run that is finished is never run again: its row lies in build/convergence, and
all rows come together in docs/convergence.json, from which docs/convergence.md and its plots are made. So it
may be ended at any time, and go on elsewhere from what is committed; a run of the real GPT-2, which takes
half an hour on two cores, goes on from its last validation. A run that fails is said at once, and the others
go on. Under ``torchrun`` the page has what was finished when rank 0 ended; ``--document`` writes it anew.
Rows of formats that only an earlier release had stay where they are.

The gradient error, ``||g - g_exact|| / ||g_exact||``, is of one batch at every validation; effective bits are
of all that this batch saves and the scheme compresses, at the last.
"""
