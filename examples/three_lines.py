"""Train, load, act: `python examples/three_lines.py`."""

import gymnasium

import parallel_ppo

run = parallel_ppo.train(env="CartPole-v1", seed=1, stop_when=lambda progress: progress.return_mean > 490)
policy = parallel_ppo.load(run.directory)

env, total, over = gymnasium.make("CartPole-v1"), 0.0, False
observation, _ = env.reset(seed=0)
while not over:
    observation, reward, terminated, truncated, _ = env.step(policy.act(observation, deterministic=True))
    total, over = total + float(reward), terminated or truncated
print(f"{run.summary['env_steps']:,} steps of training; one episode gave {total:.0f}")
