"""CompAct beside its paper (arXiv 2410.15352): ``python -m bench.compact``.

Counts the memory of a training step at the paper's own shapes, and writes docs/compact.json and the tables of
docs/schemes.md: minutes. ``--compress`` trains a LLaMA-60M of few sequences for a step with the rest of its
activations in 4 bits; ``--train`` trains small models, for the losses. Rows that a run does not measure stay.
"""
