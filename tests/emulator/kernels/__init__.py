"""The cases: every Triton kernel at odd sizes, in every order, type and precision, against its op's reference."""

import itertools

from tests.emulator.kernels import pointwise, products
from tests.emulator.kernels.case import Case


def cases() -> dict[str, Case]:
    every = itertools.chain(products.cases(), products.rates(), pointwise.cases())
    return {f"{case.part}: {case.name}, cc {case.capability}": case for case in every}


# A selection that takes a minute: every part, type, precision, batch and capability.
BOUNDED = """
grbm free energy: fp32 ieee 1x57x41, cc 80
grbm free energy: fp32 tf32 33x57x41, cc 90
grbm free energy: fp32 bf16x3 33x131x73, cc 80
grbm free energy: bf16 33x57x41 2 replicas wide, cc 80
grbm energy: fp32 ieee 33x57x41, cc 100
grbm energy: bf16 25x57x41, cc 90
grbm energy: fp64 35x57x41 2 replicas split 3, cc 80
grbm_dsm: fp32 ieee 35x57x41 2 replicas split 3, cc 90
grbm_dsm: fp32 bf16x3 25x57x41, cc 90
sliced_hvp: fp32 ieee 33x57x41, cc 75
sliced_hvp: bf16 100x57x41, cc 80
sliced_hvp: fp64 1x57x41, cc 90
grbm_bilevel: fp32 ieee 33x37x21, cc 80
grbm_bilevel: fp32 tf32 1x37x21 exact sgd shared, cc 90
grbm_bilevel rate: fp32 ieee 63 samples, cc 80
gibbs: fp32 ieee 33x57x41 drawn, cc 90
gibbs: fp64 25x57x41 given, cc 80
elu_second_order: bf16 (33, 257), cc 80
elu_second_order: fp32 ieee (8, 512), cc 90
bernoulli_lower: fp32 ieee (25, 41) drawn, cc 80
bernoulli_lower: fp64 (33, 257) given, cc 90
adam_unroll: fp32 ieee (25, 41) 3 replicas, cc 80
adam_unroll lists: fp32 ieee, cc 80
adam_unroll lists: fp64 2 replicas, cc 90
philox: NORMAL 33x57, cc 80
philox list: three kinds, cc 90
""".strip().splitlines()
