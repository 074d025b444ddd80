"""Random numbers of the jnp form."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.random import threefry2x32_p


def random_bits(first: Any, second: Any, place: Any) -> jax.Array:
    """The 32 bits that `jax.random.bits` draws at a place of the flat array, for a key of two words and with
    `jax_threefry_partitionable`: Threefry-2x32 of the place's upper and lower word gives two words, whose exclusive or
    is the result. The arguments broadcast. Arrays are 64 bits wide, and so is the result."""
    place = jnp.asarray(place)
    shape = jnp.broadcast_shapes(jnp.shape(first), jnp.shape(second), place.shape)
    words = [jnp.asarray(w).astype(jnp.uint32) for w in (first, second, place >> 32, place)]
    one, other = threefry2x32_p.bind(*(jnp.broadcast_to(w, shape) for w in words))
    return (one ^ other).astype(place.dtype)
