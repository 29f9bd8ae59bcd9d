"""Sampled neighbourhoods: seeds dealt to devices, neighbours drawn on the device with fixed fan-outs.

Every size is fixed by the number of seeds, so that a run compiles once. Which neighbours a seed gets follows from the
key of the step and the place of the seed in the batch, never from the device that it is dealt to.
Legend: D devices, N seeds of a device, Nk rows k hops away from the seeds (those of the hop before, then their sampled
neighbours), F slots of a row, A all vertices, E all edges, R relations.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from models.gnn import losses
from models.gnn.layout import Rows
from models.gnn.slots import Slots
from sharding.hops import GraphLayout, SampleHop, Structure, local
from sharding.placement import Placement
from training.graphs import checks
from training.graphs.spread import Entry, Named, Part, Tree, training_labels

Sampled = tuple[jax.Array, ...]


@dataclass(frozen=True, eq=False, kw_only=True)
class SampleSpread:
    """Each device has the whole graph and some of the seeds.

    Args:
        part: the graph.
        seeds: of each device in a step.
        fanouts: neighbours of a row, from the seeds outwards; one for each layer.
        ends: seeds of a pair where links are predicted: its ends, and those without an edge to the first; 1 for labels.
    """

    part: Part
    seeds: tuple[int, ...]
    fanouts: tuple[int, ...]
    ends: int = 1

    @property
    def sizes(self) -> dict[str, np.ndarray]:
        """Rows by hops from the seeds; a device without seeds has one row of padding."""
        rows = np.maximum(1, np.array([self.seeds]))
        found = {"N": rows}
        for hop, fanout in enumerate(self.fanouts, 1):
            rows = rows * (1 + fanout)
            found[f"N{hop}"] = rows
        return found

    @property
    def named(self) -> dict[str, Named]:
        """Nothing but what is dealt."""
        return {}

    @property
    def dealt(self) -> dict[str, str]:
        """Seeds, and their places in the batch; -1 is padding."""
        return {"seeds": "N", "places": "N"}

    @property
    def tables(self) -> Tree:
        """No exchange."""
        return {}

    @cached_property
    def common(self) -> Tree:
        """The graph: edges by receiver, facts, features and labels of all vertices."""
        graph, part = self.part.graph, self.part
        order = np.argsort(graph.receivers, kind="stable")
        starts = np.concatenate([[0], np.cumsum(np.bincount(graph.receivers, minlength=graph.vertices))])
        return {
            "starts": checks.to_int32(graph.name, "numbers of edges", starts),
            "senders": graph.senders[order].astype(np.int32),
            "relations": part.relations[order],
            "degree": part.degree,
            "kind": graph.kinds.astype(np.int32),
            "features": graph.features,
            "labels": training_labels(graph, np.arange(graph.vertices)),
        }

    def rows(self) -> list[np.ndarray]:
        """Places of each device's seeds in the batch."""
        stops = np.cumsum((0, *self.seeds))
        own = [np.arange(stop - count, stop) for count, stop in zip(self.seeds, stops[1:], strict=True)]
        return [ids if len(ids) else np.array([-1]) for ids in own]

    def notes(self) -> list[str]:
        """Sizes of samples."""
        rows = int(self.sizes[_axis(len(self.fanouts))].sum())
        fans = " and ".join(map(str, self.fanouts))
        return [f"{sum(self.seeds):,} seeds in a step with {fans} sampled neighbours: {rows:,} rows"]

    def enter(self, placement: Placement, own: Tree, common: Tree, key: jax.Array) -> Entry:
        """Draw neighbours, outwards from the seeds; hops of the network go inwards."""
        ids, places, hops = own["seeds"], own["places"], []
        rows = self._facts(ids, common)
        labels = jnp.where(ids >= 0, common["labels"][jnp.maximum(ids, 0)], training_none(common["labels"]))
        for number, fanout in enumerate(self.fanouts):
            inner, outer = _axis(number), _axis(number + 1)
            hop_key = jax.random.key_data(jax.random.fold_in(key, number))
            draw = _Draw(fanout)
            graph = (common["starts"], common["senders"], common["relations"])
            signature = f"{inner}, {inner}, K, P, E, E -> {inner} F, {inner} F, {outer}, {outer}"
            mask, relation, ids, places = placement.run(draw, signature, ids, places, hop_key, *graph)
            target, rows = rows, self._facts(ids, common)
            structure = Structure(
                arrays={"degree": jnp.sum(target.degree_NR, axis=1), "mask": mask, "relation": relation},
                axes=(inner, f"{inner} F", f"{inner} F"),
                view_of=self._view,
            )
            hop = SampleHop(
                placement=placement,
                structure=structure,
                source=rows,
                target=target,
                relations=self.part.degree.shape[1],
                source_axis=outer,
                target_axis=inner,
            )
            hops.append(hop)
        layout = GraphLayout(placement=placement, hops=tuple(hops[::-1]))
        features = common["features"][jnp.maximum(ids, 0)]
        if self.ends == 1:
            return Entry(layout, features, labels)

        def loss(outputs_NK: jax.Array) -> jax.Array:
            both: jax.Array = local(placement, self._of_pairs, "N K, N -> T")((), outputs_NK, own["seeds"])
            return both

        return Entry(layout, features, labels, loss)

    def _of_pairs(self, _: Any, outputs_NK: jax.Array, seeds_N: jax.Array) -> jax.Array:
        """Sum and weight of the loss of own pairs."""
        pairs = len(seeds_N) // self.ends  # a row of padding is none
        ends_PQK = outputs_NK[: pairs * self.ends].reshape(pairs, self.ends, outputs_NK.shape[1])
        known_P = seeds_N[: pairs * self.ends : self.ends] >= 0
        return jnp.stack(losses.links(losses.link_scores(ends_PQK, outputs_NK.shape[1]), known_P))

    def _view(self, arrays: dict[str, jax.Array], _: int) -> Slots:
        return Slots(
            mask_VF=arrays["mask"],
            relation_VF=arrays["relation"],
            degree_V=arrays["degree"],
            relations=self.part.degree.shape[1],
        )

    def _facts(self, ids: jax.Array, common: Tree) -> Rows:
        at = jnp.maximum(ids, 0)
        return Rows(common["degree"][at], common["kind"][at], ids)


@dataclass(frozen=True)
class _Draw:
    """Neighbours of rows: which slots hold one, relations, and vertices and places of the rows before the hop."""

    fanout: int

    def __call__(self, _: Any, ids_N: jax.Array, places_N: jax.Array, key: jax.Array, *graph: jax.Array) -> Sampled:
        starts, senders, relations = graph
        at_N = jnp.maximum(ids_N, 0)
        first_N = starts[at_N]
        count_N = jnp.where(ids_N >= 0, starts[at_N + 1] - first_N, 0)
        chosen_NF = jax.vmap(distinct, in_axes=(None, 0, 0, None))(
            jax.random.wrap_key_data(key), places_N, count_N, self.fanout
        )
        mask_NF = jnp.arange(self.fanout, dtype=jnp.int32)[None, :] < count_N[:, None]
        edge_NF = jnp.where(mask_NF, first_N[:, None] + chosen_NF, 0)
        if not senders.shape[0]:  # a graph without edges
            found_NF = jnp.full(mask_NF.shape, -1, jnp.int32)
            relation_NF = jnp.zeros(mask_NF.shape, jnp.int32)
        else:
            found_NF = jnp.where(mask_NF, senders[edge_NF], -1)
            relation_NF = jnp.where(mask_NF, relations[edge_NF], 0)
        step = self.fanout + 1  # places of the rows of a hop are apart from each other
        slot_F = jnp.arange(1, step, dtype=jnp.int32)
        slots_NF = places_N[:, None] * step + slot_F[None, :]
        return (
            mask_NF,
            relation_NF,
            jnp.concatenate([ids_N, found_NF.reshape(-1)]),
            jnp.concatenate([places_N * step, slots_NF.reshape(-1)]),
        )


def distinct(key: jax.Array, place: jax.Array, count: jax.Array, fanout: int) -> jax.Array:
    """As many different numbers below `count` as there are, at most `fanout`, each set equally likely: int32 [F].

    Floyd's algorithm (Bentley & Floyd, 1987): for j = count - fanout ... count - 1, draw one of 0..j, or take j if
    that is taken already. All are taken in order where there are no more than `fanout`.

    Args:
        key: of the hop.
        place: of the row, by which its draws differ from others'.
        count: numbers to choose from.
        fanout: numbers to choose.
    """
    uniform_F = jax.random.uniform(jax.random.fold_in(key, place), (fanout,), jnp.float32)
    chosen_F = jnp.full((fanout,), -1, jnp.int32)
    for slot in range(fanout):
        last = jnp.maximum(count - fanout + slot, 0)
        drawn = jnp.minimum((uniform_F[slot] * (last + 1).astype(jnp.float32)).astype(jnp.int32), last)
        chosen_F = chosen_F.at[slot].set(jnp.where(jnp.any(chosen_F == drawn), last, drawn))
    return jnp.where(count > fanout, chosen_F, jnp.arange(fanout, dtype=jnp.int32))


def training_none(labels: jax.Array) -> jax.Array:
    """The label of what has none."""
    return jnp.asarray(-1 if jnp.issubdtype(labels.dtype, jnp.integer) else jnp.nan, labels.dtype)


def _axis(hops: int) -> str:
    return f"N{hops}" if hops else "N"
