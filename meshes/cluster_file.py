"""Reads a cluster file.

flops_per_speed = "20G"            # optional: FLOP/s of speed 1.0

[[devices]]                        # one entry for each sort of device
name = "a100-"                     # with count, a number is added
kind = "A100"
count = 4                          # optional, 1
flops = "312T"                     # or speed = 4.0, relative to the others; left out everywhere, it is measured
memory = "40GB"                    # or "40GiB", or bytes; left out, it is unlimited
host = "big"                       # optional, "local"
devices_per_process = 2            # optional, 1: how many devices one process of the launcher drives
process = 0                        # or the number of the process that drives all of the entry
cpu_share = 0.33                   # optional: cores that such a process gets from the launcher; until it is measured
                                   # also the speed of its devices together
process_memory = "2GB"             # optional: what such a process may use; memory is what the plan may use
link_rate = "100MB/s"              # optional: of such a process' network, each way

[devices.curve]                    # optional, of the entry above: what `python -m meshes.profile` measured, seconds
model = "0123456789abcdef"         # of one model and size of row and microbatch, named by a digest
fixed = 1e-3                       # of a microbatch
token = 1e-5                       # of each token of a row
query = 1e-7                       # of each query token in one head
update = 1e-9                      # of the optimizer, each parameter that the device stores
knee = 512                         # optional: tokens from which on each costs more,
bend = 2e-6                        # and how much more
byte = 1e-10                       # optional: of its own for each byte that a link brings

[[links]]                          # optional, between hosts or inside one
hosts = ["big", "small"]
bandwidth = "1.25GB/s"             # or bytes a second
latency = "50us"                   # or seconds

[same_host]                        # optional: links that are not named, inside a host
bandwidth = "20GB/s"

[cross_host]                       # optional: between hosts
bandwidth = "1.25GB/s"
"""

import json
import tomllib
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from meshes import strict_json
from meshes.cluster import CROSS_HOST, FLOPS_PER_SPEED, SAME_HOST, Cluster, Device, Limits, Link
from meshes.curve import Curve
from meshes.errors import UsageError, check_keys
from meshes.units import parse_bandwidth, parse_bytes, parse_flops, parse_seconds, positive

_LIMIT_KEYS = ("cpu_share", "process_memory", "link_rate")
_DEVICE_KEYS = (
    "name",
    "kind",
    "count",
    "speed",
    "flops",
    "memory",
    "host",
    "devices_per_process",
    "process",
    "curve",
    *_LIMIT_KEYS,
)


def read(path: Path) -> Cluster:
    """The cluster that a file describes.

    Raises:
        UsageError: the file is missing, is not TOML, or says something impossible.
    """
    data = _load(path)
    check_keys(data, ("devices", "links", "flops_per_speed", "same_host", "cross_host"), str(path))
    entries = _tables(data, "devices", path)
    if not entries:
        raise UsageError(f"{path}: no devices: write at least one [[devices]] table")
    given = data.get("flops_per_speed")
    base = _base(entries, None if given is None else parse_flops(given, f"{path}: flops_per_speed"), path)
    devices: list[Device] = []
    for i, entry in enumerate(entries):
        devices += _devices(entry, base, devices, f"{path}: devices[{i}]")
    try:
        return Cluster(
            devices=tuple(devices),
            links=tuple(_link(t, f"{path}: links[{i}]") for i, t in enumerate(_tables(data, "links", path))),
            flops_per_speed=base,
            same_host=_default(data, "same_host", SAME_HOST, path),
            cross_host=_default(data, "cross_host", CROSS_HOST, path),
            declared=_declared(entries, path),
        )
    except UsageError as error:
        message = str(error)
        raise UsageError(message if message.startswith(str(path)) else f"{path}: {message}") from None


def text(cluster: Cluster) -> str:
    """A cluster file from which `read` makes the cluster again."""
    lines = [f"flops_per_speed = {cluster.flops_per_speed!r}"]
    for device in cluster.devices:
        lines += ["", "[[devices]]", *_entry(device, cluster.declared)]
    for link in cluster.links:
        lines += ["", "[[links]]", f"hosts = {json.dumps(link.hosts)}", *_numbers(link)]
    for name, link in (("same_host", cluster.same_host), ("cross_host", cluster.cross_host)):
        lines += ["", f"[{name}]", *_numbers(link)]
    return "\n".join(lines) + "\n"


def _entry(device: Device, declared: bool) -> Iterator[str]:
    """Lines of one device."""
    limits = device.limits or Limits()
    values: dict[str, Any] = {"name": device.name, "kind": device.kind, "host": device.host, "memory": device.memory}
    values["process"] = device.process
    if declared:
        values["speed"] = device.speed
    values |= {"cpu_share": limits.cpu_share, "process_memory": limits.memory, "link_rate": limits.link_rate}
    yield from (f"{key} = {json.dumps(value)}" for key, value in values.items() if value is not None)
    if device.curve is not None:
        yield "[devices.curve]"
        yield from (f"{key} = {json.dumps(value)}" for key, value in asdict(device.curve).items())


def _numbers(link: Link) -> list[str]:
    return [f"bandwidth = {link.bandwidth!r}", f"latency = {link.latency!r}"]


def _load(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text())
    except FileNotFoundError:
        raise UsageError(f"cluster file {path} does not exist: check the path") from None
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise UsageError(f"cluster file {path} cannot be read ({reason}): give a TOML file") from None
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"cluster file {path} is not TOML: {error}") from None


def _tables(data: dict[str, Any], key: str, path: Path) -> list[dict[str, Any]]:
    tables = data.get(key, [])
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise UsageError(f"{path}: {key} is {tables!r}: write [[{key}]] tables")
    return tables


def _base(entries: list[dict[str, Any]], given: float | None, path: Path) -> float:
    """FLOP/s of speed 1.0: as given, else the slowest device's where all say FLOP/s."""
    flops = [parse_flops(e["flops"], f"{path}: devices[{i}].flops") for i, e in enumerate(entries) if "flops" in e]
    if given is not None or not flops:
        return given or FLOPS_PER_SPEED
    if len(flops) < len(entries):
        raise UsageError(f"{path}: some devices give flops and some speed: use one of them, or set flops_per_speed")
    return min(flops)


def _declared(entries: list[dict[str, Any]], path: Path) -> bool:
    """Whether the file says how fast its devices are: each of them, or none."""
    said = ["speed" in entry or "flops" in entry for entry in entries]
    for i, entry in enumerate(entries):
        if any(said) and not said[i] and "cpu_share" not in entry:
            raise UsageError(f"{path}: devices[{i}]: give speed or flops, as others do, or leave them out everywhere")
    return any(said)


def _devices(entry: dict[str, Any], base: float, before: list[Device], where: str) -> list[Device]:
    """The devices of one entry, after those of the entries before."""
    check_keys(entry, _DEVICE_KEYS, where)
    for key in ("name", "kind", "host"):
        if key in entry and not (isinstance(entry[key], str) and entry[key]):
            raise UsageError(f"{where}.{key} is {entry[key]!r}: write text in quotes")
    count, per_process = _whole(entry, "count", where), _whole(entry, "devices_per_process", where)
    if count % per_process:
        raise UsageError(f"{where}: devices_per_process {per_process} does not divide count {count}: give it a divisor")
    kind = entry.get("kind", entry.get("name", "device"))
    limits = _limits(entry, where)
    speed = _speed(entry, base, limits, per_process, where)
    memory = parse_bytes(entry["memory"], f"{where}.memory") if "memory" in entry else None
    curve = strict_json.decode(Curve, entry["curve"], f"{where}.curve") if "curve" in entry else None
    host = entry.get("host", "local")
    process, per_process = _process(entry, before, count, per_process, where)
    return [
        Device(
            name=name,
            kind=kind,
            speed=speed,
            memory=memory,
            host=host,
            process=process + i // per_process,
            limits=limits,
            curve=curve,
        )
        for i, name in enumerate(_names(entry, count, kind, len(before)))
    ]


def _process(entry: dict[str, Any], before: list[Device], count: int, per_process: int, where: str) -> tuple[int, int]:
    """The first process of an entry, and how many devices each of its processes drives."""
    if "process" not in entry:
        return (before[-1].process + 1 if before else 0), per_process
    process = entry["process"]
    if isinstance(process, bool) or not isinstance(process, int) or process < 0:
        raise UsageError(f"{where}.process is {process!r}: write a whole number, 0 or more")
    if "devices_per_process" in entry:
        raise UsageError(f"{where}: give either process or devices_per_process")
    return process, count


def _whole(entry: dict[str, Any], key: str, where: str) -> int:
    value = entry.get(key, 1)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise UsageError(f"{where}.{key} is {value!r}: write a whole number, 1 or more")
    return value


def _speed(entry: dict[str, Any], base: float, limits: Limits | None, per_process: int, where: str) -> float:
    """Speed of one device: as given, else its part of the cores of its process."""
    if "speed" in entry and "flops" in entry:
        raise UsageError(f"{where}: give either speed or flops, not both")
    if "speed" in entry:
        return positive(entry["speed"], f"{where}.speed")
    if "flops" in entry:
        return parse_flops(entry["flops"], f"{where}.flops") / base
    return 1.0 if limits is None or limits.cpu_share is None else limits.cpu_share / per_process


def _limits(entry: dict[str, Any], where: str) -> Limits | None:
    if not entry.keys() & set(_LIMIT_KEYS):
        return None
    share, memory, rate = (entry.get(key) for key in _LIMIT_KEYS)
    return Limits(
        cpu_share=None if share is None else positive(share, f"{where}.cpu_share"),
        memory=None if memory is None else parse_bytes(memory, f"{where}.process_memory"),
        link_rate=None if rate is None else parse_bandwidth(rate, f"{where}.link_rate"),
    )


def _names(entry: dict[str, Any], count: int, kind: str, first: int) -> list[str]:
    if "name" not in entry:
        return [f"{kind}{first + i}" for i in range(count)]
    return [f"{entry['name']}{i}" for i in range(count)] if "count" in entry else [entry["name"]]


def _link(table: dict[str, Any], where: str) -> Link:
    check_keys(table, ("hosts", "bandwidth", "latency"), where)
    hosts = table.get("hosts")
    if not isinstance(hosts, list) or len(hosts) != 2 or not all(isinstance(host, str) for host in hosts):
        raise UsageError(f'{where}.hosts is {hosts!r}: write two host names, like ["a", "b"]')
    if "bandwidth" not in table:
        raise UsageError(f'{where}: give a bandwidth, like "25GB/s"')
    unnamed = SAME_HOST if hosts[0] == hosts[1] else CROSS_HOST
    return replace(unnamed, hosts=(hosts[0], hosts[1]), **_costs(table, where))


def _default(data: dict[str, Any], key: str, link: Link, path: Path) -> Link:
    table, where = data.get(key, {}), f"{path}: {key}"
    if not isinstance(table, dict):
        raise UsageError(f"{where} is {table!r}: write a [{key}] table with bandwidth and latency")
    check_keys(table, ("bandwidth", "latency"), where)
    return replace(link, **_costs(table, where))


def _costs(table: dict[str, Any], where: str) -> dict[str, Any]:
    costs: dict[str, Any] = {}
    if "bandwidth" in table:
        costs["bandwidth"] = parse_bandwidth(table["bandwidth"], f"{where}.bandwidth")
    if "latency" in table:
        costs["latency"] = parse_seconds(table["latency"], f"{where}.latency")
    return costs
