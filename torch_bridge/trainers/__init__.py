"""Compressed activations in other people's training loops: Hugging Face's, DeepSpeed's and Lightning's."""
