"""Benchmarks: ratios of the engine against a plainly written research procedure."""
