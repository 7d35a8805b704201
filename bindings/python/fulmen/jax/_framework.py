"""JAX among the frameworks of fulmen.attention."""

import jax.numpy as jnp
import numpy as np

from fulmen._arguments import Framework
from fulmen.jax._cache import _append_kv
from fulmen.jax._calls import _backward, _forward, _numbers

FRAMEWORK = Framework(
    _forward,
    _backward,
    to_host=np.asarray,
    from_host=lambda result, like: jnp.asarray(result),
    append_kv=_append_kv,
    numbers=_numbers,
)
