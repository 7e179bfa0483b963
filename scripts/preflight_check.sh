#!/usr/bin/env bash
# Is this machine ready for a run? One line a check; exit code 1 when anything failed. The checks are in Python:
#   scripts/preflight_check.sh [--config configs/nat_grpo.yaml] [further options of agent-rl preflight]
set -euo pipefail

caller="$PWD"
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python="${PYTHON:-.venv/bin/python}"
if ! command -v "$python" > /dev/null; then
    echo "failed   interpreter: $python does not exist; run make setup, or set PYTHON" >&2
    exit 1
fi

# A file of the folder that the script was called from comes before the project's of that name.
of_caller() {
    if [[ $1 != /* && $caller != "$PWD" && -e $caller/$1 ]]; then
        printf '%s' "$caller/$1"
    else
        printf '%s' "$1"
    fi
}

has_config=false
before=""
arguments=()
for argument in "$@"; do
    case "$argument" in
        --config | --config=* | --help) has_config=true ;;
    esac
    case "$argument" in
        --config=* | --machine=*) argument="${argument%%=*}=$(of_caller "${argument#*=}")" ;;
    esac
    case "$before" in
        --config | --machine) argument="$(of_caller "$argument")" ;;
    esac
    before="$argument"
    arguments+=("$argument")
done
if [[ $has_config == false ]]; then
    arguments=(--config configs/nat_grpo.yaml "${arguments[@]+"${arguments[@]}"}")
fi
exec "$python" -m agent_rl.scripts.cli preflight "${arguments[@]}"
