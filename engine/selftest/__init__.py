"""`eblvm doctor --gpu`: the first thing to run on a machine with a GPU. It checks there what tests can only rehearse.

A check compares the GPU with the CPU, whose kernels the test suite compares with their references, and gives a figure
with its bound. One that raises, hangs or crashes has failed, and the others still run. A file each: kernels, steps,
replays (of CUDA graphs), processes, decoder, costs (memory, time, use of the device); record.py runs them all.
"""
