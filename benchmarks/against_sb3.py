"""The scores of Stable-Baselines3's PPO and ours on the same budget, from the same settings.

Stable-Baselines3 gets every setting of the configuration that it knows, with VecNormalize for the normalisers, in a virtual environment of
its own (`pip install torch==2.13.0 stable-baselines3 gymnasium[mujoco]`). Its value loss lacks our factor 1/2, so it gets half the
coefficient. A score is the mean return of the training episodes that ended in the last tenth of the steps.

  python benchmarks/against_sb3.py --config config/halfcheetah.yaml --seeds 1 2 3 --sb3-python sb3/bin/python --output runs/halfcheetah
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]

THEIRS = """
import json, sys
import numpy as np, torch
torch.set_num_threads(1)
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecNormalize
env, training, seed = json.loads(sys.argv[1])
vector = make_vec_env(env["id"], n_envs=env["num_envs"], seed=seed)
vector = VecNormalize(vector, norm_obs=training["normalize_observations"], norm_reward=training["normalize_rewards"], gamma=training["gamma"],
                      clip_obs=training["observation_clip"], clip_reward=training["reward_clip"])
def schedule(name):
    return (lambda left: training[name] * left) if training[name + "_schedule"] == "linear" else training[name]
clip = schedule("clip_range")
model = PPO("MlpPolicy", vector, n_steps=training["n_steps"], batch_size=training["batch_size"], n_epochs=training["n_epochs"],
            learning_rate=schedule("learning_rate"), clip_range=clip, clip_range_vf=clip if training["clip_value_loss"] else None,
            gamma=training["gamma"], gae_lambda=training["gae_lambda"], ent_coef=training["entropy_coef"], vf_coef=training["value_coef"] / 2,
            max_grad_norm=training["max_grad_norm"], target_kl=training["target_kl"], seed=seed, device="cpu",
            normalize_advantage=training["normalize_advantages"], policy_kwargs=dict(net_arch=training["hidden_sizes"]))
class Episodes(BaseCallback):
    ended = []
    def _on_step(self):
        self.ended += [(self.num_timesteps, info["episode"]["r"]) for info in self.locals["infos"] if "episode" in info]
        return True
model.learn(training["total_timesteps"], callback=Episodes())
print(float(np.mean([result for step, result in Episodes.ended if step > 0.9 * model.num_timesteps])))
"""


def ours(config: Path, seed: int, directory: Path, extra: list[str]) -> float:
    command = [sys.executable, str(ROOT / "train_parallel_timed.py"), "--config", str(config), "--seed", str(seed), "--quiet", *extra]  # fmt: skip
    _run([*command, "--output-dir", str(directory)])
    episodes = [json.loads(line) for line in (directory / "episodes.jsonl").read_text().splitlines()]
    steps = json.loads((directory / "summary.json").read_text())["env_steps"]
    return statistics.fmean(episode["return"] for episode in episodes if episode["step"] > 0.9 * steps)


def theirs(python: str, config: Path, seed: int, extra: list[str]) -> float:
    command = [sys.executable, str(ROOT / "train_parallel_timed.py"), "--config", str(config), "--print-config", *extra]  # fmt: skip
    settings: dict[str, Any] = yaml.safe_load(_run(command))
    described = json.dumps([settings["env"], settings["training"], seed])
    return float(_run([python, "-c", THEIRS, described]).split()[-1])


def _run(command: list[str]) -> str:
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode:
        sys.exit(
            f"error: {Path(command[0]).name} failed: {(result.stderr.strip().splitlines() or ['?'])[-1]}"
        )
    return result.stdout


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--config", type=Path, required=True, metavar="FILE")
    parser.add_argument("--sb3-python", required=True, metavar="FILE", help="an interpreter that can import stable_baselines3")  # fmt: skip
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3], metavar="N", help="default: 1 2 3")
    parser.add_argument("--total-timesteps", type=int, metavar="N", help="another budget than the file's")
    parser.add_argument("--output", type=Path, metavar="DIR", help="keep our runs here, as seed-N (default: nowhere)")  # fmt: skip
    arguments = parser.parse_args()
    extra = ["--total-timesteps", str(arguments.total_timesteps)] if arguments.total_timesteps else []
    scores: dict[str, list[float]] = {"ours": [], "stable_baselines3": []}
    with tempfile.TemporaryDirectory() as temporary:
        for seed in arguments.seeds:
            directory = (arguments.output or Path(temporary)) / f"seed-{seed}"
            scores["ours"].append(ours(arguments.config, seed, directory, extra))
            scores["stable_baselines3"].append(theirs(arguments.sb3_python, arguments.config, seed, extra))
            print(f"seed {seed}: ours {scores['ours'][-1]:.2f}, Stable-Baselines3 {scores['stable_baselines3'][-1]:.2f}", flush=True)  # fmt: skip
    print(json.dumps({f"{name}_median": statistics.median(values) for name, values in scores.items()}))


if __name__ == "__main__":
    main()
