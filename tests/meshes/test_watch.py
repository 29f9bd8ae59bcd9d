"""The watch finds the process because of which the others would wait for ever, and no other one."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field, replace

import pytest

from meshes import watch
from meshes.watch import Process, Watch


@dataclass
class Shared:
    """A store in memory; `broken` is one whose process is gone."""

    values: dict[str, str] = field(default_factory=dict)
    broken: bool = False

    def put(self, key: str, value: str) -> None:
        if self.broken:
            raise RuntimeError("UNAVAILABLE: Socket closed")
        self.values[key] = value

    def all(self, prefix: str) -> dict[str, str]:
        return {key.removeprefix(prefix): value for key, value in self.values.items() if key.startswith(prefix)}


def processes(count: int = 3) -> tuple[Process, ...]:
    """Processes of other machines, about which nothing can be seen from here."""
    return tuple(Process(number=n, host=f"h{n}", machine="", pid=10 + n, devices=f"d{n}") for n in range(count))


def watches(store: Shared, who: tuple[Process, ...] | None = None) -> list[Watch]:
    who = who or processes()
    return [Watch(store, who, process.number, lambda loss: None) for process in who]


def look(some: list[Watch], now: float) -> list[str]:
    losses = [one.look(now) for one in some]
    return [loss.message for loss in losses if loss is not None]


def test_nothing_is_lost_while_all_live() -> None:
    some = watches(Shared())
    for second in range(300):
        for one in some:
            one.mark()
        assert look(some, second) == []


def test_a_silent_process_is_named_by_all_others() -> None:
    some = watches(Shared())
    look([*some, some[0], some[2]], 0)  # all have seen the last sign of the second
    assert look([some[0], some[2]], watch.SILENT - 1) == []
    said = look([some[0], some[2]], watch.SILENT + 2)
    assert said == [f"process 1 (d1, pid 11 on h1) died, hangs or is cut off: no sign of life for {22:.0f} s"] * 2


def test_a_process_that_says_why_it_ends_is_quoted_with_its_exit_code() -> None:
    some = watches(Shared())
    look(some, 0)
    some[1].leave("--lr is wrong", 2)
    loss = some[2].look(1)
    assert loss is not None and (loss.message, loss.code) == ("process 1 (d1, pid 11 on h1) ended: --lr is wrong", 2)


def test_a_process_that_has_left_in_good_order_is_not_missed() -> None:
    some = watches(Shared())
    look(some, 0)
    some[1].leave("", 0)
    assert look([some[0]], 10 * watch.SILENT) == []


def test_the_store_dies_with_the_first_process() -> None:
    store = Shared()
    some = watches(store)
    look(some, 0)
    store.broken = True
    assert look([some[1]], 1) == ["process 0 (d0, pid 10 on h0), which holds the job together, is gone (RuntimeError)"]


def test_a_process_of_this_machine_that_is_gone_is_seen_at_once() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        here = Process.here(0)
        who = (here, replace(here, number=1, pid=other.pid))
        some = watches(Shared(), who)
        assert look([some[0]], 0) == []
        other.kill()
        other.wait()
    assert look([some[0]], 1) == [f"process 1 (pid {other.pid} on {here.host}) died"]
    assert not replace(here, pid=os.getpid()).gone


def test_the_one_that_all_wait_for_is_named() -> None:
    store = Shared()
    some = watches(store)
    for second in range(10):
        for one in some:
            one.mark()
        look(some, second)
    for one in (some[0], some[2]):  # they have started another step, which cannot end
        one.mark()
    look(some * 2, 10)
    quiet = [message for second in range(11, 10 + int(watch.STUCK)) for message in look(some, second)]
    assert quiet == []
    said = look(some, 11 + watch.STUCK)
    assert said == ["process 1 (d1, pid 11 on h1) hangs: all others have waited for it for 41 s"] * 2


@pytest.mark.parametrize("why", ["equal", "alone", "slow steps"])
def test_waiting_that_is_no_hang(why: str) -> None:
    some = watches(Shared())
    pause = 30 if why == "slow steps" else 1
    for step in range(5):
        for one in some:
            one.mark()
        for second in range(pause):
            look(some, step * pause + second)
    if why != "equal":
        some[0].mark()
    start = 5 * pause
    if why == "alone":
        with some[1].alone():
            said = [message for second in range(100) for message in look(some, start + second)]
    else:
        said = [message for second in range(100) for message in look(some, start + second)]
    assert said == []


def test_signs_of_life_are_small() -> None:
    store = Shared()
    look(watches(store), 0)
    assert json.loads(store.values["alive/0"]) == {"beat": 1, "mark": 0, "alone": False}
