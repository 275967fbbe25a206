"""Each layer imports only downwards, and reports import no training code."""

import ast
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent / "parallel_ppo"

# Bottom first. A module may import from lower lines, or from its own line's left.
LAYERS = [
    "version", "exits", "files", "userkey", "faults", "signals", "requeue", "timeline", "keyed", "cgroup", "machine", "placement", "envs.names", "config", "config_layers", "nodes",
    "envs.contract", "envs.spaces", "envs.wrappers", "envs.procgen", "envs.single", "envs.gymnasium", "envs.build", "worthwhile",
    "kernels.build", "kernels.choice", "kernels.native",
    "policies.heads", "policies.impala", "policies.nature", "policies.mlp", "policies.mixed", "policies.policy", "slopes", "policies.written_heads", "policies.twin", "policies.native_network",
    "evaluation", "shared", "ppo", "flat", "normalize", "worker", "worker_process", "nursery", "pool", "member", "process_pool",
    "bottleneck", "shares", "trace",
    "state", "checkpoint", "rundirectory", "planning",
    "rendezvous", "lost", "exchange", "cluster", "update", "episodes", "budget", "metrics", "display",
    "recorder", "follower", "generalization", "coordinator", "session", "cli", "selftest",
    "weights", "video", "subject", "filming", "evaluation_report", "evaluate_command", "play_command",
    "plane",
]  # fmt: skip
REPORT_ARITHMETIC = {"reports.statistics", "reports.procgen_scores"}  # pure functions: everyone may use them


def modules() -> dict[str, Path]:
    found = {}
    for path in PACKAGE.rglob("*.py"):
        name = ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
        if path.name != "__init__.py":
            found[name] = path
    return found


def imports(path: Path) -> set[str]:
    """Names of modules of this package that are imported anywhere in the file."""
    known, found = modules(), set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        else:
            continue
        found |= {name.removeprefix("parallel_ppo.") for name in names if name.startswith("parallel_ppo.")}
    return {name for name in found if name in known}


def test_every_module_has_a_layer() -> None:
    core = {name for name in modules() if not name.startswith("reports")}
    assert core == set(LAYERS)


def test_layers_import_downwards() -> None:
    order = {name: index for index, name in enumerate(LAYERS)}
    for name, path in modules().items():
        for imported in imports(path):
            if name in order and imported != name and imported not in REPORT_ARITHMETIC:
                assert imported in order and order[imported] < order[name], f"{name} imports {imported}"


def test_reports_read_files_only() -> None:
    allowed = {"version", "exits"}
    for name, path in modules().items():
        if name.startswith("reports"):
            outside = {imported for imported in imports(path) if not imported.startswith("reports")}
            assert outside <= allowed, f"{name} imports {outside - allowed}"


def test_the_loop_fits_one_screen() -> None:
    source = (PACKAGE / "coordinator.py").read_text()
    assert len(source.splitlines()) <= 75


def test_bad_input_is_told_before_torch_is_imported() -> None:
    """Planning must stay fast: no module that it needs imports torch at the top."""
    for name in (
        "config",
        "config_layers",
        "planning",
        "cli",
        "machine",
        "placement",
        "envs.build",
        "envs.contract",
        "rundirectory",
        "nursery",
    ):
        tree = ast.parse(modules()[name].read_text())
        tops = [node for node in tree.body if isinstance(node, (ast.Import, ast.ImportFrom))]
        assert not any("torch" in ast.dump(node) for node in tops), name
