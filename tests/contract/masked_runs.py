"""Short runs in this process, under whatever the environment masks; prints one line of JSON per run.

python tests/contract/masked_runs.py [NAME ...]
"""

import importlib.util
import json
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

SMALL = ["--num-envs", "4", "--n-steps", "16", "--batch-size", "32", "--n-epochs", "2", "--seed", "7",
         "--total-timesteps", "256", "--set", "logging.tensorboard=false"]  # fmt: skip
WHOLE_BATCH = ["--batch-size", "64", "--n-epochs", "1"]
CARTPOLE = ["--env", "CartPole-v1"]
NORMALIZED = ["--set", "training.normalize_observations=true", "--set", "training.normalize_rewards=true"]
CURIOUS = ["--env", "MountainCar-v0", "--set", "curiosity.warmup_steps=50", "--set", "curiosity.hidden_size=24",
           "--curiosity"]  # fmt: skip
COINRUN = ["--env", "coinrun", "--num-levels", "50", "--total-timesteps", "128"]
CASES = {
    "CartPole PPO": CARTPOLE,
    "CartPole A2C": [*CARTPOLE, "--algorithm", "a2c", *WHOLE_BATCH],
    "CartPole IMPALA": [*CARTPOLE, "--algorithm", "impala", *WHOLE_BATCH],
    "CartPole APPO, RMSprop": [*CARTPOLE, "--algorithm", "appo", "--set", "training.optimizer=rmsprop_tf"],
    "Acrobot": ["--env", "Acrobot-v1"],
    "CartPole GRU": [*CARTPOLE, "--recurrent", "gru", "--set", "recurrence.size=48"],
    "small image LSTM": ["--env", "tests.contract.tiny_envs:TinyImage-v0", "--recurrent", "lstm",
                         "--set", "recurrence.size=32", "--set", "recurrence.separate_value=true"],
    "Pendulum, both normalizers": ["--env", "Pendulum-v1", *NORMALIZED],
    "LunarLander": ["--env", "LunarLander-v3"],
    "six Gaussian actions": ["--env", "tests.contract.tiny_envs:SixActions-v0", *NORMALIZED],
    "masked actions": ["--env", "tests.envs.sample_envs:Masked-v0"],
    "small image": ["--env", "tests.contract.tiny_envs:TinyImage-v0"],
    "small image, DrAC": ["--env", "tests.contract.tiny_envs:TinyImage-v0", "--set", "training.augmentation=rotate"],
    "MountainCar RND": [*CURIOUS, "rnd"],
    "MountainCar ICM": [*CURIOUS, "icm"],
    "MountainCar NGU": [*CURIOUS, "ngu"],
    "coinrun Nature": [*COINRUN, "--policy", "nature"],
    "coinrun IMPALA": [*COINRUN, "--policy", "impala"],
    "coinrun Impoola": [*COINRUN, "--policy", "impoola"],
    "coinrun Nature RND": [*COINRUN, "--policy", "nature", "--curiosity", "rnd", "--set", "curiosity.warmup_steps=50"],
    "coinrun level replay": [*COINRUN, "--policy", "nature", "--set", "env.level_sampler=plr"],
}  # fmt: skip
NEEDS = {"coinrun": "procgen", "LunarLander": "Box2D"}


def can_run(name: str) -> bool:
    return importlib.util.find_spec(NEEDS.get(name.partition(" ")[0], "numpy")) is not None


def main() -> None:
    from parallel_ppo.machine.placement import set_thread_variables

    set_thread_variables()  # before torch is imported
    from parallel_ppo.commands.train import train_sequential

    for name in sys.argv[1:] or CASES:
        if not can_run(name):
            continue
        with tempfile.TemporaryDirectory() as folder:
            run = Path(folder) / "run"
            arguments = ["--num-threads", "1", "--quiet", *SMALL, *CASES[name], "--output-dir", str(run)]
            assert train_sequential(arguments) == 0, name
            summary = json.loads((run / "summary.json").read_text())
        keys = "policy_sha256", "state_sha256", "portable", "tied_to_machine"
        print(json.dumps({"name": name, **{key: summary.get(key) for key in keys}}), flush=True)


if __name__ == "__main__":
    main()
