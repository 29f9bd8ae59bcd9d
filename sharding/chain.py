"""One order for collectives that do not need each other's results.

A compiler may run independent collectives in any order, and chooses by the sizes of local arrays. Processes that
compile different local sizes would then choose differently and wait for each other for ever. So each collective is made
to depend on the one before it by data: the compiler can neither swap them nor drop one.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp


def signal(*trees: Any) -> jax.Array:
    """A scalar that is known when all arrays are, and false unless one of them is spoilt (NaN first) already.

    Args:
        trees: arrays; empty ones are known at any time.
    """
    marks = [_spoilt(leaf) for leaf in jax.tree.leaves(trees) if leaf.size]
    return functools.reduce(jnp.logical_or, marks, jnp.zeros((), jnp.bool_))


def wait(tree: Any, given: jax.Array) -> Any:
    """The same arrays, but not before the signal; spoilt if the signal is true."""
    return jax.tree.map(lambda leaf: jnp.where(given, _worst(leaf.dtype), leaf), tree)


def follow(later: jax.Array, earlier: jax.Array) -> jax.Array:
    """`later`, but not before `earlier`; backward, the gradient of `earlier` not before that of `later`."""
    kind = jax.typeof(earlier)

    def forward(later: jax.Array, earlier: jax.Array) -> jax.Array:
        return wait(later, signal(earlier))

    def backward(_: None, cotangent: jax.Array) -> tuple[jax.Array, jax.Array]:
        return cotangent, wait(jnp.zeros(kind.shape, kind.dtype), signal(cotangent))

    run = jax.custom_vjp(forward)
    run.defvjp(lambda *arrays: (forward(*arrays), None), backward)
    return run(later, earlier)


def _spoilt(array: jax.Array) -> jax.Array:
    """Whether the first element is NaN, or the least integer: never in a sound run, but the compiler cannot know."""
    first = array[(0,) * array.ndim]
    return first != first if jnp.issubdtype(array.dtype, jnp.inexact) else first == _worst(array.dtype)


def _worst(dtype: Any) -> jax.Array:
    return jnp.array(jnp.nan if jnp.issubdtype(dtype, jnp.inexact) else jnp.iinfo(dtype).min, dtype)
