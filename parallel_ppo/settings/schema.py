"""All settings, and the sizes that follow from them. `layers.py` makes settings from files and flags.

Settings that change what is learned are saved, must agree between nodes, and cannot change on resume
(`learning.py`). The marks say which these are: a field without a mark is like its section.
"""

from __future__ import annotations

from functools import cached_property
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from parallel_ppo.arguments import hours
from parallel_ppo.settings.algorithms import ALGORITHM_KINDS, checked_algorithm
from parallel_ppo.settings.augmentations import checked_augmentation
from parallel_ppo.settings.curiosity import checked_curiosity, taught_samples
from parallel_ppo.settings.networks import NetworkKind, checked_policy, network_kind


def _whole(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _hours(value: Any) -> Any:
    return hours(value) if isinstance(value, str) else value


Positive = Annotated[int, BeforeValidator(_whole), Field(ge=1, le=10**18)]  # 1e6 is a whole number too
PositiveFloat = Annotated[float, Field(gt=0)]
Hours = Annotated[float, BeforeValidator(_hours), Field(gt=0)]  # 5m, 1.5h
Fraction = Annotated[float, Field(ge=0, le=1)]
AtLeastZero = Annotated[float, Field(ge=0)]


class Learning:
    """Marks a field that changes what is learned, in a section that does not."""


class NotLearning:
    """Marks a field or a section that never changes what is learned."""


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class EnvSettings(Section):
    id: str = "coinrun"
    num_envs: Annotated[int, Field(ge=1, le=65536)] = 32
    slice_envs: Positive | None = None
    fresh_objects: bool | Literal["auto"] = "auto"
    action_masks: bool | Literal["auto"] = "auto"
    distribution_mode: Literal["easy", "hard", "extreme", "memory", "exploration"] = "easy"
    num_levels: Annotated[int, Field(ge=0, le=2**31 - 1)] = 0
    start_level: Annotated[int, Field(ge=0, le=2**31 - 1)] = 0
    use_sequential_levels: bool = False
    level_sampler: Literal["uniform", "plr"] = "uniform"
    plr_temperature: PositiveFloat = 0.1
    plr_staleness: Fraction = 0.1
    use_backgrounds: bool = True
    center_agent: bool = True
    paint_vel_info: bool = False
    use_generated_assets: bool = False
    use_monochrome_assets: bool = False
    restrict_themes: bool = False
    kwargs: dict[str, Any] = {}
    wrappers: list[str | dict[str, dict[str, Any]]] = []


OTHER_OPTIONS = {"id", "num_envs", "slice_envs", "fresh_objects", "action_masks", "kwargs", "wrappers"}
LEVEL_SAMPLING = ("level_sampler", "plr_temperature", "plr_staleness")  # ours, of Procgen's levels
PROCGEN_OPTIONS = tuple(
    key for key in EnvSettings.model_fields if key not in OTHER_OPTIONS.union(LEVEL_SAMPLING)
)


class TrainingSettings(Section):
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 1
    total_timesteps: Annotated[Positive | None, NotLearning] = None
    duration: Annotated[Hours | None, NotLearning] = None
    algorithm: Annotated[str, AfterValidator(checked_algorithm)] = "ppo"
    num_actors: Positive | None = None
    lag: Annotated[int, Field(ge=0, le=16)] = 0
    n_steps: Annotated[int, Field(ge=1, le=1_000_000)] = 128
    n_epochs: Annotated[int, Field(ge=1, le=1000)] = 4
    batch_size: Positive = 1024
    lane_samples: Positive | None = None
    policy: Annotated[str, AfterValidator(checked_policy)] = "auto"
    hidden_sizes: Annotated[list[Annotated[int, Field(ge=1, le=65536)]], Field(max_length=64)] = [64, 64]
    width: Annotated[float, Field(gt=0, le=32)] = 1.0
    kernels: Literal["auto", "torch", "native"] = "auto"
    learning_rate: PositiveFloat = 5e-4
    learning_rate_schedule: Literal["constant", "linear"] = "constant"
    learning_rate_warmup: Positive | None = None
    clip_range: PositiveFloat = 0.2
    clip_range_schedule: Literal["constant", "linear"] = "constant"
    schedule_by: Literal["steps", "time"] = "steps"
    schedule_steps: Positive | None = None
    schedule_hours: Hours | None = None
    gamma: Fraction = 0.999
    gae_lambda: Fraction = 0.95
    entropy_coef: AtLeastZero = 0.01
    value_coef: AtLeastZero = 0.5
    clip_value_loss: bool = True
    max_grad_norm: PositiveFloat = 0.5
    optimizer: Literal["adam", "rmsprop", "rmsprop_tf"] = "adam"
    adam_eps: PositiveFloat = 1e-5
    rmsprop_alpha: Fraction = 0.99
    rmsprop_eps: PositiveFloat = 1e-5
    vtrace_rho_clip: PositiveFloat = 1.0
    vtrace_c_clip: PositiveFloat = 1.0
    vtrace_policy_rho_clip: PositiveFloat = 1.0
    target_kl: PositiveFloat | None = None
    normalize_advantages: bool = True
    normalize_rewards: bool = True
    reward_gamma: Fraction | None = None
    reward_clip: PositiveFloat = 10.0
    clip_rewards: PositiveFloat | None = None
    normalize_observations: bool = False
    observation_clip: PositiveFloat = 10.0
    augmentation: Annotated[str, AfterValidator(checked_augmentation)] = "none"
    augmentation_coef: AtLeastZero = 0.1


class CuriositySettings(Section):
    kind: Annotated[str, AfterValidator(checked_curiosity)] = "none"
    combine: Literal["advantage", "reward"] = "advantage"
    extrinsic_coef: AtLeastZero = 2.0
    intrinsic_coef: AtLeastZero = 1.0
    normalize: bool = True
    gamma: Fraction = 0.99
    learning_rate: PositiveFloat = 1e-4
    max_grad_norm: PositiveFloat = 0.5
    update_share: Annotated[float, Field(gt=0, le=1)] = 0.25
    warmup_steps: Annotated[int, BeforeValidator(_whole), Field(ge=1, le=10**9)] = 8192
    observation_clip: PositiveFloat = 5.0
    frame_channels: Positive | None = None
    num_outputs: Annotated[int, Field(ge=1, le=65536)] | None = None
    hidden_size: Annotated[int, Field(ge=1, le=65536)] = 128
    icm_inverse_weight: AtLeastZero = 0.8
    icm_forward_weight: AtLeastZero = 0.2
    icm_loss_scale: PositiveFloat = 10.0
    ngu_embedding: Annotated[int, Field(ge=1, le=65536)] = 32
    ngu_memory: Annotated[int, Field(ge=1, le=10**9)] = 2048
    ngu_neighbours: Positive = 10
    ngu_cluster_distance: AtLeastZero = 0.008
    ngu_kernel_epsilon: PositiveFloat = 1e-4
    ngu_constant: PositiveFloat = 0.001
    ngu_max_similarity: PositiveFloat = 8.0
    ngu_max_modulation: Annotated[float, Field(ge=1)] = 5.0

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


class ParallelSettings(Section):
    num_workers: Annotated[int, Field(ge=1, le=4096)] | Literal["auto"] = "auto"
    num_envs_per_worker: Positive | None = None
    max_restarts: Annotated[int, Field(ge=0, le=10**18)] = 10
    hang_timeout: PositiveFloat | Literal["auto"] = "auto"


class HardwareSettings(Section):
    pinning: Literal["auto", "none"] | list[Annotated[int, Field(ge=0)]] = "auto"
    num_threads: Annotated[Annotated[int, Field(ge=1, le=1024)] | Literal["auto"], Learning] = 1
    lock_memory: bool = True
    huge_pages: bool = True
    buffers: Literal["memory", "file"] = "memory"
    buffer_directory: Annotated[str, Field(min_length=1)] | None = None


class LoggingSettings(Section):
    callbacks: list[str] = []
    tensorboard: bool = True
    trackers: list[Literal["wandb", "mlflow", "trackio"]] = []
    checkpoint_interval: PositiveFloat = 300.0
    checkpoint_iterations: Positive | None = None
    keep_checkpoints: Positive = 3


class EvaluationSettings(Section):
    """Episodes during training that are only looked at; never a learning setting."""

    interval: Positive | None = None
    num_episodes: Annotated[int, Field(ge=1, le=1_000_000)] = 32
    deterministic: bool = False
    max_steps: Annotated[int, Field(ge=1, le=100_000_000)] = 100_000


class ClusterSettings(Section):
    nnodes: Annotated[int, Field(ge=1, le=4096)] = 1
    num_workers: Annotated[int, Field(ge=1, le=4096)] | Literal["auto"] | None = None
    distributed_backend: Literal["gloo"] = "gloo"
    reduction: Annotated[Literal["tree", "gloo"], Learning] = "tree"
    master_addr: Annotated[str, Field(min_length=1)] = "127.0.0.1"
    master_port: Annotated[int, Field(ge=1, le=65535)] = 29500
    interface: Annotated[str, Field(min_length=1)] | None = None
    timeout: Annotated[float, Field(ge=1, le=86400)] = 120.0
    join_timeout: Annotated[float, Field(ge=1, le=86400)] = 300.0
    allow_different_nodes: bool = False


class Settings(Section):
    """The resolved configuration of a run."""

    env: EnvSettings = EnvSettings()
    training: TrainingSettings = TrainingSettings()
    curiosity: CuriositySettings = CuriositySettings()
    parallel: Annotated[ParallelSettings, NotLearning] = ParallelSettings()
    hardware: Annotated[HardwareSettings, NotLearning] = HardwareSettings()
    logging: Annotated[LoggingSettings, NotLearning] = LoggingSettings()
    evaluation: Annotated[EvaluationSettings, NotLearning] = EvaluationSettings()
    cluster: Annotated[ClusterSettings, NotLearning] = ClusterSettings()

    @cached_property
    def shape(self) -> Shape:
        return derive_shape(self)

    def changed(self, section: str, **values: Any) -> Settings:
        copy = self.model_copy(update={section: getattr(self, section).model_copy(update=values)})
        copy.__dict__.pop("shape", None)  # a copy takes cached values along, and the shape may change
        return copy


class Shape(NamedTuple):
    """What follows from the settings alone. T steps, E envs, S slices."""

    num_steps: int
    num_envs: int
    slice_envs: int
    num_slices: int
    num_epochs: int
    num_minibatches: int
    batch_size: int
    slice_samples: int  # of one slice in one minibatch
    lane_sizes: tuple[int, ...]  # which add up to `slice_samples`
    steps_per_iteration: int
    lag: int = 0  # iterations by which collection may run ahead of the update
    num_actors: int = 0  # slices that learn with parameters of their own, in turn; 0: all learn together
    taught_samples: tuple[int, ...] = ()  # of each of a slice's lanes: they train curiosity's predictors

    @property
    def num_slabs(self) -> int:
        """Rollouts that are kept at once: the one that is learned from, and those collected ahead."""
        return self.lag + 1

    @property
    def num_slots(self) -> int:
        """Saved starts of iterations: of every rollout in the slabs, and of the one after."""
        return self.lag + 2

    @property
    def num_versions(self) -> int:
        """Older parameters that collection acts with; none where it acts with those of the update."""
        return self.num_actors or (self.lag + 1 if self.lag else 0)

    def version_row(self, slice_index: int, iteration: int) -> int:
        """Where the parameters lie that this slice collects iteration `iteration` with."""
        assert self.num_versions
        return slice_index if self.num_actors else max(0, iteration - self.lag) % self.num_versions

    @property
    def learned_together(self) -> int:
        """Samples that one gradient step is a mean over."""
        return self.batch_size // self.num_actors if self.num_actors else self.batch_size

    @property
    def num_lanes(self) -> int:
        return self.num_slices * len(self.lane_sizes)

    @property
    def teaching_lanes(self) -> int:
        """Of a slice, the first ones: those with samples that train curiosity's predictors."""
        return sum(taught > 0 for taught in self.taught_samples)

    @property
    def num_taught(self) -> int:
        """Samples of a minibatch that train curiosity's predictors."""
        return self.num_slices * sum(self.taught_samples)


DEFAULT_SLICE = 8
MAX_LANES = 1 << 16
STOP_CONDITIONS = ("total_timesteps", "duration")
# May change on resume, and are recorded then.
SCHEDULE_ENDS = ("training.schedule_steps", "training.schedule_hours")


def derive_shape(settings: Settings) -> Shape:
    env, training, curiosity = settings.env, settings.training, settings.curiosity
    in_turn = ALGORITHM_KINDS[training.algorithm].in_turn
    slice_envs = env.slice_envs or (1 if in_turn else _default_slice(env, training))
    if training.num_actors is not None:
        slice_envs = max(1, env.num_envs // training.num_actors)
    num_slices, total = env.num_envs // slice_envs, env.num_envs * training.n_steps
    samples = training.batch_size // num_slices
    lane = training.lane_samples or _kind(training.policy).default_lane or samples
    count = min(-(-samples // max(lane, 1)), MAX_LANES)  # more are refused by `_check_batch`
    lanes = tuple(samples // count + (index < samples % count) for index in range(count))
    return Shape(training.n_steps, env.num_envs, slice_envs, num_slices, training.n_epochs,
        total // training.batch_size,
                 training.batch_size, samples, lanes, total, training.lag,
                 num_slices if in_turn else 0,
                 taught_samples(lanes, curiosity.update_share) if curiosity.is_curious else ())  # fmt: skip


def _default_slice(env: EnvSettings, training: TrainingSettings) -> int:
    """The network's own, if as many slices can share a minibatch evenly."""
    chosen = largest_slice(env.num_envs, _kind(training.policy).default_slice)
    if training.batch_size % (env.num_envs // chosen):
        return largest_slice(env.num_envs)
    return chosen


def largest_slice(num_envs: int, most: int = DEFAULT_SLICE) -> int:
    return max(n for n in range(1, min(most, num_envs) + 1) if num_envs % n == 0)


def _kind(policy: str) -> NetworkKind:
    """`auto` is resolved before anything is collected; until then it counts as a network for images."""
    return network_kind("impala" if policy == "auto" else policy)
