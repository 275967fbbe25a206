"""All settings. `layers.py` makes them from files and flags, `sizes.py` derives sizes from them.

Settings that decide what is learned are saved with the run, must agree between nodes, and cannot change on resume
(`learning.py`). The marks `Learning` and `NotLearning` state which they are; an unmarked field is like its section.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field
from pydantic.fields import FieldInfo

from parallel_ppo.arguments import hours
from parallel_ppo.settings.kinds import (
    ALGORITHM_KINDS,
    AUGMENTATION_KINDS,
    CURIOSITY_KINDS,
    RECURRENT_KINDS,
    NetworkKind,
    checked_policy,
    is_own,
    network_kind,
)
from parallel_ppo.settings.sizes import (
    LONGEST_SEQUENCE,
    MAX_MICROBATCHES,
    RECURRENT_MICROBATCH,
    Sizes,
    largest_slice,
    predictor_samples,
)


def _whole(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _hours(value: Any) -> Any:
    return float(hours(value)) if isinstance(value, str) else value


def _one_of(names: Collection[str], *, own: str = "") -> AfterValidator:
    """`own`: code of the user's is allowed, as this text says."""

    def check(name: str) -> str:
        if name not in names and not (own and is_own(name)):
            raise ValueError(f"expected {', '.join(names)}{own}")
        return name

    return AfterValidator(check)


STOP_CONDITIONS = ("total_timesteps", "duration")
# These may change on resume; run.json records the change.
SCHEDULE_ENDS = ("training.schedule_steps", "training.schedule_hours")
FUNCTION = " or module:function"
Positive = Annotated[int, BeforeValidator(_whole), Field(ge=1, le=10**18)]  # accepts 1e6
PositiveFloat = Annotated[float, Field(gt=0)]
Hours = Annotated[float, BeforeValidator(_hours), Field(gt=0)]  # accepts 5m, 1.5h
Fraction = Annotated[float, Field(ge=0, le=1)]
AtLeastZero = Annotated[float, Field(ge=0)]
Width = Annotated[int, Field(ge=1, le=65536)]  # units of a layer
MAX_EPISODE_STEPS = 100_000_000
MAX_PROCESSES = 4096
Processes = Annotated[int, Field(ge=1, le=MAX_PROCESSES)]  # workers or nodes
Level = Annotated[int, Field(ge=0, le=2**31 - 1)]
Timeout = Annotated[float, Field(ge=1, le=86400)]
Name = Annotated[str, Field(min_length=1)]


class Learning:
    """Marks a field that changes what is learned, in a section that does not."""


class NotLearning:
    """Marks a field or a section that never changes what is learned."""


def setting(default: Any, description: str, *, shown: str | None = None) -> Any:
    """A field. The first sentence of its description is the help of its flag; docs/configuration.md shows all of
    it, and `shown` instead of the default.
    """
    return Field(default, description=description, json_schema_extra={"shown": shown} if shown else None)


def shown_default(field: FieldInfo) -> str:
    """The default as docs/configuration.md shows it."""
    extra, default = field.json_schema_extra, field.default
    if isinstance(extra, dict):
        return str(extra["shown"])
    if default is None:
        return "none"
    return f"{default:g}" if isinstance(default, float) else str(default).lower()


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class EnvSettings(Section):
    id: str = setting("coinrun", "A Procgen game such as `coinrun`, or a Gymnasium id such as `CartPole-v1`.")
    num_envs: Annotated[int, Field(ge=1, le=65536)] = setting(32, "Environments in total.")
    slice_envs: Positive | None = setting(
        None,
        "Environments of one slice, which are stepped and inferred as one batch. The number is saved with the"
        " run.",
        shown="largest divisor of `num_envs` up to 8 (MLP: 4)",
    )
    fresh_objects: bool | Literal["auto"] = setting(
        "auto",
        "Gymnasium: create a new environment for every episode. `auto`: only if reusing it changes episodes.",
    )
    action_masks: bool | Literal["auto"] = setting(
        "auto",
        'Gymnasium: `info["action_mask"]` says which actions are allowed. `auto`: if it is there.',
    )
    distribution_mode: Literal["easy", "hard", "extreme", "memory", "exploration"] = setting(
        "easy",
        "Procgen: kind of levels: easy or hard; some games also have extreme, memory or exploration.",
    )
    num_levels: Level = setting(0, "Procgen: number of training levels, 0 for all.")
    start_level: Level = setting(0, "Procgen: first training level.")
    use_sequential_levels: bool = setting(False, "Procgen: play the levels in order.")
    level_sampler: Literal["uniform", "plr"] = setting(
        "uniform",
        "Procgen: how the next training level is chosen: uniform, or plr for prioritized level replay.",
    )
    plr_temperature: PositiveFloat = setting(
        0.1, "plr: the level of rank r has weight (1 / r)^(1 / temperature)."
    )
    plr_staleness: Fraction = setting(0.1, "plr: share of the choice that favors levels not played for long.")
    use_backgrounds: bool = setting(True, "Procgen: draw backgrounds.")
    center_agent: bool = setting(True, "Procgen: the view follows the agent.")
    paint_vel_info: bool = setting(False, "Procgen: paint the velocity into the image.")
    use_generated_assets: bool = setting(False, "Procgen: use randomly generated images.")
    use_monochrome_assets: bool = setting(False, "Procgen: use rectangles of one color.")
    restrict_themes: bool = setting(False, "Procgen: use one theme only.")
    info_keys: Annotated[list[str], NotLearning] = setting(
        [],
        "Gymnasium: numbers in the last `info` of an episode to record, in episodes.jsonl and as `info/KEY` in"
        " metrics.jsonl.",
    )
    kwargs: dict[str, Any] = setting(
        {}, "Gymnasium: arguments of `gymnasium.make`. `--set env.kwargs.x=1` sets one of them."
    )
    wrappers: list[str | dict[str, dict[str, Any]]] = setting(
        [], "Gymnasium: wrappers as `module:Class` or `{module:Class: {argument: value}}`, innermost first."
    )


class TrainingSettings(Section):
    seed: Annotated[int, Field(ge=0, lt=2**63)] = setting(1, "Random seed.")
    total_timesteps: Annotated[Positive | None, NotLearning] = setting(
        None, "Stop after this many environment steps (such as 1e6), rounded up to a whole iteration."
    )
    duration: Annotated[Hours | None, NotLearning] = setting(
        None,
        "Stop after this time, earlier sessions included: hours, or 90s, 5m, 1h30m. The run ends at the end"
        " of the iteration that comes closest to it.",
        shown="1 hour if `total_timesteps` is not set either",
    )
    algorithm: Annotated[str, _one_of(ALGORITHM_KINDS)] = setting(
        "ppo",
        "ppo, a2c, a3c, impala or appo. Each sets its own defaults for keys that neither a file nor a flag sets.",
    )
    num_actors: Positive | None = setting(
        None,
        "a3c: number of actors that learn in turn, each with `num_envs / num_actors` environments.",
        shown="one for each environment",
    )
    lag: Annotated[int, Field(ge=0, le=16)] = setting(
        0,
        "ppo, impala, appo: collect with the parameters from this many updates ago, so that collection"
        " overlaps the update.",
        shown="0; impala and appo: 1",
    )
    n_steps: Annotated[int, Field(ge=1, le=1_000_000)] = setting(
        128, "Steps of each environment per iteration.", shown="128; a2c and a3c: 5; impala: 20"
    )
    n_epochs: Annotated[int, Field(ge=1, le=1000)] = setting(
        4, "Passes over the samples of an iteration.", shown="4; a2c, a3c and impala: 1"
    )
    batch_size: Positive = setting(
        1024,
        "Samples of a minibatch. Must divide `num_envs x n_steps` and be a multiple of the number of slices.",
        shown="1024; a2c, a3c and impala: all samples",
    )
    lane_samples: Positive | None = setting(
        None,
        "Largest number of samples in one unit of gradient work.",
        shown="64; vectors: a slice's samples of a minibatch",
    )
    policy: Annotated[str, AfterValidator(checked_policy)] = setting(
        "auto",
        "Network: auto, impala, impoola, nature, small_image, mlp, or your own as module:Class. `auto`:"
        " small_image for images up to 32 x 32, impala for larger ones, mlp for vectors; for observations"
        " with both, one of each.",
    )
    init_from: Annotated[str, Field(min_length=1)] | None = setting(
        None,
        "Start with the parameters and observation statistics of a run, a checkpoint, weights or hub:user/name.",
    )
    hidden_sizes: Annotated[list[Width], Field(max_length=64)] = setting(
        [64, 64], "Sizes of the hidden layers of the MLP."
    )
    activation: Literal["tanh", "relu"] = setting(
        "tanh", "Between the hidden layers of the MLP: tanh or relu."
    )
    initial_log_std: Annotated[float, Field(ge=-10, le=2)] = setting(
        0.0, "Continuous actions: logarithm of the initial standard deviation."
    )
    initialization: Literal["orthogonal", "fan_in"] = setting(
        "orthogonal",
        "How weights are drawn: orthogonal, or fan_in for torch's default, which is uniform up to"
        " 1 / sqrt(inputs). Orthogonal heads have gains 0.01 (actions) and 1 (value). The layers below have"
        " gain sqrt(2), except in impala and impoola (fan_in) and in your own network.",
    )
    width: Annotated[float, Field(gt=0, le=32)] = setting(
        1.0,
        "impala and impoola: factor of the number of channels (16, 32, 32). The native kernels support 1, 2,"
        " 3 and 4.",
    )
    kernels: Literal["auto", "torch", "native"] = setting(
        "auto",
        "Code that computes the network: torch, native (C, faster) or auto (native if possible). Native"
        " kernels exist for impala and impoola (square images of 64 to 96 pixels), nature (64 and 84 pixels),"
        " small_image, and MLPs whose `hidden_sizes` are multiples of 16. The two round differently, so the"
        " choice is saved with the run.",
    )
    learning_rate: PositiveFloat = setting(
        5e-4, "Step size of the optimizer.", shown="0.0005; a2c and a3c: 0.0007"
    )
    learning_rate_schedule: Annotated[str, _one_of(("constant", "linear", "adaptive"), own=FUNCTION)] = (
        setting(
            "constant",
            "constant, linear: decay to 0, adaptive: follow the approximate KL of each minibatch, or"
            " module:function, which returns the rate for the share of the schedule that is left (1 to 0).",
        )
    )
    adaptive_kl: PositiveFloat = setting(
        0.01,
        "Adaptive schedule: the KL to hold. The rate is divided by `adaptive_factor` above twice this KL and"
        " multiplied by it below half of it.",
    )
    adaptive_factor: Annotated[float, Field(gt=1)] = setting(1.5, "Adaptive schedule: factor of a change.")
    adaptive_min: PositiveFloat = setting(1e-5, "Adaptive schedule: the smallest learning rate.")
    adaptive_max: PositiveFloat = setting(1e-2, "Adaptive schedule: the largest learning rate.")
    learning_rate_warmup: Positive | None = setting(
        None,
        "Environment steps over which the learning rate grows linearly from 0; schedules apply on top of it.",
    )
    clip_range: PositiveFloat = setting(
        0.2, "Limit of the change of the ratio, and of the value if `clip_value_loss` is true."
    )
    clip_range_schedule: Annotated[str, _one_of(("constant", "linear"), own=FUNCTION)] = setting(
        "constant", "constant, linear (to 0), or module:function, as for the learning rate."
    )
    schedule_by: Literal["steps", "time"] = setting(
        "steps", "steps, or time: schedules follow the clock, and the run is not bit-exact."
    )
    schedule_steps: Positive | None = setting(
        None,
        "Environment steps at which linear schedules end. May be changed on resume.",
        shown="`total_timesteps` of the first start",
    )
    schedule_hours: Hours | None = setting(
        None,
        "Hours after which linear schedules by time end. May be changed on resume.",
        shown="`duration` of the first start",
    )
    gamma: Fraction = setting(0.999, "Discount factor.")
    gae_lambda: Fraction = setting(0.95, "Lambda of GAE.", shown="0.95; a2c and a3c: 1")
    entropy_coef: AtLeastZero = setting(0.01, "Weight of the entropy bonus.")
    value_coef: AtLeastZero = setting(0.5, "Weight of the value loss.")
    clip_value_loss: bool = setting(
        True, "Clip the change of the value by `clip_range`.", shown="true; other algorithms: false"
    )
    max_grad_norm: PositiveFloat = setting(0.5, "Largest norm of the gradient; longer ones are scaled down.")
    optimizer: Literal["adam", "adamw", "rmsprop", "rmsprop_tf"] = setting(
        "adam",
        "adam, adamw, rmsprop (torch's) or rmsprop_tf (TensorFlow's: epsilon inside the root, squares start at"
        " 1).",
        shown="adam; a2c and a3c: rmsprop",
    )
    adam_eps: PositiveFloat = setting(1e-5, "Epsilon of Adam and AdamW.")
    weight_decay: AtLeastZero = setting(0.01, "Decoupled weight decay of adamw, times the learning rate.")
    rmsprop_alpha: Fraction = setting(0.99, "Decay of RMSprop's average of squares.")
    rmsprop_eps: PositiveFloat = setting(1e-5, "Epsilon of RMSprop.")
    vtrace_rho_clip: PositiveFloat = setting(
        1.0, "impala, appo: largest importance ratio in the corrections of the value."
    )
    vtrace_c_clip: PositiveFloat = setting(
        1.0, "impala, appo: largest importance ratio that carries corrections back in time."
    )
    vtrace_policy_rho_clip: PositiveFloat = setting(1.0, "impala: largest ratio in the policy gradient.")
    target_kl: PositiveFloat | None = setting(
        None, "End the update before the step of a minibatch whose approximate KL is larger than this."
    )
    normalize_advantages: bool = setting(
        True, "Normalize advantages over each minibatch.", shown="true; a2c, a3c and impala: false"
    )
    normalize_rewards: bool = setting(True, "Divide rewards by the deviation of the discounted return.")
    reward_gamma: Fraction | None = setting(None, "Discount factor to normalize rewards.", shown="`gamma`")
    reward_clip: PositiveFloat = setting(10.0, "Limit of normalized rewards.")
    clip_rewards: PositiveFloat | None = setting(
        None, "Limit of raw rewards, such as 1. Requires `normalize_rewards: false`."
    )
    normalize_observations: bool = setting(
        False, "Vectors: normalize by the running mean and deviation, which are updated between iterations."
    )
    observation_clip: PositiveFloat = setting(10.0, "Limit of normalized observations.")
    augmentation: Annotated[str, _one_of(("none", *AUGMENTATION_KINDS))] = setting(
        "none",
        "Image augmentation of DrAC: none, crop, color_jitter, cutout, cutout_color, grayscale, flip, rotate"
        " or random_conv.",
    )
    augmentation_coef: AtLeastZero = setting(0.1, "Weight of DrAC's regularization loss.")

    @property
    def with_horizon(self) -> list[str]:
        """Values whose schedules depend on the share of the run that is done."""
        schedules = {"learning_rate": self.learning_rate_schedule, "clip_range": self.clip_range_schedule}
        return [name for name, kind in schedules.items() if kind not in ("constant", "adaptive")]


class CuriositySettings(Section):
    kind: Annotated[str, _one_of(CURIOSITY_KINDS)] = setting(
        "none", "Intrinsic rewards: none, rnd, icm or ngu."
    )
    combine: Literal["advantage", "reward"] = setting(
        "advantage",
        "advantage: a second value head and advantages that do not end with an episode; reward: added to the"
        " scaled rewards of the environment.",
        shown="advantage; icm and ngu: reward",
    )
    extrinsic_coef: AtLeastZero = setting(
        2.0, "With `combine: advantage`, weight of the advantages of the environment's rewards."
    )
    intrinsic_coef: AtLeastZero = setting(1.0, "Weight of intrinsic rewards.", shown="1; icm: 0.01; ngu: 0.3")
    normalize: bool = setting(
        True,
        "Divide intrinsic rewards by the running deviation of their discounted return.",
        shown="true; icm: false",
    )
    gamma: Fraction = setting(0.99, "Discount factor of the intrinsic return.")
    learning_rate: PositiveFloat = setting(1e-4, "Learning rate of the predictors.")
    max_grad_norm: PositiveFloat = setting(0.5, "Largest norm of the predictors' gradient.")
    update_share: Annotated[float, Field(gt=0, le=1)] = setting(
        0.25, "Share of the samples of a minibatch that trains the predictors.", shown="0.25; icm: 1"
    )
    warmup_steps: Annotated[int, BeforeValidator(_whole), Field(ge=1, le=10**9)] = setting(
        8192, "Steps of a random agent, over all environments, that initialize the observation statistics."
    )
    observation_clip: PositiveFloat = setting(5.0, "Limit of whitened observations.")
    frame_channels: Positive | None = setting(
        None, "Channels of one frame if images stack several frames.", shown="3 if possible, else 1"
    )
    num_outputs: Width | None = setting(
        None, "Outputs of the fixed random network.", shown="images: 512; vectors: 64"
    )
    hidden_size: Width = setting(128, "Size of the hidden layers for vectors and for images below 36 x 36.")
    icm_inverse_weight: AtLeastZero = setting(0.8, "Weight of the inverse model's loss.")
    icm_forward_weight: AtLeastZero = setting(0.2, "Weight of the forward model's loss.")
    icm_loss_scale: PositiveFloat = setting(10.0, "Factor of both losses.")
    ngu_embedding: Width = setting(32, "Size of an embedding.")
    ngu_memory: Annotated[int, Field(ge=1, le=10**9)] = setting(
        2048, "Embeddings in an episode's memory; new ones replace the oldest."
    )
    ngu_neighbours: Positive = setting(10, "Number of nearest neighbors.")
    ngu_cluster_distance: AtLeastZero = setting(
        0.008, "Observations closer than this count as equal (squared distance over its running mean)."
    )
    ngu_kernel_epsilon: PositiveFloat = setting(1e-4, "Epsilon of the kernel epsilon / (distance + epsilon).")
    ngu_constant: PositiveFloat = setting(0.001, "Constant that is added to the similarity.")
    ngu_max_similarity: PositiveFloat = setting(8.0, "There is no reward above this similarity.")
    ngu_max_modulation: Annotated[float, Field(ge=1)] = setting(5.0, "Limit of the lifelong factor.")

    @property
    def is_curious(self) -> bool:
        return self.kind != "none"

    @property
    def has_target(self) -> bool:
        return self.kind in ("rnd", "ngu")

    @property
    def num_values(self) -> int:
        """Outputs of the value head."""
        return 2 if self.is_curious and self.combine == "advantage" else 1


class RecurrenceSettings(Section):
    kind: Annotated[str, _one_of(RECURRENT_KINDS)] = setting(
        "none", "Memory of the policy between its trunk and its heads: none, gru or lstm."
    )
    size: Annotated[int, Field(ge=16, le=4096, multiple_of=16)] = setting(
        256, "Units of the cell, a multiple of 16."
    )
    sequence_length: Positive | None = setting(
        None,
        "Steps through which gradients flow back. Must divide `n_steps`; a minibatch holds whole sequences.",
        shown="largest divisor of `n_steps` up to 32",
    )
    separate_value: bool = setting(
        False, "The value function has its own cell (and with the mlp its own layers before it)."
    )

    @property
    def is_recurrent(self) -> bool:
        return self.kind != "none"

    @property
    def cell_state(self) -> int:
        """Numbers that one cell remembers of an environment."""
        return RECURRENT_KINDS[self.kind].states * self.size

    @property
    def state_size(self) -> int:
        """Numbers that the policy remembers of an environment."""
        return self.cell_state * (2 if self.separate_value else 1)


class ParallelSettings(Section):
    num_workers: Processes | Literal["auto"] = setting(
        "auto",
        "Worker processes; the parameters do not depend on them. `auto`: one per usable core, but no more than"
        " can be used at once, and none at all for work that is too small.",
    )
    num_envs_per_worker: Positive | None = setting(
        None, "With a number in `num_workers`: sets `env.num_envs` to the product of the two."
    )
    max_restarts: Annotated[int, Field(ge=0, le=10**18)] = setting(
        10, "Stop with exit code 4 if one worker was replaced more often than this within an iteration."
    )
    hang_timeout: PositiveFloat | Literal["auto"] = setting(
        "auto",
        "Seconds without a response after which a worker is replaced. `auto`: 20 times the longest task so"
        " far, at least 30.",
    )


class HardwareSettings(Section):
    pinning: Literal["auto", "none"] | list[Annotated[int, Field(ge=0)]] = setting(
        "auto", "CPUs that workers are pinned to: auto, none, or a list of CPUs."
    )
    num_threads: Annotated[Annotated[int, Field(ge=1, le=1024)] | Literal["auto"], Learning] = setting(
        1,
        "Torch threads of the sequential trainer; only 1 gives the same parameters as parallel training."
        " `auto`: all usable cores.",
    )
    lock_memory: bool = setting(True, "Keep shared memory in RAM if the limits allow it.")
    huge_pages: bool = setting(True, "Use huge pages if the kernel allows it.")
    buffers: Literal["memory", "file"] = setting(
        "memory", "Where rollouts are kept: memory, or file if they are larger than the memory."
    )
    buffer_directory: Name | None = setting(None, "With `buffers: file`, a directory with enough space.")


class LoggingSettings(Section):
    callbacks: list[str] = setting(
        [], "Functions as `module:function` that are called after each iteration and may stop the run."
    )
    tensorboard: bool = setting(True, "Write TensorBoard files to `logs/`.")
    trackers: list[Literal["wandb", "mlflow", "trackio"]] = setting(
        [], "Services that also receive the metrics: wandb, mlflow, trackio."
    )
    checkpoint_interval: PositiveFloat = setting(300.0, "Seconds between checkpoints.")
    checkpoint_iterations: Positive | None = setting(None, "Also save after this many iterations.")
    keep_checkpoints: Positive = setting(3, "Number of newest checkpoints to keep; the best is kept as well.")


class EvaluationSettings(Section):
    interval: Positive | None = setting(
        None, "Iterations between evaluations; none: no evaluation.", shown="none; with plr: 10"
    )
    chooses_best: bool = setting(
        False,
        "The checkpoint `best` has the highest mean return of an evaluation (unseen levels, if any) instead of"
        " the highest mean training return. Needs `interval`.",
        shown="false; with plr: true",
    )
    num_episodes: Annotated[int, Field(ge=1, le=1_000_000)] = setting(
        32, "Episodes on each set of levels (training and unseen)."
    )
    deterministic: bool = setting(False, "Take the most likely action instead of sampling.")
    max_steps: Annotated[int, Field(ge=1, le=MAX_EPISODE_STEPS)] = setting(
        100_000, "Longest episode; longer ones are cut and counted."
    )


class ClusterSettings(Section):
    nnodes: Processes = setting(
        1,
        "Number of nodes, at most one per slice. Taken from torchrun, SLURM or Open MPI if they started the"
        " process.",
    )
    num_workers: Processes | Literal["auto"] | None = setting(
        None, "Another name for `parallel.num_workers`, the workers of each node."
    )
    distributed_backend: Literal["gloo"] = setting("gloo", "gloo is the only one.")
    reduction: Annotated[Literal["tree", "gloo"], Learning] = setting(
        "tree",
        "How nodes add gradients: tree (bit-identical for any number of nodes) or gloo (faster, but the last"
        " bits depend on the number of nodes, and `summary.json` has `bit_exact: false`).",
    )
    master_addr: Name = setting("127.0.0.1", "Address of node 0, which listens on this address only.")
    master_port: Annotated[int, Field(ge=1, le=65535)] = setting(29500, "Port of node 0.")
    interface: Name | None = setting(
        None, "Network interface.", shown="`GLOO_SOCKET_IFNAME`, else the one that leads to node 0"
    )
    timeout: Timeout = setting(
        120.0,
        "Seconds without a message after which a node counts as lost (exit code 6). Must be longer than one"
        " collection phase.",
    )
    join_timeout: Timeout = setting(300.0, "Seconds to wait for all nodes at the start (exit code 6).")
    allow_different_nodes: bool = setting(
        False,
        "Continue if nodes have different libraries, kernels or instruction sets, with `bit_exact: false`.",
    )


class Settings(Section):
    env: EnvSettings = EnvSettings()
    training: TrainingSettings = TrainingSettings()
    curiosity: CuriositySettings = CuriositySettings()
    recurrence: RecurrenceSettings = RecurrenceSettings()
    parallel: Annotated[ParallelSettings, NotLearning] = ParallelSettings()
    hardware: Annotated[HardwareSettings, NotLearning] = HardwareSettings()
    logging: Annotated[LoggingSettings, NotLearning] = LoggingSettings()
    evaluation: Annotated[EvaluationSettings, NotLearning] = EvaluationSettings()
    cluster: Annotated[ClusterSettings, NotLearning] = ClusterSettings()

    @cached_property
    def sizes(self) -> Sizes:
        return derive_sizes(self)

    def changed(self, section: str, **values: Any) -> Settings:
        copy = self.model_copy(update={section: getattr(self, section).model_copy(update=values)})
        copy.__dict__.pop("sizes", None)  # the copy contains cached values
        return copy


def derive_sizes(settings: Settings) -> Sizes:
    env, training, curiosity = settings.env, settings.training, settings.curiosity
    in_turn = ALGORITHM_KINDS[training.algorithm].in_turn
    slice_envs = env.slice_envs or (1 if in_turn else _default_slice(env, training))
    if training.num_actors is not None:
        slice_envs = max(1, env.num_envs // training.num_actors)
    num_slices, total = env.num_envs // slice_envs, env.num_envs * training.n_steps
    samples = training.batch_size // num_slices
    length, most = _sequence_length(settings), training.lane_samples or _default_microbatch(settings, samples)
    sequences = samples // length
    count = min(-(-sequences // max(most // length, 1)), MAX_MICROBATCHES)  # `rules.py` refuses more
    microbatches = tuple(
        length * (sequences // count + (index < sequences % count)) for index in range(count)
    )
    return Sizes(
        num_steps=training.n_steps,
        num_envs=env.num_envs,
        slice_envs=slice_envs,
        num_slices=num_slices,
        num_epochs=training.n_epochs,
        num_minibatches=total // training.batch_size,
        batch_size=training.batch_size,
        slice_samples=samples,
        microbatch_sizes=microbatches,
        steps_per_iteration=total,
        lag=training.lag,
        num_actors=num_slices if in_turn else 0,
        predictor_samples=(
            predictor_samples(microbatches, curiosity.update_share) if curiosity.is_curious else ()
        ),
        sequence_length=length,
    )


def _sequence_length(settings: Settings) -> int:
    recurrence, steps = settings.recurrence, settings.training.n_steps
    if not recurrence.is_recurrent:
        return 1
    longest = max(n for n in range(1, min(LONGEST_SEQUENCE, steps) + 1) if steps % n == 0)
    return recurrence.sequence_length or longest


def _default_microbatch(settings: Settings, samples: int) -> int:
    most = _kind(settings.training.policy).default_microbatch
    if most is not None and settings.recurrence.is_recurrent:
        return RECURRENT_MICROBATCH
    return most or samples


def _default_slice(env: EnvSettings, training: TrainingSettings) -> int:
    """The network's default, if that many slices can share a minibatch evenly."""
    chosen = largest_slice(env.num_envs, _kind(training.policy).default_slice)
    if training.batch_size % (env.num_envs // chosen):
        return largest_slice(env.num_envs)
    return chosen


def _kind(policy: str) -> NetworkKind:
    """Counts `auto` as a network for images; it is resolved before anything is collected."""
    return network_kind("impala" if policy == "auto" else policy)
