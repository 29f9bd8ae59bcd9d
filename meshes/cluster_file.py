"""Reads a cluster file.

flops_per_speed = "20G"            # optional: FLOP/s of speed 1.0

[[devices]]                        # one entry for each sort of device
name = "a100-"                     # with count, a number is added
kind = "A100"
count = 4                          # optional, 1
flops = "312T"                     # or speed = 4.0, relative to the others
memory = "40GB"                    # or "40GiB", or bytes; left out, it is unlimited
host = "big"                       # optional, "local"

[[links]]                          # optional, between hosts or inside one
hosts = ["big", "small"]
bandwidth = "1.25GB/s"             # or bytes a second
latency = "50us"                   # or seconds

[same_host]                        # optional: links that are not named, inside a host
bandwidth = "20GB/s"

[cross_host]                       # optional: between hosts
bandwidth = "1.25GB/s"
"""

import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

from meshes.cluster import CROSS_HOST, FLOPS_PER_SPEED, SAME_HOST, Cluster, Device, Link
from meshes.errors import UsageError, check_keys
from meshes.units import parse_bandwidth, parse_bytes, parse_flops, parse_seconds, positive

_DEVICE_KEYS = ("name", "kind", "count", "speed", "flops", "memory", "host")


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
        devices += _devices(entry, base, len(devices), f"{path}: devices[{i}]")
    try:
        return Cluster(
            devices=tuple(devices),
            links=tuple(_link(t, f"{path}: links[{i}]") for i, t in enumerate(_tables(data, "links", path))),
            flops_per_speed=base,
            same_host=_default(data, "same_host", SAME_HOST, path),
            cross_host=_default(data, "cross_host", CROSS_HOST, path),
        )
    except UsageError as error:
        message = str(error)
        raise UsageError(message if message.startswith(str(path)) else f"{path}: {message}") from None


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


def _devices(entry: dict[str, Any], base: float, first: int, where: str) -> list[Device]:
    check_keys(entry, _DEVICE_KEYS, where)
    if ("speed" in entry) == ("flops" in entry):
        raise UsageError(f"{where}: give either speed or flops{', not both' if 'speed' in entry else ''}")
    for key in ("name", "kind", "host"):
        if key in entry and not (isinstance(entry[key], str) and entry[key]):
            raise UsageError(f"{where}.{key} is {entry[key]!r}: write text in quotes")
    count = entry.get("count", 1)
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise UsageError(f"{where}.count is {count!r}: write a whole number, 1 or more")
    if "speed" in entry:
        speed = positive(entry["speed"], f"{where}.speed")
    else:
        speed = parse_flops(entry["flops"], f"{where}.flops") / base
    kind = entry.get("kind", entry.get("name", "device"))
    memory = parse_bytes(entry["memory"], f"{where}.memory") if "memory" in entry else None
    host = entry.get("host", "local")
    return [
        Device(name=name, kind=kind, speed=speed, memory=memory, host=host)
        for name in _names(entry, count, kind, first)
    ]


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
