"""The native kernels once, on the smallest sizes, since valgrind is slow."""

import torch

from eblvm.kernels import philox
from eblvm.kernels.gibbs import Stream, gibbs
from eblvm.kernels.grbm import grbm
from eblvm.kernels.philox import Key, Purpose
from eblvm.kernels.runtime.dispatch import NATIVE_LIBRARY
from eblvm.kernels.sliced_hvp import sliced_hvp

assert NATIVE_LIBRARY is not None
for B, D, H in ((1, 1, 1), (3, 5, 2)):
    key = Key(1, 0)
    v = philox.normal(key, philox.purpose(Purpose.DATA), B, (D,))
    init = [philox.purpose(Purpose.INIT_THETA, i) for i in range(4)]
    W = philox.normal(key, init[0], D, (H,))
    b, c, log_sigma = (philox.uniform(key, i, size) for i, size in zip(init[1:], (D, H, D), strict=True))
    stream = Stream(key, philox.purpose(Purpose.CHAIN_H), philox.purpose(Purpose.CHAIN_V))
    for tensor in (*grbm(v, W, b, c, log_sigma), *gibbs(v, W, b, c, log_sigma, stream, 2)):
        assert torch.isfinite(tensor).all()
    direction = philox.normal(key, philox.purpose(Purpose.DIRECTION), B, (D,))
    assert torch.isfinite(sliced_hvp(v, direction[None], W, b, c, log_sigma)[1]).all()
print("done")
