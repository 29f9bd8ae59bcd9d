"""Train a transformer on devices that are not equal: flags -> cluster -> plan -> step -> loop.

Exit codes: 0 done, 1 the run failed, 2 a mistake in the flags or the data, 130 or 143 stopped by a signal after saving.
"""

import sys

from meshes.errors import UsageError
from training.config import TrainConfig, parse


def main(argv: list[str]) -> int:
    """Run the program; a user's mistake is one line on stderr and exit code 2."""
    try:
        config = parse(argv)
        return plan_only(config) if config.plan_only else train(config)
    except UsageError as error:
        print(f"train.py: {' '.join(str(error).split())}", file=sys.stderr)
        return 2


def plan_only(config: TrainConfig) -> int:
    """Print the plan; JAX is asked only if the flags do not say what the devices are."""
    from training import setup

    corpus = setup.load_data(config)
    plan = setup.make_plan(config, setup.find_cluster(config)[0], corpus.vocab_size)
    print(plan.table())
    setup.write_plan(config, plan)
    return 0


def train(config: TrainConfig) -> int:
    """Plan, compile, train, evaluate, save and sample."""
    from training import setup
    from training.data import split

    corpus = setup.load_data(config)
    train_rows, held_out = split(corpus, config.seq_len)
    cluster, devices = setup.find_cluster(config, with_devices=True)
    plan = setup.make_plan(config, cluster, corpus.vocab_size)

    from training.checkpoint import CheckpointError
    from training.loop import TrainingError, stopping

    try:
        with stopping() as stop:
            return setup.run(config, plan, devices, corpus, train_rows, held_out, stop)
    except (TrainingError, CheckpointError) as error:
        print(f"train.py: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
