"""Measures devices and links: `python -m meshes.profile --out cluster.toml [FLAGS of train.py]`.

It times what the run of these flags would compute, on every device at several sizes and apart from all messages, and
then messages between devices; takes medians, warm, and tells where samples disagree. The file that it writes says how
fast each device is and what it takes for this model; give it to `train.py --cluster`. Several processes: the launcher,
`python -m meshes.launch --cluster FILE --module meshes.profile -- --out measured.toml`, or srun or mpirun.

A program like train.py: what it runs is in training/.
"""

import sys
from pathlib import Path

from meshes import cluster_file
from meshes.errors import UsageError
from meshes.job import JobError

PROGRAM = "python -m meshes.profile"


def main(argv: list[str]) -> int:
    """Measure and write the file.

    Returns:
        Exit code: 2 for a user's mistake, which is one line on stderr.
    """
    from training import setup
    from training.config import parse

    try:
        out, flags = _out(argv)
        config = parse([*flags, "--profile", "always"], prog=PROGRAM)
        with setup.join(config) as job:
            subject = setup.subject(config)
            cluster, devices = setup.find_cluster(config, job.alone)
            devices = devices or setup.find_devices(cluster, job.alone)
            measured, notes = subject.measured(job, cluster, devices)
            if job.number == 0:
                print(*notes, sep="\n")
                out.write_text(cluster_file.text(measured))
    except (UsageError, JobError) as error:
        print(f"profile: {' '.join(str(error).split())}", file=sys.stderr)
        return 2 if isinstance(error, UsageError) else error.code
    return 0


def _out(argv: list[str]) -> tuple[Path, list[str]]:
    """The file to write, and the other flags."""
    flags = [part for word in argv for part in (word.split("=", 1) if word.startswith("--out=") else [word])]
    if "--out" not in flags or flags.index("--out") + 1 == len(flags):
        raise UsageError(f"no --out FILE: write {PROGRAM} --out cluster.toml [FLAGS of train.py]")
    at = flags.index("--out")
    out = Path(flags[at + 1])
    if out.is_dir() or not out.parent.is_dir():
        raise UsageError(f"--out {out}: it is a directory or in none: name a file that can be written")
    return out, flags[:at] + flags[at + 2 :]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
