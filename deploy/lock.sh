#!/bin/sh
# Write requirements.lock: every package that streamsched, its tests and its checks need, with hashes.
#
# The lock names no index, so it installs from whichever one pip is set up to use. Run by `make lock`.
set -eu
cd "$(dirname "$0")/.."

# Local wheels may be other files than the published ones, and so have other hashes.
unset PIP_FIND_LINKS

tools=build/lock-tools
"${PYTHON:-python3}" -m venv "$tools"
# pip-tools reaches into pip, so both are pinned together.
"$tools/bin/pip" install --quiet pip==25.3 pip-tools==7.6.2

# pip-compile does not read dependency groups yet: it gets them as a requirements file.
"$tools/bin/python" - >build/groups.in <<'PYTHON'
import tomllib

with open("pyproject.toml", "rb") as file:
    groups = tomllib.load(file)["dependency-groups"]
print(*(requirement for requirements in groups.values() for requirement in requirements), sep="\n")
PYTHON

# Pins that still fit are kept; `sh deploy/lock.sh --upgrade` takes the newest of everything.
[ ! -f requirements.lock ] || cp requirements.lock build/requirements.lock
"$tools/bin/pip-compile" "$@" --quiet --output-file=build/requirements.lock \
    --generate-hashes --allow-unsafe --strip-extras --no-header --no-annotate \
    --no-emit-options \
    pyproject.toml build/groups.in
{
    echo '# Written by `make lock` from pyproject.toml; do not edit.'
    grep -v '^#' build/requirements.lock
} >build/requirements.lock.new
mv build/requirements.lock.new requirements.lock
