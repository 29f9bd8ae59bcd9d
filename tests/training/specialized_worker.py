"""One of two processes that trace the same step at their own exact sizes; started by test_specialized.py.

Arguments: number of this process, port of the coordinator, name of a case of test_specialized.py, output file.
"""

import sys

import jax


def main(number: int, port: str, name: str, out: str) -> None:
    jax.config.update("jax_num_cpu_devices", (2, 1)[number])
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"127.0.0.1:{port}", 2, number)
    import numpy as np
    import oracle
    from jax.experimental import multihost_utils
    from test_specialized import CASES

    program, dealer = CASES[name].build()
    rows = oracle.random_rows(np.random.default_rng(0), dealer.rows, program.tiling.seq_len, 37)
    mine = type(rows)(*(array[dealer.my_rows] for array in rows))
    params = program.init(jax.random.key(0))["params"]
    batch = dealer(mine)
    compiled = program.gradient_step().lower(params, batch, dealer.device_counts, program.tables).compile()
    total, weight, grads = compiled(params, batch, dealer.device_counts, program.tables)
    leaves = [np.asarray(multihost_utils.process_allgather(g, tiled=True)) for g in jax.tree.leaves(grads)]
    temp = compiled.memory_analysis().temp_size_in_bytes
    np.savez(f"{out}.{number}.npz", *leaves, loss=np.asarray(total / weight), weight=np.asarray(weight), temp=temp)


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:5])
