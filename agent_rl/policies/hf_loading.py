"""Reading a Hugging Face causal LM and its tokenizer from a folder or the hub, with one-sentence errors.

The model is read whole, on the CPU, or in 4 bits, with all dropout switched off. Code that comes with a model is never
run.
Not here: adapters, engines, training.
"""

import pickle
import re
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError

from agent_rl.errors import CheckpointError, ConfigError
from agent_rl.modeling.tensor_files import models_inside
from agent_rl.policies import four_bit, hub
from agent_rl.policies.model_files.model_folder import check_model_folder
from agent_rl.policies.model_files.tokenizer_file import check_tokenizer_file
from agent_rl.policies.template_values import TemplateValue, set_template, set_template_values

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

UNREADABLE = (
    *(OSError, ValueError, SafetensorError, StrictDataclassError, pickle.UnpicklingError, zipfile.BadZipFile),
    *(ArithmeticError, AttributeError, EOFError, LookupError, RecursionError, RuntimeError, TypeError),
)
"""What Transformers and those below it raise for files that are missing, torn, hostile, or of an unknown model."""
_REASON_CHARS = 300
_RANDOM_IN_TRAINING = re.compile("drop|jitter")
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?")


def load_config(source: str) -> "PreTrainedConfig":
    """The model's config, dropout set to 0. CheckpointError when it is not a decoder-only model that can be trained."""
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig

    if is_folder(source):
        if not (Path(source) / "config.json").is_file() and (inside := models_inside(Path(source))):
            raise CheckpointError(f"{source} has no config.json: give the folder of a model{inside}")
        check_model_folder(Path(source))
    else:
        check_hub(source)
    try:
        config = AutoConfig.from_pretrained(source, trust_remote_code=False, local_files_only=is_folder(source))
    except UNREADABLE as error:
        raise unreadable(source, error) from None
    if config.is_encoder_decoder or type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise CheckpointError(
            f"{source} has model_type {config.model_type!r}, which is no decoder-only language model of Transformers; "
            "use a causal language model"
        )
    if getattr(config, "quantization_config", None) is not None:
        raise CheckpointError(
            f"{source} is quantised, so it cannot be trained; give the model it was made from, "
            "which model.load_in_4bit=true rounds under adapters"
        )
    if config.model_type == "phimoe" and config.router_jitter_noise:
        # Not one of those below: in eval mode too it says which experts count.
        raise CheckpointError(
            f"{source} has router_jitter_noise = {config.router_jitter_noise}, with which phimoe picks experts at "
            "random in training, so that its log-probs are not those it samples by; use another model"
        )
    # Before the model is built, because its modules store the values.
    for part in _sections(config):
        for name, value in list(vars(part).items()):
            if _RANDOM_IN_TRAINING.search(name) and isinstance(value, float):
                setattr(part, name, 0.0)
    return config


def _sections(config: "PreTrainedConfig") -> Iterator["PreTrainedConfig"]:
    """The config and those inside it, as of text and of attention."""
    from transformers import PreTrainedConfig

    yield config
    for value in list(vars(config).values()):
        if isinstance(value, PreTrainedConfig):
            yield from _sections(value)


def load_causal_lm(
    source: str,
    config: "PreTrainedConfig",
    *,
    dtype: torch.dtype,
    attention: str,
    in_4bit_on: torch.device | None = None,
    shapes_alone: bool = False,
) -> "PreTrainedModel":
    """The model with all its weights; `attention` is what Transformers computes it with.

    With a device for `in_4bit_on` the model is there, its linear layers in 4 bits; else it is whole and on the CPU.
    With `shapes_alone` its files are checked and no weight stays in memory.

    Raises CheckpointError for missing or torn weights, ConfigError for an attention that is not installed.
    """
    from transformers import AutoModelForCausalLM
    from transformers.utils import is_flash_attn_2_available

    if attention == "flash_attention_2" and not is_flash_attn_2_available():
        raise ConfigError(
            "model.attention = 'flash_attention_2' needs a GPU and the flash-attn package; "
            "install it or set model.attention=sdpa"
        )
    is_local = is_folder(source)
    placing = {"device_map": "meta"} if shapes_alone else {}
    rounding = placing if in_4bit_on is None else four_bit.loading_options(dtype, in_4bit_on)
    try:
        with quiet(progress=not is_local):
            model, report = AutoModelForCausalLM.from_pretrained(
                source,
                config=config,
                dtype=dtype,
                attn_implementation=attention,
                local_files_only=is_local,
                output_loading_info=True,
                ignore_mismatched_sizes=True,
                **rounding,
            )
    except UNREADABLE as error:
        raise unreadable(source, error) from None
    wrong = sorted({*report["missing_keys"], *(key for key, *_ in report["mismatched_keys"])})
    if wrong:
        raise CheckpointError(
            f"{source}: {len(wrong)} weights are missing or of another shape than config.json says, first {wrong[0]}; "
            "give a complete causal language model"
        )
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    if in_4bit_on is not None:
        four_bit.use_one_kernel(model)
    _make_generation_config_saveable(model)
    return model


def load_hf_tokenizer(
    source: str | Path,
    chat_template_kwargs: Mapping[str, TemplateValue] | None = None,
    chat_template: Path | None = None,
) -> "PreTrainedTokenizerBase":
    """The tokenizer of a folder or a hub name; CheckpointError when there is none.

    The file `chat_template` takes the place of its chat template, `chat_template_kwargs` are values of the template's
    variables; ConfigError for a file that is not there and for a variable that is not read.
    """
    from transformers import AutoTokenizer

    is_local = is_folder(str(source))
    if is_local:
        check_model_folder(Path(source))
    if is_local and not (Path(source) / "tokenizer.json").is_file():
        raise CheckpointError(
            f"{source}/tokenizer.json does not exist: give the folder of a model with its tokenizer"
            f"{models_inside(Path(source))}"
        )
    if is_local:
        check_tokenizer_file(Path(source) / "tokenizer.json")
    else:
        check_hub(str(source))
    try:
        tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=False, local_files_only=is_local)
    except UNREADABLE as error:
        raise unreadable(str(source), error) from None
    if chat_template is not None:
        set_template(tokenizer, chat_template)
    set_template_values(tokenizer, chat_template_kwargs or {})
    return tokenizer


def check_tokens(tokenizer: "PreTrainedTokenizerBase", vocab_size: int, source: str | Path) -> None:
    """CheckpointError when a conversation would hold ids that the model does not have.

    Added tokens that the chat template never writes are accepted: Gemma 3 has one for images.
    """
    written = str(tokenizer.chat_template) + str(tokenizer.eos_token)
    beyond = [text for text, token in tokenizer.get_added_vocab().items() if token >= vocab_size and text in written]
    if tokenizer.vocab_size > vocab_size or beyond:
        what = f"an id beyond them for {beyond[0]!r}" if beyond else f"{tokenizer.vocab_size} ids"
        raise CheckpointError(
            f"{source}: the model has {vocab_size} ids, but the tokenizer has {what}: they do not belong together"
        )


def is_folder(source: str) -> bool:
    """False for a hub name; CheckpointError for what is neither."""
    if Path(source).is_dir():
        return True
    if Path(source).exists():
        raise CheckpointError(
            f"model.path = {source!r}: is a file; give the folder of the model, {Path(source).parent}"
        )
    if not _HUB_NAME.fullmatch(source):
        raise CheckpointError(f"model.path = {source!r}: no such folder; give a model folder or a hub name")
    return False


def check_hub(source: str) -> None:
    """CheckpointError for a hub name that is not in the cache while the hub cannot be reached."""
    if not hub.is_cached(source) and (why := hub.hub_unreachable()):
        raise CheckpointError(
            f"model.path = {source!r} is not a folder here and could not be loaded from the Hugging Face Hub "
            f"({why}, and it is not in the cache); check the name, or download the model and give its folder"
        )


def unreadable(source: str, error: Exception) -> CheckpointError:
    """The error to raise for one of Transformers' own (`UNREADABLE`)."""
    reason = (str(error).strip().partition("\n")[0].rstrip(".") or type(error).__name__)[:_REASON_CHARS]
    if Path(source).is_dir():
        return CheckpointError(f"{source} cannot be read as a causal language model ({reason}); give another folder")
    return CheckpointError(
        f"model.path = {source!r} is not a folder here and could not be loaded from the Hugging Face Hub ({reason}); "
        "check the name, or download the model and give its folder"
    )


@contextmanager
def quiet(*, progress: bool = False) -> Iterator[None]:
    """Silence Transformers' load reports and progress bars; errors are raised."""
    from transformers.utils import logging

    verbosity, had_bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    if not progress:
        logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if had_bars:
            logging.enable_progress_bar()


def _make_generation_config_saveable(model: "PreTrainedModel") -> None:
    """Some published models have a generation config that Transformers reads but refuses to write."""
    from transformers import GenerationConfig

    try:
        model.generation_config.validate(strict=True)
    except ValueError:
        model.generation_config = GenerationConfig.from_model_config(model.config)
