"""What attention costs, and every context it must work in."""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from models import attention, blocks
from models.attention import PADDING, Mask
from tests.models.attention_oracle import Case, close, draw, ours, plain, share


def visits(case: Case) -> tuple[np.ndarray, int]:
    cut = blocks.layout(case.q.shape[1], case.k.shape[1], case.heads)
    return np.asarray(cut.cut_mask(case.mask)[0].n_visits), cut.key_blocks


def test_blocks_that_nobody_can_see_are_skipped() -> None:
    whole = draw(1, 2048, 2048, (0,), rows=1, documents=1)
    found, key_blocks = visits(whole)
    np.testing.assert_array_equal(found, [2, 4, 6, 8])
    assert key_blocks == 8
    found, _ = visits(share(whole, list(range(7, 2048, 8))))  # one token of eight
    np.testing.assert_array_equal(found, [1, 2, 3, 4])
    segment = jnp.arange(2048, dtype=jnp.int32)[None] // 512
    packed = whole._replace(mask=whole.mask._replace(q_segment_BT=segment, k_segment_BS=segment))
    np.testing.assert_array_equal(visits(packed)[0], [2, 2, 2, 2])
    late = whole._replace(mask=whole.mask._replace(k_index_S=jnp.full((2048,), PADDING, jnp.int32)))
    np.testing.assert_array_equal(visits(late)[0], 0)


def test_new_positions_and_documents_compile_nothing() -> None:
    traced = []

    @jax.jit
    def run(q: jax.Array, k: jax.Array, v: jax.Array, mask: Mask) -> jax.Array:
        traced.append(q.shape)
        return attention.attend(q, k, v, mask, kv_of_head=(0, 0))

    for seed in range(3):
        case = draw(seed, 60, 30, (0, 0))
        run(case.q, case.k, case.v, case.mask)
    assert len(traced) == 1


def temporary_bytes(length: int) -> int:
    q = jax.ShapeDtypeStruct((1, length, 2, 64), jnp.float32)
    index, segment = (jax.ShapeDtypeStruct(shape, jnp.int32) for shape in ((length,), (1, length)))
    grads = jax.grad(lambda q, k, v, m: jnp.sum(attention.attend(q, k, v, m, kv_of_head=(0, 1))), (0, 1, 2))
    compiled = jax.jit(grads).lower(q, q, q, Mask(index, index, segment, segment)).compile()
    return compiled.memory_analysis().temp_size_in_bytes


def test_temporary_memory_is_linear_in_length() -> None:
    assert temporary_bytes(16384) < 4.2 * temporary_bytes(4096)


CONTEXTS: dict[str, Callable[..., Callable[..., jax.Array]]] = {
    "jit": jax.jit,
    "checkpoint": jax.checkpoint,
    "scan": lambda fn: lambda *x: lax.scan(lambda c, _: (c + fn(*x), None), jnp.zeros_like(x[0]), length=1)[0],
    "switch": lambda fn: lambda *x: lax.switch(jnp.int32(1), [lambda *x: 0.0 * x[0], fn], *x),
}


@pytest.mark.parametrize("context", CONTEXTS)
def test_contexts(context: str) -> None:
    q, k, v, do, mask, heads = case = draw(13, 70, 40, (0, 0, 1))
    fn = CONTEXTS[context](lambda q, k, v, mask: attention.attend(q, k, v, mask, kv_of_head=heads))
    o, vjp = jax.vjp(lambda q, k, v: fn(q, k, v, mask), q, k, v)
    for a, b in zip((o, *vjp(do)), (found := ours(case))[:1] + found[2:], strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)


@pytest.mark.parametrize("empty", [False, True])
def test_inside_a_program_of_several_devices(empty: bool) -> None:
    """Two devices with their own queries and trip counts, in a switch whose branches have different sizes."""
    q, k, v, do, mask, heads = draw(14, 64, 64, (0, 0, 1), documents=2)
    mesh = jax.make_mesh((2,), ("seq",), axis_types=(jax.sharding.AxisType.Auto,), devices=jax.devices()[:2])
    sizes = (32, 0 if empty else 16)

    def device(q: jax.Array, k: jax.Array, v: jax.Array, do: jax.Array, mask: Mask) -> tuple[jax.Array, ...]:
        k, v, k_index, k_segment = (
            lax.all_gather(x, "seq", axis=axis, tiled=True)
            for x, axis in ((k, 1), (v, 1), (mask.k_index_S, 0), (mask.k_segment_BS, 1))
        )

        def branch(size: int) -> Callable[..., tuple[jax.Array, ...]]:
            def run(q: jax.Array, k: jax.Array, v: jax.Array, do: jax.Array, mask: Mask) -> tuple[jax.Array, ...]:
                mine = Mask(mask.q_index_T[:size], k_index, mask.q_segment_BT[:, :size], k_segment)
                attend = partial(attention.attend, mask=mine, kv_of_head=heads)
                o, vjp = jax.vjp(attend, q[:, :size], k, v)
                dq, dk, dv = vjp(do[:, :size])
                o, dq = (jnp.pad(x, ((0, 0), (0, 32 - size), (0, 0), (0, 0))) for x in (o, dq))
                return o, dq, dk, dv

            return run

        o, dq, dk, dv = lax.switch(lax.axis_index("seq"), [branch(s) for s in sizes], q, k, v, do, mask)
        return o, dq, lax.psum(dk, "seq"), lax.psum(dv, "seq")

    row, P = jax.P(None, "seq"), jax.P
    specs = (row, row, row, row, Mask(P("seq"), P("seq"), row, row))
    run = jax.jit(jax.shard_map(device, mesh=mesh, in_specs=specs, out_specs=(row, row, P(), P())))
    o, dq, dk, dv = run(q, k, v, do, mask)
    real = np.arange(64) < 32 + sizes[1]
    right = plain(Case(q, k, v, jnp.where(real[None, :, None, None], do, 0.0), mask, heads))
    close((o[:, real], right[1], dq[:, real], dk, dv), (right[0][:, real], right[1], right[2][:, real], *right[3:]))
