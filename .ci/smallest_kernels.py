"""Every native kernel once, on the smallest sizes: what valgrind has the patience for."""

import torch

from eblvm.kernels import philox
from eblvm.kernels.gibbs import Stream, gibbs
from eblvm.kernels.grbm import grbm
from eblvm.kernels.philox import Key
from eblvm.kernels.runtime.dispatch import NATIVE_LIBRARY
from eblvm.kernels.sliced_hvp import sliced_hvp

assert NATIVE_LIBRARY is not None
for B, D, H in ((1, 1, 1), (3, 5, 2)):
    key = Key(1, 0)
    v, W = philox.normal(key, 1, B, (D,)), philox.normal(key, 2, D, (H,))
    b, c, log_sigma = philox.uniform(key, 3, D), philox.uniform(key, 4, H), philox.uniform(key, 5, D)
    for tensor in (*grbm(v, W, b, c, log_sigma), *gibbs(v, W, b, c, log_sigma, Stream(key, 6, 7), 2)):
        assert torch.isfinite(tensor).all()
    assert torch.isfinite(sliced_hvp(v, philox.normal(key, 8, B, (D,))[None], W, b, c, log_sigma)[1]).all()
print("done")
