"""`train.py`, with one process of the job different from the others; started by test_job.py.

Arguments: the number of that process, how it differs, and the flags of train.py. It differs by `flags=VALUES` (more
flags, with commas for spaces), or by `program`: a training step with one more collective.
"""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))


def main(number: str, how: str, *argv: str) -> int:
    import train

    flags = [*argv]
    if os.environ["JAX_PROCESS_ID"] == number:
        if how == "program":
            one_more_collective()
        else:
            flags += how.removeprefix("flags=").split("~")
    return train.main(flags)


def one_more_collective() -> None:
    from jax import lax

    from sharding.chain import signal, wait
    from sharding.weights import WeightSharding

    scatter = WeightSharding.scatter

    def scattered(self, grads, like):  # type: ignore[no-untyped-def]
        out = scatter(self, grads, like)
        return wait(out, signal(lax.psum(out_sum(out), self.axis_name)))

    WeightSharding.scatter = scattered  # type: ignore[method-assign]


def out_sum(tree):  # type: ignore[no-untyped-def]
    import jax
    import jax.numpy as jnp

    return sum(jnp.sum(leaf) for leaf in jax.tree.leaves(tree))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
