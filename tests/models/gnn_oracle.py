"""Graph networks written plainly from dense matrices, and random graphs to compare with them.

Shapes: N vertices, E edges, R relations, D width, L heads, C channels of a head, K outputs, G graphs.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from models.gnn.config import GnnConfig
from models.gnn.single import Single, single

VALUE, GRADIENT = 1e-5, 1e-4  # relative to the largest entry, float32


class Case(NamedTuple):
    """Graphs that follow each other, with features, labels and facts of vertices and edges; NumPy or JAX arrays."""

    senders: Any
    receivers: Any
    relation: Any
    kind: Any
    n_node: Any
    n_edge: Any
    features: Any
    edge_features: Any
    labels: Any


class Dense(NamedTuple):
    """The same as matrices: how many edges of each relation go from u to v, and who belongs to what as 0 and 1."""

    count_RVU: Any
    sends_EN: Any
    arrives_EN: Any
    kind_NT: Any
    graph_NG: Any
    features: Any
    edge_features: Any
    labels: Any


def draw(
    seed: int,
    config: GnnConfig,
    sizes: tuple[int, ...] = (17,),
    edges: int = 40,
    relations: tuple[int, ...] | None = None,
    kinds: tuple[int, ...] | None = None,
) -> Case:
    """Graphs with a hub, self loops, duplicate edges and isolated vertices; the relations and kinds given occur."""
    rng, start = np.random.default_rng(seed), 0
    ends, counts = [], []
    for size in sizes:
        linked = max(1, size - 2)  # the last two vertices hear nothing
        pairs = rng.integers(0, linked, (edges * size // sum(sizes), 2))
        pairs[: len(pairs) // 4, 1] = 0  # a hub
        loops = np.repeat(rng.integers(0, linked, (2, 1)), 2, axis=1)
        ends.append(start + np.concatenate([pairs, pairs[:3], loops] if edges else [pairs]))
        counts.append(len(ends[-1]))
        start += size
    senders, receivers = np.concatenate(ends).astype(np.int32).T
    return Case(
        senders,
        receivers,
        rng.choice(np.array(relations or range(config.relations), np.int32), len(senders)),
        rng.choice(np.array(kinds or range(config.kinds), np.int32), start),
        np.array(sizes, np.int32),
        np.array(counts, np.int32),
        rng.normal(size=(start, config.inputs)).astype(np.float32),
        rng.normal(size=(len(senders), config.edge_features)).astype(np.float32),
        rng.integers(-1, config.outputs, start if config.level == "vertex" else len(sizes)).astype(np.int32),
    )


def permuted(case: Case, order: np.ndarray) -> Case:
    """Vertex `order[i]` becomes vertex i of the one graph."""
    place = np.argsort(order).astype(np.int32)
    rows = {name: getattr(case, name)[order] for name in ("kind", "features", "labels")}
    return case._replace(senders=place[case.senders], receivers=place[case.receivers], **rows)


def layout(config: GnnConfig, case: Case) -> Single:
    """The layout of one device for a case of JAX arrays."""
    return single(
        case.senders,
        case.receivers,
        vertices=case.kind.shape[0],
        layers=config.layers,
        relations=config.relations,
        relation_E=case.relation,
        kind_N=case.kind,
        edges_EA=case.edge_features,
        n_node_G=case.n_node,
        n_edge_G=case.n_edge,
    )


def dense(config: GnnConfig, case: Case) -> Dense:
    """The matrices of a case of NumPy arrays."""
    count = np.zeros((config.relations, len(case.kind), len(case.kind)), np.float32)
    for u, v, r in zip(case.senders, case.receivers, case.relation, strict=True):
        count[r, v, u] += 1
    vertices, kinds, graphs = (np.eye(n, dtype=np.float32) for n in (len(case.kind), config.kinds, len(case.n_node)))
    return Dense(
        count,
        vertices[case.senders],
        vertices[case.receivers],
        kinds[case.kind],
        np.repeat(graphs, case.n_node, axis=0),
        case.features,
        case.edge_features,
        case.labels,
    )


def norm(p: Any, x: jax.Array) -> jax.Array:
    x = (x - x.mean(axis=1)[:, None]) / jnp.sqrt(x.var(axis=1) + 1e-5)[:, None]
    return x * p["scale"][None] + p["bias"][None]


def line(p: Any, x: jax.Array) -> jax.Array:
    return jnp.dot(x, p["kernel"]) + p["bias"][None]


def perceptron(p: Any, x: jax.Array) -> jax.Array:
    return line(p["down"], jnp.maximum(norm(p["norm"], line(p["up"], x)), 0))


def gcn(config: GnnConfig, case: Dense, p: Any, h: jax.Array) -> jax.Array:
    a = case.count_RVU.sum(axis=0) + np.eye(len(h), dtype=np.float32)
    root = jnp.sqrt(a.sum(axis=1))
    return jnp.dot(a / root[:, None] / root[None], jnp.dot(h, p["send"]["kernel"])) + p["receive"]["bias"][None]


def sage(config: GnnConfig, case: Dense, p: Any, h: jax.Array) -> jax.Array:
    a, p = case.count_RVU.sum(axis=0), p["receive"]
    if config.aggregate == "mean":
        near = jnp.dot(a / jnp.maximum(a.sum(axis=1), 1)[:, None], h)
    else:
        best = jnp.argmax(jnp.where(a[:, :, None] > 0, h[None], -1.0), axis=1)  # rows are at least 0
        near = jnp.where(a.sum(axis=1)[:, None] > 0, jnp.take_along_axis(h, best, axis=0), 0.0)
    return jnp.dot(h, p["self"]["kernel"]) + jnp.dot(near, p["neighbours"]["kernel"]) + p["bias"][None]


def gin(config: GnnConfig, case: Dense, p: Any, h: jax.Array) -> jax.Array:
    a, epsilon = case.count_RVU.sum(axis=0), p["receive"]["epsilon"]["scale"][0]
    return perceptron(p["receive"], jnp.dot(a, h) + h + epsilon * h)


def gat(config: GnnConfig, case: Dense, p: Any, h: jax.Array) -> jax.Array:
    a, s = case.count_RVU.sum(axis=0) + np.eye(len(h), dtype=np.float32), p["send"]
    z, heads = jnp.dot(h, s["kernel"]), []
    for n in range(config.heads):
        z_n = z[:, n * config.channels : (n + 1) * config.channels]
        score = jnp.dot(z_n, s["receiver"]["kernel"][n])[:, None] + jnp.dot(z_n, s["sender"]["kernel"][n])[None, :]
        share = jnp.exp(jnp.where(score > 0, score, 0.2 * score)) * a
        heads.append(jnp.dot(share / share.sum(axis=1)[:, None], z_n))
    return jnp.concatenate(heads, axis=1) + p["receive"]["bias"][None]


def rgcn(config: GnnConfig, case: Dense, p: Any, h: jax.Array) -> jax.Array:
    p, out = p["receive"], []
    for r, a in enumerate(case.count_RVU):
        bases = jnp.split(p["basis"]["kernel"], config.bases)
        matrix = sum(p["coefficients"]["kernel"][r, b] * basis for b, basis in enumerate(bases))
        out.append(jnp.dot(jnp.dot(a / jnp.maximum(a.sum(axis=1), 1)[:, None], h), matrix))
    return jnp.dot(h, p["self"]["kernel"]) + p["bias"][None] + sum(out)


def hgt(config: GnnConfig, case: Dense, p: Any, h: jax.Array) -> jax.Array:
    kinds, relations, heads, channels = config.kinds, config.relations, config.heads, config.channels
    send, receive = p["send"], p["receive"]

    def by_kind(p: Any, x: jax.Array) -> jax.Array:
        matrix, more = p["kernel"].reshape(kinds, *2 * (config.width,)), p["bias"].reshape(kinds, config.width)
        return jnp.einsum("nt,tnz->nz", case.kind_NT, jnp.einsum("nd,tdz->tnz", x, matrix) + more[:, None])

    def matrices(p: Any) -> jax.Array:
        return p["kernel"].reshape(relations, heads, channels, channels)

    q, k, v = (by_kind(send[name], h).reshape(-1, heads, channels) for name in ("query", "key", "value"))
    q = jnp.einsum("vlc,rlcz->rvlz", q, matrices(send["attention"]))
    m = jnp.einsum("ulc,rlcz->rulz", v, matrices(receive["message"]))
    share = jnp.exp(jnp.einsum("rvlc,ulc->rvul", q, k) / np.float32(np.sqrt(channels))) * case.count_RVU[..., None]
    total = share.sum(axis=(0, 2))
    out = jnp.einsum("rvul,rulc->vlc", share, m) / jnp.where(total > 0, total, 1)[:, :, None]
    return by_kind(receive["out"], jax.nn.gelu(out.reshape(h.shape)))


LAYERS = {"gcn": gcn, "sage": sage, "gat": gat, "gin": gin, "rgcn": rgcn, "hgt": hgt}


def graphnet(case: Dense, p: Any, x: jax.Array, e: jax.Array, g: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """New states of vertices, edges and graphs."""
    sends, arrives, of_graph = case.sends_EN, case.arrives_EN, case.graph_NG
    edge_of = jnp.dot(arrives, of_graph)
    h, h_g = jnp.maximum(norm(p["norm"], x), 0), jnp.maximum(norm(p["global"]["norm"], g), 0)
    h_e = jnp.maximum(norm(p["edge"]["norm"], e), 0)
    e = e + perceptron(
        p["edge"]["mlp"], jnp.hstack([h_e, jnp.dot(sends, h), jnp.dot(arrives, h), jnp.dot(edge_of, h_g)])
    )
    x = x + perceptron(p["node"]["mlp"], jnp.hstack([h, jnp.dot(arrives.T, e), jnp.dot(of_graph, h_g)]))
    mean_x = jnp.dot(of_graph.T, x) / of_graph.sum(axis=0)[:, None]
    mean_e = jnp.dot(edge_of.T, e) / jnp.maximum(edge_of.sum(axis=0), 1)[:, None]
    return x, e, g + perceptron(p["global"]["mlp"], jnp.hstack([h_g, mean_x, mean_e]))


def outputs(config: GnnConfig, params: Any, case: Dense) -> jax.Array:
    """Outputs of vertices or graphs, without dropout."""
    x = norm(params["encoder"]["norm"], line(params["encoder"], case.features))
    e, g = jnp.zeros((len(case.sends_EN), config.width)), jnp.zeros((case.graph_NG.shape[1], config.width))
    if config.model == "graphnet":
        first = params["edge_encoder"]
        if config.edge_features:
            e = e + jnp.dot(case.edge_features, first["kernel"])
        e = norm(first["norm"], e + first["bias"][None])

    def layer(state: Any, p: Any) -> tuple[Any, None]:
        x, e, g = state
        if config.model == "graphnet":
            return graphnet(case, p, x, e, g), None
        return (x + LAYERS[config.model](config, case, p, jnp.maximum(norm(p["norm"], x), 0)), e, g), None

    (x, _, g), _ = jax.lax.scan(layer, (x, e, g), params["layers"])
    h = jnp.maximum(norm(params["norm"], x), 0)
    if config.level == "graph":
        h = jnp.dot(case.graph_NG.T, h) / case.graph_NG.sum(axis=0)[:, None]
        h = h + g if config.model == "graphnet" else h
    return line(params["head"], h)


def loss(config: GnnConfig, params: Any, case: Dense) -> tuple[jax.Array, jax.Array]:
    """Sum of the cross-entropies of the labels that are known, and the outputs."""
    out = outputs(config, params, case)
    wanted = case.labels[:, None] == np.arange(config.outputs)[None]
    return -jnp.sum(jnp.where(wanted, jax.nn.log_softmax(out, axis=1), 0.0)), out


def close(found: Any, right: Any, tolerance: float) -> None:
    """Each array of a tree within a tolerance relative to the largest entry of the right one."""
    for (path, a), (_, b) in zip(*map(jax.tree_util.tree_leaves_with_path, (found, right)), strict=True):
        name, size = jax.tree_util.keystr(path, simple=True, separator="/"), float(jnp.max(jnp.abs(b), initial=1e-3))
        np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * size, err_msg=f"{name} is off")
