#!/usr/bin/env bash
# A run on a Slurm cluster: vLLM servers on the first nodes of the job, training on the others through Accelerate. When
# one of the two ends, so does the other; submitted again, the run continues from its last checkpoint. A template: adapt
# the lines of #SBATCH to your cluster. Tested with a fake srun on one machine, never on Slurm or GPUs.
#   sbatch --nodes=4 scripts/slurm/train_grpo.sh [section.key=value ...]       (in the project's root)
# The project, its interpreters, the model and runs/ are on a file system that all nodes see.
# Environment: PYTHON (.venv/bin/python), CONFIG, LAUNCH (of configs/accelerate/), SCRIPT, MODEL, SERVER_NODES (1),
# GPUS_PER_NODE, TENSOR_PARALLEL (GPUs of one server), MAX_CONTEXT, ROUTER (address of a router in front of the servers),
# PORT (of a node's first server), MASTER_PORT, AGENT_RL_VLLM_KEY (made for the job when there is none).
#SBATCH --job-name=agent-rl
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --exclusive
#SBATCH --time=24:00:00
#SBATCH --signal=B:TERM@120
#SBATCH --output=slurm-%x-%j.log
set -euo pipefail

cd "${SLURM_SUBMIT_DIR:?submit this with sbatch, in the root of the project}"
python="${PYTHON:-.venv/bin/python}"
config="${CONFIG:-configs/nat_grpo_8xh100.yaml}"
launch="${LAUNCH:-configs/accelerate/zero3_8gpu_2nodes.yaml}"
script="${SCRIPT:-agent_rl/scripts/train_nat_agent.py}"
model="${MODEL:-Qwen/Qwen2.5-Coder-32B-Instruct}"
server_nodes="${SERVER_NODES:-1}"
gpus="${GPUS_PER_NODE:-8}"
tensor_parallel="${TENSOR_PARALLEL:-2}"
max_context="${MAX_CONTEXT:-32768}"
port="${PORT:-8000}"
master_port="${MASTER_PORT:-29500}"
export LOGS="runs/slurm_$SLURM_JOB_ID"

mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
train_nodes=$((${#nodes[@]} - server_nodes))
servers_per_node=$((gpus / tensor_parallel))
if ((train_nodes < 1 || server_nodes < 1 || servers_per_node < 1)); then
    echo "error: ${#nodes[@]} nodes of $gpus GPUs with SERVER_NODES=$server_nodes and TENSOR_PARALLEL=$tensor_parallel:" \
        "expected at least one node to serve, one to train, and the GPUs of one server on a node" >&2
    exit 2
fi
join() {
    local IFS=,
    echo "$*"
}
serving="$(join "${nodes[@]:0:server_nodes}")"
training="$(join "${nodes[@]:server_nodes}")"
addresses=()
for node in "${nodes[@]:0:server_nodes}"; do
    for ((number = 0; number < servers_per_node; number++)); do
        addresses+=("http://$node:$((port + number))")
    done
done
# Whoever reaches a server without a key can change its weights and run code in it.
export AGENT_RL_VLLM_KEY="${AGENT_RL_VLLM_KEY:-$("$python" -c 'import secrets; print(secrets.token_hex(32))')}"

settings=("model.path=$model" "policy.max_context=$max_context" "vllm.servers=[$(join "${addresses[@]}")]")
settings+=("vllm.weight_folder=null" "run.name=slurm" "checkpoint.resume=auto") # weights in the run's folder: shared
if [[ -n ${ROUTER:-} ]]; then
    settings+=("vllm.router=$ROUTER")
fi
settings+=("$@")
serve=(-m agent_rl.scripts.cli serve-vllm --model "$model" --num-servers "$servers_per_node")
serve+=(--tensor-parallel "$tensor_parallel" --host 0.0.0.0 --port "$port" --max-context "$max_context")
train=(--config_file "$launch" --num_machines "$train_nodes" --num_processes "$((train_nodes * gpus))")
train+=(--main_process_ip "${nodes[server_nodes]}" --main_process_port "$master_port")
train+=("$script" --config "$config" "${settings[@]}")

step() { # NODES LIST COMMAND...: one task on each of these nodes
    local count="$1" list="$2"
    shift 2
    srun --nodes="$count" --ntasks="$count" --ntasks-per-node=1 --nodelist="$list" --kill-on-bad-exit=1 "$@" &
}

servers=""
trainer=""
stop() {
    trap '' INT TERM
    # srun passes the signal on to the tasks of its step.
    for each in $trainer $servers; do
        kill -TERM "$each" 2> /dev/null || true
    done
    wait
}
trap stop EXIT
trap 'exit 143' TERM
trap 'exit 130' INT

echo "serving on $serving: ${addresses[*]}"
# shellcheck disable=SC2016  # the number of the task is known on its node
step "$server_nodes" "$serving" bash -c 'exec "$0" "$@" --log-dir "$LOGS/servers_$SLURM_PROCID"' "$python" "${serve[@]}"
servers=$!
echo "training on $training: $train_nodes x $gpus processes"
# shellcheck disable=SC2016
step "$train_nodes" "$training" bash -c 'exec "$0" -m accelerate.commands.launch --machine_rank "$SLURM_PROCID" "$@"' \
    "$python" "${train[@]}"
trainer=$!

code=0
wait -n "$servers" "$trainer" || code=$?
if kill -0 "$trainer" 2> /dev/null; then
    echo "error: the servers ended with exit code $code before the training; see $LOGS" >&2
    exit "$((code > 0 ? code : 1))"
fi
exit "$code"
