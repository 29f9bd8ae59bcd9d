"""A workload and clusters that several tests plan."""

from meshes.cluster import Cluster
from meshes.workload import Workload

WORK = Workload(
    batch_size=16,
    microbatch=2,
    seq_len=256,
    vocab_size=256,
    layers=4,
    d_model=128,
    heads=8,
    kv_heads=4,
    head_dim=16,
    d_ff=384,
)
FOUR = Cluster.from_flags(speeds=(4, 2, 1, 1))
