"""What blocks that respect rows are worth: ``python -m bench.rows``, ``--train`` for the training runs, too.

A block of the Hadamard format has one scale: where it has values of two tokens, the smaller one is lost. This
compares ways to cut rows into blocks. Each measurement that is finished is a row in docs/rows.json, and is
not made again; docs/rows.md has the tables.
"""
