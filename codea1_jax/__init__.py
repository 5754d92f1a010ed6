"""Adversarial co-evolution of a Code LLM (the coder) and a Test LLM (the tester) in JAX.

Importing this package imports no JAX: `codea1_jax.sandbox` works with the base install.
"""

__version__ = "0.1.0"
