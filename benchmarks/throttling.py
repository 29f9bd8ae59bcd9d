"""How slow a slowed process is, and how smoothly: achieved over asked share, and the wall time of blocks of CPU work.

Control groups and duty cycles at several periods. A block is 5 ms of CPU time in a busy loop; ideally its wall time is
that over the share. What deviates from it is what other processes wait for in a collective. At last several processes
at once, which have to share the cores.
"""

import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from report import Report, flags

from meshes import control, throttle
from meshes.cluster import Cluster, Device, Limits
from meshes.launch import launch

SHARES = (0.2, 0.33, 0.5)
PERIODS = {"control group": (0.005, 0.01, 0.02, 0.05, 0.1), "duty cycle": (0.01, 0.02, 0.05)}
TOGETHER = (0.8, 0.4, 0.2, 0.2)
BLOCK = 0.005  # CPU seconds


def measure(seconds: float, folder: str) -> None:
    """In the slowed process: its share, and the wall times of blocks."""
    control.throttle(True)
    share, blocks = throttle.achieved(seconds), []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        start, cpu = time.perf_counter(), time.thread_time()
        while time.thread_time() - cpu < BLOCK:
            pass
        blocks.append(time.perf_counter() - start)
    found = {"share": share, "blocks": blocks}
    Path(folder, os.environ["JAX_PROCESS_ID"]).write_text(json.dumps(found))


def slowed(shares: Sequence[float], mechanism: str, period: float, seconds: float) -> list[dict[str, Any]]:
    """`measure` in processes of their own, all at once."""
    throttle.GROUP_PERIOD = throttle.DUTY_PERIOD = period
    devices = [Device(name=f"d{n}", process=n, limits=Limits(cpu_share=share)) for n, share in enumerate(shares)]
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, "--measure", str(seconds), folder]
        if code := launch(command, Cluster(devices=tuple(devices)), cgroups=mechanism == "control group"):
            raise RuntimeError(f"the processes ended with exit code {code}")
        return [json.loads(Path(folder, str(n)).read_text()) for n in range(len(shares))]


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
                found = slowed([share], mechanism, period, 1.0 if given.quick else 2.0)[0]
                name = f"{mechanism}, {1e3 * period:g} ms, {share:g}"
                report.add(f"{name}: achieved over asked", found["share"] / share, "")
                report.add(f"{name}: block over ideal", statistics.mean(found["blocks"]) * share / BLOCK, "")
                report.add(f"{name}: deviation of a block", 1e3 * statistics.stdev(found["blocks"]), "ms")
        for number, found in enumerate(slowed(TOGETHER, mechanism, periods[0], 1.0 if given.quick else 4.0)):
            name = f"{mechanism}, {1e3 * periods[0]:g} ms, {TOGETHER[number]:g} of {TOGETHER}"
            report.add(f"{name}: achieved over asked", found["share"] / TOGETHER[number], "")
    report.show(as_json=given.json)


if __name__ == "__main__":
    main()
