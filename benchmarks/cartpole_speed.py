"""Steps per second on CartPole-v1 against Stable-Baselines3: the same shape, interleaved, one thread each.

8 environments x 128 steps, MLP 64 x 64, 4 epochs, 4 minibatches. Reports wall-clock and processor time: on a machine that others use
too, only the ratio of processor times means much. Stable-Baselines3 lives in a virtual environment of its own:

  python -m venv sb3 && sb3/bin/pip install torch==2.13.0 stable-baselines3
  python benchmarks/cartpole_speed.py --sb3-python sb3/bin/python --rounds 5
"""

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
STEPS = 40_960
WARM_UP = 4_096

OURS = f"""
import sys, time
sys.path.insert(0, {str(ROOT)!r})
from parallel_ppo.commands import train
from parallel_ppo.machine.placement import set_thread_variables
set_thread_variables()
from parallel_ppo.training import coordinator
marks, inner = [], coordinator.Coordinator.iterate
def iterate(self):
    marks.append((self.state.counters.env_steps, time.monotonic(), time.process_time()))
    return inner(self)
coordinator.Coordinator.iterate = iterate
code = train.train_parallel(["--env", "CartPole-v1", "--num-envs", "8", "--n-steps", "128", "--n-epochs", "4", "--batch-size", "256",
    "--total-timesteps", "{WARM_UP + STEPS}", "--quiet", "--output-dir", sys.argv[1], "--set", "training.hidden_sizes=[64, 64]"])
assert code == 0
marks.append(({WARM_UP + STEPS}, time.monotonic(), time.process_time()))
first = next(mark for mark in marks if mark[0] >= {WARM_UP})
steps, wall, cpu = (last - begin for begin, last in zip(first, marks[-1]))
print(steps / wall, steps / cpu)
"""

THEIRS = f"""
import time
import torch
torch.set_num_threads(1)
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
model = PPO("MlpPolicy", make_vec_env("CartPole-v1", n_envs=8, seed=1), n_steps=128, batch_size=256, n_epochs=4, device="cpu", seed=1,
            policy_kwargs=dict(net_arch=[64, 64]))
model.learn({WARM_UP})
wall, cpu = time.monotonic(), time.process_time()
model.learn({STEPS})
print({STEPS} / (time.monotonic() - wall), {STEPS} / (time.process_time() - cpu))
"""


def measure(python: str, program: str) -> list[float]:
    directory = tempfile.mkdtemp()
    try:
        command = [python, "-c", program, str(Path(directory, "run"))]
        result = subprocess.run(command, capture_output=True, text=True)
        if result.returncode:
            sys.exit(f"error: {python} failed: {result.stderr.strip().splitlines()[-1]}")
        return [float(word) for word in result.stdout.split()[-2:]]
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sb3-python", required=True, metavar="FILE", help="an interpreter that can import stable_baselines3")  # fmt: skip
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="default: %(default)s")
    arguments = parser.parse_args()
    rounds = []
    for number in range(arguments.rounds):
        ours, theirs = measure(sys.executable, OURS), measure(arguments.sb3_python, THEIRS)
        rounds.append([*ours, *theirs])
        print(
            f"round {number + 1}: ours {ours[0]:,.0f} steps/s ({ours[1]:,.0f} per processor second), "
            f"Stable-Baselines3 {theirs[0]:,.0f} ({theirs[1]:,.0f})",
            flush=True,
        )
    wall = statistics.median(row[0] / row[2] for row in rounds)
    cpu = statistics.median(row[1] / row[3] for row in rounds)
    print(json.dumps({"wall_ratio": round(wall, 2), "processor_ratio": round(cpu, 2), "rounds": len(rounds)}))


if __name__ == "__main__":
    main()
