"""The rule table is strict, and stored arrays are logical ones with zeros at the end of one axis."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sharding import rules
from sharding.rules import Storage

RULES: rules.Rules = (("kernel", -2, 2), ("scale", -1, 1))


def test_storage_pads_and_crops() -> None:
    for devices in (1, 2, 3, 5, 7, 64):
        storage = Storage((4, 7, 6), -2, devices)
        whole = np.random.default_rng(0).normal(size=storage.shape)
        stored = storage.pad(whole, np)
        assert stored.shape == storage.stored_shape and stored.shape[1] % devices == 0
        assert np.array_equal(storage.crop(stored), whole)
        assert np.sum(stored) == pytest.approx(np.sum(whole))


def test_every_leaf_has_a_rule_and_the_optimizer_follows() -> None:
    params = {"layers": {"up": {"kernel": jax.ShapeDtypeStruct((2, 4, 6), jnp.float32)}}}
    state = {"params": params, "opt": ({"mu": params}, jax.ShapeDtypeStruct((), jnp.int32))}
    stored = rules.storage(state, RULES, 4)
    assert stored["params"]["layers"]["up"]["kernel"] == stored["opt"][0]["mu"]["layers"]["up"]["kernel"]
    assert stored["opt"][1].axis is None and stored["opt"][1].spec == jax.P()


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("bias", (4,), r"parameter up/bias of shape \(4,\) matches no sharding rule"),
        ("kernel", (4,), r"parameter up/kernel of shape \(4,\) has 1 dimensions, its rule 'kernel' is for 2"),
    ],
)
def test_a_leaf_that_no_rule_fits_is_named(name: str, shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        rules.storage({"up": {name: jax.ShapeDtypeStruct(shape, jnp.float32)}}, RULES, 4)


def test_padding_share() -> None:
    assert rules.padding_share({"a": Storage((5, 2), -2, 4)}) == pytest.approx(3 / 8)
    assert rules.padding_share({"a": Storage((8, 2), -2, 4)}) == 0.0
