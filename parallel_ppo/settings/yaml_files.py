"""Reads untrusted YAML (bounded, without anchors, one line per error), and writes settings."""

import re
from pathlib import Path
from typing import Any

import yaml

from parallel_ppo.exits import InputError
from parallel_ppo.printable import one_line
from parallel_ppo.settings.schema import Settings
from parallel_ppo.storage.files import Damaged, read_regular

MAX_CONFIG_BYTES = 100_000
MAX_DEPTH = 50


class _Loader(yaml.SafeLoader):
    """YAML in which 5e-4 is a number (in YAML 1.1 it is text), keys are unique, and integers fit 64 bits."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        lines: dict[str, int] = {}
        for key, _ in node.value:
            line = key.start_mark.line + 1
            if isinstance(key, yaml.ScalarNode) and lines.setdefault(key.value, line) != line:
                first = lines[key.value]
                raise InputError(f"{self.name}: duplicate key {key.value[:80]!r} (lines {first} and {line})")
        return super().construct_mapping(node, deep)

    def construct_integer(self, node: yaml.ScalarNode) -> int:
        value = self.construct_yaml_int(node)
        if value.bit_length() > 64:
            raise InputError(f"{self.name}: {node.value[:20]}... is too large; expected a number below 2^63")
        return value


_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_integer)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"), list("-+0123456789.")
)


def read_yaml(path: Path) -> dict[str, Any]:
    try:
        text = read_regular(path, MAX_CONFIG_BYTES).decode("utf-8")
    except Damaged as problem:
        if not path.exists():
            raise InputError(f"{path}: no such configuration file; config/ has examples") from None
        raise InputError(f"{problem}; expected a configuration file") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: cannot be read ({error})") from None
    content = parse_value(text, str(path))
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise InputError(
            f"{path}: expected sections ({', '.join(Settings.model_fields)}), got {content!r:.80}"
        )
    return content


def parse_value(text: str, source: str) -> Any:
    """The value of untrusted YAML; an error begins with `source`."""
    if _depth(text) > MAX_DEPTH:
        raise InputError(f"{source}: nests more than {MAX_DEPTH} deep; expected sections of keys and values")
    try:
        if any(isinstance(token, (yaml.AnchorToken, yaml.AliasToken)) for token in yaml.scan(text, _Loader)):
            raise InputError(f"{source}: uses YAML anchors or aliases; write the values out")
        loader = _Loader(text)
        loader.name = source
        return loader.get_single_data()
    except InputError:
        raise
    except Exception as error:  # PyYAML raises almost any exception for odd input
        raise InputError(f"{source}: is not valid YAML ({one_line(error)})") from None


def _depth(text: str) -> int:
    """A rough depth of nesting, because PyYAML needs seconds for a few thousand levels."""
    deepest, depth = max((len(run) // 2 for run in re.findall(r"(?:[-?:] +)+", text)), default=0), 0
    for bracket in re.findall(r"[\[\]{}]", text):
        depth = depth + 1 if bracket in "[{" else max(0, depth - 1)
        deepest = max(deepest, depth)
    return deepest


def to_yaml(settings: Settings) -> str:
    """YAML that loads as the same settings."""
    return yaml.safe_dump(settings.model_dump(), sort_keys=False)
