"""Node- and graph-property folders of the Open Graph Benchmark, as raw csv.gz and as binary .npz."""

from pathlib import Path

import numpy as np

from meshes.errors import UsageError
from training.graphs import checks
from training.graphs.build import Labels, build
from training.graphs.edge_file import read
from training.graphs.graph import Graph, GraphSet
from training.graphs.ogb_tables import labels_of, split_of, table
from training.graphs.ogb_typed import ogb_typed

# What `data.npz` calls its arrays, and the files that hold the same.
CSV = {
    "edge_index": "edge.csv.gz", "num_nodes_list": "num-node-list.csv.gz", "num_edges_list": "num-edge-list.csv.gz",
    "node_feat": "node-feat.csv.gz", "edge_feat": "edge-feat.csv.gz",
}  # fmt: skip
WHOLE = ("edge_index", "num_nodes_list", "num_edges_list")  # these must be there

Tables = dict[str, np.ndarray]  # by key of CSV; edges are rows here


def ogb(folder: Path, seed: int) -> Graph | GraphSet:
    """Read `raw` and `split` of a data set.

    One graph with node labels (typed as in `ogb_typed`), or many with graph labels; one label each. Edges are kept as
    they stand; where they stand once for both directions, `both_ways` adds the other. Numbers that name categories are
    taken as numbers.
    Labels that are all whole numbers are classes, NaN or an empty field being none; others are values to predict.
    Without `split` the parts are drawn by seed.

    Errors:
        UsageError: a file is missing, cut off, or does not fit the others; several labels.
    """
    raw = folder / "raw"
    if (raw / "triplet-type-list.csv.gz").exists():
        return ogb_typed(folder, seed)
    binary = (raw / "data.npz").exists()
    places = {key: raw / ("data.npz" if binary else file) for key, file in CSV.items()}
    tables = _binary(places["edge_index"]) if binary else _csv(places)
    n_node, n_edge = (tables[key].reshape(-1) for key in WHOLE[1:])
    _agree(places, tables, int(n_node.sum()), int(n_edge.sum()))
    many, labels = _labels(raw, ".npz" if binary else ".csv.gz")
    if not many and len(n_node) != 1:
        raise UsageError(f"{places['num_nodes_list']} has {len(n_node)} graphs: graphs need {raw}/graph-label")
    ends = _through(places["edge_index"], tables["edge_index"], n_node, n_edge)
    arrays = {"senders": ends[:, 0], "receivers": ends[:, 1]}
    arrays |= {
        key: tables[name] for key, name in (("features", "node_feat"), ("edge_features", "edge_feat")) if name in tables
    }
    arrays |= {"n_node": n_node, "n_edge": n_edge} if many else {}
    return build(
        str(folder), arrays, vertices=int(n_node.sum()), labels=labels, split=split_of(folder / "split"), seed=seed
    )


def _csv(places: dict[str, Path]) -> Tables:
    tables = {
        key: table(path, np.int64 if key in WHOLE else np.float64)
        for key, path in places.items()
        if key in WHOLE or path.exists()
    }
    edges = tables["edge_index"]
    if edges.size and edges.shape[1] != 2:
        raise UsageError(f"{places['edge_index']} has {edges.shape[1]} columns, wanted 2: sender and receiver")
    return tables | {"edge_index": edges.reshape(-1, 2)}


def _binary(path: Path) -> Tables:
    found = read(path)
    missing = [key for key in WHOLE if key not in found]
    if missing:
        raise UsageError(f"{path} has no {', '.join(missing)}: wanted {', '.join(WHOLE)}, and node_feat, edge_feat")
    checks.shape(f"{path}: edge_index", found["edge_index"].T, (found["edge_index"].shape[-1], 2), "edges")
    whole = {key: checks.whole_numbers(f"{path}: {key}", found[key]) for key in WHOLE}
    return {key: found[key] for key in CSV if key in found} | whole | {"edge_index": whole["edge_index"].T}


def _agree(places: dict[str, Path], tables: Tables, vertices: int, edges: int) -> None:
    """Refuse tables whose rows are not those of all graphs together."""
    for sizes in WHOLE[1:]:
        if (tables[sizes] < 0).any() or not tables[sizes].size:
            raise UsageError(
                f"{places[sizes]}: {sizes} wants a number from 0 on for each graph: get the data set again"
            )
    if len(tables["num_nodes_list"].reshape(-1)) != len(tables["num_edges_list"].reshape(-1)):
        raise UsageError(
            f"{places['num_nodes_list']} and {places['num_edges_list']} are of different numbers of graphs"
        )
    for key, wanted, sizes in (
        ("edge_index", edges, places["num_edges_list"].name),
        ("edge_feat", edges, places["num_edges_list"].name),
        ("node_feat", vertices, places["num_nodes_list"].name),
    ):
        if key in tables and len(tables[key]) != wanted:
            raise UsageError(
                f"{places[key]}: {key} has {len(tables[key])} rows, but the graphs of {sizes} have {wanted}: it is cut"
                " off; get the data set again"
            )


def _through(path: Path, edges: np.ndarray, n_node: np.ndarray, n_edge: np.ndarray) -> np.ndarray:
    """Edges numbered through all graphs, from edges numbered in their own graphs; int64 [E, 2]."""
    limits, firsts = np.repeat(n_node, n_edge)[:, None], np.repeat(np.cumsum(n_node) - n_node, n_edge)[:, None]
    bad = np.argwhere((edges < 0) | (edges >= limits))
    if len(bad):
        row, column = bad[0]
        raise UsageError(
            f"{path}, row {row}: vertex {edges[row, column]} does not exist, its graph has {limits[row, 0]} (0 to"
            f" {limits[row, 0] - 1}): mend it or get the data set again"
        )
    return edges + firsts


def _labels(raw: Path, suffix: str) -> tuple[bool, Labels]:
    """Whether labels are of graphs, and the labels."""
    found = [stem for stem in ("graph", "node") if (raw / f"{stem}-label{suffix}").exists()]
    if not found:
        raise UsageError(f"{raw} has neither node-label{suffix} nor graph-label{suffix}: get the data set again")
    path = raw / f"{found[0]}-label{suffix}"
    if suffix == ".csv.gz":
        return found[0] == "graph", labels_of(path, table(path, np.float64, empty=True))
    key, arrays = f"{found[0]}_label", read(path)
    if key not in arrays:
        raise UsageError(f"{path} has no array {key}: get the data set again")
    return found[0] == "graph", labels_of(path, arrays[key])
