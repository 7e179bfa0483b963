#!/usr/bin/env bash
# Is this machine ready for a run? One line a check; exit code 1 when anything failed. The checks are in Python:
#   scripts/preflight_check.sh [--config configs/nat_grpo.yaml] [further options of agent-rl preflight]
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
python="${PYTHON:-.venv/bin/python}"
if ! command -v "$python" > /dev/null; then
    echo "failed   interpreter: $python is not there; run make setup, or set PYTHON" >&2
    exit 1
fi

has_config=false
for argument in "$@"; do
    case "$argument" in
        --config | --config=* | --help) has_config=true ;;
    esac
done
if [[ $has_config == false ]]; then
    set -- --config configs/nat_grpo.yaml "$@"
fi
exec "$python" -m agent_rl.scripts.cli preflight "$@"
