"""Do two versions of the project learn the same bits?

Each case is run by the other version with 2 workers, and by this one with 2 workers; some also in other
ways: in one process, with 1 or 3 workers, on two nodes, and resumed from a checkpoint of the other version.
All must agree in `policy_sha256`, `state_sha256`, the columns of metrics.jsonl that are about learning, and
episodes.jsonl. A column that only this version has is no difference.

The other version is a commit of this repository or a folder with a checkout. What it learned is kept in
--cache, by its content, so that the next comparison runs this version only. Cases that differ do not end
the run. Exit code 1 if any differs.
"""

import argparse
import contextlib
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import parallel_ppo.venv  # noqa: E402, F401
from parallel_ppo.arguments import Parser, guarded, number_from  # noqa: E402
from parallel_ppo.settings.kinds import AUGMENTATION_KINDS  # noqa: E402

EXAMPLE = "tools/same_bits.py --before HEAD~1 --only curiosity"
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "parallel_ppo" / "same_bits"
PATIENCE = 900.0  # seconds for one training
# Columns that may differ between equal runs: neither version's own list, so that no version decides what
# is compared.
TIMING = frozenset([
    "fps", "fps_mean", "rollout_fps", "t_iter", "t_rollout", "t_learn", "t_sync", "t_sync_wait",
    "t_sync_transfer", "slowest_node", "nodes", "t_coordinator", "t_eval", "wall_time",
    "cpu_percent", "cpu_wait_percent", "cpu_steal_percent", "rss_mb", "num_workers", "world_size",
    "idle_share", "idle_collect", "idle_collect_worst", "idle_update", "idle_update_worst",
    "idle_workers", "share_collect", "share_gradients", "share_reduce", "share_exchange",
    "share_coordinator",
])  # fmt: skip

TWO, ONE, THREE = "2 workers", "1 worker", "3 workers"
SEQUENTIAL, NODES, RESUMED = "sequential", "2 nodes", "resumed"


class Case(NamedTuple):
    arguments: tuple[str, ...]
    ways: tuple[str, ...] = ()  # of running it in this version, besides that of the other version
    needs: str | None = None  # a module of an optional extra
    reference: str = TWO  # how the other version runs it


def flags(**values: Any) -> tuple[str, ...]:
    """`training__lag=3` becomes `--set training.lag=3`."""
    return tuple(
        word for key, value in values.items() for word in ("--set", f"{key.replace('__', '.')}={value}")
    )


def at(steps: int) -> tuple[str, ...]:
    return ("--total-timesteps", str(steps))


SHAPE = ("--num-envs", "16", "--n-steps", "16", "--batch-size", "64", "--n-epochs", "2", "--seed", "7",
         *flags(logging__tensorboard="false"))  # fmt: skip
WHOLE_BATCH = ("--n-epochs", "1", "--batch-size", "256")
TORCH, NATIVE = flags(training__kernels="torch"), flags(training__kernels="native")
NORMALIZED = flags(training__normalize_observations="true")


def case(*arguments: str, ways: tuple[str, ...] = (), steps: int = 1024, **more: Any) -> Case:
    return Case((*SHAPE, *arguments, *at(steps)), ways, **more)


def env(name: str) -> tuple[str, ...]:
    return ("--env", name)


def procgen(game: str, policy: str = "nature") -> tuple[str, ...]:
    return (*env(game), "--policy", policy)


CARTPOLE, PENDULUM, LANDER = env("CartPole-v1"), env("Pendulum-v1"), env("LunarLander-v3")
SMALL_FRAMES = env("benchmarks.peers.frames:SmallFrames-v0")


def sample(name: str) -> tuple[str, ...]:
    return env(f"tests.envs.sample_envs:{name}-v0")


def algorithm(name: str, *more: str) -> tuple[str, ...]:
    return ("--algorithm", name, *more)


def curious(kind: str, **values: Any) -> tuple[str, ...]:
    """A slice's samples of a minibatch are cut so that some microbatches train the predictors and one does in part."""
    small = {
        "curiosity__warmup_steps": 100,
        "curiosity__hidden_size": 16,
        "curiosity__update_share": 0.4,
        "training__lane_samples": 4,
    }
    return ("--curiosity", kind, *flags(**(small | values)))


NETWORKS = {
    "coinrun IMPALA native": case(*procgen("coinrun", "impala"), *NATIVE, ways=(SEQUENTIAL,), steps=512),
    "coinrun IMPALA torch": case(*procgen("coinrun", "impala"), *TORCH, steps=512),
    "coinrun Nature native": case(*procgen("coinrun"), *NATIVE, ways=(RESUMED,)),
    "coinrun Nature torch": case(*procgen("coinrun"), *TORCH, ways=(THREE,)),
    "starpilot Impoola native": case(*procgen("starpilot", "impoola"), *NATIVE, ways=(NODES,), steps=512),
    "starpilot Impoola torch": case(*procgen("starpilot", "impoola"), *TORCH, steps=512),
    "width 0.5": case(*procgen("coinrun", "impala"), *flags(training__width=0.5), steps=512),
    "small images native": case(*SMALL_FRAMES, *NATIVE, ways=(SEQUENTIAL, RESUMED)),
    "small images torch": case(*SMALL_FRAMES, *TORCH),
    "CartPole torch": case(*CARTPOLE, *TORCH, ways=(NODES,), steps=5120),
    "CartPole native": case(*CARTPOLE, *NATIVE, ways=(SEQUENTIAL, ONE, THREE, NODES, RESUMED), steps=5120),
    "slices of 8": case(*CARTPOLE, *flags(env__slice_envs=8), ways=(THREE,)),
    "three small layers": case(*CARTPOLE, *flags(training__hidden_sizes="[24, 17, 9]"), ways=(ONE,)),
    "over four million parameters": case(
        *CARTPOLE, *flags(training__hidden_sizes="[1500, 1500]"), "--n-epochs", "1", ways=(NODES,), steps=512
    ),
    "a network of one's own": case(
        *CARTPOLE, "--policy", "tests.policies.own_networks:Fine", ways=(SEQUENTIAL,)
    ),
}
ENVIRONMENTS = {
    "Pendulum torch": case(*PENDULUM, *NORMALIZED, *TORCH, ways=(NODES,)),
    "Pendulum native": case(*PENDULUM, *NORMALIZED, *NATIVE, ways=(RESUMED,)),
    "a Dict with images": case(*sample("Camera"), "--policy", "impala", *NORMALIZED, ways=(SEQUENTIAL,)),
    "a state saved by itself": case(*sample("Walker"), *NORMALIZED, ways=(RESUMED, THREE)),
    "a state saved by replay": case(*sample("ReplayedWalker"), ways=(RESUMED,)),
    "fresh objects": case(
        *sample("Peculiar"), *flags(env__kwargs="{habit: differs when reused}"), ways=(RESUMED,)
    ),
    "action masks": case(*sample("Masked"), ways=(SEQUENTIAL,)),
    "action masks of a tuple": case(*sample("Masked"), *flags(env__kwargs="{says: tuple}"), ways=(RESUMED,)),
    "truncated episodes": case(*sample("Chain"), ways=(ONE,)),
    "exploration levels": case(*procgen("maze"), *flags(env__distribution_mode="exploration")),
    "sequential levels": case(
        *procgen("coinrun"), *flags(env__use_sequential_levels="true", env__num_levels=3), ways=(RESUMED,)
    ),
    "LunarLander torch": case(*LANDER, *TORCH, needs="Box2D"),
    "LunarLander native": case(*LANDER, *NATIVE, ways=(RESUMED,), needs="Box2D"),
    "BipedalWalker": case(*env("BipedalWalker-v3"), *NORMALIZED, needs="Box2D"),
    "Reacher": case(*env("Reacher-v5"), *NORMALIZED, ways=(RESUMED,), needs="mujoco"),
    "MiniGrid": case(
        *env("minigrid:MiniGrid-Empty-5x5-v0"),
        *flags(env__wrappers="[minigrid.wrappers:ImgObsWrapper]"),
        needs="minigrid",
    ),
}
A3C = ("--n-epochs", "1", "--batch-size", "256", *flags(training__num_actors=4))
ALGORITHMS = {
    "a2c": case(*CARTPOLE, *algorithm("a2c", *WHOLE_BATCH), *NORMALIZED, ways=(SEQUENTIAL, RESUMED)),
    "a2c on images": case(*SMALL_FRAMES, *algorithm("a2c", *WHOLE_BATCH), ways=(NODES,)),
    "a2c with Adam": case(
        *CARTPOLE, *algorithm("a2c", *WHOLE_BATCH), *flags(training__optimizer="adam"), ways=(THREE,)
    ),
    "a3c": case(*CARTPOLE, *algorithm("a3c", *A3C), *NORMALIZED, ways=(NODES, RESUMED)),
    "a3c on images": case(*SMALL_FRAMES, *algorithm("a3c", *A3C), ways=(SEQUENTIAL,)),
    "impala": case(*CARTPOLE, *algorithm("impala", *WHOLE_BATCH), *NORMALIZED, ways=(SEQUENTIAL, NODES)),
    "impala on images": case(*procgen("coinrun"), *algorithm("impala", *WHOLE_BATCH), ways=(RESUMED,)),
    "impala with RMSprop": case(
        *SMALL_FRAMES, *algorithm("impala", *WHOLE_BATCH), *flags(training__optimizer="rmsprop_tf")
    ),
    "appo": case(*CARTPOLE, *algorithm("appo"), *NORMALIZED, ways=(THREE, NODES)),
    "appo on images": case(*procgen("starpilot"), *algorithm("appo"), ways=(RESUMED,)),
    "lag 1": case(*CARTPOLE, *flags(training__lag=1), ways=(SEQUENTIAL, RESUMED)),
    "lag 3 on images": case(*SMALL_FRAMES, *flags(training__lag=3), ways=(NODES, ONE)),
    "PPO with RMSprop": case(*CARTPOLE, *flags(training__optimizer="rmsprop"), ways=(RESUMED,)),
    "PPO with TensorFlow's RMSprop": case(
        *CARTPOLE, *flags(training__optimizer="rmsprop_tf"), ways=(SEQUENTIAL, NODES)
    ),
    "Adam's epsilon": case(*CARTPOLE, *flags(training__adam_eps=1e-3)),
    "target_kl": case(*CARTPOLE, *flags(training__target_kl=0.001), ways=(SEQUENTIAL, NODES)),
    "target_kl torch": case(*CARTPOLE, *flags(training__target_kl=0.001), *TORCH, ways=(RESUMED,)),
    "schedules": case(
        *CARTPOLE,
        *flags(
            training__learning_rate_schedule="linear",
            training__clip_range_schedule="linear",
            training__schedule_steps=2048,
        ),
        ways=(RESUMED,),
    ),
    "clipped rewards": case(
        *PENDULUM, *flags(training__normalize_rewards="false", training__clip_rewards=0.5), ways=(THREE,)
    ),
    "nothing normalized": case(
        *PENDULUM, *flags(training__normalize_rewards="false", training__normalize_advantages="false")
    ),
    "unclipped values, no entropy": case(
        *CARTPOLE, *flags(training__clip_value_loss="false", training__entropy_coef=0.0)
    ),
    "small microbatches": case(*CARTPOLE, *flags(training__lane_samples=5), ways=(THREE, NODES)),
    "live evaluation": case(
        *CARTPOLE, *flags(evaluation__interval=512, evaluation__num_episodes=4), ways=(SEQUENTIAL,)
    ),
    "gloo's own sum": case(*CARTPOLE, *flags(cluster__reduction="gloo"), ways=(), reference=NODES),
}
CAR = env("MountainCar-v0")
CURIOSITY = {
    "curiosity rnd": case(*CAR, *curious("rnd"), ways=(SEQUENTIAL, NODES, RESUMED)),
    "curiosity rnd as a reward": case(*CAR, *curious("rnd", curiosity__combine="reward"), ways=(THREE,)),
    "curiosity rnd on images": case(*procgen("coinrun"), *curious("rnd"), ways=(RESUMED,), steps=512),
    "curiosity rnd with a2c": case(*CAR, *algorithm("a2c", *WHOLE_BATCH), *curious("rnd"), ways=(ONE,)),
    "curiosity icm": case(*CAR, *curious("icm"), ways=(NODES, RESUMED)),
    "curiosity icm as an advantage": case(
        *CAR, *curious("icm", curiosity__combine="advantage"), ways=(SEQUENTIAL,)
    ),
    "curiosity icm of continuous actions": case(*PENDULUM, *curious("icm"), ways=(THREE,)),
    "curiosity ngu": case(*CAR, *curious("ngu"), ways=(NODES, RESUMED)),
    "curiosity ngu as an advantage": case(
        *CAR, *curious("ngu", curiosity__combine="advantage"), ways=(SEQUENTIAL,)
    ),
    "curiosity ngu on small images": case(*SMALL_FRAMES, *curious("ngu"), ways=(ONE,), steps=512),
}
LEVELS = flags(env__level_sampler="plr", env__num_levels=6)


def recurrent(kind: str, **values: Any) -> tuple[str, ...]:
    small = {"recurrence__size": 32, "recurrence__sequence_length": 8}
    return ("--recurrent", kind, *flags(**(small | values)))


RECURRENT = {
    "recurrent gru": case(*CARTPOLE, *recurrent("gru"), ways=(SEQUENTIAL, ONE, THREE, NODES, RESUMED)),
    "recurrent lstm torch": case(*CARTPOLE, *recurrent("lstm"), *TORCH, ways=(SEQUENTIAL, NODES, RESUMED)),
    "recurrent lstm on images": case(
        *procgen("coinrun"), *recurrent("lstm"), ways=(NODES, RESUMED), steps=512
    ),
    "recurrent gru with two cells": case(
        *PENDULUM, *NORMALIZED, *recurrent("gru", recurrence__separate_value="true"), ways=(THREE, RESUMED)
    ),
    "recurrent a2c": case(*CARTPOLE, *algorithm("a2c", *WHOLE_BATCH), *recurrent("lstm"), ways=(SEQUENTIAL,)),
    "recurrent a3c": case(*CARTPOLE, *algorithm("a3c", *A3C), *recurrent("gru"), ways=(NODES, RESUMED)),
    "recurrent impala": case(
        *CARTPOLE, *algorithm("impala", *WHOLE_BATCH), *recurrent("gru"), ways=(SEQUENTIAL, NODES)
    ),
    "recurrent appo": case(*CARTPOLE, *algorithm("appo"), *recurrent("lstm"), ways=(THREE, RESUMED)),
    "recurrent lag 1": case(*SMALL_FRAMES, *flags(training__lag=1), *recurrent("gru"), ways=(ONE, NODES)),
    "recurrent curiosity": case(
        *CAR, *curious("rnd", training__lane_samples=8), *recurrent("gru"), ways=(THREE,)
    ),
    "recurrent PLR and DrAC": case(
        *procgen("starpilot"),
        *LEVELS,
        *flags(training__augmentation="crop"),
        *recurrent("lstm", recurrence__separate_value="true"),
        ways=(SEQUENTIAL,),
        steps=512,
    ),
    "recurrent masks": case(*sample("Masked"), *recurrent("gru"), ways=(SEQUENTIAL, RESUMED)),
    "recurrent Dict with images": case(
        *sample("Camera"), "--policy", "impala", *NORMALIZED, *recurrent("lstm"), ways=(ONE,)
    ),
    "recurrent network of one's own": case(
        *CARTPOLE, "--policy", "tests.policies.own_networks:Fine", *recurrent("gru"), ways=(NODES,)
    ),
    "recurrent truncated episodes": case(*sample("Chain"), *recurrent("lstm"), ways=(ONE, RESUMED)),
}
GENERALIZATION = {
    "PLR": case(*procgen("starpilot"), *LEVELS, ways=(SEQUENTIAL, NODES, RESUMED), steps=2048),
    "PLR with DrAC and a lag": case(
        *procgen("starpilot", "impoola"),
        *LEVELS,
        *flags(training__augmentation="crop", training__lag=1),
        ways=(RESUMED,),
        steps=512,
    ),
    **{
        f"DrAC {name}": case(
            *SMALL_FRAMES,
            *flags(training__augmentation=name),
            ways=((RESUMED,), (THREE,), (NODES,), (SEQUENTIAL,))[index % 4],
            steps=512,
        )
        for index, name in enumerate(AUGMENTATION_KINDS)
    },
}
CASES: dict[str, Case] = NETWORKS | ENVIRONMENTS | ALGORITHMS | CURIOSITY | GENERALIZATION | RECURRENT


class Learned(NamedTuple):
    policy: str
    state: str
    columns: list[dict[str, Any]]
    episodes: list[dict[str, Any]]


def learned(directory: Path) -> Learned:
    summary = json.loads((directory / "summary.json").read_text())
    return Learned(
        summary["policy_sha256"],
        summary["state_sha256"],
        [
            {name: value for name, value in record.items() if name not in TIMING}
            for record in _records(directory / "metrics.jsonl")
        ],
        _records(directory / "episodes.jsonl"),
    )


def _records(path: Path) -> list[dict[str, Any]]:
    """NaN as text, which equals itself."""
    return [json.loads(line, parse_constant=str) for line in path.read_text().splitlines()]


def differences(was: Learned, now: Learned) -> list[str]:
    found = [name for name in ("policy", "state") if getattr(was, name) != getattr(now, name)]
    return (
        found
        + _differences("columns", was.columns, now.columns)
        + _differences("episodes", was.episodes, now.episodes)
    )


def _differences(what: str, was: list[dict[str, Any]], now: list[dict[str, Any]]) -> list[str]:
    names = {
        name
        for before, after in zip(was, now, strict=False)
        for name, value in before.items()
        if name not in after or after[name] != value
    }
    parts = [f"{len(was)} lines became {len(now)}"] if len(was) != len(now) else []
    parts += [", ".join(sorted(names))] if names else []
    return [f"{what} ({'; '.join(parts)})"] if parts else []


class Failed(Exception):
    pass


def run(tree: Path, key: Path, script: str, *arguments: str) -> None:
    """With the tree's own code in every process of the run."""
    variables = os.environ | {"PYTHONPATH": str(tree), "PARALLEL_PPO_KEY_FILE": str(key)}
    try:
        result = subprocess.run(
            [sys.executable, script, *arguments],
            cwd=tree,
            env=variables,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
    except subprocess.TimeoutExpired:
        raise Failed(f"{script} did not end in {PATIENCE:.0f} s") from None
    if result.returncode:
        lines = (result.stderr.strip() or result.stdout.strip() or "no output").splitlines()
        raise Failed(lines[-1])


class Comparison:
    def __init__(self, before: Path, cache: Path, scratch: Path) -> None:
        self.before, self.scratch, self.key = before, scratch, cache / "key"
        self.cache = cache / _fingerprint(before)
        self.cache.mkdir(parents=True, exist_ok=True)

    def verdicts(self, name: str) -> dict[str, list[str]]:
        """The differences of each way of running the case in this version."""
        chosen = CASES[name]
        was = self._reference(chosen)
        ways = (chosen.reference, *chosen.ways)
        return {way: differences(was, self._now(name, chosen, way)) for way in ways}

    def _reference(self, chosen: Case) -> Learned:
        kept = self._kept(chosen.arguments, chosen.reference)
        if not kept.exists():
            self._keep(kept, chosen.arguments, chosen.reference)
        return learned(kept)

    def _now(self, name: str, chosen: Case, way: str) -> Learned:
        folder = self.scratch / f"{name}-{way}".replace(" ", "-").replace("'", "")
        if way == RESUMED:
            total = int(chosen.arguments[-1])
            half = (*chosen.arguments[:-1], str(total // 2))
            kept = self._kept(half, TWO)
            if not kept.exists():
                self._keep(kept, half, TWO)
            shutil.copytree(kept, folder, symlinks=True)
            self._train(ROOT, folder, ("--resume", str(folder), *at(total)), TWO)
        else:
            self._train(ROOT, folder, (*chosen.arguments, "--output-dir", str(folder)), way)
        found = learned(folder)
        shutil.rmtree(folder)
        return found

    def _kept(self, arguments: tuple[str, ...], way: str) -> Path:
        return self.cache / hashlib.sha256(json.dumps([arguments, way]).encode()).hexdigest()[:20]

    def _keep(self, kept: Path, arguments: tuple[str, ...], way: str) -> None:
        """Written elsewhere and renamed: another comparison may be doing the same."""
        folder = Path(tempfile.mkdtemp(prefix=".running-", dir=self.cache))
        try:
            self._train(self.before, folder / "run", (*arguments, "--output-dir", str(folder / "run")), way)
            with contextlib.suppress(OSError):
                (folder / "run").rename(kept)
        except Failed as error:
            raise Failed(f"in the other version: {error}") from None
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _train(self, tree: Path, folder: Path, arguments: tuple[str, ...], way: str) -> None:
        if way == SEQUENTIAL:
            run(tree, self.key, "train_timed.py", *arguments, "--num-threads", "1", "--quiet")
        elif way == NODES:
            chosen = (*arguments, "--num-workers", "1", "--quiet")
            run(tree, self.key, "tools/cluster_local.py", "--nodes", "2", "--", *chosen)
        else:
            run(tree, self.key, "train_parallel_timed.py", *arguments, "--num-workers", way[0], "--quiet")


def _fingerprint(tree: Path) -> str:
    """Of everything that decides what this version learns here."""
    found = hashlib.sha256()
    for name in (platform.python_version(), _cpu_model(), *map(_version, ("torch", "numpy", "gymnasium"))):
        found.update(f"{name}\n".encode())
    files = [path for path in tree.glob("parallel_ppo/**/*") if path.suffix in (".py", ".c", ".h", ".yaml")]
    files += [*tree.glob("*.py"), *tree.glob("tests/**/*envs.py"), *tree.glob("tests/**/own_networks.py")]
    for path in sorted([*files, tree / "benchmarks/peers/frames.py", tree / "tools/cluster_local.py"]):
        found.update(str(path.relative_to(tree)).encode() + path.read_bytes())
    return found.hexdigest()[:20]


def _version(package: str) -> str:
    return importlib.metadata.version(package)


def _cpu_model() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line for line in lines if line.startswith("model name")), "")


@contextlib.contextmanager
def checkout(before: str) -> Iterator[Path]:
    if Path(before, "train_parallel_timed.py").exists():
        yield Path(before).resolve()
        return
    with tempfile.TemporaryDirectory() as folder:
        archive = subprocess.run(["git", "archive", before], cwd=ROOT, capture_output=True)
        if archive.returncode:
            print(
                f"error: --before {before}: expected a commit of this repository or a folder with a checkout",
                file=sys.stderr,
            )
            raise SystemExit(2)
        subprocess.run(["tar", "-x", "-C", folder], input=archive.stdout, check=True)
        cache = ROOT / "parallel_ppo" / "kernels" / "cache"  # keyed by content; saves compiling twice
        if cache.is_dir():
            shutil.copytree(cache, Path(folder) / "parallel_ppo" / "kernels" / "cache", dirs_exist_ok=True)
        yield Path(folder)


def report(comparison: Comparison, name: str) -> bool:
    """One line; whether all is the same."""
    try:
        verdicts = comparison.verdicts(name)
    except Failed as error:
        print(f"{name:34} FAILED: {error}", flush=True)
        return False
    bad = [f"{way}: {', '.join(found)}" for way, found in verdicts.items() if found]
    print(
        f"{name:34} {'DIFFERENT: ' + '; '.join(bad) if bad else 'same: ' + ', '.join(verdicts)}", flush=True
    )
    return not bad


def arguments_of(parser: argparse.ArgumentParser) -> argparse.Namespace:
    parser.add_argument("--before", required=True, metavar="COMMIT_OR_FOLDER", help="the other version")
    parser.add_argument("--only", metavar="WORD", default="", help="only cases whose name has this word")
    parser.add_argument(
        "--jobs", type=number_from(1, 64), default=2, help="cases at a time (default: %(default)s)"
    )
    parser.add_argument("--cache", type=Path, default=CACHE, metavar="DIR", help="default: %(default)s")
    return parser.parse_args()


def main() -> int:
    parser = Parser(description=str(__doc__), examples=[EXAMPLE], quiet=False)
    arguments = arguments_of(parser)
    wanted = [name for name in CASES if arguments.only.lower() in name.lower()]
    if not wanted:
        parser.error(f"--only {arguments.only}: no such case; there are {', '.join(CASES)}")
    names = []
    for name in wanted:
        extra = CASES[name].needs
        if extra is None or importlib.util.find_spec(extra):
            names.append(name)
        else:
            print(f"{name:34} skipped: needs {extra}")
    with (
        checkout(arguments.before) as before,
        tempfile.TemporaryDirectory() as scratch,
        ThreadPoolExecutor(arguments.jobs) as pool,
    ):
        comparison = Comparison(before, arguments.cache.resolve(), Path(scratch))
        same = sum(pool.map(lambda name: report(comparison, name), names))
    print(f"{same} of {len(names)} the same")
    return int(same < len(names))


if __name__ == "__main__":
    sys.exit(guarded(main))
