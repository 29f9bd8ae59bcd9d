"""METIS in a process of its own, through pymetis: the same seed then gives the same parts.

METIS draws from the C library's one random state, which the threads of other libraries draw from too: two processes of
a job would cut one graph in two ways. Started as a program, this file reads arrays and writes parts.
"""

import io
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np


def parts(
    starts: np.ndarray, neighbours: np.ndarray, weights: np.ndarray, targets: Sequence[float], seed: int
) -> np.ndarray:
    """The part of each vertex, int [N].

    Args:
        starts, neighbours: compressed rows of an undirected graph, [N + 1] and [2 edges].
        weights: whole numbers [N].
        targets: share of the weight of each part, above 0; they sum to 1.
        seed: 0 or more.

    Raises:
        RuntimeError: METIS failed; with what it said.
    """
    given = io.BytesIO()
    np.savez(given, starts=starts, neighbours=neighbours, weights=weights, targets=np.array(targets), seed=seed)
    command = [sys.executable, "-P", str(Path(__file__))]
    done = subprocess.run(command, input=given.getvalue(), capture_output=True, check=False)
    if done.returncode:
        raise RuntimeError(f"METIS failed: {done.stderr.decode().strip()[-400:]}")
    found: np.ndarray = np.load(io.BytesIO(done.stdout[done.stdout.index(b"\x93NUMPY") :]))  # METIS may print before
    return found


def _main() -> None:
    import pymetis

    given = np.load(io.BytesIO(sys.stdin.buffer.read()))
    width, targets = pymetis.zero_copy_dtype(), given["targets"]
    found = pymetis.part_graph(
        len(targets),
        pymetis.CSRAdjacency(given["starts"].astype(width), given["neighbours"].astype(width)),
        vweights=given["weights"].astype(width),
        tpwgts=targets.tolist(),
        options=pymetis.Options(seed=int(given["seed"]) + 1),  # to the C library seeds 0 and 1 are the same
    )
    out = io.BytesIO()
    np.save(out, np.asarray(found.vertex_part))
    sys.stdout.buffer.write(out.getvalue())


if __name__ == "__main__":
    _main()
