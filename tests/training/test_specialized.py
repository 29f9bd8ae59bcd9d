"""Two processes, each tracing its own exact sizes, compute the loss and gradients of one device."""

import os
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import jax
import numpy as np
import optax
import oracle
import pytest
from test_step import GRADIENT, LOSS, SMALL, Case, context, crop, distance

from meshes.mesh import make_mesh
from sharding.placement import Placement
from sharding.tiles import Tiling
from training.batches import Dealer
from training.program import mesh_places
from training.step import Program

HERE = Path(__file__).parent


@dataclass(frozen=True)
class TwoProcesses(Case):
    """Three devices: two of the first process, one of the second."""

    def build(self) -> tuple[Program, Dealer]:
        heads = (self.config.heads, self.config.kv_heads)
        tiling = Tiling(self.tokens, self.tiles, *heads, ring=self.ring, direct=self.direct)
        mesh = make_mesh(((0, 1, 2),), jax.devices())
        placement = Placement("specialized", tiling.sizes, mesh_places(mesh))
        return Program(
            config=self.config, mesh=mesh, tiling=tiling, placement=placement, optimizer=optax.adam(1e-3)
        ), Dealer(mesh, tiling, 2, self.counts)


CASES = {
    "context": TwoProcesses(((7, 7, 3),), (context(7, 7, 3),), (2,)),
    "context, direct": TwoProcesses(((7, 7, 3),), (context(7, 7, 3),), (2,), direct=True),
    "ring": TwoProcesses(((7, 7, 3),), (context(7, 7, 3),), (1,), ring=True),
    "a device without work": TwoProcesses(((9, 9, 0),), (((0, 3, 18), (3, 6, 18), (0, 0, 0)),), (1,)),
    "ring, a device without tokens": TwoProcesses(((9, 9, 0),), (context(9, 9, 0),), (1,), ring=True),
    "hybrid": TwoProcesses(((8, 8, 2),), (((0, 4, 9), (0, 4, 9), (4, 6, 18)),), (1,)),
}


def run_two(name: str, out: Path) -> list[dict[str, np.ndarray]]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    path = os.pathsep.join([str(HERE.parents[1]), str(HERE.parent), str(HERE)])
    env = {**os.environ, "PYTHONPATH": path, "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, str(HERE / "specialized_worker.py")]
    workers = [
        subprocess.Popen([*command, str(n), str(port), name, str(out)], env=env, stderr=subprocess.PIPE, text=True)
        for n in range(2)
    ]
    for worker in workers:
        _, error = worker.communicate(timeout=300)
        assert worker.returncode == 0, error[-3000:]
    return [dict(np.load(f"{out}.{n}.npz")) for n in range(2)]


@pytest.mark.parametrize("name", CASES)
def test_specialized_processes_agree_with_one_device(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    results = run_two(name, tmp_path / "grads")
    one = Case(((sum(case.tokens[0]),),), (context(sum(case.tokens[0])),), case.counts, "single")
    program, dealer = one.build()
    rows = oracle.random_rows(np.random.default_rng(0), dealer.rows, sum(case.tokens[0]), 37)
    params = crop(program, program.init(jax.random.key(0))["params"])
    loss, grads = jax.value_and_grad(lambda p: oracle.loss(SMALL, p, rows))(params)
    expected = [np.asarray(g) for g in jax.tree.leaves(grads)]
    for result in results:
        assert float(result["loss"]) == pytest.approx(float(loss), rel=LOSS)
        stored = [result[f"arr_{i}"] / result["weight"] for i in range(len(expected))]
        cut = [s[tuple(slice(0, n) for n in e.shape)] for s, e in zip(stored, expected, strict=True)]
        assert distance(cut, expected) < GRADIENT
