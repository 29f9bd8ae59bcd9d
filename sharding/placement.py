"""Runs local work at each device's own sizes: one plain call, or one branch for each kind of device.

A signature names the axes of local arrays, gufunc-like: "B T D, B T -> B T H E". Names that have sizes in the
placement (T here) differ between devices; all other names are ordinary axes. Functions see exact arrays:
padding exists only outside, in switched mode, and is zero.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from sharding.chain import signal, wait
from sharding.weights import Keep, WeightSharding

Mode = Literal["single", "uniform", "switched", "specialized"]
AXES = ("data", "seq")
Axes = tuple[str, ...]
Work = Callable[..., Any]  # fn(weights, *arrays) -> array or tuple of arrays


@dataclass(frozen=True, eq=False)
class Placement:
    """Local sizes of every device of the mesh, and how local work runs at them.

    Args:
        mode: `uniform` (all equal), `switched` (one program, a branch for each kind), `specialized` (this
            process's devices are all of one kind, exact sizes), `single` (one device, no collectives).
        sizes: for each axis name, the local length on every device, an int array [data groups, devices].
        mine: mesh coordinates of this process's devices; needed by `specialized`.
        weights: how sharded parameters become whole ones for a layer, and their gradients shards again.
    """

    mode: Mode
    sizes: dict[str, np.ndarray]
    mine: tuple[tuple[int, int], ...] = ((0, 0),)
    weights: WeightSharding | Keep = field(default_factory=Keep)

    def __post_init__(self) -> None:
        for name, sizes in self.sizes.items():
            if self.mode in ("single", "uniform") and len(np.unique(sizes)) > 1:
                raise ValueError(f"{self.mode} placement, but axis {name} has sizes {sizes.tolist()}: use switched")
            if self.mode == "specialized" and len({int(sizes[at]) for at in self.mine}) > 1:
                raise ValueError(
                    f"specialized placement, but the devices {list(self.mine)} of this process have different sizes"
                    f" {[int(sizes[at]) for at in self.mine]} of axis {name}: run one process for each kind, or"
                    " use switched"
                )

    def extent(self, name: str) -> int:
        """Length of a named axis of local arrays in this process's program."""
        sizes = self.sizes[name]
        return int(sizes.max()) if self.mode == "switched" else int(sizes[self.mine[0]])

    @property
    def chained(self) -> bool:
        """Whether collectives must be tied into one order, because other processes compile other sizes."""
        return self.mode == "specialized"

    def trim(self, array: jax.Array, axis: int, name: str) -> jax.Array:
        """Cut a padded local input to the extent of the named axis."""
        return lax.slice_in_dim(array, 0, self.extent(name), axis=axis)

    def run(
        self,
        fn: Work,
        signature: str,
        *arrays: jax.Array,
        weights: Any = (),
        facts: np.ndarray | None = None,
    ) -> tuple[jax.Array, ...]:
        """Call `fn(weights, *arrays)` at exact sizes; not differentiated through.

        Args:
            fn: returns an array or a tuple of arrays as the signature says; called as `fn(fact, weights, *arrays)`
                if facts are given.
            signature: names of the axes of arrays and results.
            arrays: local arrays at the extents of their axes.
            weights: whole parameters, passed on as they are.
            facts: a static hashable value for each device [data groups, devices], handed to `fn`.
        """
        ins, outs = parse(signature)
        names = tuple(dict.fromkeys(n for axes in (*ins, *outs) for n in axes if n in self.sizes))

        def call(kind: "Kind", weights: Any, *arrays: jax.Array) -> tuple[jax.Array, ...]:
            given = (kind.fact,) if facts is not None else ()
            out = fn(*given, weights, *arrays)
            return out if isinstance(out, tuple) else (out,)

        return self._switch(call, names, ins, outs, facts, weights, arrays)

    def local(self, fn: Work, signature: str) -> Work:
        """`fn(weights, *arrays)` as a differentiable function of sharded weights and local arrays.

        Differentiation happens inside each branch: the forward stores its inputs only, and the backward is a
        switch over branches that recompute and differentiate. Where sizes are exact, the forward keeps what the
        backward needs, except whole weights, which are gathered again.
        """
        ins, outs = parse(signature)
        names = tuple(dict.fromkeys(n for axes in (*ins, *outs) for n in axes if n in self.sizes))
        exact = len(self._kinds(names, None)) == 1
        if exact and isinstance(self.weights, Keep):
            return lambda weights, *arrays: fn(self.weights.gather(weights), *arrays)
        run = _kept(fn, self.weights, len(outs), self.chained) if exact else self._recomputed(fn, names, ins, outs)

        def call(weights: Any, *arrays: jax.Array) -> Any:
            out = run(weights, arrays)
            return out if len(outs) > 1 else out[0]

        return call

    def _recomputed(
        self, fn: Work, names: Axes, ins: Sequence[Axes], outs: Sequence[Axes]
    ) -> Callable[[Any, tuple[jax.Array, ...]], tuple[jax.Array, ...]]:
        """The switched form of `local`: forward and backward are each one switch."""

        def forward(kind: "Kind", weights: Any, *arrays: jax.Array) -> tuple[jax.Array, ...]:
            out = fn(weights, *arrays)
            return out if isinstance(out, tuple) else (out,)

        def call(shards: Any, arrays: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
            return self._switch(forward, names, ins, outs, None, self.weights.gather(shards), arrays)

        def backward(residual: Any, cotangents: tuple[jax.Array, ...]) -> tuple[Any, tuple[Any, ...]]:
            shards, arrays = residual
            real = [i for i, a in enumerate(arrays) if jnp.issubdtype(a.dtype, jnp.floating)]

            def branch(kind: "Kind", weights: Any, *values: jax.Array) -> tuple[Any, ...]:
                given, cts = list(values[: len(arrays)]), values[len(arrays) :]

                def of_reals(weights: Any, *reals: jax.Array) -> tuple[jax.Array, ...]:
                    for i, value in zip(real, reals, strict=True):
                        given[i] = value
                    return forward(kind, weights, *given)

                _, vjp = jax.vjp(of_reals, weights, *[given[i] for i in real])
                grads, *rest = vjp(cts)
                return (*rest, grads)

            axes = [ins[i] for i in real]
            *rest, grads = self._switch(
                branch,
                names,
                (*ins, *outs),
                (*axes, None),
                None,
                self.weights.gather(shards),
                (*arrays, *cotangents),
            )
            slots: list[Any] = [None] * len(arrays)
            for i, value in zip(real, rest, strict=True):
                slots[i] = value
            return self.weights.scatter(grads, shards), tuple(slots)

        run = jax.custom_vjp(call)
        run.defvjp(lambda shards, arrays: (call(shards, arrays), (shards, arrays)), backward)
        return run

    def _switch(
        self,
        call: Callable[..., tuple[Any, ...]],
        names: Axes,
        ins: Sequence[Axes],
        outs: Sequence[Axes | None],
        facts: np.ndarray | None,
        weights: Any,
        arrays: tuple[jax.Array, ...],
    ) -> tuple[Any, ...]:
        """Run `call` for this device's kind: cut inputs to its sizes, pad results to the extents."""
        kinds = self._kinds(names, facts)
        if len(kinds) == 1:
            return call(next(iter(kinds)), weights, *arrays)

        def branch(kind: "Kind") -> Callable[..., tuple[Any, ...]]:
            def exact(weights: Any, *arrays: jax.Array) -> tuple[Any, ...]:
                cut = [_resize(a, axes, kind.sizes) for a, axes in zip(arrays, ins, strict=True)]
                out = call(kind, weights, *cut)
                wide = {name: self.extent(name) for name in names}
                return tuple(
                    value if axes is None else _resize(value, axes, wide) for value, axes in zip(out, outs, strict=True)
                )

            return exact

        index = np.zeros(next(iter(self.sizes.values())).shape, np.int32)
        for number, places in enumerate(kinds.values()):
            for at in places:
                index[at] = number
        here = jnp.asarray(index.reshape(-1))[lax.axis_index(AXES)]
        return lax.switch(here, [branch(kind) for kind in kinds], weights, *arrays)

    def _kinds(self, names: Axes, facts: np.ndarray | None) -> "dict[Kind, list[tuple[int, int]]]":
        """The distinct kinds of devices that this program must serve, and where they are."""
        shape = next(iter(self.sizes.values())).shape
        everywhere = [(int(g), int(m)) for g, m in np.ndindex(*shape)]
        kinds: dict[Kind, list[tuple[int, int]]] = {}
        for at in self.mine if self.mode == "specialized" else everywhere:
            sizes = tuple((name, int(self.sizes[name][at])) for name in names)
            kinds.setdefault(Kind(sizes, None if facts is None else facts[at]), []).append(at)
        if self.mode != "switched" and len(kinds) > 1:
            raise ValueError(f"{self.mode} placement must run one kind of device, found {[*kinds]}: use switched")
        return kinds


@dataclass(frozen=True)
class Kind:
    """Devices that run the same branch: equal sizes and equal facts."""

    named: tuple[tuple[str, int], ...]
    fact: Any = None

    @property
    def sizes(self) -> dict[str, int]:
        """Length of each named axis on such a device."""
        return dict(self.named)


def single(**sizes: int) -> Placement:
    """The placement of one device: local work is a plain call, nothing is exchanged."""
    return Placement("single", {name: np.full((1, 1), size) for name, size in sizes.items()})


def parse(signature: str) -> tuple[tuple[Axes, ...], tuple[Axes, ...]]:
    """Split "B T D, B T -> B T H E" into the axis names of inputs and results."""
    left, arrow, right = signature.partition("->")
    if not arrow:
        raise ValueError(f"signature {signature!r} has no '->'")
    ins, outs = (tuple(tuple(part.split()) for part in side.split(",")) for side in (left, right))
    return ins, outs


def _resize(array: jax.Array, axes: Axes, sizes: dict[str, int]) -> jax.Array:
    """Cut or zero-pad the named axes of an array to the given sizes."""
    if array.ndim != len(axes):
        raise ValueError(f"an array of shape {array.shape} is named {' '.join(axes)!r} in the signature")
    for axis, name in enumerate(axes):
        if name in sizes and array.shape[axis] > sizes[name]:
            array = lax.slice_in_dim(array, 0, sizes[name], axis=axis)
        elif name in sizes and array.shape[axis] < sizes[name]:
            widths = [(0, sizes[name] - array.shape[axis] if a == axis else 0) for a in range(array.ndim)]
            array = jnp.pad(array, widths)
    return array


def _kept(
    fn: Work, sharding: "WeightSharding | Keep", outputs: int, chained: bool
) -> Callable[[Any, tuple[jax.Array, ...]], tuple[jax.Array, ...]]:
    """`fn` of sharded weights at exact sizes: residuals are kept, whole weights are gathered twice instead.

    Chained, weights are gathered after the collectives that the arrays or cotangents come from, and cotangents go on
    after gradients are scattered.
    """

    def arrived(arrays: Any) -> jax.Array | None:
        floats = [a for a in jax.tree.leaves(arrays) if jnp.issubdtype(a.dtype, jnp.floating)]
        return signal(floats) if chained else None

    def tied(tree: Any, before: jax.Array | None) -> Any:
        return tree if before is None else wait(tree, before)

    def whole(weights: Any, arrays: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        out = fn(weights, *arrays)
        return out if outputs > 1 else (out,)

    def forward(shards: Any, arrays: tuple[jax.Array, ...]) -> tuple[tuple[jax.Array, ...], Any]:
        before = arrived(arrays)
        weights = sharding.gather(tied(shards, before))
        leaves, tree = jax.tree.flatten(weights)  # each an argument, so that residuals that are weights can be told
        out, vjp = jax.vjp(lambda arrays, *leaves: whole(jax.tree.unflatten(tree, leaves), arrays), arrays, *leaves)
        saved: Any = vjp
        saved.args_res = [None if i > 0 and isinstance(r, jax.Array) else r for i, r in enumerate(saved.args_res)]
        return out, (saved, shards, before)

    def backward(residual: Any, cotangents: tuple[jax.Array, ...]) -> tuple[Any, Any]:
        vjp, shards, before = residual
        weights = jax.tree.leaves(sharding.gather(tied(tied(shards, before), arrived(cotangents))))
        vjp.args_res = [weights[i - 1] if r is None else r for i, r in enumerate(vjp.args_res)]
        arrays, *grads = vjp(cotangents)
        pieces = sharding.scatter(grads, shards)
        return pieces, tuple(a if a.dtype == jax.dtypes.float0 else tied(a, arrived(pieces)) for a in arrays)

    run = jax.custom_vjp(lambda shards, arrays: forward(shards, arrays)[0])
    run.defvjp(forward, backward)
    return run
