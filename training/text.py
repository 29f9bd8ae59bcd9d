"""A transformer on rows of tokens: from the corpus to a plan, a program and a feed. Imports no JAX by itself."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from meshes.cluster import Cluster
from meshes.job import Job
from meshes.plan import Plan
from training import setup
from training.config import TrainConfig
from training.data import Corpus, EvalBatches, PackedRows, TrainStream, load, resume, split

if TYPE_CHECKING:
    import jax

    from training.comparison import Comparer
    from training.metrics import Reporter
    from training.rows_feed import RowsFeed
    from training.step import Program
    from training.trainable import State


class Text:
    """A `training.subject.Subject`.

    Args:
        config: the flags.

    Raises:
        UsageError: the data cannot be used.
    """

    def __init__(self, config: TrainConfig) -> None:
        self.config = config
        self.corpus: Corpus = load(config.data, token_dtype=config.token_dtype, vocab_size=config.vocab_size)
        self.rows: tuple[PackedRows, PackedRows] = split(self.corpus, config.seq_len)

    @property
    def fingerprint(self) -> str:
        """Of the training rows."""
        return self.rows[0].fingerprint

    @property
    def notes(self) -> Sequence[str]:
        """Lines about the corpus."""
        return self.corpus.notes

    def plan(self, cluster: Cluster, owners: Sequence[int] = ()) -> Plan:
        """See `training.setup.make_plan`."""
        return setup.make_plan(self.config, cluster, self.corpus.vocab_size, owners)

    def measured(self, job: Job, cluster: Cluster, devices: "list[jax.Device]") -> tuple[Cluster, Sequence[str]]:
        """The cluster with measured speeds, curves and links, if `--profile` wants them; and lines about it."""
        if not setup.wants_profile(self.config, job, cluster, devices):
            return cluster, ()
        from training import kept, profile, program

        work = setup.workload(self.config, self.corpus.vocab_size)

        def measure() -> profile.Profile:
            segments = program.segments(self.config, self.corpus.vocab_size, len(devices))
            return profile.profile(job, cluster, devices, work, segments)

        name = kept.key(cluster, devices, work.model)
        found = kept.once(job, name, profile.Profile, measure, again=self.config.profile == "always")
        speeds = ", ".join(f"{d.name} {d.speed:g}" for d in found.cluster.devices)
        return found.cluster, (f"measured speeds: {speeds}", *found.notes)

    def program(
        self, plan: Plan, devices: "list[jax.Device]", done: int = 0, place: dict[str, Any] | None = None
    ) -> "Program":
        """The step of the transformer."""
        from training import program

        packed = len(self.corpus.starts) > 1
        return program.build(self.config, plan, devices, self.corpus.vocab_size, packed=packed)

    def about(self, program: "Program") -> Sequence[str]:
        """The size of the model and how it is stored."""
        from training.program import describe

        return describe(program)

    def feed(self, program: "Program", plan: Plan, done: int, place: dict[str, Any] | None) -> "RowsFeed":
        """Rows from the first step on, or from a checkpoint's place."""
        from training.batches import Dealer
        from training.rows_feed import RowsFeed

        config, (rows, held_out) = self.config, self.rows
        order = {"seed": config.seed, "batch_size": config.batch_size}
        stream = TrainStream(rows, **order) if place is None else resume(rows, place, **order, step=done)
        dealer = Dealer(program.mesh, program.tiling, plan.workload.microbatch, plan.microbatches)
        batches = EvalBatches(source=held_out, batch_size=config.batch_size, limit=config.eval_rows)
        return RowsFeed(program, dealer, stream, batches)

    def comparer(self, job: Job, plan: Plan, devices: "list[jax.Device]") -> "Comparer | None":
        """What times devices apart from each other; None for emulated ones of one process, which share its cores."""
        from training import program
        from training.comparison import Comparer

        if job.alone and devices[0].platform == "cpu":
            return None
        segments = program.segments(self.config, self.corpus.vocab_size, len(devices))
        return Comparer(job, plan, devices, lambda number: segments.of(plan, number, devices[number]))

    def finish(self, program: "Program", feed: "RowsFeed", state: "State", reporter: "Reporter") -> None:
        """Continue `--sample`, if there is one and the data are text."""
        from training.sampling import sample

        prompt = self.config.sample if self.config.sample is not None else "def "
        if self.corpus.tokenizer is not None and prompt:
            said = sample(program, state["params"], self.corpus.tokenizer, prompt, self.config.seed)
            reporter.say(f"sample:\n{said}")
