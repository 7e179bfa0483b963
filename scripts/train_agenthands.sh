#!/usr/bin/env bash
# The whole job of configs/nat_grpo_8xh100.yaml on one machine of 8 GPUs: preflight, plan, two vLLM servers on GPUs 4-7,
# training on GPUs 0-3. The servers end with the script, however the training ends; only a `kill -9` of the script leaves
# both behind. Started again it continues from the last checkpoint. Untested on GPUs.
#   scripts/train_agenthands.sh [--dry-run] [--skip-checks] [section.key=value ...]
# Environment: PYTHON (.venv/bin/python), MODEL, PORT, TRAIN_GPUS, SERVER_GPUS, SERVER_SHARE, MACHINE_MEMORY (GiB; this
# machine's, or what its control group may have), OMP_NUM_THREADS (of each training process; its share of the cores),
# START_TIMEOUT_S, STOP_TIMEOUT_S.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
python="${PYTHON:-.venv/bin/python}"
config=configs/nat_grpo_8xh100.yaml
launch=configs/accelerate/zero3_offload_optimizer_4gpu.yaml
model="${MODEL:-Qwen/Qwen2.5-Coder-32B-Instruct}"
port="${PORT:-8000}"
train_gpus="${TRAIN_GPUS:-0,1,2,3}"
server_gpus="${SERVER_GPUS:-4,5,6,7}"
share="${SERVER_SHARE:-0.8}"
stop_timeout_s="${STOP_TIMEOUT_S:-60}"
start_timeout_s="${START_TIMEOUT_S:-1800}"

dry_run=false
checks=true
overrides=()
for argument in "$@"; do
    case "$argument" in
        --dry-run) dry_run=true ;;
        --skip-checks) checks=false ;;
        -h | --help)
            sed -n '2,10s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
            exit 0
            ;;
        *=*) overrides+=("$argument") ;;
        *)
            echo "error: $argument is no section.key=value and no option; see --help" >&2
            exit 2
            ;;
    esac
done

count() { awk -F, '{ print NF }' <<< "$1"; }
num_train="$(count "$train_gpus")"
num_serve="$(count "$server_gpus")"
if ((num_train != 4 || num_serve % 2)); then
    echo "error: TRAIN_GPUS names $num_train GPUs and SERVER_GPUS $num_serve; expected 4, and an even number for two" \
        "servers; for other layouts see docs/planning.md" >&2
    exit 2
fi
if ! command -v "$python" > /dev/null; then
    echo "error: $python does not exist; run make setup, or set PYTHON" >&2
    exit 2
fi
machine_memory="${MACHINE_MEMORY:-$("$python" -c 'from agent_rl.planning.preflight import machine_memory
print(int(machine_memory() / 2**30))')}"
# DeepSpeed's Adam runs on the CPU; a launcher of several processes else gives each a single thread.
threads="${OMP_NUM_THREADS:-$(($(nproc) / num_train))}"
threads="$((threads > 0 ? threads : 1))"
settings=("model.path=$model" "vllm.servers=[http://127.0.0.1:$port, http://127.0.0.1:$((port + 1))]")
settings+=(${overrides[@]+"${overrides[@]}"})
agent_rl=("$python" -m agent_rl.scripts.cli)
machine=(--config "$config" --machine configs/machines/8xh100.yaml --set "gpus=$((num_train + num_serve))")
machine+=(--set "server_gpus=$num_serve" --set "server_share=$share" --set "memory_gib=$machine_memory")
serve=("${agent_rl[@]}" serve-vllm --model "$model" --num-servers 2 --tensor-parallel "$((num_serve / 2))")
serve+=(--devices "$server_gpus" --port "$port" --max-context 32768 --gpu-memory-share "$share")
train=(env "CUDA_VISIBLE_DEVICES=$train_gpus" "OMP_NUM_THREADS=$threads" "$python" -m accelerate.commands.launch --config_file "$launch")
train+=(agent_rl/scripts/train_nat_agent.py --config "$config" checkpoint.resume=auto "${settings[@]}")

say() {
    printf '+'
    printf ' %q' "$@"
    printf '\n'
}

run() {
    say "$@"
    if [[ $dry_run == false ]]; then
        "$@"
    fi
}

# Both run in process groups of their own: Ctrl-C is for the training alone, and a group can be ended whole.
servers=""
training=""
start() {
    set -m
    "$@" &
    set +m
}
# One signal after the other to a group, each with its time, until none of its processes is left.
end() {
    local group="$1" signal deadline
    shift
    for signal in "$@"; do
        if [[ -z $group ]] || ! kill "-$signal" -- "-$group" 2> /dev/null; then
            return 0
        fi
        deadline=$((SECONDS + stop_timeout_s))
        while kill -0 -- "-$group" 2> /dev/null && ((SECONDS < deadline)); do
            sleep 0.2
        done
    done
}
stop() {
    trap '' INT TERM
    end "$training" INT TERM KILL
    end "$servers" TERM KILL
}
trap stop EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

healthy() {
    "$python" -c 'import sys, urllib.request
try:  # this machine itself, never a proxy
    urllib.request.build_opener(urllib.request.ProxyHandler({})).open(sys.argv[1], timeout=5)
except OSError:
    sys.exit(1)' "http://127.0.0.1:$1/health"
}

wait_for_servers() {
    local deadline=$((SECONDS + start_timeout_s)) number
    for number in 0 1; do
        until healthy "$((port + number))"; do
            if ! kill -0 "$servers" 2> /dev/null; then
                echo "error: the servers ended before they answered; see runs/serve_vllm" >&2
                exit 1
            fi
            if ((SECONDS > deadline)); then
                echo "error: no answer from port $((port + number)) in $start_timeout_s s; see runs/serve_vllm" >&2
                exit 1
            fi
            sleep 1
        done
    done
}

if [[ $checks == true ]]; then
    run "${agent_rl[@]}" preflight "${machine[@]}" "${settings[@]}"
    run "${agent_rl[@]}" plan "${machine[@]}" "${settings[@]}"
fi

if [[ $dry_run == true ]]; then
    say "${serve[@]}"
    say "${train[@]}"
    exit 0
fi
say "${serve[@]}"
start "${serve[@]}"
servers=$!
wait_for_servers
say "${train[@]}"
start "${train[@]}"
training=$!
code=0
wait "$training" || code=$?
exit "$code"
