"""The training job: GPT-2 on text, with every scheme, and the command line."""
