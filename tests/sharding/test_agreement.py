"""Collectives are read from compiled programs in the order of running, and a difference between processes is named."""

import dataclasses
import re
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import optax
import pytest
from jax import lax
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from meshes.mesh import make_mesh
from models.transformer import Batch, TransformerConfig
from sharding.agreement import Collective, collectives, digest, first_difference, from_json, to_json
from sharding.placement import Placement
from sharding.tiles import Tiling
from training.step import COUNTS_SPEC, ROWS_SPEC, TABLES_SPEC, TOKENS_SPEC, Program

MODEL = TransformerConfig(vocab_size=37, layers=2, d_model=24, heads=6, kv_heads=2, d_ff=40)
REMEDY = "use --placement switched, which compiles one program for all"


def wide(*tokens: int) -> tuple[tuple[int, int, int], ...]:
    return tuple((0, 6, n) for n in tokens)


PLANS = {
    "context": Tiling(((225, 75),), (wide(225, 75),), 6, 2),
    "ring": Tiling(((290, 9, 1),), (wide(290, 9, 1),), 6, 2, ring=True),
    "hybrid, a device without work": Tiling(((9, 8, 0),), (((0, 4, 17), (4, 6, 17), (0, 0, 0)),), 6, 2),
    "data groups": Tiling(((12, 5), (9, 8)), (wide(12, 5), ((0, 4, 17), (4, 6, 17))), 6, 2),
}


def compiled_at(tiling: Tiling, at: tuple[int, int], config: TransformerConfig = MODEL) -> jax.stages.Compiled:
    """The step that the process of one device compiles, from shapes alone."""
    groups, devices = len(tiling.tokens), len(tiling.tokens[0])
    mesh = make_mesh(np.arange(groups * devices).reshape(groups, devices).tolist(), jax.devices())
    placement = Placement("specialized", tiling.sizes, (at,))
    program = Program(config=config, mesh=mesh, tiling=tiling, placement=placement, optimizer=optax.adam(1e-3))

    def shape(dims: tuple[int, ...], dtype: Any, spec: P) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(dims, dtype, sharding=NamedSharding(mesh, spec))

    state = jax.eval_shape(program.init, jax.random.key(0))
    state = jax.tree.map(lambda a, s: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=s), state, program.shardings)
    tokens = (groups, 2, devices, 2, max(max(row) for row in tiling.tokens))
    ids = shape(tokens, np.int32, TOKENS_SPEC)
    weights = shape(tokens, np.float32, TOKENS_SPEC)
    batch: tuple[Any, ...] = (ids, ids, ids, weights, shape((groups, 2, 2, tiling.seq_len), np.int32, ROWS_SPEC))
    tables = jax.tree.map(lambda t: shape(t.shape, t.dtype, TABLES_SPEC), tiling.tables)
    counts = shape((groups,), np.int32, COUNTS_SPEC)
    return program.train_step().lower(state, Batch(*batch), counts, tables).compile()


@pytest.mark.long
@pytest.mark.parametrize("name", PLANS)
def test_programs_of_all_devices_agree(name: str) -> None:
    tiling = PLANS[name]
    places = [(g, m) for g, row in enumerate(tiling.tokens) for m in range(len(row))]
    lists = {f"process {n}": collectives(compiled_at(tiling, at)) for n, at in enumerate(places)}
    assert first_difference(lists) is None
    found = lists["process 0"]
    assert {"all-gather", "all-reduce", "reduce-scatter"} <= {c.kind for c in found} and len(found) >= 10
    assert any(len(c.within) == 2 for c in found)  # layers inside microbatches


def test_programs_of_other_models_do_not_agree() -> None:
    """The twin: a process that was started with another width is found."""
    wider = dataclasses.replace(MODEL, d_ff=48)
    lists = {
        "process 0 (d0)": collectives(compiled_at(PLANS["context"], (0, 0))),
        "process 1 (d1)": collectives(compiled_at(PLANS["context"], (0, 1), wider)),
    }
    message = first_difference(lists)
    assert message and message.endswith(REMEDY)
    assert re.search(r"number \d+ is .* in process 0 \(d0\) and .* in process 1 \(d1\)", message)


def small(fn: Callable[[jax.Array], jax.Array]) -> tuple[Collective, ...]:
    """Collectives of a function of four numbers on each of four devices."""
    mesh = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("data", "seq"), axis_types=(AxisType.Auto,) * 2)
    mapped = jax.shard_map(fn, mesh=mesh, in_specs=P(("data", "seq")), out_specs=P(("data", "seq")), check_vma=False)
    return collectives(jax.jit(mapped).lower(jax.ShapeDtypeStruct((16,), np.float32)).compile())


def test_an_additional_sum_is_found() -> None:
    lists = {
        "process 0 (d0)": small(lambda x: lax.psum(x, "seq")),
        "process 1 (d1)": small(lambda x: lax.pmax(lax.psum(x, "seq"), "data")),
        "process 2 (d2)": small(lambda x: lax.psum(x, "seq")),
    }
    assert first_difference(lists) == (
        "the processes would not run the same collectives: number 2 is missing in process 0 (d0), process 2 (d2) and"
        f" all-reduce f32[4] by maximum among {{0,2}},{{1,3}} in process 1 (d1): {REMEDY}"
    )


def test_another_payload_is_found() -> None:
    lists = {
        "process 0 (d0)": small(lambda x: lax.all_gather(x, "seq")[0]),
        "process 1 (d1)": small(lambda x: lax.all_gather(x[:2], "seq").reshape(-1)),
    }
    assert first_difference(lists) == (
        "the processes would not run the same collectives: number 1 is all-gather f32[1,4] along 0 among"
        " {0,1},{2,3} in process 0 (d0) and all-gather f32[1,2] along 0 among {0,1},{2,3} in process 1 (d1):"
        f" {REMEDY}"
    )


def test_order_is_that_of_running() -> None:
    """A loop stands where it is run, not where its body is printed; two loops are not one of both bodies."""

    def looped(x: jax.Array) -> jax.Array:
        x = lax.all_gather(x, "seq")[1]
        x = lax.scan(lambda x, _: (lax.ppermute(x, "seq", [(0, 1), (1, 0)]) + 1, None), x, length=3)[0]
        x = lax.scan(lambda x, _: (lax.psum(x, "data") / 2, None), x, length=5)[0]
        return lax.psum_scatter(x.repeat(2), "seq", tiled=True)

    found = small(looped)
    assert [c.kind for c in found] == ["all-gather", "collective-permute", "all-reduce", "reduce-scatter"]
    assert [c.within for c in found] == [(), ("loop 1 (3 times)",), ("loop 2 (5 times)",), ()]
    assert found[1].participants == "0>1,1>0,2>3,3>2"
    assert str(found[2]) == "all-reduce f32[4] by add among {0,2},{1,3} in loop 2 (5 times)"


def test_lists_travel_as_json() -> None:
    first = Collective("all-gather", ("f32[1,4]",), "{0,1}", dimensions="0", within=("loop 1",))
    second = Collective("all-reduce", ("f32[]", "bf16[8]"), "all", reduction="add")
    many = (first, second) * 100
    assert from_json(to_json(many)) == many
    assert len(to_json(many)) < 1000
    assert digest(many) == digest(from_json(to_json(many))) != digest((second, first) * 100)
    assert first_difference({"a": many, "b": many}) is None
    assert first_difference({}) is None


HEADER = "HloModule jit_step, is_scheduled=true, entry_computation_layout={(f32[8]{0})->f32[8]{0}}, num_partitions=8\n"
SUM = """
%sum (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %add.7 = f32[] add(%a, %b)
}
"""
GPU = (
    HEADER
    + SUM
    + """
%scattered (p: f32[8]) -> f32[4] {
  %p = f32[8]{0} parameter(0)
  ROOT %rs.1 = f32[4]{0} reduce-scatter(%p), channel_id=7, replica_groups=[4,2]<=[8], dimensions={0}, to_apply=%sum
}

%inner (q: (s32[], f32[8])) -> (s32[], f32[8]) {
  %q = (s32[], f32[8]{0}) parameter(0)
  %n = s32[] get-tuple-element(%q), index=0
  %x = f32[8]{0} get-tuple-element(%q), index=1
  %send-start = (f32[8]{0}, f32[8]{0}, u32[], u32[]) collective-permute-start(%x), source_target_pairs={{1,0},{0,1}}
  %arrived = f32[8]{0} collective-permute-done(%send-start)
  ROOT %r = (s32[], f32[8]{0}) tuple(%n, %arrived)
}

%always (q: (s32[], f32[8])) -> pred[] {
  %q = (s32[], f32[8]{0}) parameter(0)
  ROOT %t = pred[] constant(true)
}

%left (p: f32[8]) -> f32[8] {
  %p = f32[8]{0} parameter(0)
  ROOT %all-to-all.3 = f32[8]{0} all-to-all(%p), replica_groups={{4,5,6,7},{0,1,2,3}}, dimensions={0}
}

%right (p: f32[8]) -> f32[8] {
  ROOT %p = f32[8]{0} parameter(0)
}

ENTRY %main (w: f32[8], c: pred[]) -> f32[8] {
  %w = f32[8]{0} parameter(0), metadata={op_name="reduce-scatter(%w), calls=%scattered"}
  %c = pred[] parameter(1)
  %ag = (f32[8]{0}, f32[64]{0}) all-gather-start(%w), replica_groups=[1,8]<=[8], dimensions={0}, \
backend_config={"collective_backend_config":{"is_sync":false}}
  %rs = ((f32[8]{0}), f32[4]{0}, s32[]) async-start(%w), calls=%scattered
  %ar = f32[8]{0} all-reduce-start(%w), replica_groups=[2,4]<=[4,2]T(1,0), to_apply=%sum
  %full = f32[64]{0} all-gather-done(%ag)
  %part = f32[4]{0} async-done(%rs), calls=%scattered
  %summed = f32[8]{0} all-reduce-done(%ar)
  %init = (s32[], f32[8]{0}) tuple(%c, %summed)
  %loop = (s32[], f32[8]{0}) while(%init), condition=%always, body=%inner, backend_config={"known_trip_count":{"n":"3"}}
  %y = f32[8]{0} get-tuple-element(%loop), index=1
  %chosen = f32[8]{0} conditional(%c, %y, %y), true_computation=%left, false_computation=%right
  ROOT %out = f32[8]{0} fusion(%part), kind=kCustom, calls=%scattered
}
"""
)


def test_asynchronous_collectives_count_once_where_they_start() -> None:
    assert [str(c) for c in collectives(GPU)] == [
        "all-gather f32[8] along 0 among {0,1,2,3,4,5,6,7}",
        "reduce-scatter f32[8] along 0 by add among {0,1},{2,3},{4,5},{6,7}",
        "all-reduce f32[8] by add among {0,2,4,6},{1,3,5,7}",
        "collective-permute f32[8] among 0>1,1>0 in loop 1 (3 times)",
        "all-to-all f32[8] along 0 among {0,1,2,3},{4,5,6,7} in branch 0 of choice 1",
        "reduce-scatter f32[8] along 0 by add among {0,1},{2,3},{4,5},{6,7}",
    ]


def listed(operand: str, line: str) -> tuple[Collective, ...]:
    """The collectives of a program of two lines."""
    return collectives(
        f"{HEADER}{SUM}\nENTRY %main (w: f32[8]) -> f32[8] {{\n  %w = {operand} parameter(0)\n  ROOT %r = {line}\n}}\n"
    )


def one(operand: str, line: str) -> Collective:
    """The only collective of such a program."""
    (found,) = listed(operand, line)
    return found


@pytest.mark.parametrize(
    ("written", "participants"),
    [
        ("{{2,3},{0,1}}", "{0,1},{2,3}"),
        ("[2,2]<=[4]", "{0,1},{2,3}"),
        ("[2,4]<=[8]", "{0,1,2,3},{4,5,6,7}"),
        ("[2,4]<=[2,2,2]T(1,0,2)", "{0,1,4,5},{2,3,6,7}"),
        ("mesh['data'=2,'seq'=2] {'seq'}", "{0,1},{2,3}"),
        ("mesh['data'=2,'seq'=2] {'data'}", "{0,2},{1,3}"),
        ("mesh['data'=2,'seq'=2] {'seq','data'}", "{0,2,1,3}"),
        ("{}", "all"),
        ("[2,512]<=[1024]", "{0,1,..,511},{512,513,..,1023}"),
        ("mesh['seq'=4], device_ids=([4]3,1,0,2) {'seq'}", "mesh['seq'=4], device_ids=([4]3,1,0,2) {'seq'}"),
    ],
)
def test_participants_in_every_way_of_writing(written: str, participants: str) -> None:
    line = (
        f"f32[8]{{0}} all-reduce(%w), channel_id=1, replica_groups={written}, use_global_device_ids=true, to_apply=%sum"
    )
    assert one("f32[8]{0}", line).participants == participants


@pytest.mark.parametrize(
    ("operand", "payload"),
    [
        ("f32[2,4,16]{2,1,0}", "f32[2,4,16]"),
        ("f32[2,4,16]{1,2,0}", "f32[2,4,16]{1,2,0}"),
        ("f32[1,4,16]{2,0,1}", "f32[1,4,16]"),
        ("bf16[256,128]{1,0:T(8,128)(2,1)S(1)}", "bf16[256,128]{T(8,128)(2,1)}"),
        ("s32[]{:T(128)}", "s32[]{T(128)}"),
        ("f32[]", "f32[]"),
    ],
)
def test_payloads_are_the_bytes_that_travel(operand: str, payload: str) -> None:
    assert one(operand, f"{operand} all-reduce(%w), replica_groups={{}}, to_apply=%sum").payload == (payload,)
    typed = f"{operand} all-reduce({operand} %w), replica_groups={{}}, to_apply=%sum"
    assert one(operand, typed).payload == (payload,)


def test_messages_between_devices_but_not_to_the_host() -> None:
    pairs = 'frontend_attributes={_xla_send_recv_source_target_pairs="{{0,1},{1,2}}"}'
    sent = one("f32[8]{0}", f"(f32[8]{{0}}, u32[], token[]) send(%w), channel_id=2, {pairs}")
    assert (sent.kind, sent.participants) == ("send", "0>1,1>2")
    assert not listed("f32[8]{0}", "(f32[8]{0}, u32[], token[]) send(%w), channel_id=2, is_host_transfer=true")


def test_a_program_without_a_schedule_is_refused() -> None:
    with pytest.raises(ValueError, match="the program has none: compile it"):
        collectives(GPU.replace("is_scheduled=true, ", ""))
