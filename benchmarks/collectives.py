"""All-gathers and reduce-scatters between slowed processes: round a ring, as Gloo does them, and straight.

Four processes with CPU shares 4:2:1:1. Seconds of one message beyond the work between messages.
"""

from pathlib import Path

from report import Report, flags
from slowed import exchanged

from meshes.cluster import Cluster
from sharding import messages

CLUSTER = Path(__file__).parents[1] / "examples" / "clusters" / "four_two_one_one.toml"
SIZES = (1, 128, 1024)  # rows of a device's pieces
BETWEEN = 0.01  # seconds of work


def main() -> None:
    """Measure and print."""
    given = flags(__doc__)
    sizes = SIZES[:2] if given.quick else SIZES
    found = exchanged(Cluster.from_toml(CLUSTER), sizes, BETWEEN, rounds=3 if given.quick else 9)
    report = Report("collectives")
    for rows in sizes:
        ring, direct = found[f"ring {rows}"], found[f"direct {rows}"]
        size = 4 * messages.MATRICES * messages.WIDTH * rows
        report.add(f"{size:,} bytes, ring", 1e3 * ring, "ms")
        report.add(f"{size:,} bytes, direct", 1e3 * direct, "ms")
        report.add(f"{size:,} bytes, ring over direct", ring / direct, "x")
    report.show(as_json=given.json)


if __name__ == "__main__":
    main()
