"""Exact sampling mathematics: row laws, draws, verification and counter randomness.

Knows tensors of logits and probabilities only; nothing of models, requests or scheduling.
"""
