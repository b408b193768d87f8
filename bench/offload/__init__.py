"""Offloading in a pipeline, beside TBA's paper (arXiv 2408.10013): ``python -m bench.offload``.

Trains GPT, BERT and T5 in two stages of a pipeline on two processes, with several micro-batches in flight,
and writes docs/offload.json and the tables of docs/schemes.md: a quarter of an hour.
"""
