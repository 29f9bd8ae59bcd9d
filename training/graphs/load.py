"""From what `--data` names to a graph."""

from pathlib import Path

from meshes.errors import UsageError
from training.graphs.edge_file import edge_file
from training.graphs.graph import Graph, GraphSet
from training.graphs.graphml import graphml
from training.graphs.karate import karate
from training.graphs.ogb import ogb
from training.graphs.planetoid import name_in, planetoid
from training.graphs.standard_library import standard_library

KNOWN = "a folder of OGB (with raw/) or Planetoid (ind.NAME.x and so on), an .npz of edges, a GraphML file, or karate"


def load(data: Path | None, seed: int) -> Graph | GraphSet:
    """Read a graph, or many small ones; what they are is told by content.

    Args:
        data: a folder of OGB or Planetoid, a file of .npz or GraphML, or the word `karate`; None: Python's own
            standard library.
        seed: of splits that the data do not bring.

    Errors:
        UsageError: missing, unreadable or unfit data.
    """
    if data is None:
        return standard_library(seed)
    if data == Path("karate") and not data.exists():
        return karate(seed)
    if not data.exists():
        raise UsageError(f"--data {data}: no such file or folder; give {KNOWN}")
    return _folder(data, seed) if data.is_dir() else _file(data, seed)


def _folder(folder: Path, seed: int) -> Graph | GraphSet:
    for place in (folder, folder / "raw"):
        if name := name_in(place):
            return planetoid(place, name, seed)
    if (folder / "raw").is_dir():
        return ogb(folder, seed)
    raise UsageError(f"--data {folder} is no graph that is known: give {KNOWN}")


def _file(path: Path, seed: int) -> Graph | GraphSet:
    if not path.is_file():
        raise UsageError(f"--data {path} is neither a file nor a folder: give {KNOWN}")
    try:
        with path.open("rb") as file:
            head = file.read(256)
    except OSError as error:
        raise UsageError(f"--data {path}: {error.strerror}") from None
    if not head:
        raise UsageError(f"--data {path} is empty: it has 0 bytes; give {KNOWN}")
    if head.startswith(b"PK"):
        return edge_file(path, seed)
    if head.removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"<"):
        return graphml(path, seed)
    raise UsageError(f"--data {path} is no graph that is known: it begins with {head[:8]!r}; give {KNOWN}")
