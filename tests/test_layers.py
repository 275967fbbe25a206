"""Each room imports only downwards, and reports import no training code."""

import ast
import subprocess
import sys
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent / "parallel_ppo"

# Bottom first. A room may import from the rooms above it in this list, and from itself.
ROOMS = [
    "", "storage", "settings", "machine", "envs", "kernels", "memory", "policies", "algorithms",
    "features", "workers", "cluster", "records", "training", "reports", "evaluation",
    "sharing", "commands", "library",
]  # fmt: skip


def modules() -> dict[str, Path]:
    found = {}
    for path in PACKAGE.rglob("*.py"):
        name = ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
        if path.name not in ("__init__.py", "__main__.py"):
            found[name] = path
    return found


def room(module: str) -> str:
    return module.partition(".")[0] if "." in module else ""


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


def test_every_module_is_in_a_room() -> None:
    assert {room(name) for name in modules()} == set(ROOMS)


def test_rooms_import_downwards() -> None:
    order = {name: index for index, name in enumerate(ROOMS)}
    upwards = [
        f"{name} imports {imported}"
        for name, path in modules().items()
        for imported in imports(path)
        if order[room(imported)] > order[room(name)]
    ]
    assert not upwards, upwards


def test_no_import_cycles_within_a_room() -> None:
    graph = {name: imports(path) for name, path in modules().items()}
    while graph:
        leaves = [name for name, needed in graph.items() if not needed & graph.keys() - {name}]
        assert leaves, f"a cycle among {sorted(graph)}"
        for name in leaves:
            del graph[name]


def test_reports_read_files_only() -> None:
    allowed = {
        "child",
        "version",
        "exits",
        "printable",
        "arguments",
        "storage.files",
        "storage.json_lines",
        "records.metrics",
        "settings.learning",
        "settings.schema",
        "settings.yaml_files",
    }
    for name, path in modules().items():
        if room(name) == "reports":
            outside = {imported for imported in imports(path) if room(imported) != "reports"}
            assert outside <= allowed, f"{name} imports {outside - allowed}"


def test_the_loop_fits_one_screen() -> None:
    source = (PACKAGE / "training" / "loop.py").read_text()
    assert len(source.splitlines()) <= 75


def test_bad_input_is_told_before_torch_is_imported() -> None:
    """Planning must stay fast: no module that it needs imports torch at the top."""
    for name in (
        "settings.schema",
        "settings.layers",
        "settings.rules",
        "settings.yaml_files",
        "training.planning",
        "commands.train",
        "commands.training_flags",
        "machine.resources",
        "machine.placement",
        "envs.families",
        "envs.contract",
        "storage.run_directory",
        "workers.fork_server",
    ):
        tree = ast.parse(modules()[name].read_text())
        tops = [node for node in tree.body if isinstance(node, (ast.Import, ast.ImportFrom))]
        assert not any("torch" in ast.dump(node) for node in tops), name


def test_the_training_command_imports_no_numpy() -> None:
    """Its threads are set first: a QR, which draws initial weights, rounds by their number."""
    code = "import sys, parallel_ppo.commands.train; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=PACKAGE.parent).returncode == 0


def test_reports_import_no_training_code() -> None:
    """Loading every module of the reports must not load torch, an environment or the trainers."""
    code = (
        "import sys, pkgutil, importlib, parallel_ppo.reports as reports\n"
        "for module in pkgutil.iter_modules(reports.__path__):\n"
        "    importlib.import_module(f'parallel_ppo.reports.{module.name}')\n"
        "print([name for name in ('torch', 'procgen', 'gymnasium', 'tensorboard') if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=PACKAGE.parent)
    assert result.stdout.strip() == "[]", result.stderr
