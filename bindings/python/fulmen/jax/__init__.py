"""JAX arrays: what jax.nn and flax call attention, by Fulmen. fulmen.attention takes them, too.

dot_product_attention has the arguments of jax.nn's, flax_attention those that flax gives to its
modules' attention_fn.
"""

from fulmen.jax._calls import FRAMEWORK
from fulmen.jax._nn import dot_product_attention, flax_attention

__all__ = ["FRAMEWORK", "dot_product_attention", "flax_attention"]
