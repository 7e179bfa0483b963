"""What a run needs, by numbers that can be worked out by hand; more GPUs and smaller batches never need more."""

from dataclasses import replace

import pytest
from fakes import save_tiny_model
from hypothesis import given, settings
from hypothesis import strategies as st
from plan_jobs import H100, LARGE, SMALL, assumed, make_config, make_job
from tiny_models import tiny_gemma4
from transformers import MambaConfig

from agent_rl.errors import CheckpointError, ConfigError
from agent_rl.planning.engines import engine_in_update, engine_items, receiving, server_tokens
from agent_rl.planning.fit import fit, total
from agent_rl.planning.layout import Layout
from agent_rl.planning.machine import GIB, Machine
from agent_rl.planning.memory import (
    Item,
    Job,
    activation_bytes,
    cast_bytes,
    checkpoint_bytes,
    layer_bytes,
    loading,
    logit_bytes,
    pass_items,
    resident,
    step_items,
    transient,
    weight_file_bytes,
    weight_sync,
)
from agent_rl.planning.shapes import read_shape, shape_of
from agent_rl.planning.time import assume, count_tokens, estimate, update_flops


def sizes(items: list[Item]) -> dict[str, float]:
    return {item.name: item.num_bytes for item in items}


def test_the_published_models_have_their_published_numbers_of_weights():
    shape = read_shape("Qwen/Qwen2.5-Coder-32B-Instruct")
    assert shape.num_weights == 32_763_876_352
    assert (shape.num_layers, shape.num_heads, shape.num_kv_heads) == (64, 40, 8)
    assert (shape.hidden_size, shape.intermediate_size, shape.vocab_size) == (5120, 27_648, 152_064)
    # Head and table: 152,064 * 5,120 each, tied in neither of the two larger models.
    assert shape.num_head_weights == shape.largest_weight == 778_567_680
    assert shape.num_matmul_weights == 64 * (2 * 5120 * 5120 + 2 * 5120 * 1024 + 3 * 5120 * 27_648)
    assert read_shape("Qwen/Qwen2.5-Coder-7B-Instruct").num_weights == 7_615_616_512
    assert read_shape("Qwen/Qwen2.5-Coder-1.5B-Instruct").num_weights == 1_543_714_304
    assert read_shape("Qwen/Qwen2.5-0.5B-Instruct").num_weights == 494_032_768


def test_keys_and_values_of_a_token_of_the_32b_model_are_a_quarter_mib():
    # 2 * 64 layers * 8 heads * 128 * 2 bytes.
    assert read_shape("Qwen/Qwen2.5-Coder-32B-Instruct").cache_bytes(2) == 262_144


def test_adapters_are_rank_times_inputs_and_outputs():
    shape = read_shape("Qwen/Qwen2.5-Coder-1.5B-Instruct")
    assert shape.num_adapter_weights(16) == 18_464_768
    assert SMALL.num_adapter_weights(4) == 4 * 120
    assert SMALL.num_adapter_weights(4, ["q_proj"]) == 160


def test_heads_that_differ_by_layer_count_as_the_largest():
    shape = shape_of(tiny_gemma4().config, "gemma")
    assert (shape.num_heads, shape.num_kv_heads, shape.head_dim) == (4, 2, 16)


def test_a_model_without_attention_is_refused():
    with pytest.raises(ConfigError, match="mamba"):
        shape_of(MambaConfig(hidden_size=32, num_hidden_layers=2, vocab_size=64), "a model")


def test_a_folder_is_read_and_other_paths_are_refused(tmp_path):
    shape = read_shape(str(save_tiny_model(tmp_path / "model")))
    assert (shape.num_layers, shape.hidden_size, shape.num_kv_heads) == (2, 32, 1)
    with pytest.raises(CheckpointError, match=r"\./nowhere/at/all"):
        read_shape("./nowhere/at/all")
    with pytest.raises(ConfigError, match=r"weights\.pth"):
        read_shape("weights.pth")


def test_resident_memory_of_one_process_is_weights_and_two_moments():
    assert sizes(resident(make_job())) == {"weights": 4000, "AdamW's moments": 8000}
    # bfloat16 without ZeRO: moments in bfloat16 too.
    assert sizes(resident(make_job(model={"dtype": "bfloat16"}))) == {"weights": 2000, "AdamW's moments": 4000}


def test_ddp_holds_buckets_as_large_as_the_gradient():
    assert sizes(resident(make_job(layout=Layout(num_processes=2))))["gradient buckets (DDP)"] == 4000


def test_zero_divides_what_its_stage_divides():
    four = {stage: make_job(layout=Layout(num_processes=4, zero_stage=stage)) for stage in (1, 2, 3)}
    assert sizes(resident(four[1])) == {
        "weights": 4000,
        "float32 weights, shard": 1000,
        "AdamW's moments, shard": 2000,
    }
    assert sizes(resident(four[2])) == sizes(resident(four[1]))
    assert sizes(resident(four[3])) == {
        "weights": 1000,
        "float32 weights, shard": 1000,
        "AdamW's moments, shard": 2000,
        "gradient, shard": 1000,
        "gradient bucket": 4000,
    }
    assert sizes(transient(four[1]))["gradient"] == 4000
    assert "gradient" not in sizes(transient(four[2]))


def test_bfloat16_under_zero_3_is_eighteen_bytes_a_weight_and_the_step_widens_a_part():
    job = make_job(LARGE, Layout(num_processes=4, zero_stage=3), model={"dtype": "bfloat16"})
    per_weight = sum(n for name, n in sizes(resident(job)).items() if name != "gradient bucket") / LARGE.num_weights
    assert per_weight == 18 / 4  # weight 2, float32 weight 4, moments 8, float32 gradient 4
    assert sizes(resident(job))["gradient bucket"] == 4 * 500_000_000
    # A shard of 2e9 is stepped in parts of 1e9, the last layer of a part whole: 4 bytes and a copy of 2.
    assert total(step_items(job)) == 6 * 1_200_000_000


def test_the_step_of_zero_2_widens_the_whole_shard():
    layout = Layout(num_processes=4, zero_stage=2)
    half = make_job(LARGE, layout, model={"dtype": "bfloat16"})
    # A shard of 2e9: the gradient twice in 2 bytes, and once in 4.
    assert total(step_items(half)) == 8 * 2_000_000_000
    assert total(step_items(make_job(LARGE, layout))) == 8 * 2_000_000_000  # float32: twice 4, nothing to widen
    assert step_items(replace(half, layout=replace(layout, offload_optimizer=True))) == []


def test_an_offloaded_optimizer_is_twenty_bytes_a_weight_of_the_machine():
    layout = Layout(num_processes=4, zero_stage=3, offload_optimizer=True)
    items = resident(make_job(LARGE, layout, model={"dtype": "bfloat16"}))
    on_host = sum(item.num_bytes for item in items if item.where == "machine")
    assert on_host == 20 * LARGE.num_weights / 4  # float32 weights 4, moments 8, the float32 gradient twice
    assert [item.name for item in items if item.where == "device"] == ["weights", "gradient bucket"]
    moved = resident(make_job(LARGE, replace(layout, offload_weights=True), model={"dtype": "bfloat16"}))
    assert [item.name for item in moved if item.where == "device"] == ["gradient bucket"]


def test_zero_3_gathers_up_to_its_limit_and_no_more_than_the_model_has():
    layout = Layout(num_processes=4, zero_stage=3, live_elements=1_000_000_000, prefetch_elements=50_000_000)
    assert sizes(transient(make_job(LARGE, layout)))["gathered weights"] == 4 * 1_250_000_000
    assert sizes(transient(make_job(SMALL, layout)))["gathered weights"] == 4 * 1000


def test_adapters_train_themselves_alone():
    half = {"model": {"dtype": "bfloat16", "lora": {"rank": 4}}, "train": {"autocast": "bfloat16"}}
    job = make_job(**half)
    assert sizes(resident(job)) == {"weights": 2000, "adapters": 4 * 480, "AdamW's moments": 8 * 480}
    assert sizes(transient(job))["gradient"] == 4 * 480
    assert checkpoint_bytes(job) == (4 * 480, 8 * 480)
    # Under ZeRO-3 they are bfloat16 shards, as the model's weights.
    shards = sizes(resident(make_job(layout=Layout(num_processes=4, zero_stage=3), **half)))
    assert (shards["weights"], shards["adapters"], shards["float32 weights, shard"]) == (500, 2 * 120, 4 * 120)


def test_weights_in_four_bits_take_half_a_byte_and_their_scales():
    # Of 1000 weights the 800 in layers: 400 bytes, 12.5 scales, 256 of which have one of 4 bytes; the rest as it was.
    four_bit = {"model": {"dtype": "bfloat16", "lora": {"rank": 4}, "load_in_4bit": True}}
    job = make_job(**four_bit, train={"autocast": "bfloat16"})
    assert sizes(resident(job))["weights"] == pytest.approx(400 + 12.5 + 4 * 12.5 / 256 + 2 * 200)
    assert sizes(resident(job))["adapters"] == 4 * 480
    # The backward pass makes one matrix of a layer whole again, 10 x 30.
    assert sizes(pass_items(job)["backward"])["a matrix in whole numbers"] == 2 * 300
    several = make_job(layout=Layout(num_processes=2), **four_bit, train={"autocast": "bfloat16"})
    assert sizes(loading(several)) == {"weights being sent to all": sizes(resident(job))["weights"]}


def test_a_kl_adds_a_reference_and_an_own_critic_doubles_the_trained_weights():
    with_kl = make_job(algorithm={"kl": {"coef": 0.1}})
    assert sizes(resident(with_kl))["reference model"] == 4000
    sharded = make_job(layout=Layout(num_processes=4, zero_stage=3), algorithm={"kl": {"coef": 0.1}})
    assert sizes(resident(sharded))["reference model"] == 1000
    assert "reference model" not in sizes(
        resident(make_job(algorithm={"kl": {"coef": 0.1}}, model={"lora": {"rank": 2}}))
    )
    critic = make_job(algorithm={"advantage": "gae"})
    assert sizes(resident(critic)) == {"weights": 8000, "AdamW's moments": 16_000}
    shared = make_job(algorithm={"advantage": "gae"}, critic={"backbone": "shared"})
    assert sizes(resident(shared)) == sizes(resident(make_job()))


def test_activations_by_hand():
    # A token of a layer in float32 on a GPU: norms 3 * 10 * 4, attention 4 * (30 + 20), gate 8 * 30.
    layer = 120 + 200 + 240
    job, again = make_job(), make_job(model={"gradient_checkpointing": True})
    assert (activation_bytes(job), layer_bytes(job)) == (16 * (2 * layer + 80), 16 * 3 * 4 * 30)
    assert (activation_bytes(again), layer_bytes(again)) == (16 * (2 * 4 * 10 + 80), 16 * (360 + layer))
    # Autocast copies a norm's output three times more than there are norms; 3 * 10 * 4, 2 * 50, 4 * 30, 3 * 20.
    cast = make_job(train={"autocast": "bfloat16"})
    assert activation_bytes(cast) == 16 * (2 * (120 + 60 + 100 + 120) + 80)
    assert cast_bytes(cast) == 2 * 800


def test_adapters_keep_their_inputs():
    lora = {"dtype": "bfloat16", "gradient_checkpointing": True, "lora": {"rank": 4}}
    job = make_job(model=lora, train={"autocast": "bfloat16"})
    # A norm 2 * 10, attention 2 * (20 + 20), gate 4 * 30; inputs of q_proj, 10, and of down_proj, 30.
    assert layer_bytes(job) == 16 * (20 + 80 + 120 + 2 * (10 + 30) + 2 * 30)
    assert cast_bytes(job) == 2 * 480


def test_processes_that_share_a_micro_batch_hold_a_part_of_it_each():
    alone = make_job(train={"micro_batch_tokens": 64})
    shared = make_job(layout=Layout(num_processes=4), train={"micro_batch_tokens": 64, "sequence_parallel": 4})
    assert (alone.tokens, shared.tokens, shared.batch_tokens) == (64, 16, 64)
    assert activation_bytes(shared) == activation_bytes(alone) / 4
    # As many passes as one process would make, each on a quarter of the tokens.
    machine = assumed(prompt_tokens=10, new_tokens=6, tool_tokens=4)
    counts = [
        count_tokens(job.config, machine, num_processes=n).num_micro_batches for job, n in ((alone, 1), (shared, 4))
    ]
    assert counts[0] == counts[1] > 1


def test_a_head_in_float32_is_a_copy_and_wider_logits():
    half = {"model": {"dtype": "bfloat16"}, "policy": {"type": "vllm"}}
    plain, wide = (
        make_job(LARGE, **half),
        make_job(LARGE, **half | {"model": half["model"] | {"head_dtype": "float32"}}),
    )
    assert sizes(pass_items(wide)["head"])["head in float32"] == 4 * LARGE.num_head_weights
    assert logit_bytes(wide) - logit_bytes(plain) == 2 * 16 * LARGE.vocab_size


def test_gradients_of_the_head_are_summed_in_a_third_place_on_a_cpu():
    half = make_job(LARGE, Layout(num_processes=4, zero_stage=3), model={"dtype": "bfloat16"})
    one_chunk = replace(half.shape, vocab_size=10)
    assert sizes(pass_items(half)["head"]).get("gradients of the head") is None  # 16 tokens are one chunk
    long = make_job(LARGE, half.layout, model={"dtype": "bfloat16"}, train={"micro_batch_tokens": 100_000})
    assert sizes(pass_items(long)["head"])["gradient of the head"] == 2 * 500_000_000
    long = replace(long, is_cpu=True)
    assert sizes(pass_items(long)["head"])["gradients of the head"] == 3 * 2 * 500_000_000
    assert sizes(pass_items(replace(long, shape=one_chunk))["head"])["gradient of the head"] == 2 * 500_000_000


def test_the_longest_sample_counts_where_it_is_longer_than_a_micro_batch():
    assert make_job(train={"micro_batch_tokens": 4}).tokens == 16
    assert make_job(train={"micro_batch_tokens": 64}).tokens == 64


def test_logits_come_in_chunks():
    # 16 tokens of 10 ids; on a GPU their gradient takes their place, on a CPU there are 4 copies in float32.
    assert logit_bytes(make_job()) == 160 * 4
    assert logit_bytes(make_job(model={"dtype": "bfloat16"})) == 160 * 2
    assert logit_bytes(make_job(LARGE, train={"micro_batch_tokens": 100_000})) == 2**28 * 4
    assert logit_bytes(make_job(algorithm={"entropy_coef": 0.1})) == 160 * 4
    assert logit_bytes(replace(make_job(), is_cpu=True)) == 160 * 16
    assert logit_bytes(replace(make_job(algorithm={"entropy_coef": 0.1}), is_cpu=True)) == 160 * 24
    full_kl = make_job(algorithm={"kl": {"coef": 0.1, "kind": "full"}})
    assert logit_bytes(full_kl) == 160 * 24


def test_weights_are_sent_in_buckets_that_hold_the_largest_tensor():
    vllm = {"type": "vllm", "max_batch_size": 2}
    assert total(weight_sync(make_job(LARGE, policy=vllm))) == 2 * 4 * 500_000_000
    assert weight_sync(make_job(LARGE)) == []
    assert weight_sync(make_job(LARGE, policy=vllm, model={"lora": {"rank": 4}})) == []


def test_the_engine_inside_a_process_has_its_cache_and_under_zero_3_whole_weights():
    batch = {"max_batch_size": 3, "max_context": 16}
    items = sizes(engine_items(make_job(policy=batch), None))
    assert items["key/value cache"] == 3 * 16 * SMALL.cache_bytes(4) == 48 * 80
    assert "whole weights for generation" not in items
    sharded = make_job(policy=batch | {"max_cached_tokens": 20}, layout=Layout(num_processes=2, zero_stage=3))
    items = sizes(engine_items(sharded, None))
    assert (items["key/value cache"], items["whole weights for generation"]) == (20 * 80, 4000)


def test_vllm_inside_a_process_takes_its_share_and_sleeps_during_updates():
    job = make_job(LARGE, policy={"type": "vllm"}, vllm={"gpu_memory_share": 0.5}, model={"dtype": "bfloat16"})
    assert total(engine_items(job, H100)) == pytest.approx(0.5 * H100.memory)
    assert engine_in_update(job, H100) == []
    awake = make_job(LARGE, policy={"type": "vllm"}, vllm={"sleep": False}, model={"dtype": "bfloat16"})
    assert engine_in_update(awake, H100) == engine_items(awake, H100)
    half = {"model": {"dtype": "bfloat16", "lora": {"rank": 4}}, "train": {"autocast": "bfloat16"}}
    adapters = make_job(LARGE, policy={"type": "vllm"}, **half)
    (asleep,) = engine_in_update(adapters, H100)
    assert (asleep.where, asleep.num_bytes) == ("machine", 2 * LARGE.num_weights)


def test_an_engine_may_sample_in_another_number_format():
    half = make_job(LARGE, policy={"type": "vllm"}, vllm={"dtype": "bfloat16", "gpu_memory_share": 0.5})
    assert (half.width, half.engine_width) == (4, 2)
    assert sizes(engine_items(half, H100))["weights of vLLM"] == 2 * LARGE.num_weights


def test_a_server_gives_what_is_left_of_its_share_to_the_cache():
    servers = {"servers": ["http://127.0.0.1:8000"]}
    layout = Layout(num_servers=1, tensor_parallel=2, server_share=0.5)
    job = make_job(LARGE, layout, policy={"type": "vllm"}, vllm=servers, model={"dtype": "bfloat16"})
    # Of each of two GPUs: half of it, less half of 16e9 bytes and the workspace; a token is 131,072 bytes on both.
    left = 0.5 * H100.memory - 8e9 - 2 * GIB
    assert server_tokens(job, H100) == int(2 * left / 131_072)
    # Two tensors of 500,000,000 and a layer of 200,000,000 on their way, in bfloat16.
    assert total(receiving(job)) == 2 * 1_200_000_000


def test_more_gpus_than_heads_hold_copies_of_them():
    job = make_job(LARGE, Layout(num_servers=1, tensor_parallel=16), model={"dtype": "bfloat16"})
    # 8 heads on 16 GPUs: what two GPUs hold is the same.
    left = 0.85 * H100.memory - 1e9 - 2 * GIB
    assert server_tokens(job, H100) == int(8 * left / 131_072)


def test_weight_files_are_counted_for_servers_that_read_them():
    servers = {"servers": ["http://127.0.0.1:8000"], "weight_folder": "/dev/shm/x"}
    policy = {"type": "vllm"}

    def in_memory(**vllm: str) -> dict[str, float]:
        layout = Layout(num_servers=1)
        job = make_job(LARGE, layout, policy=policy, vllm=servers | vllm, model={"dtype": "bfloat16"})
        machine = fit(job, H100, num_gpus=None, machine_memory=None).places[-1]
        return {name: sizes(items).get("weight files", 0.0) for name, items in machine.phases.items()}

    assert in_memory()["generation"] == 16e9
    assert in_memory()["weight sync"] == 32e9
    assert set(in_memory(weight_transfer="nccl").values()) == {0.0}
    assert set(in_memory(weight_folder="/data/x").values()) == {0.0}
    assert weight_file_bytes(make_job(LARGE, policy=policy)) == 0.0


def test_the_plan_refuses_what_the_trainer_refuses():
    for stage, sections, sentence in ((1, {}, "ZeRO stage 1"),):
        job = make_job(layout=Layout(zero_stage=stage), model={"dtype": "bfloat16"} | sections)
        with pytest.raises(ConfigError, match=sentence):
            fit(job, H100, num_gpus=None, machine_memory=None)
    vllm = {"policy": {"type": "vllm"}, "algorithm": {"correction": {"kind": "token_tis"}}}
    for sections, sentence in (
        ({"train": {"sequence_parallel": 2}}, "no multiple of it"),
        (vllm | {"rollout": {"max_staleness": 1, "async_workers": 1}}, "nothing runs at the same time"),
    ):
        with pytest.raises(ConfigError, match=sentence):
            fit(make_job(**sections), H100, num_gpus=None, machine_memory=None)
    three = make_job(layout=Layout(num_processes=3), train={"sequence_parallel": 3})
    with pytest.raises(ConfigError, match="divide evenly"):
        fit(three, H100, num_gpus=None, machine_memory=None)
    critic = make_job(layout=Layout(zero_stage=2), model={"dtype": "bfloat16"}, algorithm={"advantage": "gae"})
    with pytest.raises(ConfigError, match="critic"):
        fit(critic, H100, num_gpus=None, machine_memory=None)


def peak(job: Job) -> float:
    return fit(job, H100, num_gpus=None, machine_memory=None).places[0].need


@settings(max_examples=30, deadline=None)
@given(
    stage=st.sampled_from([0, 1, 2, 3]),
    processes=st.integers(2, 64),
    context=st.integers(16, 30_000),
    checkpointing=st.booleans(),
    offload=st.booleans(),
)
def test_more_gpus_smaller_micro_batches_and_recomputation_never_need_more(
    stage, processes, context, checkpointing, offload
):
    layout = Layout(num_processes=processes, zero_stage=stage, offload_optimizer=offload and stage > 0)
    policy = {"max_context": context, "max_batch_size": 1, "max_new_tokens": 8}
    model = {"gradient_checkpointing": checkpointing}
    job = make_job(LARGE, layout, policy=policy, model=model, train={"micro_batch_tokens": 2 * context})
    needed = peak(job)
    assert peak(replace(job, layout=replace(layout, num_processes=2 * processes))) <= needed
    smaller = make_job(LARGE, layout, policy=policy, model=model, train={"micro_batch_tokens": context})
    assert peak(smaller) <= needed
    again = make_job(
        LARGE, layout, policy=policy, model={"gradient_checkpointing": True}, train={"micro_batch_tokens": 2 * context}
    )
    assert peak(again) <= needed
    if stage in (1, 2):
        assert peak(replace(job, layout=replace(layout, offload_optimizer=True))) <= needed


@settings(max_examples=30, deadline=None)
@given(tokens=st.integers(1, 4000), groups=st.integers(1, 64), size=st.integers(1, 16), processes=st.integers(1, 16))
def test_a_step_reads_all_episodes_and_computes_no_more(tokens, groups, size, processes):
    rollout = {"group_size": size, "groups_per_step": groups}
    config = make_config(rollout=rollout, algorithm={"advantage": "reinforce_plus_plus"})
    found = count_tokens(
        config,
        assumed(prompt_tokens=tokens, new_tokens=7, tool_tokens=3),
        num_processes=processes,
    )
    assert found.read == groups * size * (tokens + 10)
    assert found.generated == groups * size * 7
    assert groups * (tokens + size * 10) <= found.computed <= found.read
    more = count_tokens(config, assumed(prompt_tokens=tokens, new_tokens=7, tool_tokens=3), num_processes=64)
    assert more.num_micro_batches <= found.num_micro_batches


def test_samples_of_a_micro_batch_share_their_prompt():
    config = make_config(rollout={"group_size": 4, "groups_per_step": 1}, train={"micro_batch_tokens": 30})
    # 10 of prompt and two continuations of 10 fill a micro-batch: the prompt is computed twice.
    found = count_tokens(config, assumed(prompt_tokens=10, new_tokens=6, tool_tokens=4), num_processes=1)
    assert (found.prompts_per_group, found.computed, found.num_micro_batches) == (2, 60, 2)


def test_an_episode_fills_five_eighths_of_the_window_by_default():
    assert assume(make_config(), Machine()) == Machine(
        prompt_tokens=4, new_tokens=4, tool_tokens=2, turns=15, link_gb_s=150
    )
    assert assume(make_config(), Machine(), num_machines=2).link_gb_s == 20
    assert assume(make_config(), Machine(link_gb_s=1), num_machines=2).link_gb_s == 1
    assert assume(make_config(), Machine(new_tokens=7)).new_tokens == 7


def servers_job(staleness: int, *, weight_transfer: str = "files", workers: int = 8) -> Job:
    correction = {"correction": {"kind": "token_tis"}} if staleness else {}
    return make_job(
        LARGE,
        Layout(num_processes=4, zero_stage=3, num_servers=2, tensor_parallel=2),
        policy={"type": "vllm", "max_context": 8192, "max_new_tokens": 2048},
        vllm={"servers": ["http://127.0.0.1:8000", "http://127.0.0.1:8001"], "weight_transfer": weight_transfer},
        model={"dtype": "bfloat16"},
        rollout={
            "max_staleness": staleness,
            "group_size": 128 if workers > 8 else 8,
            "groups_per_step": 16,
            "async_workers": workers,
        },
        algorithm=correction,
        train={"micro_batch_tokens": 8192},
    )


def test_asynchronous_steps_take_the_longer_of_both_and_synchronous_ones_the_sum():
    given = assume(servers_job(0).config, Machine())
    one_by_one, at_once = (estimate(servers_job(staleness), H100, given) for staleness in (0, 1))
    assert one_by_one.step == pytest.approx(one_by_one.generation + one_by_one.update + one_by_one.sync)
    assert at_once.step == max(at_once.generation, at_once.update + at_once.sync) < one_by_one.step


def test_updating_takes_the_operations_by_the_share_of_the_peak():
    job = make_job(LARGE, policy={"max_context": 8192}, train={"micro_batch_tokens": 8192})
    given = assumed(prompt_tokens=1000, new_tokens=1000, tool_tokens=0, mfu=0.5)
    times = estimate(job, H100, given)
    assert times.update == times.update_flops / (0.5 * 67e12)  # float32
    # 3 groups of 3,000 tokens with shared prompts, 6 operations a weight, the head for 2,000 rows; attention is little.
    products = 3 * (6 * 7e9 * 3000 + 6 * 5e8 * 2000)
    assert products < times.update_flops < 1.05 * products
    again = make_job(
        LARGE, policy={"max_context": 8192}, model={"gradient_checkpointing": True}, train={"micro_batch_tokens": 8192}
    )
    assert estimate(again, H100, given).update == pytest.approx(times.update * 4 / 3)
    half = make_job(LARGE, policy={"max_context": 8192}, train={"micro_batch_tokens": 8192, "autocast": "bfloat16"})
    assert estimate(half, H100, given).update == pytest.approx(times.update * 67 / 989)


def test_generating_one_episode_is_bound_by_reading_the_weights():
    policy = {"max_context": 8192, "max_batch_size": 1}
    job = make_job(LARGE, policy=policy, model={"dtype": "bfloat16"}, rollout={"group_size": 2, "groups_per_step": 1})
    given = assumed(prompt_tokens=1, new_tokens=1000, tool_tokens=0, hbm=0.5)
    times = estimate(job, H100, given)
    # 2,000 tokens one after the other, each reads 16e9 bytes at half of 3.35e12 a second; caches are little.
    assert times.slots == 1
    assert times.generation == pytest.approx(2000 * 16e9 / (0.5 * 3.35e12), rel=0.02)


def test_sending_weights_goes_at_the_stated_rate():
    given = assume(servers_job(0).config, Machine(sync_gb_s=8, files_gb_s=4, link_gb_s=1e6))
    nccl = servers_job(0, weight_transfer="nccl")
    assert estimate(nccl, H100, given).sync == pytest.approx(2.0, rel=0.001)  # 16e9 bytes
    assert estimate(servers_job(0), H100, given).sync == pytest.approx(8.0, rel=0.001)  # written, then read


def test_more_episodes_than_a_cache_holds_read_their_context_again():
    def seconds(workers: int, turns: float) -> float:
        job = servers_job(0, workers=workers)
        held = server_tokens(job, H100) // 4096
        assert 60 < held < 400  # of 4,096 tokens each
        given = assumed(prompt_tokens=2048, new_tokens=1024, tool_tokens=1024, turns=turns)
        return estimate(job, H100, given).generation

    assert seconds(8, 1) == seconds(8, 9)
    # 4 * 400 workers on 2 servers; of the 800 episodes of each only some are held.
    again = seconds(400, 9) - seconds(400, 1)
    held = server_tokens(servers_job(0), H100) / 4096
    read = 16 * 128 * 8 * 3072 * (1 - held / 800)
    assert again == pytest.approx(2 * 7e9 * read / (4 * 989e12 * 0.35))


def test_samples_are_scored_before_the_update_for_a_correction_of_several_updates_or_a_critic():
    def passes(**sections: dict) -> float:
        job = make_job(LARGE, **sections)
        given = assumed(prompt_tokens=4, new_tokens=4, tool_tokens=2)
        one = update_flops(make_job(LARGE), given, count_tokens(job.config, given, num_processes=1))
        return update_flops(job, given, count_tokens(job.config, given, num_processes=1)) / one

    correction, twice = {"correction": {"kind": "token_tis"}}, {"epochs": 2}
    assert passes(algorithm=correction) == pytest.approx(1)
    assert passes(train=twice) == pytest.approx(2)
    assert passes(algorithm=correction, train=twice) == pytest.approx(2 + 1 / 3)
    assert passes(algorithm={"advantage": "gae"}) == pytest.approx(2 + 1 / 3)
    assert passes(algorithm={"advantage": "gae"}, critic={"backbone": "shared"}) == pytest.approx(1 + 1 / 3)
