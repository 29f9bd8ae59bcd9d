"""The flags of a training run, their units and defaults, in the sections that head the groups of `--help`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from training.kinds import Bytes


@dataclass(frozen=True, kw_only=True)
class RunFlags:
    """The run: what it reads its settings from and where it writes."""

    config: Path | None = None
    """TOML file with any of these flags as keys, without tables."""
    run_dir: Path | None = None
    """Directory for metrics.jsonl, the configuration and the plan. None: runs/DATE-TIME, made anew."""
    seed: int = 0
    """Seed of the parameters and of the order of the data; 0 to 4294967295."""
    log_every: int = 10
    """Steps between lines of progress on the terminal; metrics.jsonl has every step."""
    compare_every: int = 0
    """Steps between comparisons of each device's measured work with the plan's, in metrics.jsonl. 0: at the end."""


@dataclass(frozen=True, kw_only=True)
class DeviceFlags:
    """The devices: --cluster, or any of the other three."""

    devices: int | None = None
    """How many; more than the machine has: emulated CPUs. None: the machine's, or 4,2,1,1 emulated where it has one."""
    speeds: tuple[float, ...] | None = None
    """Relative speed of each device, such as 4,2,1,1; any unit. None: all equal."""
    memory: tuple[Bytes, ...] | None = None
    """Memory of each device, such as 24GB,24GB,12GB,12GB; GB is 10^9 bytes, GiB 2^30. None: what the device says."""
    cluster: Path | None = None
    """TOML file that describes devices and links."""
    profile: Literal["auto", "always", "never"] = "auto"
    """Measure devices and links first: always, never, or if nobody says how fast they are (auto; kept for later)."""


@dataclass(frozen=True, kw_only=True)
class PlanFlags:
    """The plan: how work is cut over the devices."""

    attention: Literal["auto", "context", "head", "hybrid"] = "auto"
    """Cut attention by tokens (context), by heads (head) or both (hybrid); auto: what is predicted fastest."""
    kv: Literal["auto", "gather", "ring"] = "auto"
    """How keys and values travel: at once (gather), or in blocks (ring): less memory, with context attention only."""
    data_groups: int | Literal["auto"] = "auto"
    """Number of groups of devices that each train on rows of their own; auto: what is predicted fastest."""
    placement: Literal["auto", "switched", "specialized"] = "auto"
    """One program with a branch for each kind of device (switched), or one program for each process (specialized)."""
    plan: Path | None = None
    """Use the plan in this JSON file instead of making one."""
    plan_out: Path | None = None
    """Write the plan to this JSON file too."""
    plan_picture: Path | None = None
    """Draw the plan into this file, .png or .svg: what each device does in a step, and the tiles of attention."""
    plan_only: bool = False
    """Print the plan and stop before training."""


@dataclass(frozen=True, kw_only=True)
class ModelFlags:
    """The model."""

    model: Literal["transformer", "gcn", "sage", "gat", "gin", "graphnet", "rgcn", "hgt"] = "transformer"
    """A Llama-style decoder (transformer), or a graph network: the others."""
    layers: int = 4
    """Number of layers; of a graph network: steps of messages."""
    d_model: int = 128
    """Width; a multiple of --heads."""
    heads: int = 8
    """Query heads, a multiple of --kv-heads; of a graph network: lanes that the width is cut into."""
    kv_heads: int = 4
    """Key/value heads; of the transformer."""
    d_ff: int = 384
    """Inner width of the MLP; of the transformer, gin and graphnet."""
    tied_embedding: bool = True
    """One matrix for the embedding and the logits."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """What is computed in; weights and sums are float32 either way."""
    remat: Literal["none", "layer"] = "none"
    """Keep activations for the backward pass (none), or compute each layer again (layer): less memory, more time."""


@dataclass(frozen=True, kw_only=True)
class GraphFlags:
    """Graph networks."""

    graph_parallel: Literal["auto", "vertex", "feature", "sample", "batch"] = "auto"
    """Cut the graph (vertex) or the width (feature), deal seeds (sample) or small graphs (batch); auto: the fastest."""
    edges: Literal["both", "given"] = "both"
    """Messages along edges of one graph in both directions, each a type of its own (both), or as they are (given)."""
    task: Literal["auto", "labels", "links"] = "auto"
    """Predict labels, or which vertices of one graph have an edge (links); auto: labels where there are any."""
    links: int = 2048
    """Edges in a step, over all devices, that are told from pairs without one; at most those to train on."""
    negatives: int = 1
    """Pairs without an edge that are drawn for each edge."""
    seeds: int = 512
    """Vertices in a step, over all devices, where neighbours are sampled; at most those to train on."""
    fanouts: tuple[int, ...] | None = None
    """Neighbours sampled of each vertex, such as 10,5: from the seeds outwards, one for each layer. None: all."""
    dropout: float = 0.0
    """Share of each layer's update that is dropped in training; 0 to below 1."""
    bases: int = 4
    """Basis matrices that the types of edges share; of rgcn."""
    aggregate: Literal["mean", "max"] = "mean"
    """How neighbours are joined; of sage."""


@dataclass(frozen=True, kw_only=True)
class DataFlags:
    """The data."""

    data: Path | None = None
    """Text file, directory of text files, or token ids in .npy or .bin; of a graph network: a folder of OGB or
    Planetoid, .npz, GraphML, or karate. None: Python's own standard library, its text or its calls."""
    token_dtype: Literal["uint8", "uint16", "uint32", "int32", "int64"] | None = None
    """How ids are stored in a .bin file, little-endian; a .npy file says so itself."""
    vocab_size: int | None = None
    """Number of token ids. None: 257 for text; for .npy and .bin what the JSON file beside the data says."""
    seq_len: int = 256
    """Tokens in a row."""
    batch_size: int = 16
    """Rows in a step, over all devices, a multiple of --microbatch; or small graphs in a step."""
    microbatch: int = 8
    """Rows that a group of devices runs at once; less takes less memory."""


@dataclass(frozen=True, kw_only=True)
class OptimizerFlags:
    """The optimizer, AdamW."""

    steps: int = 150
    """Steps in all, those before a resume included."""
    lr: float = 3e-3
    """Peak learning rate."""
    warmup: int = 20
    """Steps over which the learning rate rises to its peak, the first one taking 1/N of it."""
    schedule: Literal["constant", "cosine", "linear"] = "cosine"
    """The learning rate after warmup: constant, or falling towards 0, which a step after the last would have."""
    weight_decay: float = 0.1
    """Weight decay of matrices, a fraction of the learning rate."""
    clip_norm: float = 1.0
    """Largest norm of the gradient over all parameters; larger ones are scaled down. 0: never."""


@dataclass(frozen=True, kw_only=True)
class EvaluationFlags:
    """Evaluation on held-out documents, and a sample."""

    eval_every: int = 100
    """Steps between evaluations. 0: only at the end."""
    eval_rows: int = 64
    """Held-out rows in an evaluation, the same ones each time, spread evenly. 0: all."""
    sample: str | None = None
    """Text that the trained model continues at the end; '' for no sample. None: 'def ' for text, no sample for ids."""


@dataclass(frozen=True, kw_only=True)
class CheckpointFlags:
    """Checkpoints, which resume on any number of devices."""

    checkpoint_dir: Path | None = None
    """None: checkpoints in the run directory."""
    save_every: int = 0
    """Steps between checkpoints; the last step is always saved. 0: only the last step."""
    keep: int = 3
    """Newest checkpoints that are kept."""
    resume: Literal["auto", "never", "must"] = "auto"
    """Go on from the newest checkpoint if there is one (auto), begin anew (never), or refuse to begin anew (must)."""
