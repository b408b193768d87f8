"""Compressed activations in other people's training loops: Hugging Face's and Lightning's."""
