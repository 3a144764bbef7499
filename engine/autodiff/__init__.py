"""The derivatives that methods use. Files with options read them as `autodiff.grad`, see cli/__init__.py."""

from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

from eblvm.engine.autodiff.derivatives import Finish, detached, grad, named, score_and_curvature, vjp
from eblvm.engine.autodiff.unroll import unroll

__all__ = [
    "Finish", "detached", "grad", "named", "score_and_curvature", "tree_flatten", "tree_leaves", "tree_map",
    "tree_unflatten", "unroll", "vjp",
]  # fmt: skip
