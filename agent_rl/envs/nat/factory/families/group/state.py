"""Base class of a function group's states: vocabulary, rules, wording and rendering of one class.

A kind of state is a pydantic model: its fields are the rules of one group, its methods give what the functions do, in
words and in code. `function_group.py` chooses a group's functions and makes its hidden cases.
"""

import random
import re
from collections.abc import Mapping
from dataclasses import dataclass
from string import Template
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from agent_rl.envs.nat.factory.families.base import Inputs, Rules, join_names
from agent_rl.envs.nat.factory.families.group.base import Sequence
from agent_rl.envs.nat.spec import Group, GroupFunction, InputField

Name = Annotated[str, Field(pattern=r"^[a-z][a-z_]*$")]
ErrorText = Annotated[str, Field(pattern=r"^error: [a-z][a-z ]*$")]
Word = Annotated[str, Field(pattern=r"^[a-z]+( [a-z]+)*$")]
Form = Literal["{value}", "{name}: {value}", "{name} = {value}", "{name} -> {value}", "{name} has {value}"]
FORMS: tuple[Form, ...] = ("{value}", "{name}: {value}", "{name} = {value}", "{name} -> {value}", "{name} has {value}")

Edit = tuple[str, str, str]
"""A slip: the operation, a part of its code, and the buggy text that replaces it."""

_SAY = re.compile(r"SAY\((.+?), (.+)\)$", re.MULTILINE)
_UNDO = 'if not self._past:\n    return "$nothing"\n{attribute} = self._past.pop()\nreturn "$undone"'


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupOperation:
    """One thing a kind of state can do."""

    synonyms: tuple[str, ...]
    roles: tuple[str, ...] = ()
    summary: str
    """Docstring; `$role` stands for the argument's name."""
    changes: bool = False
    required: bool = False


RESET = GroupOperation(synonyms=("reset", "clear_all", "start_over"), summary="Go back to the start.")
UNDO = GroupOperation(synonyms=("undo", "take_back", "step_back"), summary="Take back the last change.")


class State(Rules):
    """Rules of one group. Subclasses add `kind`, parameters and choices."""

    names: dict[str, Name]
    """Operation -> name of the function."""
    inputs: dict[str, Name]
    """Role -> name of the argument, the same in every function."""
    errors: dict[str, ErrorText]
    """Condition -> the exact answer."""
    words: dict[str, Word]
    """Other fixed texts of answers."""
    form: Form
    """How a number is answered."""
    undo: Literal["last", "every"] | None = None
    """Whether only the last change can be taken back, or one after the other."""

    OPERATIONS: ClassVar[dict[str, GroupOperation]]
    ROLES: ClassVar[dict[str, tuple[Literal["int", "str"], tuple[str, ...]]]]
    ERRORS: ClassVar[dict[str, tuple[str, ...]]]
    WORDS: ClassVar[dict[str, tuple[str, ...]]] = {}
    PARAMETERS: ClassVar[dict[str, str]]
    """Parameter -> description as a configuration field; empty: never one."""
    CLASS_NAMES: ClassVar[tuple[str, ...]]
    SUMMARY: ClassVar[str]
    ATTRIBUTE: ClassVar[tuple[str, str, str, str]]
    """What holds the state: attribute, its type, its first value, a copy of it."""

    _EXTRA_ERRORS: ClassVar[dict[str, tuple[str, ...]]] = {
        "nothing": ("error: nothing to undo", "error: no change to take back", "error: nothing to take back")
    }
    _EXTRA_WORDS: ClassVar[dict[str, tuple[str, ...]]] = {
        "cleared": ("cleared", "as new", "reset"),
        "undone": ("undone", "taken back", "reverted"),
    }

    # ---- what a kind of state provides

    @classmethod
    def sample(cls, rng: random.Random, operations: list[str]) -> dict[str, Any]:
        """Parameters and choices of a new state; a choice that none of the operations shows is not sampled."""
        raise NotImplementedError

    def bounds(self, parameter: str) -> tuple[int, int]:
        """Least and greatest value of a parameter that is a configuration field."""
        raise NotImplementedError

    def bodies(self) -> dict[str, list[str]]:
        """Operation -> code lines. `$x` stands for an argument or a text, `self._x` for a parameter, `SAY(name, value)`
        for an answer in the form, and the line `SAVE` comes before a change."""
        raise NotImplementedError

    def head(self) -> list[str]:
        """Import lines."""
        return []

    def sentences(self, rng: random.Random) -> list[str]:
        """What the operations do; `$x` stands for a name, an argument, a text or a parameter."""
        raise NotImplementedError

    def opening(self, rng: random.Random, config: Mapping[str, int]) -> Sequence:
        """Calls, by operation and role, that bring a fresh state to its bounds and ties."""
        raise NotImplementedError

    def call(self, rng: random.Random, operation: str, config: Mapping[str, int]) -> Inputs:
        """Random inputs of an operation, by role."""
        raise NotImplementedError

    def faults(self) -> list[Edit]:
        """Slips that a few calls show."""
        raise NotImplementedError

    def subtle_faults(self) -> list[Edit]:
        """Slips that show only now and then; at least one."""
        raise NotImplementedError

    def is_held_out(self) -> bool:
        return False

    # ---- the vocabulary that is really used

    @classmethod
    def vocabulary(cls) -> dict[str, GroupOperation]:
        return {**cls.OPERATIONS, "reset": RESET, "undo": UNDO}

    @classmethod
    def texts(cls) -> tuple[dict[str, tuple[str, ...]], dict[str, tuple[str, ...]]]:
        """Synonyms of error texts and of other texts, by their key."""
        return {**cls.ERRORS, **cls._EXTRA_ERRORS}, {**cls.WORDS, **cls._EXTRA_WORDS}

    @property
    def changing(self) -> list[str]:
        """Names of the functions that change the state."""
        return [name for operation, name in self.names.items() if self.vocabulary()[operation].changes]

    def placeholders(self) -> set[str]:
        """What the code of this state's functions needs a text for."""
        return {word for text in self.code().values() for word in Template(text).get_identifiers()}

    @model_validator(mode="after")
    def _is_complete(self) -> "State":
        vocabulary = self.vocabulary()
        if unknown := sorted(set(self.names) - set(vocabulary)):
            raise ValueError(f"names: {self.__class__.__name__} has no operation {unknown[0]!r}")
        if lost := [key for key, operation in vocabulary.items() if operation.required and key not in self.names]:
            raise ValueError(f"names: the operation {lost[0]!r} is missing")
        if ("undo" in self.names) != (self.undo is not None):
            raise ValueError("undo: set it if, and only if, `names` has the operation 'undo'")
        used = self.placeholders()
        errors, words = self.texts()
        for field, known in (("inputs", self.ROLES), ("errors", errors), ("words", words)):
            given, needed = set(getattr(self, field)), used & set(known)
            if given != needed:
                raise ValueError(f"{field}: got the keys {sorted(given)}, expected {sorted(needed)}")
        for field in ("names", "inputs", "errors"):
            texts = getattr(self, field).values()
            if len(set(texts)) < len(texts):
                raise ValueError(f"{field}: two of {sorted(texts)} are the same")
        return self

    # ---- wording

    def shown(self, name: str) -> str:
        """How a number is answered, for a sentence."""
        if self.form == "{value}":
            return "as the number alone"
        return "as `" + self.form.replace("{name}", name).replace("{value}", "NUMBER") + "`"

    def fill(self, sentence: str, field: str | None) -> str:
        """A sentence with names and values in place of its `$x`; a parameter that is a configuration field keeps its
        name, in backticks."""
        values = {key: str(getattr(self, key)) for key in self.PARAMETERS}
        if field:
            values[field] = f"`{field}`"
        known = {**values, **self.words, **self.errors, **self.inputs, **self.names}
        return Template(sentence).substitute(known)

    def undo_sentences(self) -> list[str]:
        changing = join_names(self.changing, "or")
        out = [
            f"`$undo` puts everything back to how it was just before the last change and answers `$undone`; a change "
            f"is any call of {changing} that is not answered with an error."
        ]
        if self.undo == "every":
            return [*out, "Called again it takes back the change before that, and so on; with none left: `$nothing`."]
        return [*out, "Only one change can be taken back: without a new change since the last `$undo`, or with no "
                "change at all, it answers `$nothing`."]  # fmt: skip

    # ---- code

    def code(self) -> dict[str, str]:
        """Operation -> code of its function, arguments and texts still as `$x`."""
        attribute, _, first, copied = self.ATTRIBUTE
        save = {None: "", "last": f"self._past = [{copied}]\n", "every": f"self._past.append({copied})\n"}[self.undo]
        texts = {operation: "\n".join(lines) for operation, lines in self.bodies().items()}
        again = f"{attribute} = {first}"
        texts["reset"] = f'{again}\nreturn "$cleared"'
        texts["undo"] = _UNDO.format(attribute=attribute)
        return {operation: _SAY.sub(self._say, texts[operation].replace("SAVE\n", save)) for operation in self.names}

    def _say(self, found: re.Match[str]) -> str:
        name, value = found.groups()
        if self.form == "{value}":
            return f"str({value})"
        # A name in single quotes is a fixed one.
        name = name.strip("'") if name.startswith("'") else f"{{{name}}}"
        return 'f"' + self.form.replace("{name}", name).replace("{value}", f"{{{value}}}") + '"'

    def render(self, group: Group, code: Mapping[str, str] | None = None) -> str:
        """The class; `code` replaces that of all functions."""
        code = self.code() if code is None else code
        texts = {**self.inputs, **self.errors, **self.words}
        methods = {operation: Template(text).substitute(texts) for operation, text in code.items()}
        attribute, kind, first, _ = self.ATTRIBUTE
        field = group.config_field
        used = set(re.findall(r"self\._(\w+)", "\n".join([first, *methods.values()])))
        constants = [key for key in self.PARAMETERS if key in used and not (field and key == field.name)]
        start = [f"self._{field.name} = {field.name}"] if field else []
        start.append(f"{attribute}: {kind} = {first}")
        if self.undo:
            start.append(f"self._past: list[{kind}] = []")
        lines = [f"class {group.class_name}:", f'    """{self.SUMMARY}"""', ""]
        lines += [f"    _{key} = {getattr(self, key)!r}" for key in constants] + [""] * bool(constants)
        lines += _method(
            "__init__",
            [f"{field.name}: int = {field.default}"] if field else [],
            "None",
            "Begin with a fresh state.",
            start,
        )
        functions = {each.name: each for each in group.functions}
        for operation, text in methods.items():
            function = functions[self.names[operation]]
            given = [f"{each.name}: {each.type}" for each in function.inputs]
            lines += ["", *_method(function.name, given, "str", function.description, text.split("\n"))]
        head = self.head()
        return "".join(f"{line}\n" for line in [*head, *([""] * 2 if head else []), *lines])

    def function(self, operation: str) -> GroupFunction:
        """The record of an operation."""
        shape = self.vocabulary()[operation]
        return GroupFunction(
            name=self.names[operation],
            inputs=tuple(InputField(name=self.inputs[role], type=self.ROLES[role][0]) for role in shape.roles),
            description=Template(shape.summary).substitute({role: f"`{name}`" for role, name in self.inputs.items()}),
        )


def _method(name: str, given: list[str], answer: str, summary: str, lines: list[str]) -> list[str]:
    signature = f"    def {name}({', '.join(['self', *given])}) -> {answer}:"
    return [signature, f'        """{summary}"""', *(f"        {line}" for line in lines)]
