"""What must not reach a query: the future, other documents, padding. Bit for bit."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from models import attention
from models.attention import PADDING, Mask
from tests.models.attention_oracle import close, compare, draw, ours, plain, share


def test_rows_are_running_means_of_positions_whatever_the_share() -> None:
    eye, zero, index = jnp.eye(10)[None, :, None], jnp.zeros((1, 10, 1, 10)), jnp.arange(10, dtype=jnp.int32)
    segment = jnp.zeros((1, 10), jnp.int32)
    for at in (index[:3], index[3:], index[::3]):
        mask = Mask(at, index, segment[:, at], segment)
        o = attention.attend(zero[:, at], zero, eye, mask, kv_of_head=(0,))[0, :, 0]
        right = np.tril(np.ones((10, 10))) / np.arange(1, 11)[:, None]
        np.testing.assert_allclose(o, right[at], atol=1e-7)
        np.testing.assert_allclose(o.sum(axis=1), 1.0, atol=1e-6)


@pytest.mark.parametrize("keys", [12, 300])
def test_a_future_token_changes_nothing_bit_for_bit(keys: int) -> None:
    case, at = draw(2, keys, keys, (0, 0, 1), documents=1), keys // 2
    other = case._replace(k=case.k.at[:, at].mul(-3.0), v=case.v.at[:, at].add(9.0))
    before, after = ours(case), ours(other)
    for a, b in zip(before[:3], after[:3], strict=True):
        np.testing.assert_array_equal(a[:, :at], b[:, :at])
        assert not np.array_equal(a[:, at:], b[:, at:])
    early = ours(case._replace(do=case.do.at[:, at:].set(0.0)))
    assert not np.any(early[3][:, at:]) and not np.any(early[4][:, at:])
    assert np.all(np.any(early[4][:, :at], axis=(-1, -2)))


@pytest.mark.parametrize(("split", "boundary"), [(5, 6), (6, 6), (7, 6), (100, 140), (140, 140), (200, 140)])
def test_another_document_changes_nothing_bit_for_bit(split: int, boundary: int) -> None:
    keys = 2 * boundary
    case = draw(4, keys, keys, (0, 0, 1), documents=1)
    segment = jnp.broadcast_to((jnp.arange(keys) >= boundary).astype(jnp.int32), (2, keys))
    case = case._replace(mask=case.mask._replace(q_segment_BT=segment, k_segment_BS=segment))
    other = case._replace(k=case.k.at[:, 0].mul(-3.0), v=case.v.at[:, 0].add(9.0))
    second = jnp.arange(keys)[:, None, None] >= boundary
    for tokens in (list(range(split)), list(range(split, keys))):
        late = np.array(tokens) >= boundary
        part, changed = share(case, tokens), share(other, tokens)
        for a, b in zip(ours(part)[:3], ours(changed)[:3], strict=True):
            np.testing.assert_array_equal(a[:, late], b[:, late])
        part = part._replace(do=jnp.where(second[np.array(tokens)][None], part.do, 0.0))
        for gradient in ours(part)[3:]:
            assert not np.any(gradient[:, :boundary])
    with pytest.raises(AssertionError, match="Arrays are not equal"):
        np.testing.assert_array_equal(ours(case)[0], ours(other)[0])


def test_padding_keys_have_no_effect_whatever_they_hold() -> None:
    case = draw(6, 90, 40, (0, 0, 1))
    real = np.concatenate([np.arange(50), np.arange(57, 97)])  # padding in between and at the end
    padding = np.setdiff1d(np.arange(131), real)
    index = np.full(131, PADDING, np.int32)
    index[real] = np.arange(90)

    def spread(x: jax.Array, fill: float) -> jax.Array:
        return jnp.full((2, 131, *x.shape[2:]), fill, x.dtype).at[:, real].set(x)

    mask = case.mask._replace(k_index_S=jnp.asarray(index), k_segment_BS=spread(case.mask.k_segment_BS, 1))
    wide = case._replace(mask=mask)
    zeros, *others = (
        ours(wide._replace(k=spread(case.k, fill), v=spread(case.v, fill))) for fill in (0.0, 1e4, np.nan, np.inf)
    )
    close((*zeros[:3], *(g[:, real] for g in zeros[3:])), plain(case))
    assert not np.any(zeros[3][:, padding]) and not np.any(zeros[4][:, padding])
    for other in others:
        for a, b in zip(zeros, other, strict=True):
            np.testing.assert_array_equal(a, b)


def test_a_query_that_sees_nothing_gives_zero() -> None:
    case = draw(8, 90, 90, (0, 1))
    lone = case.mask.q_segment_BT.at[:, 40:43].set(99)
    case = case._replace(mask=case.mask._replace(q_segment_BT=lone))
    o, lse, dq, dk, dv = ours(case)
    assert not np.any(o[:, 40:43]) and np.all(lse[:, 40:43] == -np.inf) and not np.any(dq[:, 40:43])
    assert all(np.all(np.isfinite(x)) for x in (o, dq, dk, dv))
    compare(case)
