#!/usr/bin/env bash
# The whole job of configs/nat_grpo_8xh100.yaml on one machine of 8 GPUs: preflight, plan, two vLLM servers on GPUs 4-7,
# training on GPUs 0-3, report. The servers end with the script, however the training ends; only a `kill -9` of the
# script leaves both behind. Started again it continues from the last checkpoint. Untested on GPUs.
# --rehearse: the same job in small on CPUs, in less than 15 minutes: a shipped model of 5 million weights, two training
# processes, three steps with Ctrl-C and a resume between them; exit code 0 if everything left what it should.
#   scripts/train_agenthands.sh [--dry-run] [--rehearse] [--skip-checks] [section.key=value ...]
# Environment: PYTHON (.venv/bin/python), MODEL, PORT, TRAIN_GPUS, SERVER_GPUS, SERVER_SHARE, MACHINE_MEMORY (GiB; this
# machine's, or what its control group may have), OMP_NUM_THREADS (of each training process; its share of the cores),
# START_TIMEOUT_S, STOP_TIMEOUT_S, REHEARSAL_FOLDER (a new folder for all that a rehearsal writes).
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
dry_run=false
rehearse=false
checks=true
overrides=()
for argument in "$@"; do
    case "$argument" in
        --dry-run) dry_run=true ;;
        --rehearse) rehearse=true ;;
        --skip-checks) checks=false ;;
        -h | --help)
            sed -n '2,12s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
            exit 0
            ;;
        *=*) overrides+=("$argument") ;;
        *)
            echo "error: $argument is no section.key=value and no option; see --help" >&2
            exit 2
            ;;
    esac
done

# What is the same in a rehearsal, and then all that is not: sizes, devices, numbers of processes, places of files.
python="${PYTHON:-.venv/bin/python}"
config=configs/nat_grpo_8xh100.yaml
port="${PORT:-8000}"
share="${SERVER_SHARE:-0.8}"
stop_timeout_s="${STOP_TIMEOUT_S:-60}"
start_timeout_s="${START_TIMEOUT_S:-1800}"
if [[ $rehearse == false ]]; then
    model="${MODEL:-Qwen/Qwen2.5-Coder-32B-Instruct}"
    launch=configs/accelerate/zero3_offload_optimizer_4gpu.yaml
    machine_file=configs/machines/8xh100.yaml
    max_context=32768
    train_gpus="${TRAIN_GPUS:-0,1,2,3}"
    server_gpus="${SERVER_GPUS:-4,5,6,7}"
    num_train="$(awk -F, '{ print NF }' <<< "$train_gpus")"
    num_serve="$(awk -F, '{ print NF }' <<< "$server_gpus")"
    log_folder=runs/serve_vllm
    in_small=()
    if ((num_train != 4 || num_serve % 2)); then
        echo "error: TRAIN_GPUS names $num_train GPUs and SERVER_GPUS $num_serve; expected 4, and an even number for" \
            "two servers; for other layouts see docs/planning.md" >&2
        exit 2
    fi
else
    model="${MODEL:-model/nat_minimind}"
    launch=configs/accelerate/zero3_offload_optimizer_2cpu.yaml
    machine_file=configs/machines/2cpu.yaml
    max_context=768
    train_gpus=""
    server_gpus=""
    num_train=2
    num_serve=2
    folder="${REHEARSAL_FOLDER:-runs/rehearsal_$(date +%Y%m%d_%H%M%S)_$$}"
    log_folder="$folder/servers"
    weights="/dev/shm/agent_rl_rehearsal_$$"
    in_small=("run.name=rehearsal" "run.output_dir=$folder" run.device=cpu run.timeout_s=600)
    in_small+=(data.train_path=dataset/nat_tasks/starter/train.jsonl data.eval_path=dataset/nat_tasks/starter/val.jsonl)
    in_small+=(data.max_eval_tasks=8 "policy.max_context=$max_context" policy.max_new_tokens=300)
    in_small+=("vllm.weight_folder=$weights" env.options.prompt=compact env.options.checkers=1)
    in_small+=(rollout.groups_per_step=8 rollout.max_turns=6 rollout.episode_timeout_s=300)
    in_small+=("log.trackers=[tensorboard]")  # no service hears of a rehearsal
    # In bfloat16 a rate for 60 steps changes too little in three to be seen in what is sent.
    in_small+=(train.steps=3 train.learning_rate=1.0e-4 train.micro_batch_tokens=4096 checkpoint.every=1)
    # Its processes, servers too, are known by the first, see no GPU, and share the cores of a small machine.
    export AGENT_RL_REHEARSAL="$folder" CUDA_VISIBLE_DEVICES="" OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
    export VLLM_CPU_KVCACHE_SPACE="${VLLM_CPU_KVCACHE_SPACE:-1}"
fi

if ! command -v "$python" > /dev/null; then
    echo "error: $python does not exist; run make setup, or set PYTHON" >&2
    exit 2
fi
machine_memory="${MACHINE_MEMORY:-$("$python" -c 'from agent_rl.planning.preflight import machine_memory
print(int(machine_memory() / 2**30))')}"
# DeepSpeed's Adam runs on the CPU; a launcher of several processes else gives each a single thread. Left out: cores for
# the checkers (8 a process) and for vLLM (2 a GPU), and every second hardware thread, since Adam waits for memory.
threads="${OMP_NUM_THREADS:-$((($(nproc) - 8 * num_train - 2 * num_serve) / num_train / 2))}"
threads="$((threads > 0 ? threads : 1))"
# Accelerate looks for the cores near GPU 0, 1, ... of the machine, whichever GPUs the processes were given.
affinity=0
if [[ $train_gpus == 0,1,2,3 ]]; then
    affinity=1
    if ! "$python" -c 'import importlib.util, sys; sys.exit(importlib.util.find_spec("pynvml") is None)'; then
        echo "note: training processes are not bound to the cores near their GPUs; pip install nvidia-ml-py for that" >&2
        affinity=0
    fi
fi
settings=("model.path=$model" "vllm.servers=[http://127.0.0.1:$port, http://127.0.0.1:$((port + 1))]")
settings+=(${in_small[@]+"${in_small[@]}"} ${overrides[@]+"${overrides[@]}"})
agent_rl=("$python" -m agent_rl.scripts.cli)
machine=(--config "$config" --machine "$machine_file" --set "gpus=$((num_train + num_serve))")
machine+=(--set "server_gpus=$num_serve" --set "server_share=$share" --set "memory_gib=$machine_memory")
serve=("${agent_rl[@]}" serve-vllm --model "$model" --num-servers 2 --tensor-parallel "$((num_serve / 2))")
serve+=(--devices "$server_gpus" --port "$port" --max-context "$max_context" --gpu-memory-share "$share")
serve+=(--log-dir "$log_folder")
train=(env "CUDA_VISIBLE_DEVICES=$train_gpus" "OMP_NUM_THREADS=$threads" "ACCELERATE_CPU_AFFINITY=$affinity")
train+=("$python" -m accelerate.commands.launch --config_file "$launch")
train+=(agent_rl/scripts/train_nat_agent.py --config "$config" checkpoint.resume=auto "${settings[@]}")
run_folder="$("$python" -c 'import sys
from agent_rl.config import load_config
run = load_config(sys.argv[1], sys.argv[2:]).run
print(run.output_dir / run.name)' "$config" "${settings[@]}")"

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

phase=""
# Name what comes next; a rehearsal notes how long the phase before took.
enter() {
    if [[ $dry_run == true ]]; then
        return
    fi
    if [[ $rehearse == true && -n $phase ]]; then
        printf '%s\t%d\n' "$phase" "$((SECONDS - phase_began))" >> "$folder/phases.tsv"
    fi
    phase="$1"
    phase_began="$SECONDS"
    printf '== %s\n' "$phase"
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
    local code=$?
    trap '' INT TERM
    end "$training" INT TERM KILL
    end "$servers" TERM KILL
    if [[ $rehearse == true ]]; then
        rm -rf "$weights"
    fi
    if ((code)) && [[ -n $phase ]]; then
        echo "error: the job ended in the phase \"$phase\" with exit code $code" >&2
    fi
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
                echo "error: the servers ended before they answered; see $log_folder" >&2
                exit 1
            fi
            if ((SECONDS > deadline)); then
                echo "error: no answer from port $((port + number)) in $start_timeout_s s; see $log_folder" >&2
                exit 1
            fi
            sleep 1
        done
    done
}

start_training() {
    say "${train[@]}"
    start "${train[@]}"
    training=$!
}

# Its parts are in scripts/rehearsal.py: `watch`, `weights`, `leftovers`, `summary`. A trap waits for no program here.
rehearsal() {
    "$python" scripts/rehearsal.py "$@" --folder "$folder" --run "$run_folder" --port "$port" &
    wait $!
}

if [[ $rehearse == true && $dry_run == false ]]; then
    if [[ -e $folder ]]; then
        echo "error: REHEARSAL_FOLDER $folder exists already; name a new one" >&2
        exit 2
    fi
    mkdir -p "$folder"
    rehearsal before
fi
if [[ $checks == true ]]; then
    enter preflight
    run "${agent_rl[@]}" preflight "${machine[@]}" "${settings[@]}"
    enter plan
    run "${agent_rl[@]}" plan "${machine[@]}" "${settings[@]}"
fi
if [[ $dry_run == true ]]; then
    say "${serve[@]}"
    say "${train[@]}"
    run "${agent_rl[@]}" report "$run_folder"
    exit 0
fi

enter servers
say "${serve[@]}"
start "${serve[@]}"
servers=$!
wait_for_servers

enter training
start_training
if [[ $rehearse == true ]]; then
    rehearsal watch --pid "$training" --until-step 1
    enter Ctrl-C
    end "$training" INT
    if kill -0 -- "-$training" 2> /dev/null; then
        echo "error: the training still runs $stop_timeout_s s after Ctrl-C" >&2
        exit 1
    fi
    code=0
    wait "$training" || code=$?
    rehearsal interrupted --code "$code"
    enter resume
    start_training
    rehearsal watch --pid "$training"
fi
code=0
wait "$training" || code=$?
if ((code)); then
    exit "$code"
fi

enter report
run "${agent_rl[@]}" report "$run_folder"
if [[ $rehearse == true ]]; then
    enter weights
    rehearsal weights --model "$model" --weights "$weights"
    enter stop
    end "$training" INT TERM KILL
    end "$servers" TERM KILL
    rm -rf "$weights"
    rehearsal leftovers
    enter summary
    rehearsal summary
fi
