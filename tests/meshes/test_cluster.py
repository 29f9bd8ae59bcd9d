"""Clusters from files, flags and devices, and the errors of those who write them."""

import json
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from meshes import cluster_file, strict_json
from meshes.cluster import CROSS_HOST, FLOPS_PER_SPEED, SAME_HOST, Cluster, Device, Limits, Link
from meshes.curve import Curve
from meshes.errors import UsageError
from meshes.units import format_bytes, parse_bandwidth, parse_bytes, parse_flops, parse_seconds

FILE = """
[[devices]]
name = "a100-"
kind = "A100"
count = 2
flops = "312T"
memory = "40GB"
host = "big"

[[devices]]
name = "t4"
flops = "65T"
memory = "16GiB"
host = "small"

[[links]]
hosts = ["small", "big"]
bandwidth = "2GB/s"
latency = "30us"

[same_host]
bandwidth = 5e10
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "cluster.toml"
    path.write_text(text)
    return path


def test_toml(tmp_path: Path) -> None:
    cluster = Cluster.from_toml(write(tmp_path, FILE))
    assert [device.name for device in cluster.devices] == ["a100-0", "a100-1", "t4"]
    assert [device.kind for device in cluster.devices] == ["A100", "A100", "t4"]
    assert [device.speed for device in cluster.devices] == [4.8, 4.8, 1.0]
    assert [device.memory for device in cluster.devices] == [40 * 10**9, 40 * 10**9, 16 * 2**30]
    assert cluster.flops_per_speed == 65e12
    assert cluster.link(0, 2) == cluster.link(2, 0) == Link(hosts=("small", "big"), bandwidth=2e9, latency=30e-6)
    assert cluster.link(0, 1) == replace(SAME_HOST, bandwidth=5e10)


def test_toml_defaults(tmp_path: Path) -> None:
    cluster = Cluster.from_toml(
        write(tmp_path, '[[devices]]\nspeed = 2\ncount = 2\n[[devices]]\nspeed = 1\nhost = "b"')
    )
    assert cluster.devices[1] == Device(name="device1", kind="device", speed=2.0, host="local", process=1)
    assert cluster.flops_per_speed == FLOPS_PER_SPEED
    assert (cluster.link(0, 1), cluster.link(0, 2)) == (SAME_HOST, CROSS_HOST)


def test_toml_mixes_flops_and_speed_with_a_base(tmp_path: Path) -> None:
    text = 'flops_per_speed = "10T"\n[[devices]]\nspeed = 2.0\n[[devices]]\nflops = "40T"'
    assert [device.speed for device in Cluster.from_toml(write(tmp_path, text)).devices] == [2.0, 4.0]


LIMITED = """
[[devices]]
name = "a"
count = 4
devices_per_process = 2
cpu_share = 1.5
process_memory = "2GB"
link_rate = "100MB/s"

[[devices]]
name = "b"
speed = 0.25
memory = "1GB"
cpu_share = 0.5

[[devices]]
name = "c"
speed = 1
"""


def test_processes_and_their_limits(tmp_path: Path) -> None:
    cluster = Cluster.from_toml(write(tmp_path, LIMITED))
    both = Limits(cpu_share=1.5, memory=2 * 10**9, link_rate=1e8)
    assert [device.limits for device in cluster.devices] == [both] * 4 + [Limits(cpu_share=0.5), None]
    assert [device.speed for device in cluster.devices] == [0.75] * 4 + [0.25, 1.0]  # a share is of a process
    assert [device.memory for device in cluster.devices] == [None] * 4 + [10**9, None]
    assert cluster.processes == ((0, 1), (2, 3), (4,), (5,))
    assert Cluster.from_flags(devices=3).processes == ((0, 1, 2),)
    assert strict_json.decode(Cluster, json.loads(json.dumps(asdict(cluster))), "cluster") == cluster


ONE = '[[devices]]\nname = "a"\nspeed = 1\n'
BAD_FILES = {
    "empty": ("", "no devices: write at least one"),
    "not_toml": ("[[devices]", "is not TOML"),
    "unknown_top": (ONE + "[lnks]\n", "unknown key 'lnks': did you mean 'links'"),
    "unknown_key": ('[[devices]]\nsped = 1\nname = "a"', r"devices\[0\]: unknown key 'sped': did you mean 'speed'"),
    "strange_key": ("[[devices]]\nspeed = 1\nxyzzy = 1", "unknown key 'xyzzy': known keys are count, cpu_share"),
    "no_speed": (
        ONE + '[[devices]]\nname = "b"',
        r"devices\[1\]: give speed or flops, as others do, or leave them out",
    ),
    "both": ('[[devices]]\nspeed = 1\nflops = "1T"', "give either speed or flops, not both"),
    "mixed": (ONE + '[[devices]]\nflops = "1T"', "some devices give flops and some speed"),
    "zero": ("[[devices]]\nspeed = 0", r"devices\[0\].speed is 0: write a positive finite number"),
    "negative": ("[[devices]]\nspeed = -2.5", r"speed is -2.5: write a positive"),
    "nan": ("[[devices]]\nspeed = nan", "speed is nan: write a positive"),
    "inf": ("[[devices]]\nspeed = inf", "speed is inf: write a positive"),
    "bool": ("[[devices]]\nspeed = true", "speed is True: write a positive"),
    "text": ('[[devices]]\nspeed = "4"', "speed is '4': write a positive"),
    "count": ("[[devices]]\nspeed = 1\ncount = 0", "count is 0: write a whole number, 1 or more"),
    "per_process": (
        "[[devices]]\nspeed = 1\ncount = 4\ndevices_per_process = 3",
        r"devices\[0\]: devices_per_process 3 does not divide count 4: give it a divisor",
    ),
    "no_process": (ONE + "devices_per_process = 0", "devices_per_process is 0: write a whole number, 1 or more"),
    "share": ("[[devices]]\ncpu_share = 0", r"devices\[0\].cpu_share is 0: write a positive finite number"),
    "process_memory": (ONE + "process_memory = 0.5", r"devices\[0\].process_memory is 0.5: write one byte or more"),
    "link_rate": (ONE + 'link_rate = "1GB"', r"devices\[0\].link_rate is '1GB': write bytes a second like 25GB/s"),
    "memory": (ONE + 'memory = "24Gb"', r"devices\[0\].memory is '24Gb': write bytes like 24GB"),
    "no_memory": (ONE + 'memory = "0GB"', "memory is '0GB': it must be finite and positive"),
    "flops": ('[[devices]]\nflops = "fast"', "flops is 'fast': write FLOP/s like 312T"),
    "name": ("[[devices]]\nspeed = 1\nname = 3", "name is 3: write text in quotes"),
    "twice": (ONE + ONE, "cluster.toml: 2 devices are called 'a'"),
    "devices": ("devices = 3", r"devices is 3: write \[\[devices\]\] tables"),
    "hosts": (ONE + '[[links]]\nhosts = "a"\nbandwidth = 1', "hosts is 'a': write two host names"),
    "host": (ONE + '[[links]]\nhosts = ["local", "b"]\nbandwidth = 1', "names host 'b', but the devices are on local"),
    "bandwidth": (
        ONE + '[[links]]\nhosts = ["local", "local"]\nbandwidth = "1GB"',
        "bandwidth is '1GB': write bytes a",
    ),
    "no_bandwidth": (ONE + '[[links]]\nhosts = ["local", "local"]', "give a bandwidth"),
    "latency": (ONE + '[cross_host]\nlatency = "1min"', "cross_host.latency is '1min': write seconds like 10us"),
    "default": (ONE.replace("[[", "same_host = 1\n[["), r"same_host is 1: write a \[same_host\] table"),
    "links": (ONE + '[[links]]\nhosts = ["local", "local"]\nbandwidth = 1\n' * 2, "2 links between local: keep one"),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_bad_files_are_named_in_one_line(name: str, tmp_path: Path) -> None:
    text, message = BAD_FILES[name]
    path = write(tmp_path, text)
    with pytest.raises(UsageError, match=message) as caught:
        Cluster.from_toml(path)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cluster file .*none.toml does not exist: check the path"):
        Cluster.from_toml(tmp_path / "none.toml")
    with pytest.raises(UsageError, match=r"cannot be read \(Is a directory\)"):
        Cluster.from_toml(tmp_path)


def test_flags() -> None:
    cluster = Cluster.from_flags(devices=3, speeds=(4, 2, 0.5), memory=("24GB", "12GiB", "800MB"))
    assert [device.speed for device in cluster.devices] == [4.0, 2.0, 0.5]
    assert [device.memory for device in cluster.devices] == [24 * 10**9, 12 * 2**30, 8 * 10**8]
    assert len({device.name for device in cluster.devices}) == 3
    unlimited = Cluster.from_flags(devices=2)
    assert [(device.speed, device.memory) for device in unlimited.devices] == [(1.0, None)] * 2
    assert Cluster.from_flags(speeds=(1.0, 1.0)) == replace(unlimited, declared=True) and not unlimited.declared


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({}, "no devices: give --devices N"),
        ({"devices": 0}, "no devices"),
        ({"speeds": ()}, "no devices"),
        ({"devices": 3, "speeds": (1.0, 2.0)}, "--devices 3 and --speeds with 2 values"),
        ({"speeds": (1.0, 2.0), "memory": ("1GB",)}, "--speeds with 2 values and --memory with 1 values"),
        ({"speeds": (1.0, 0.0)}, "--speeds value 2 is 0.0: write a positive finite number"),
        ({"speeds": (-1.0,)}, "--speeds value 1 is -1.0"),
        ({"speeds": (float("nan"),)}, "--speeds value 1 is nan"),
        ({"speeds": (float("inf"),)}, "--speeds value 1 is inf"),
        ({"memory": ("24",) * 2 + ("x",)}, "--memory value 3 is 'x': write bytes like 24GB"),
    ],
)
def test_bad_flags(flags: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Cluster.from_flags(**flags)


def device(kind: str, process: int = 0, memory: int | None = None) -> SimpleNamespace:
    stats = None if memory is None else {"bytes_limit": memory}
    return SimpleNamespace(device_kind=kind, process_index=process, platform="gpu", memory_stats=lambda: stats)


def test_jax_devices_of_one_kind() -> None:
    cluster = Cluster.from_jax_devices([device("cpu"), device("cpu", 1)])
    assert [(d.speed, d.memory, d.host) for d in cluster.devices] == [
        (1.0, None, "process0"),
        (1.0, None, "process1"),
    ]
    assert cluster.processes == ((0,), (1,))


def test_jax_devices_of_two_kinds() -> None:
    found = [device("NVIDIA A100-SXM4-40GB", 0, 40), device("NVIDIA A100-SXM4-40GB", 0, 39), device("Tesla T4", 1, 15)]
    cluster = Cluster.from_jax_devices(found)
    assert [d.speed for d in cluster.devices] == [4.8, 4.8, 1.0]
    assert [d.memory for d in cluster.devices] == [39, 39, 15]
    assert cluster.flops_per_speed == 65e12


def test_jax_devices_that_tell_no_memory_are_unlimited() -> None:
    def refuse() -> None:
        raise RuntimeError("not addressable")

    remote = device("Tesla T4", 1)
    remote.memory_stats = refuse
    assert [d.memory for d in Cluster.from_jax_devices([device("Tesla T4", 0, 15), remote]).devices] == [None, None]


def test_unknown_speed_among_several_kinds() -> None:
    with pytest.raises(UsageError, match="the speed of a 'Abacus' is unknown: give --speeds or --cluster"):
        Cluster.from_jax_devices([device("Abacus"), device("Tesla T4")])
    with pytest.raises(UsageError, match="the cluster has no devices"):
        Cluster.from_jax_devices([])


def test_digest_follows_the_content() -> None:
    cluster = Cluster.from_flags(speeds=(2, 1))
    assert cluster.digest() == Cluster.from_flags(devices=2, speeds=(2.0, 1.0)).digest() == "4747fb85d0069193"
    others = [
        Cluster.from_flags(speeds=(1, 2)),
        Cluster.from_flags(speeds=(2, 1), memory=("1GB", "1GB")),
        replace(cluster, flops_per_speed=1.0),
        replace(cluster, same_host=replace(SAME_HOST, latency=0.0)),
        replace(cluster, devices=tuple(replace(d, process=i) for i, d in enumerate(cluster.devices))),
        replace(cluster, devices=tuple(replace(d, limits=Limits(cpu_share=0.5)) for d in cluster.devices)),
    ]
    assert len({c.digest() for c in [cluster, *others]}) == 7


def test_worst_link() -> None:
    hosts = ("a", "a", "b", "c")
    devices = tuple(Device(name=f"{i}", host=host) for i, host in enumerate(hosts))
    fast, slow = Link(hosts=("a", "b"), bandwidth=5e9, latency=1e-6), Link(hosts=("c", "b"), bandwidth=1e6, latency=0.0)
    cluster = Cluster(devices=devices, links=(fast, slow))
    assert cluster.worst_link([0, 1]).bandwidth == SAME_HOST.bandwidth
    assert cluster.worst_link([0, 2]) == Link(hosts=("*", "*"), bandwidth=5e9, latency=1e-6)
    assert cluster.worst_link([0, 3]).bandwidth == CROSS_HOST.bandwidth
    assert cluster.worst_link(range(4)) == Link(hosts=("*", "*"), bandwidth=1e6, latency=CROSS_HOST.latency)
    assert cluster.worst_link([3]).latency == SAME_HOST.latency


def test_no_link_is_faster_than_a_limited_process() -> None:
    limited = Device(name="b", process=1, limits=Limits(link_rate=1e6))
    cluster = Cluster(devices=(Device(name="a"), limited, Device(name="c", process=2)))
    assert cluster.worst_link([0, 1]).bandwidth == 1e6
    assert cluster.worst_link([0, 2]).bandwidth == SAME_HOST.bandwidth


def test_bad_values_without_a_file() -> None:
    with pytest.raises(UsageError, match="speed of device x is 0"):
        Device(name="x", speed=0.0)
    with pytest.raises(UsageError, match="memory of device x is -1"):
        Device(name="x", memory=-1)
    with pytest.raises(UsageError, match="cpu_share of a process is -1"):
        Limits(cpu_share=-1.0)
    with pytest.raises(UsageError, match="memory of a process is 0"):
        Limits(memory=0)
    with pytest.raises(UsageError, match="link_rate of a process is nan"):
        Limits(link_rate=float("nan"))
    with pytest.raises(UsageError, match=r"the devices are in processes \[0, 2\]: number the processes 0, 1, 2"):
        Cluster(devices=(Device(name="a"), Device(name="b", process=2)))
    with pytest.raises(UsageError, match="devices a, b of process 0 have different limits: a process has one"):
        Cluster(devices=(Device(name="a"), Device(name="b", limits=Limits(cpu_share=1.0))))
    with pytest.raises(UsageError, match="latency of link a - b is nan"):
        Link(hosts=("a", "b"), bandwidth=1.0, latency=float("nan"))
    with pytest.raises(UsageError, match="bandwidth of link a - b is 0"):
        Link(hosts=("a", "b"), bandwidth=0.0, latency=0.0)


def test_units() -> None:
    assert parse_bytes(" 1.5 KiB ", "") == 1536
    assert parse_bytes(2048, "") == 2048
    assert parse_bandwidth("800MB/s", "") == 8e8
    assert parse_seconds("0.5ms", "") == 5e-4 and parse_seconds(0, "") == 0.0
    assert parse_flops("312TFLOPS", "") == parse_flops(3.12e14, "")
    assert [format_bytes(s) for s in (12, 999.6e6, 24e9, 5e15)] == ["12 B", "1 GB", "24 GB", "5000 TB"]


def test_a_measured_cluster_is_written_and_read_again(tmp_path: Path) -> None:
    curve = Curve(model="0123", fixed=1e-3, token=1e-5, pair=1e-7, update=0.0)
    devices = (
        Device(name="a", speed=2.5, memory=10**9, host="big", process=0, curve=curve),
        Device(name='b "quoted"', host="big", process=0),
        Device(name="c", host="small", process=1, limits=Limits(cpu_share=0.3, memory=10**9, link_rate=1e8)),
    )
    link = Link(hosts=("big", "small"), bandwidth=123456.789, latency=1.5e-5)
    cluster = Cluster(devices=devices, links=(link,), flops_per_speed=1.25e9, same_host=SAME_HOST)
    path = tmp_path / "measured.toml"
    path.write_text(cluster_file.text(cluster))
    assert Cluster.from_toml(path) == cluster


def test_a_curve_with_a_part_missing_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "cluster.toml"
    path.write_text('[[devices]]\nname = "a"\nspeed = 1\n[devices.curve]\nmodel = "m"\nfixed = 0\n')
    with pytest.raises(UsageError, match=r"devices\[0\].curve: key 'token' is missing"):
        Cluster.from_toml(path)
