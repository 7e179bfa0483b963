"""What a model can be asked for: a plan beyond what it was trained to write is refused with a sentence, never tried."""

from dataclasses import dataclass

from agent_rl.envs.nat.create.settings import WritesConfig
from agent_rl.envs.nat.factory.cases import hidden_cases
from agent_rl.envs.nat.factory.generate import STARTER_FAMILIES, STARTER_LEVELS
from agent_rl.envs.nat.spec import NATSpec
from agent_rl.errors import ConfigError
from agent_rl.policies.model_files.trained_for import FILE, TrainedFor

ENVIRONMENT = "nat_agent_creation"
FREE_WORDS = (
    f"this model was not trained on requests without a plan (its {FILE}), so free words are not given to it; set "
    "planner.source to gemini or openai, give a plan with --spec, or name a model that was trained with --free-share"
)
MAX_REQUEST_CHARS = 4000
LEAST_REPLY_TOKENS = 128
"""Fewer tokens hold no project."""


def bad_request(request: str) -> str | None:
    """Why a text is no request, or None."""
    if not request.strip():
        return "the request is empty; say what the agent should do"
    if len(request) > MAX_REQUEST_CHARS:
        return f"the request has {len(request)} characters; say it in at most {MAX_REQUEST_CHARS}"
    try:
        request.encode()
    except UnicodeEncodeError:
        return "the request holds half of a character, which no model reads; write it as UTF-8"
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """What a model can be asked for: what the configuration lets it write, as far as it was trained for that."""

    families: tuple[str, ...]
    levels: tuple[int, ...]
    max_tools: int
    takes_free_words: bool = True
    repairs: bool = True
    max_context: int | None = None
    """Tokens of the longest conversation in training; None: unknown."""

    @classmethod
    def of(cls, writes: WritesConfig, trained: TrainedFor | None, name: str) -> "Scope":
        """Of the model `name`; ConfigError for one that was trained for something else."""
        if trained is None:
            families, levels = writes.families or STARTER_FAMILIES, writes.levels or STARTER_LEVELS
            return cls(families=families, levels=levels, max_tools=writes.max_tools)
        if trained.environment != ENVIRONMENT:
            raise ConfigError(
                f"{name} was trained for {trained.environment} (its {FILE}), and agents are written by a model for "
                f"{ENVIRONMENT}; name another"
            )
        known = {"families": writes.families, "levels": writes.levels}
        return cls(
            **{
                each: tuple(value for value in trained.tasks.get(each, ()) if wanted is None or value in wanted)
                for each, wanted in known.items()
            },
            max_tools=writes.max_tools,
            takes_free_words="free" in trained.tasks.get("wordings", ()),
            repairs="repair" in trained.tasks.get("kinds", ()),
            max_context=trained.max_context,
        )

    def beyond(self, spec: NATSpec) -> str | None:
        """Why the model is not asked for this plan, or None."""
        num_tools = len(spec.tools) + (len(spec.group.functions) if spec.group else 0)
        if num_tools > self.max_tools:
            most = f"{self.max_tools} tool{'s' * (self.max_tools > 1)}"
            return f"this model writes agents with at most {most}; the plan has {num_tools} ({spec.plan.scaffold_type})"
        families = [spec.family, *(tool.family for tool in spec.tools)]
        if unknown := [name for name in families if name not in self.families]:
            return f"this model was not trained on the family {unknown[0]!r}; it writes {', '.join(self.families)}"
        if spec.level not in self.levels:
            levels = ", ".join(map(str, self.levels))
            return f"this model writes agents of the levels {levels}; the plan is of level {spec.level}"
        return None

    def beyond_work(self, *, has_plan: bool, num_repairs: int) -> str | None:
        """Why the model is not asked to work like this, or None."""
        if not has_plan and not self.takes_free_words:
            return FREE_WORDS
        if num_repairs and not self.repairs:
            return f"this model was not trained to repair (its {FILE}), {num_repairs} were asked for; set repairs to 0"
        return None


def too_long(num_prompt_tokens: int, max_context: int) -> str | None:
    """Why a prompt leaves no room for a project, or None."""
    if num_prompt_tokens + LEAST_REPLY_TOKENS <= max_context:
        return None
    return (
        f"the request takes {num_prompt_tokens} tokens of this model's window of {max_context}, and a project at least "
        f"{LEAST_REPLY_TOKENS}; say it in fewer words"
    )


def cannot_be_judged(spec: NATSpec, seed: int) -> str | None:
    """Why no hidden cases can be made of a plan, or None: a plan that was written by hand may be unsound."""
    try:
        hidden_cases(spec, seed)
    except (ArithmeticError, LookupError, TypeError, ValueError, AttributeError) as error:
        return (
            f"no hidden cases can be made of the plan ({type(error).__name__}: {str(error)[:200]}); correct its rules"
        )
    return None
