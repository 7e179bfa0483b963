"""A Hugging Face model whose linear layers hold 4-bit weights, for adapters on top (QLoRA), by bitsandbytes.

NF4, its scales rounded to 8 bits. Every product takes the rounded weights, in the model's number format, whether it is
sampled from or trained. Head, embeddings and norms stay whole. Not here: adapters, what else a model must be.
"""

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import torch

from agent_rl.errors import ConfigError
from agent_rl.resources import install_command

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def loading_options(dtype: torch.dtype, device: torch.device) -> dict[str, Any]:
    """What Transformers' `from_pretrained` takes to round weights as it reads them. ConfigError without the package."""
    if find_spec("bitsandbytes") is None:
        raise ConfigError(f"model.load_in_4bit needs bitsandbytes; {install_command('qlora')}")
    from transformers import BitsAndBytesConfig

    rounded = BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True, bnb_4bit_compute_dtype=dtype
    )
    return {"quantization_config": rounded, "device_map": {"": device}}


def use_one_kernel(model: "PreTrainedModel") -> None:
    """Some CPUs would sample with another kernel, in bfloat16, than the one that training computes with."""
    from bitsandbytes.nn import Linear4bit

    for module in model.modules():
        if isinstance(module, Linear4bit):
            module.support_avx512bf16_for_cpu = False


def check_sharding(zero_stage: int) -> None:
    """ConfigError under DeepSpeed, which would change the format of weights, or split them."""
    if zero_stage:
        raise ConfigError(
            f"model.load_in_4bit with DeepSpeed (ZeRO-{zero_stage}): 4-bit weights are held whole by every "
            "process; launch it with configs/accelerate/ddp_8gpu.yaml or a file like it"
        )
