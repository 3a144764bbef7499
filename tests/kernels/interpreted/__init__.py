"""Checks of the Triton kernels on CPU tensors, by triton's interpreter; `test_triton.py` runs them.

The interpreter must be chosen before triton is imported, and compiling ahead of time is impossible then: so these run
in a process of their own.
"""
