import itertools
from pathlib import Path

import pytest

from parallel_ppo.commands.training_flags import COMMON_FLAGS, PARALLEL_FLAGS, build_parser, settings_from
from parallel_ppo.exits import InputError
from parallel_ppo.settings.layers import load_settings
from parallel_ppo.settings.learning import (
    changed_learning_setting,
    first_difference,
    learning_settings,
    learning_values,
)
from parallel_ppo.settings.schema import Settings
from parallel_ppo.settings.yaml_files import to_yaml
from tests.conftest import ROOT, small_settings


def error(flags: dict, text: str | None = None, tmp_path: Path | None = None) -> str:
    file = None
    if text is not None:
        assert tmp_path is not None
        file = tmp_path / "settings.yaml"
        file.write_text(text)
    with pytest.raises(InputError) as caught:
        load_settings(file=file, flags=flags)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_defaults() -> None:
    settings = Settings()
    sizes = settings.sizes
    assert (sizes.num_envs, sizes.num_steps, sizes.num_epochs, sizes.batch_size) == (32, 128, 4, 1024)
    assert (sizes.slice_envs, sizes.num_slices, sizes.slice_samples, sizes.microbatch_sizes) == (
        8,
        4,
        256,
        (64,) * 4,
    )
    assert (settings.training.learning_rate, settings.training.gamma, settings.training.clip_range) == (
        5e-4,
        0.999,
        0.2,
    )


def test_file_over_defaults_and_flags_over_file(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("training: {gamma: 0.9, learning_rate: 1e-3}\n")
    settings = load_settings(file=file, flags={"training.gamma": 0.8})
    assert (settings.training.gamma, settings.training.learning_rate, settings.training.gae_lambda) == (
        0.8,
        1e-3,
        0.95,
    )


@pytest.mark.parametrize(
    ("flags", "interval", "chooses"),
    [
        ({}, 10, True),
        ({"evaluation.interval": 3}, 3, True),
        ({"evaluation.interval": None}, None, False),
        ({"evaluation.chooses_best": False}, None, False),
        ({"env.level_sampler": "uniform"}, None, False),
    ],
)
def test_evaluations_choose_the_best_checkpoint_of_plr(flags: dict, interval: int, chooses: bool) -> None:
    plr = {"env.level_sampler": "plr", "env.num_levels": 200}
    evaluation = load_settings(file=None, flags=plr | flags).evaluation
    assert (evaluation.interval, evaluation.chooses_best) == (interval, chooses)


SHIPPED = sorted(path.stem for path in (ROOT / "config").glob("*.yaml"))


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_files_load_and_print_as_themselves(name: str, tmp_path: Path) -> None:
    if name.startswith("minigrid"):
        pytest.importorskip("minigrid")
    settings = load_settings(file=ROOT / "config" / f"{name}.yaml", flags={})
    again = tmp_path / "again.yaml"
    again.write_text(to_yaml(settings))
    assert load_settings(file=again, flags={}) == settings


def test_procgen_is_shipped_with_the_published_settings() -> None:
    kinds = ("parallel", "sequential", "cpu_cluster")
    parallel, *others = [load_settings(file=ROOT / "config" / f"ppo_{kind}.yaml", flags={}) for kind in kinds]
    sizes, training = parallel.sizes, parallel.training
    assert (sizes.num_envs, sizes.num_steps, sizes.num_epochs, sizes.batch_size) == (64, 256, 3, 2048)
    assert (training.learning_rate, training.gamma, training.gae_lambda) == (5e-4, 0.999, 0.95)
    assert (training.clip_range, training.entropy_coef, training.clip_value_loss) == (0.2, 0.01, True)
    assert all((other.env, other.training) == (parallel.env, parallel.training) for other in others)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("training: {n_stepz: 5}", "training.n_stepz: unknown key; did you mean 'n_steps'?"),
        ("training: {num_envs: 5}", "it belongs in the section 'env'"),
        ("n_steps: 5", "it belongs in the section 'training'"),
        ("trainig: {n_steps: 5}", "did you mean 'training'?"),
        ("training: {n_steps: five}", "training.n_steps: got 'five'"),
        ("training: {n_steps: true}", "training.n_steps: got True"),
        ("training: {gamma: 1.5}", "training.gamma: got 1.5"),
        ("training: {gamma: .nan}", "training.gamma"),
        ("training: [1, 2]", "must have keys and values"),
        ("[1, 2]", "expected sections"),
        ("training: {n_steps: 5", "is not valid YAML"),
        ("env: {id: CartPole-v1, num_levels: 5}", "env.num_levels: is an option of Procgen"),
        ("env: {id: bigfish, distribution_mode: exploration}", "bigfish has no exploration levels, only"),
        ("env: {id: coinrun, distribution_mode: extreme}", "only chaser, dodgeball, leaper, starpilot have"),
        ("env: {distribution_mode: exploration, num_levels: 5}", "env.num_levels and env.start_level: have"),
        ("env: {id: !!timestamp foo}", "is not valid YAML"),
        ("env: {id: !!python/name:os.system x}", "is not valid YAML"),
        ("env: {kwargs: {a: 1}}", "env.kwargs: is an option of Gymnasium"),
        ("env: {fresh_objects: true}", "env.fresh_objects: is an option of Gymnasium"),
        ("env: {start_level: 2147483647, num_levels: 1}", "the last level would be 2,147,483,647"),
        ("env: {num_envs: 10, slice_envs: 4}", "does not divide 10 environments; nearest: 5"),
        ("training: {policy: mlp}", "reads vectors, but Procgen"),
        ("training: {duration: 5 minutes}", "training.duration: got '5 minutes'; expected hours such as 1.5"),
        ("env: {kwargs: &-a [x]}", "uses YAML anchors or aliases"),
        ("env: {kwargs: [*-a]}", "uses YAML anchors or aliases"),
        (
            "training:\n  gamma: 0.9\n  seed: 1\n  gamma: 0.99\n",
            "duplicate key 'gamma' (lines 2 and 4)",
        ),
        ("training: {seed: 1}\ntraining: {seed: 2}", "duplicate key 'training' (lines 1 and 2)"),
        (f"training: {{seed: 0x{'f' * 5000}}}", "is too large; expected a number below 2^63"),
    ],
)
def test_bad_files_get_one_line(text: str, expected: str, tmp_path: Path) -> None:
    assert expected in error({}, text, tmp_path)


def test_signs_of_anchors_within_text_are_allowed(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("env: {id: CartPole-v1, kwargs: {name: 'a &b *c', other: R&D}}\n")
    assert load_settings(file=file, flags={}).env.kwargs == {"name": "a &b *c", "other": "R&D"}


def test_numbers_as_people_write_them(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("training: {total_timesteps: 1e6, duration: 1h30m, learning_rate: 5e-4}\n")
    training = load_settings(file=file, flags={}).training
    assert (training.total_timesteps, training.duration, training.learning_rate) == (1_000_000, 1.5, 5e-4)


def test_one_argument_of_the_environment_keeps_the_others(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("env: {id: CartPole-v1, kwargs: {a: 1, b: 2}}\n")
    assert load_settings(file=file, flags={"env.kwargs.b": 3}).env.kwargs == {"a": 1, "b": 3}
    assert "training.gamma.x: unknown key" in error({"training.gamma.x": 1})


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nowhere\.yaml: no such configuration file"):
        load_settings(file=tmp_path / "nowhere.yaml", flags={})


def test_shapes_that_do_not_divide_show_the_arithmetic() -> None:
    line = error({"env.num_envs": 32, "training.n_steps": 256, "training.batch_size": 1000})
    assert "1000 does not divide 32 environments x 256 steps = 8192 samples (8192 / 1000 = 8.19)" in line
    assert "nearest that works: 1024" in line
    assert "4 slices of 8" in error({"env.num_envs": 32, "training.n_steps": 128, "training.batch_size": 2})


def test_envs_per_worker_is_resolved_in_its_own_layer(tmp_path: Path) -> None:
    flags = {"parallel.num_workers": 4, "parallel.num_envs_per_worker": 8}
    assert load_settings(file=None, flags=flags).env.num_envs == 32
    assert "4 workers x 8 = 32 environments, but env.num_envs is 16" in error(flags | {"env.num_envs": 16})
    assert "needs a number in parallel.num_workers" in error({"parallel.num_envs_per_worker": 8})
    assert "needs a number" in error({"parallel.num_envs_per_worker": 8, "parallel.num_workers": "auto"})
    file = tmp_path / "a.yaml"
    file.write_text("parallel: {num_workers: 2, num_envs_per_worker: 8}\n")
    higher = load_settings(file=file, flags={"env.num_envs": 64, "parallel.num_workers": 3})
    assert (higher.env.num_envs, higher.parallel.num_workers) == (64, 3)


def test_workers_and_stops_are_no_learning_settings() -> None:
    one = small_settings(parallel__num_workers=1, training__total_timesteps=100)
    two = small_settings(
        parallel__num_workers=2,
        training__total_timesteps=200,
        hardware__pinning="none",
        training__duration=1.0,
    )
    assert learning_settings(one) == learning_settings(two)
    assert changed_learning_setting(one, two) is None


def test_every_unmarked_field_of_a_learning_section_counts() -> None:
    """Forgetting a key here would let a resume or a comparison overlook it."""
    values = learning_settings(small_settings())
    for section in ("env", "training", "curiosity", "recurrence"):
        known = {key for key in values if key.startswith(f"{section}.")}
        fields = {f"{section}.{key}" for key in Settings.model_fields[section].annotation.model_fields}
        assert fields - known <= {"training.total_timesteps", "training.duration", "env.info_keys"}
    others = {
        key for key in values if key.split(".")[0] not in ("env", "training", "curiosity", "recurrence")
    }
    assert others == {"hardware.num_threads", "cluster.reduction"}


def test_plain_learning_values_have_defaults_and_unknown_keys() -> None:
    values = learning_values({"env": {"id": "evil_module:Evil-v0", "new": 1}, "logging": {"new": 2}, "x": 3})
    assert values["env.id"] == "evil_module:Evil-v0" and values["env.new"] == 1
    assert values["curiosity.kind"] == "none" and "logging.new" not in values
    assert first_difference(values, values) is None
    assert first_difference(values, values | {"curiosity.kind": "rnd"}) == "curiosity.kind"
    assert first_difference(values, values | {"env.newer": 1}) == "env.newer"


def test_a_reduction_that_gives_up_the_order_is_a_learning_setting() -> None:
    tree, gloo = small_settings(), small_settings(cluster__reduction="gloo")
    assert learning_settings(tree)["cluster.reduction"] == "tree"
    assert learning_settings(gloo)["cluster.reduction"] == "gloo"
    for saved, given in ((tree, gloo), (gloo, tree)):
        line = changed_learning_setting(saved, given)
        assert line is not None and line.startswith("cluster.reduction: is")


def test_a_changed_learning_setting_is_named() -> None:
    line = changed_learning_setting(small_settings(), small_settings(training__gamma=0.5))
    assert line is not None
    assert line.startswith("training.gamma: is 0.999")


@pytest.mark.parametrize(("envs", "slice_envs"), [(32, 8), (7, 7), (12, 6), (11, 1), (1, 1), (100, 5)])
def test_slices_are_the_largest_divisor_up_to_eight(envs: int, slice_envs: int) -> None:
    settings = load_settings(file=None, flags={"env.num_envs": envs, "training.batch_size": envs * 128})
    assert settings.sizes.slice_envs == slice_envs


@pytest.mark.parametrize(
    ("envs", "batch", "slice_envs"),
    [(8, 256, 4), (16, 256, 4), (6, 96, 3), (8, 129, 8), (16, 2, 8), (5, 5, 1)],
)
def test_slices_of_an_mlp_are_small_if_they_divide_a_minibatch(
    envs: int, batch: int, slice_envs: int
) -> None:
    settings = Settings().changed("env", num_envs=envs).changed("training", policy="mlp", batch_size=batch)
    assert settings.sizes.slice_envs == slice_envs


def test_microbatches_split_a_share_evenly() -> None:
    settings = load_settings(
        file=None, flags={"training.batch_size": 4096, "training.n_steps": 128, "training.lane_samples": 100}
    )
    assert settings.sizes.microbatch_sizes == (94, *(93,) * 10)
    assert sum(settings.sizes.microbatch_sizes) == settings.sizes.slice_samples == 1024


def test_a_changed_copy_derives_its_own_shape() -> None:
    settings = small_settings(policy="auto", training__batch_size=256)
    assert settings.sizes.microbatch_sizes == (64, 64)
    assert settings.changed("training", policy="mlp").sizes.microbatch_sizes == (64,)


WRONG = ("", "abc", "-1", "1e308", ".nan", "[0]", "{a: 1}", "2024-01-01", "!!binary aGk=", "0x" + "f" * 5000)


def test_no_value_of_any_key_is_answered_with_a_traceback(tmp_path: Path) -> None:
    """Invalid values give one short line, valid ones pass."""
    (tmp_path / "empty.yaml").write_text("")
    parser = build_parser("", COMMON_FLAGS | PARALLEL_FLAGS, ())
    base = {"CartPole-v1": ["--env", "CartPole-v1"], "file": ["--config", str(tmp_path / "empty.yaml")]}
    sections = Settings().model_dump()
    keys = [f"{section}.{key}" for section, values in sections.items() for key in values]
    for key, value in itertools.product(keys, WRONG):
        more = base["CartPole-v1" if key in ("env.id", "training.algorithm") else "file"]
        arguments = parser.parse_args([*more, "--set", f"{key}={value}"])
        try:
            settings_from(arguments, "parallel", lambda line: None)
        except InputError as error:
            assert len(str(error)) < 500 and str(error).isprintable(), (key, value[:20], str(error)[:300])
