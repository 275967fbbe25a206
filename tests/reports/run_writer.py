"""Writes run directories as the trainers do, in milliseconds, with timings and learning that are known
exactly."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import yaml


def write_run(
    path: Path,
    *,
    kind: str = "parallel",
    iterations: int = 12,
    workers: int = 2,
    seed: int = 1,
    env: str = "procgen:procgen-coinrun-v0",
    policy: str = "nature",
    num_envs: int = 32,
    n_steps: int = 64,
    rollout: float = 2.0,
    learn: float = 6.0,
    coordinator: float = 0.4,
    noise: float = 0.02,
    num_levels: int = 0,
    finished: bool = True,
    learning: str = "same",
    machine: str = "Test CPU",
    commit: str = "abc123",
    best_return: float = 9.0,
    episodes_each: int = 8,
    threads: int = 1,
    exchange: float = 0.0,
) -> Path:
    """`rollout` and `learn` are the seconds of one worker; `coordinator` is the part of `learn` that never
    shrinks."""
    path.mkdir(parents=True)
    steps_each = num_envs * n_steps
    generator = np.random.default_rng(seed * 1000 + workers)
    returns = np.random.default_rng(seed)
    clock, lines, episodes = 0.0, [], []
    for iteration in range(1, iterations + 1):
        slowness = 1 + noise * generator.standard_normal()
        t_rollout = rollout / workers * slowness
        t_learn = ((learn - coordinator) / workers + coordinator) * slowness + exchange
        t_iter = t_rollout + t_learn
        clock += t_iter
        steps = iteration * steps_each
        mean = best_return * (1 - np.exp(-iteration / 20))
        for env_index in range(episodes_each):
            episodes.append(
                {
                    "iteration": iteration,
                    "step": steps - 8 + env_index,
                    "env": env_index,
                    "return": round(float(mean + returns.normal()), 3),
                    "length": 100,
                }
            )
        digest = hashlib.sha256(f"{learning} {seed} {env} {policy} {iteration}".encode()).hexdigest()
        lines.append(
            {
                "iteration": iteration,
                "steps_global": steps,
                "world_size": 1,
                "num_workers": workers,
                "policy_sha256": digest,
                "fps": steps_each / t_iter,
                "fps_mean": steps / clock,
                "rollout_fps": steps_each / t_rollout,
                "t_iter": t_iter,
                "t_rollout": t_rollout,
                "t_learn": t_learn,
                "t_sync": exchange,
                "t_coordinator": coordinator * slowness,
                "loss": 0.5 / iteration,
                "policy_loss": -0.01,
                "value_loss": 1.0 / iteration,
                "entropy": 2.7 * float(np.exp(-iteration / 300)),
                "approx_kl": 0.01,
                "clip_frac": 0.1,
                "explained_variance": 0.5,
                "grad_norm": 0.4,
                "learning_rate": 5e-4,
                "episode_return_mean": float(mean) if iteration > 1 else None,
                "episode_length_mean": 100.0,
                "wall_time": clock,
                "cpu_percent": 95.0 * workers,
                "rss_mb": 300.0 + 200 * workers,
                "cpu_wait_percent": 0.0,
                "idle_share": 0.05,
                "idle_collect": 0.05,
                "idle_update": 0.05,
                "share_collect": t_rollout / t_iter,
                "share_gradients": (t_learn - exchange - coordinator * slowness) / t_iter,
                "share_reduce": 0.0,
                "share_exchange": exchange / t_iter,
                "share_coordinator": coordinator * slowness / t_iter,
            }
        )
    _write_lines(path / "metrics.jsonl", lines)
    _write_lines(path / "episodes.jsonl", episodes)
    config = {
        "env": {
            "id": env,
            "num_envs": num_envs,
            "slice_envs": None,
            "distribution_mode": "easy",
            "num_levels": num_levels,
        },
        "training": {
            "seed": seed,
            "total_timesteps": steps_each * iterations,
            "n_steps": n_steps,
            "n_epochs": 3,
            "batch_size": 512,
            "lane_samples": None,
            "policy": policy,
        },
        "parallel": {"num_workers": workers},
        "hardware": {"num_threads": 1, "pinning": "auto"},
        "logging": {},
    }
    (path / "config.yaml").write_text(yaml.safe_dump(config))
    info = {
        "version": "0.1.0",
        "git_commit": commit,
        "machine": {"cpu_model": machine, "cores": 4, "memory_gb": 16},
        "command": "train",
        "seed": seed,
        "kind": kind,
        "sessions": [{}],
    }
    (path / "run.json").write_text(json.dumps(info))
    if finished:
        summary = {
            "env_steps": steps_each * iterations,
            "iterations": iterations,
            "wall_time": clock,
            "fps_mean": steps_each * iterations / clock,
            "policy_sha256": lines[-1]["policy_sha256"],
            "final_return_mean": 1.0,
            "num_workers": workers,
            "num_threads": threads,
            "stop_reason": "total_timesteps",
            "bit_exact": True,
            "worker_restarts": 0,
            "peak_rss_mb": 320.0 + 200 * workers,
        }
        (path / "summary.json").write_text(json.dumps(summary))
    return path


def write_evaluation(path: Path, returns: dict[str, float], *, file: str | Path = "", **settings) -> None:
    """The parts of an evaluation that a suite reads."""
    run = yaml.safe_load((path / "config.yaml").read_text())
    report = {
        "policy_sha256": json.loads((path / "summary.json").read_text())["policy_sha256"],
        "env_id": run["env"]["id"],
        "seed": 0,
        "deterministic": False,
        "num_episodes": 100,
        "max_steps": 100_000,
        "levels": {part: {"return": {"mean": {"value": value}}} for part, value in returns.items()},
    }
    (Path(file) if file else path / "suite_evaluation.json").write_text(json.dumps(report | settings))


def _write_lines(path: Path, rows: list[dict]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
