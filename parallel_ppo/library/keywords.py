"""The keywords of `parallel_ppo.train` for editors and type checkers. Written by tools/document.py."""

from collections.abc import Callable, Sequence
from typing import Any, TypedDict


class Keywords(TypedDict, total=False):
    # Environments in total
    num_envs: int
    # Environments of one slice, which are stepped and inferred as one batch
    slice_envs: int | None
    # Gymnasium: create a new environment for every episode
    fresh_objects: bool | str
    # Gymnasium: `info["action_mask"]` says which actions are allowed
    action_masks: bool | str
    # Procgen: kind of levels: easy or hard; some games also have extreme, memory or exploration
    distribution_mode: str
    # Procgen: number of training levels, 0 for all
    num_levels: int
    # Procgen: first training level
    start_level: int
    # Procgen: play the levels in order
    use_sequential_levels: bool
    # Procgen: how the next training level is chosen: uniform, or plr for prioritized level replay
    level_sampler: str
    # plr: the level of rank r has weight (1 / r)^(1 / temperature)
    plr_temperature: float
    # plr: share of the choice that favors levels not played for long
    plr_staleness: float
    # Procgen: draw backgrounds
    use_backgrounds: bool
    # Procgen: the view follows the agent
    center_agent: bool
    # Procgen: paint the velocity into the image
    paint_vel_info: bool
    # Procgen: use randomly generated images
    use_generated_assets: bool
    # Procgen: use rectangles of one color
    use_monochrome_assets: bool
    # Procgen: use one theme only
    restrict_themes: bool
    # Gymnasium: numbers in the last `info` of an episode to record, in episodes.jsonl and as `info/KEY` in metrics.jsonl
    info_keys: Sequence[Any]
    # Gymnasium: arguments of `gymnasium.make`
    kwargs: dict[str, Any]
    # Gymnasium: wrappers as `module:Class` or `{module:Class: {argument: value}}`, innermost first
    wrappers: Sequence[Any]
    # Random seed
    seed: int
    # Stop after this many environment steps (such as 1e6), rounded up to a whole iteration
    total_timesteps: int | None
    # Stop after this time, earlier sessions included: hours, or 90s, 5m, 1h30m
    duration: float | None
    # ppo, a2c, a3c, impala or appo
    algorithm: str
    # a3c: number of actors that learn in turn, each with `num_envs / num_actors` environments
    num_actors: int | None
    # ppo, impala, appo: collect with the parameters from this many updates ago, so that collection overlaps the update
    lag: int
    # Steps of each environment per iteration
    n_steps: int
    # Passes over the samples of an iteration
    n_epochs: int
    # Samples of a minibatch
    batch_size: int
    # Largest number of samples in one unit of gradient work
    lane_samples: int | None
    # Network: auto, impala, impoola, nature, small_image, mlp, or your own as module:Class
    policy: str | type
    # Start with the parameters and observation statistics of a run, a checkpoint, weights or hub:user/name
    init_from: str | None
    # Sizes of the hidden layers of the MLP
    hidden_sizes: Sequence[Any]
    # Between the hidden layers of the MLP: tanh or relu
    activation: str
    # Continuous actions: logarithm of the initial standard deviation
    initial_log_std: float
    # How weights are drawn: orthogonal, or fan_in for torch's default, which is uniform up to 1 / sqrt(inputs)
    initialization: str
    # impala and impoola: factor of the number of channels (16, 32, 32)
    width: float
    # Code that computes the network: torch, native (C, faster) or auto (native if possible)
    kernels: str
    # Step size of the optimizer
    learning_rate: float | Callable[[float], float]
    # constant, linear: decay to 0, adaptive: follow the approximate KL of each minibatch, or module:function, which returns the rate for the share of the schedule that is left (1 to 0)
    learning_rate_schedule: str
    # Adaptive schedule: the KL to hold
    adaptive_kl: float
    # Adaptive schedule: factor of a change
    adaptive_factor: float
    # Adaptive schedule: the smallest learning rate
    adaptive_min: float
    # Adaptive schedule: the largest learning rate
    adaptive_max: float
    # Environment steps over which the learning rate grows linearly from 0; schedules apply on top of it
    learning_rate_warmup: int | None
    # Limit of the change of the ratio, and of the value if `clip_value_loss` is true
    clip_range: float | Callable[[float], float]
    # constant, linear (to 0), or module:function, as for the learning rate
    clip_range_schedule: str
    # steps, or time: schedules follow the clock, and the run is not bit-exact
    schedule_by: str
    # Environment steps at which linear schedules end
    schedule_steps: int | None
    # Hours after which linear schedules by time end
    schedule_hours: float | None
    # Discount factor
    gamma: float
    # Lambda of GAE
    gae_lambda: float
    # Weight of the entropy bonus
    entropy_coef: float
    # Weight of the value loss
    value_coef: float
    # Clip the change of the value by `clip_range`
    clip_value_loss: bool
    # Largest norm of the gradient; longer ones are scaled down
    max_grad_norm: float
    # adam, adamw, rmsprop (torch's) or rmsprop_tf (TensorFlow's: epsilon inside the root, squares start at 1)
    optimizer: str
    # Epsilon of Adam and AdamW
    adam_eps: float
    # Decoupled weight decay of adamw, times the learning rate
    weight_decay: float
    # Decay of RMSprop's average of squares
    rmsprop_alpha: float
    # Epsilon of RMSprop
    rmsprop_eps: float
    # impala, appo: largest importance ratio in the corrections of the value
    vtrace_rho_clip: float
    # impala, appo: largest importance ratio that carries corrections back in time
    vtrace_c_clip: float
    # impala: largest ratio in the policy gradient
    vtrace_policy_rho_clip: float
    # End the update before the step of a minibatch whose approximate KL is larger than this
    target_kl: float | None
    # Normalize advantages over each minibatch
    normalize_advantages: bool
    # Divide rewards by the deviation of the discounted return
    normalize_rewards: bool
    # Discount factor to normalize rewards
    reward_gamma: float | None
    # Limit of normalized rewards
    reward_clip: float
    # Limit of raw rewards, such as 1
    clip_rewards: float | None
    # Vectors: normalize by the running mean and deviation, which are updated between iterations
    normalize_observations: bool
    # Limit of normalized observations
    observation_clip: float
    # Image augmentation of DrAC: none, crop, color_jitter, cutout, cutout_color, grayscale, flip, rotate or random_conv
    augmentation: str
    # Weight of DrAC's regularization loss
    augmentation_coef: float
    # Intrinsic rewards: none, rnd, icm or ngu
    kind: str
    # advantage: a second value head and advantages that do not end with an episode; reward: added to the scaled rewards of the environment
    combine: str
    # With `combine: advantage`, weight of the advantages of the environment's rewards
    extrinsic_coef: float
    # Weight of intrinsic rewards
    intrinsic_coef: float
    # Divide intrinsic rewards by the running deviation of their discounted return
    normalize: bool
    # Share of the samples of a minibatch that trains the predictors
    update_share: float
    # Steps of a random agent, over all environments, that initialize the observation statistics
    warmup_steps: int
    # Channels of one frame if images stack several frames
    frame_channels: int | None
    # Outputs of the fixed random network
    num_outputs: int | None
    # Size of the hidden layers for vectors and for images below 36 x 36
    hidden_size: int
    # Weight of the inverse model's loss
    icm_inverse_weight: float
    # Weight of the forward model's loss
    icm_forward_weight: float
    # Factor of both losses
    icm_loss_scale: float
    # Size of an embedding
    ngu_embedding: int
    # Embeddings in an episode's memory; new ones replace the oldest
    ngu_memory: int
    # Number of nearest neighbors
    ngu_neighbours: int
    # Observations closer than this count as equal (squared distance over its running mean)
    ngu_cluster_distance: float
    # Epsilon of the kernel epsilon / (distance + epsilon)
    ngu_kernel_epsilon: float
    # Constant that is added to the similarity
    ngu_constant: float
    # There is no reward above this similarity
    ngu_max_similarity: float
    # Limit of the lifelong factor
    ngu_max_modulation: float
    # Units of the cell, a multiple of 16
    size: int
    # Steps through which gradients flow back
    sequence_length: int | None
    # The value function has its own cell (and with the mlp its own layers before it)
    separate_value: bool
    # Worker processes; the parameters do not depend on them
    num_workers: int | str
    # With a number in `num_workers`: sets `env.num_envs` to the product of the two
    num_envs_per_worker: int | None
    # Stop with exit code 4 if one worker was replaced more often than this within an iteration
    max_restarts: int
    # Seconds without a response after which a worker is replaced
    hang_timeout: float | str
    # CPUs that workers are pinned to: auto, none, or a list of CPUs
    pinning: str | Sequence[Any]
    # Torch threads of the sequential trainer; only 1 gives the same parameters as parallel training
    num_threads: int | str
    # Keep shared memory in RAM if the limits allow it
    lock_memory: bool
    # Use huge pages if the kernel allows it
    huge_pages: bool
    # Where rollouts are kept: memory, or file if they are larger than the memory
    buffers: str
    # With `buffers: file`, a directory with enough space
    buffer_directory: str | None
    # Write TensorBoard files to `logs/`
    tensorboard: bool
    # Services that also receive the metrics: wandb, mlflow, trackio
    trackers: Sequence[Any]
    # Seconds between checkpoints
    checkpoint_interval: float
    # Also save after this many iterations
    checkpoint_iterations: int | None
    # Number of newest checkpoints to keep; the best is kept as well
    keep_checkpoints: int
    # Iterations between evaluations; none: no evaluation
    interval: int | None
    # The checkpoint `best` has the highest mean return of an evaluation (unseen levels, if any) instead of the highest mean training return
    chooses_best: bool
    # Episodes on each set of levels (training and unseen)
    num_episodes: int
    # Take the most likely action instead of sampling
    deterministic: bool
    # Longest episode; longer ones are cut and counted
    max_steps: int
    # Number of nodes, at most one per slice
    nnodes: int
    # gloo is the only one
    distributed_backend: str
    # How nodes add gradients: tree (bit-identical for any number of nodes) or gloo (faster, but the last bits depend on the number of nodes, and `summary.json` has `bit_exact: false`)
    reduction: str
    # Address of node 0, which listens on this address only
    master_addr: str
    # Port of node 0
    master_port: int
    # Network interface
    interface: str | None
    # Seconds without a message after which a node counts as lost (exit code 6)
    timeout: float
    # Seconds to wait for all nodes at the start (exit code 6)
    join_timeout: float
    # Continue if nodes have different libraries, kernels or instruction sets, with `bit_exact: false`
    allow_different_nodes: bool
