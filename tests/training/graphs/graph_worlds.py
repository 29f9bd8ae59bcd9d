"""Random graphs, and the loss of one device that has all of one: what spread programs are compared with."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from meshes.mesh import make_mesh
from models.gnn import losses, network
from models.gnn.config import GnnConfig
from models.gnn.single import single
from sharding import rules
from sharding.placement import Placement
from training.graphs.graph import Graph, GraphSet
from training.graphs.spread import Part, Spread, training_labels
from training.graphs.step import GraphProgram

MODELS = ("gcn", "sage", "gat", "gin", "graphnet", "rgcn", "hgt")
CLASSES, FEATURES, RELATIONS, KINDS = 3, 5, 3, 2
QUICK: dict[str, Any] = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}  # to compile
LOSS, GRADIENT = 1e-5, 1e-4  # relative, fp32


def config(model: str, **changes: Any) -> GnnConfig:
    """A small network."""
    return GnnConfig(
        model=model,  # type: ignore[arg-type]
        layers=2,
        width=8,
        heads=4,
        inputs=FEATURES,
        relations=RELATIONS,
        kinds=KINDS,
        edge_features=2,
        bases=2,
        **{"outputs": CLASSES, **changes},
    )


def graph(vertices: int = 23, hub: int = 30, seed: int = 0) -> Graph:
    """Isolated vertices, self loops, duplicate edges, a hub, a relation that no edge has."""
    rng = np.random.default_rng(seed)
    ends = rng.integers(0, vertices - 3, (2, 60 + hub))
    ends[1, :hub] = 1
    ends[0, hub : hub + 5] = ends[1, hub : hub + 5]
    ends[:, hub + 5 : hub + 10] = ends[:, hub + 10 : hub + 15]
    count = ends.shape[1]
    return Graph(
        name="random",
        senders=ends[0],
        receivers=ends[1],
        features=rng.normal(size=(vertices, FEATURES)).astype(np.float32),
        relations=rng.integers(0, RELATIONS - 1, size=count).astype(np.int32),
        kinds=rng.integers(0, KINDS, vertices).astype(np.int32),
        edge_features=rng.normal(size=(count, 2)).astype(np.float32),
        labels=rng.integers(0, CLASSES, vertices).astype(np.int32),
        relation_names=("a", "b", "c"),
        kind_names=("x", "y"),
        classes=("p", "q", "r"),
        train=np.arange(0, vertices, 2),
        valid=np.arange(1, vertices, 4),
        test=np.arange(3, vertices, 4),
    )


def graphs(count: int = 9, seed: int = 0) -> GraphSet:
    """Small graphs, one of them without edges and one of a single vertex."""
    rng = np.random.default_rng(seed)
    n_node = rng.integers(2, 7, count)
    n_edge = rng.integers(1, 12, count)
    n_node[3], n_edge[5] = 1, 0
    starts = np.repeat(np.cumsum(n_node) - n_node, n_edge)
    sizes = np.repeat(n_node, n_edge)
    ends = (starts + (rng.random((2, n_edge.sum())) * sizes).astype(np.int64)).astype(np.int64)
    return GraphSet(
        name="small",
        n_node=n_node,
        n_edge=n_edge,
        senders=ends[0],
        receivers=ends[1],
        features=rng.normal(size=(n_node.sum(), FEATURES)).astype(np.float32),
        relations=rng.integers(0, RELATIONS - 1, n_edge.sum()).astype(np.int32),
        kinds=rng.integers(0, KINDS, n_node.sum()).astype(np.int32),
        edge_features=rng.normal(size=(n_edge.sum(), 2)).astype(np.float32),
        labels=rng.integers(0, CLASSES, count).astype(np.int32),
        relation_names=("a", "b", "c"),
        kind_names=("x", "y"),
        classes=("p", "q", "r"),
        train=np.arange(0, count),
    )


def alone(of: GnnConfig, data: Graph | GraphSet, ids: np.ndarray, rewired: int | None = None) -> tuple[float, Any]:
    """Loss sum over some training vertices or graphs, and its gradients, on one device.

    For twins an edge may come from the next vertex; the degrees stay.
    """
    count = data.graphs if isinstance(data, GraphSet) else data.vertices
    labels, senders = np.full(count, -1, np.int32), data.senders.astype(np.int32)
    labels[ids] = training_labels(data, ids)
    if rewired is not None:
        senders[rewired] = (senders[rewired] + 1) % data.vertices
    total, grads = _compiled(of, data)(senders, labels)
    return float(total), grads


def alone_on_links(of: GnnConfig, data: Graph, ends_PQ: np.ndarray, rewired: int | None = None) -> tuple[float, Any]:
    """As `alone`, of pairs: the first two ends of each have an edge, the first and each other have none."""
    senders = data.senders.astype(np.int32)
    if rewired is not None:
        senders[rewired] = (senders[rewired] + 1) % data.vertices
    total, grads = _compiled(of, data, links=True)(senders, ends_PQ.astype(np.int32))
    return float(total), grads


def _of_links(outputs_NK: jax.Array, ends_PQ: jax.Array) -> jax.Array:
    first_PK, scale = outputs_NK[ends_PQ[:, 0]], outputs_NK.shape[1] ** -0.5
    losses = [
        jax.nn.softplus((-1.0 if q == 1 else 1.0) * scale * jnp.sum(first_PK * outputs_NK[ends_PQ[:, q]], axis=1))
        for q in range(1, ends_PQ.shape[1])
    ]
    return jnp.sum(jnp.stack(losses))


@functools.cache
def _compiled(of: GnnConfig, data: Graph | GraphSet, links: bool = False) -> Any:
    part, params = Part(graph=data, config=of), jax.jit(functools.partial(network.init, of))(jax.random.key(0))
    counts: dict[str, Any] = {}
    if isinstance(data, GraphSet):
        counts = {f"{name}_G": jnp.asarray(getattr(data, name), jnp.int32) for name in ("n_node", "n_edge")}

    def loss(params: Any, senders: jax.Array, labels: jax.Array) -> jax.Array:
        whole = single(
            senders,
            jnp.asarray(data.receivers, jnp.int32),
            vertices=data.vertices,
            layers=of.layers,
            relations=part.degree.shape[1],
            relation_E=jnp.asarray(part.relations),
            kind_N=jnp.asarray(data.kinds, jnp.int32),
            edges_EA=jnp.asarray(data.edge_features),
            **counts,
        )
        outputs = network.outputs(of, params, jnp.asarray(data.features), whole)
        return _of_links(outputs, labels) if links else losses.classification(outputs, labels)[0]

    run = jax.jit(jax.value_and_grad(loss), compiler_options=QUICK)
    return lambda senders, labels: run(params, jnp.asarray(senders), jnp.asarray(labels))


def program(of: GnnConfig, spread: Spread, devices: int, **changes: Any) -> GraphProgram:
    """The program of a spread on emulated devices."""
    mesh = make_mesh([list(range(devices))], jax.devices()[:devices])
    placement = Placement("single" if devices == 1 else "switched", spread.sizes)
    settings: dict[str, Any] = {"task": "classification", "optimizer": optax.adam(1e-2), **changes}
    return GraphProgram(config=of, spread=spread, mesh=mesh, placement=placement, **settings)


def together(built: GraphProgram, batch: Any) -> tuple[float, float, Any]:
    """Loss sum, weight and logical gradients of a program."""
    state = built.init(jax.random.key(0))
    inputs = (state["params"], state["step"], batch, *built.inputs)
    total, weight, grads = built.gradient_step().lower(*inputs).compile(compiler_options=QUICK)(*inputs)
    return float(total), float(weight), rules.apply(lambda s, g: np.array(s.crop(g)), built.stored["params"], grads)


def distance(a: Any, b: Any) -> float:
    """Of two trees in the 2-norm, over that of the second."""
    pairs = list(zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))
    norm = sum(float(np.sum(np.square(y))) for _, y in pairs) ** 0.5
    return sum(float(np.sum(np.square(x - np.asarray(y)))) for x, y in pairs) ** 0.5 / norm
