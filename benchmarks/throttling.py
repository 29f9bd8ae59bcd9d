"""How slow a slowed process is, and how smoothly: achieved over asked share, and the wall time of blocks of CPU work.

Control groups and duty cycles at several periods. A block is 5 ms of CPU time in a busy loop; ideally its wall time is
that over the share. What deviates from it is what other processes wait for in a collective.
"""

import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

from report import Report, flags

from meshes import control, throttle
from meshes.cluster import Cluster, Device, Limits
from meshes.launch import launch

SHARES = (0.2, 0.33, 0.5)
PERIODS = {"control group": (0.005, 0.01, 0.02, 0.05, 0.1), "duty cycle": (0.01, 0.02, 0.05)}
BLOCK = 0.005  # CPU seconds


def measure(seconds: float, out: str) -> None:
    """In the slowed process: its share, and the wall times of blocks."""
    control.throttle(True)
    share, blocks = throttle.achieved(seconds), []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        start, cpu = time.perf_counter(), time.thread_time()
        while time.thread_time() - cpu < BLOCK:
            pass
        blocks.append(time.perf_counter() - start)
    Path(out).write_text(json.dumps({"share": share, "blocks": blocks}))


def slowed(share: float, mechanism: str, period: float, seconds: float) -> dict[str, list[float]]:
    """`measure` in a process of its own."""
    throttle.GROUP_PERIOD = throttle.DUTY_PERIOD = period
    cluster = Cluster(devices=(Device(name="slowed", limits=Limits(cpu_share=share)),))
    with tempfile.TemporaryDirectory() as folder:
        out = str(Path(folder, "found.json"))
        command = [sys.executable, __file__, "--measure", str(seconds), out]
        if code := launch(command, cluster, cgroups=mechanism == "control group"):
            raise RuntimeError(f"the process ended with exit code {code}")
        return json.loads(Path(out).read_text())


def main() -> None:
    """Measure every mechanism, period and share."""
    if sys.argv[1:2] == ["--measure"]:
        measure(float(sys.argv[2]), sys.argv[3])
        return
    given = flags(__doc__)
    report = Report("throttling")
    for mechanism, periods in PERIODS.items():
        for period in periods[:1] if given.quick else periods:
            for share in SHARES[1:2] if given.quick else SHARES:
                found = slowed(share, mechanism, period, 1.0 if given.quick else 2.0)
                name = f"{mechanism}, {1e3 * period:g} ms, {share:g}"
                report.add(f"{name}: achieved over asked", found["share"] / share, "")
                report.add(f"{name}: block over ideal", statistics.mean(found["blocks"]) * share / BLOCK, "")
                report.add(f"{name}: deviation of a block", 1e3 * statistics.stdev(found["blocks"]), "ms")
    report.show(as_json=given.json)


if __name__ == "__main__":
    main()
