"""Train a model on devices that are not equal: flags -> cluster -> plan -> step -> loop.

Exit codes: 0 done, 1 the run failed, 2 a mistake in the flags or the data, 130 or 143 stopped by Ctrl-C or SIGTERM once
the step at hand was saved.
"""

import os
import signal
import sys

from meshes import environment
from meshes.errors import UsageError
from meshes.job import JobError
from training.config import TrainConfig, parse


def main(argv: list[str]) -> int:
    """Run the program; a user's mistake is one line on stderr and exit code 2."""
    try:
        config = parse(argv)
        return plan_only(config) if config.plan_only else train(config)
    except (UsageError, JobError) as error:
        print(f"train.py: {' '.join(str(error).split())}", file=sys.stderr)
        return 2 if isinstance(error, UsageError) else error.code
    except KeyboardInterrupt:  # before the first step or after the last one: there is nothing to save
        return 128 + signal.SIGINT


def plan_only(config: TrainConfig) -> int:
    """Print the plan; JAX is asked only if the flags do not say what the devices are."""
    from training import setup

    plan = setup.subject(config).plan(setup.find_cluster(config)[0])
    seat = environment.find(os.environ)
    if seat is None or seat.number == 0:
        print(plan.table())
        setup.write_plan(config, plan)
    return 0


def train(config: TrainConfig) -> int:
    """Join the job, plan, compile, train, evaluate, save and sample."""
    from training import setup

    with setup.join(config) as job:
        subject = setup.subject(config)
        cluster, devices = setup.find_cluster(config, job.alone)
        if not devices:  # refuse what is wrong before JAX is asked
            subject.plan(cluster)
        setup.check_writable(config)
        devices = devices or setup.find_devices(cluster, job.alone)
        cluster, notes = subject.measured(job, cluster, devices)
        plan = subject.plan(cluster, setup.owners(job, devices))

        from training.checkpoint import CheckpointError
        from training.loop import TrainingError

        try:
            return setup.run(config, job, plan, devices, subject, notes)
        except (TrainingError, CheckpointError) as error:
            print(f"train.py: {error}", file=sys.stderr)
            job.leave(str(error), 1)
            return 1


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    code = main(sys.argv[1:])
    if code == 1:  # threads of a save that failed may wait for each other for minutes
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)
