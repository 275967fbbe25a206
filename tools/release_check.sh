#!/usr/bin/env bash
# Checks a release: version, changelog and README, then the wheel and the sdist in fresh environments of every Python
# found here. Each environment trains CartPole without a compiler on PATH; all must learn the same parameters.
set -euo pipefail
cd "$(dirname "$0")/.."
fail() { echo "release-check: $1" >&2; exit 1; }

version=$(venv/bin/python -c 'from parallel_ppo.version import VERSION; print(VERSION)')
grep -q "^## $version" CHANGELOG.md || fail "CHANGELOG.md has no section '## $version'"
venv/bin/pip install --quiet build twine
make --quiet dist
venv/bin/twine check --strict dist/* || fail "the metadata or the README does not render"
wheel=$(echo dist/*.whl) sdist=$(echo dist/*.tar.gz)
[ -f "$wheel" ] || fail "dist/ must hold one wheel"
[ -f "$sdist" ] || fail "dist/ must hold one sdist"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
hashes=()
check() { # NAME PYTHON PACKAGE...
  local name=$1 python=$2; shift 2
  echo "release-check: $name"
  "$python" -m venv "$work/$name"
  "$work/$name/bin/pip" install --quiet "$@"
  "$work/$name/bin/pip" check > /dev/null || fail "$name: pip check reports conflicts"
  "$work/$name/bin/pip" list 2>/dev/null | grep -qiE '^(gym|procgen|procgen-mirror) ' && fail "$name: installed Procgen or gym"
  mkdir "$work/$name-run" "$work/$name-path"
  (cd "$work/$name-run" && PATH="$work/$name-path" "$work/$name/bin/parallel-ppo" train --env CartPole-v1 --seed 3 \
    --total-timesteps 8192 --num-workers 2 --quiet --output-dir "$work/$name-run/run") || fail "$name: training failed"
  hashes+=("$(sed -n 's/.*"policy_sha256": "\([0-9a-f]*\)".*/\1/p' "$work/$name-run/run/summary.json")")
  rm -rf "${work:?}/$name"
}
for candidate in ${PYTHONS:-python3.10 python3.11 python3.12 python3.13}; do
  command -v "$candidate" > /dev/null || { echo "release-check: no $candidate here, skipped"; continue; }
  [ "$candidate" = python3.13 ] || check "$candidate-numpy1" "$candidate" "$wheel" 'numpy<2'
  check "$candidate-numpy2" "$candidate" "$wheel" 'numpy>=2'
done
check sdist venv/bin/python "$sdist"
[ "$(printf '%s\n' "${hashes[@]}" | sort -u | wc -l)" = 1 ] || fail "the environments learned different parameters: ${hashes[*]}"
echo "release-check: ${#hashes[@]} environments learned ${hashes[0]:0:16}; $(basename "$wheel") and $(basename "$sdist") are ready"
