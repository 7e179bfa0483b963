"""API clients: GET requests to a fictional service with httpx, and an answer made of the JSON that comes back.

URLs and the reading of replies are pure functions in logic.py; the requests are sent by the tool's coroutine. The
service's replies are invented by `agent_rl.envs.nat.factory.worlds`; nothing here talks to a network.
"""

import json
import random
from collections.abc import Callable, Mapping
from typing import Any

from agent_rl.envs.nat.factory.families.api.rules import SECOND, ApiRules, config_fields, demand_sense, sample_rules
from agent_rl.envs.nat.factory.families.api.words import (
    contract,
    failure_sentence,
    field_sentences,
    request_sentences,
    signature,
    template,
)
from agent_rl.envs.nat.factory.families.base import Answer, Draft, Exchange, Family, Inputs, chosen_field, literal
from agent_rl.envs.nat.factory.worlds import RETRY_STATUS, UNKNOWN_STATUS, Reply, world
from agent_rl.envs.nat.spec import ConfigField, InputField, Tool

_SPECIAL = "//##??%%& ë"
_MAX_SAMPLES = 4000


class ApiClient(Family):
    name = "api_client"
    function = "read_answer"
    summary = "Ask the service and answer with what it knows."
    Rules = ApiRules
    is_pure = False

    def draft(self, rng: random.Random, level: int) -> Draft:
        rules = sample_rules(rng, level)
        fields = config_fields(rules) if level == 2 or (level >= 3 and rng.random() < 0.5) else []
        return _draft(rules, rng.choice(fields) if fields else None)

    def complete(self, rules: dict[str, Any], config_default: int | None, name: str = "") -> Draft:
        checked = ApiRules.model_validate(rules)
        demand_sense(checked)
        if config_default is None:
            return _draft(checked, None)
        field = chosen_field(config_fields(checked), config_default, name)
        return _draft(checked.model_copy(update={field.name: config_default}), field)

    def remade(self, tool: Tool) -> Draft:
        field = tool.config_field
        return self.complete(tool.rules, field.default, field.name) if field else self.complete(tool.rules, None)

    def is_held_out(self, rules: dict[str, Any]) -> bool:
        return len(rules["fields"]) == 3 and any(param["kind"] == "input" for param in rules["params"])

    def canonical(self, rules: dict[str, Any], inputs: tuple[InputField, ...]) -> Any:
        names = {"host", "path", "not_found", "failed", "not_json", "nothing", "timeout"}
        failures = ["timeout" if rules["connection"] == rules["timeout"] else "own", None][rules["connection"] is None]
        others = {name: value for name, value in rules.items() if name not in names}
        parents = [each["path"].rpartition(".")[0] for each in rules["fields"]]
        # Two fields of one object are read otherwise than two of different ones; what they are called is a name.
        places = list(dict.fromkeys(["", *parents]))
        return {
            **others,
            "params": [each["kind"] for each in rules["params"]],
            "fields": [
                [each["kind"], places.index(parent)] for each, parent in zip(rules["fields"], parents, strict=True)
            ],
            "items": rules["items"] is not None,
            "token": rules["token"] is not None,
            "connection": failures,
            "types": [each.type for each in inputs],
        }

    def sentences(self, tool: Tool, rng: random.Random) -> list[str]:
        rules = tool.rules
        url = f"`GET {rules['host']}{template(tool)}`"
        what = "a JSON object" + (f" whose `{rules['items']}` is a list of objects" if rules["items"] else "")
        return [
            rng.choice(
                [
                    f"It asks {url} with httpx.AsyncClient and gets {what}.",
                    f"The tool sends {url} (use httpx.AsyncClient); the reply is {what}.",
                    f"With httpx.AsyncClient it requests {url}, which returns {what}.",
                ]
            ),
            rng.choice(
                [
                    "Values in braces are percent-encoded as UTF-8, also `/`; keep the parameters in this order.",
                    "Percent-encode the values in braces (UTF-8, `/` is `%2F`) and keep the order of the parameters.",
                ]
            ),
            *field_sentences(rules, rng),
            rng.choice(
                [
                    f"Status 404 gives `{rules['not_found']}`, any other status but 200 `{rules['failed']}`, "
                    f"a body that is not JSON `{rules['not_json']}`.",
                    f"Answer `{rules['not_found']}` to status 404, `{rules['failed']}` to any other status but 200 and "
                    f"`{rules['not_json']}` when the body is not JSON.",
                ]
            ),
            failure_sentence(rules),
            *request_sentences(tool),
            contract(tool),
        ]

    def body(self, tool: Tool) -> tuple[list[str], list[str]]:
        rules = tool.rules
        lines = [
            *self.forgotten_check(tool),
            "if status != 200:",
            f"    return {literal(rules['failed'])}",
            "try:",
            "    data = json.loads(body)",
            "except ValueError:",
            f"    return {literal(rules['not_json'])}",
        ]
        if not rules["items"]:
            return _head(tool), [*lines, f"return {_thing_code(tool, 'data')}"]
        key = literal(rules["items"])
        lines += [f"if not data[{key}]:", f"    return {literal(rules['nothing'])}"]
        things = f"{_thing_code(tool, 'item')} for item in data[{key}]"
        return _head(tool), [*lines, f"return {literal(rules['joiner'])}.join({things})"]

    def forgotten_check(self, tool: Tool) -> list[str]:
        return ["if status == 404:", f"    return {literal(tool.errors[0])}"]

    def exports(self, tool: Tool) -> tuple[str, ...]:
        names = (tool.function, f"{tool.function}_path")
        return (*names, f"{tool.function}_next") if tool.rules["max_pages"] else names

    def definitions(self, tool: Tool, body: list[str] | None = None) -> str:
        head, lines = self.body(tool)
        function = [
            f"def {tool.function}(status: int, body: str) -> str:",
            '    """The answer for one reply of the service."""',
            *(f"    {line}" for line in (lines if body is None else body)),
        ]
        return "".join(f"{line}\n" for line in [*head, "", "", *function])

    def outcome(self, tool: Tool, program: dict[str, Any], inputs: Inputs, config: Mapping[str, int]) -> Any:
        """The path that is asked, and what is read in each reply of the service, which knows no other path."""
        sizes = {"page_size": config["page_size"]} if "page_size" in config else {}
        path, read = program[f"{tool.function}_path"](**inputs, **sizes), program[tool.function]
        exchanges = self.exchanges(tool, inputs, dict(config))
        if f"GET {tool.rules['host']}{path}" not in exchanges:
            return [read(UNKNOWN_STATUS, "")] * len(exchanges)
        return [read(each.status, each.body) for each in exchanges.values() if each.failure is None]

    def answer(self, tool: Tool, setting: str | None) -> Answer:
        rules, field = tool.rules, tool.config_field
        settings = {field.name: setting} if field and setting else {}
        names = [each.name for each in tool.inputs] + [settings[name] for name in settings if name == "page_size"]
        ask = ["reply = await client.get(path)"]
        if rules["max_retries"] is not None:
            ask += [
                f"for attempt in range({settings.get('max_retries', rules['max_retries'])}):",
                f"    if reply.status_code == {RETRY_STATUS}:",
                '        reply = await client.get(f"{path}&attempt={attempt + 2}")',
            ]
        read = f"{tool.function}(reply.status_code, reply.text)"
        start = [f"path = {tool.function}_path({', '.join(names)})"]
        inner, caught, result = [*ask, f"text = {read}"], "text = {}", "text"
        if rules["max_pages"]:
            has_cursor = rules["next_style"] == "cursor"
            start = ["answers = []", f"first = {start[0]}" if has_cursor else start[0]]
            inner = [
                f"while path and len(answers) < {settings.get('max_pages', rules['max_pages'])}:",
                *(f"    {line}" for line in ask),
                f"    answers.append({read})",
                '    if answers[-1].startswith("error: "):',
                "        answers = answers[-1:]",
                "        break",
                f"    path = {tool.function}_next({'first, ' if has_cursor else ''}reply.text)",
            ]
            caught, result = "answers = [{}]", f"{literal(rules['joiner'])}.join(answers)"
        headers = ""
        if rules["token"]:
            headers = ", headers=headers"
            start.append(f'headers = {{"X-Api-Key": {literal(rules["token"])}}}')
        statements = [
            *start,
            "try:",
            f"    async with httpx.AsyncClient(base_url={literal(rules['host'])}, timeout=5.0{headers}) as client:",
            *(f"        {line}" for line in inner),
            *_except_code(rules, caught),
            f"return {result}",
        ]
        return Answer(imports=("import httpx",), statements=tuple(statements))

    def assertions(self, tool: Tool) -> dict[str, list[str]]:
        name, rules = tool.function, tool.rules
        values = ", ".join(literal(tool.example.inputs[each.name]) for each in tool.inputs)
        path = _replies(tool, tool.example.inputs, tool.defaults)[0].url.removeprefix(rules["host"])
        things = [_sample_thing(rules, number) for number in ((1, 2) if rules["items"] else (1,))]
        payload = {rules["items"]: [thing for thing, _ in things]} if rules["items"] else things[0][0]
        text = rules["joiner"].join(answer for _, answer in things)
        out = {
            "path": [f"assert {name}_path({values}) == {literal(path)}"],
            "example": [f"assert {name}(200, {json.dumps(payload)!r}) == {literal(text)}"],
            "error": [f'assert {name}(404, "") == {literal(tool.errors[0])}'],
        }
        if rules["max_pages"]:
            has_cursor = rules["next_style"] == "cursor"
            first = '"/a?b=1", ' if has_cursor else ""
            given, path = ("c=", "/a?b=1&cursor=c%3D") if has_cursor else ("/a?b=2", "/a?b=2")
            out["next"] = [
                f"assert {name}_next({first}{json.dumps({'next': given})!r}) == {literal(path)}",
                f'assert {name}_next({first}"{{}}") == ""',
            ]
        return out

    def mutants(self, tool: Tool) -> list[str]:
        right = self.definitions(tool)
        prefix = literal(template(tool).split("{", maxsplit=1)[0])[:-1]
        out = [*super().mutants(tool), right.replace(prefix, f"{prefix}x")]
        if tool.rules["max_pages"]:
            code = _next_code(tool)
            out.append(right.replace("\n".join(code), "\n".join([*code[:2], '    return ""'])))
        return out

    def subtle_bodies(self, tool: Tool) -> list[list[str]]:
        _, lines = self.body(tool)
        start = lines.index("try:")
        return [[*lines[:start], "data = json.loads(body)", *lines[start + 4 :]]]

    def subtle_mutants(self, tool: Tool) -> list[str]:
        right, plain = "\n".join(_path_code(tool)), "\n".join(_path_code(tool, is_encoded=False))
        return [*super().subtle_mutants(tool), self.definitions(tool).replace(right, plain)]

    def valid_inputs(self, tool: Tool, rng: random.Random) -> Inputs:
        return _found(tool, lambda: _sample_inputs(tool, rng), (None,))[None]

    def error_inputs(self, tool: Tool, rng: random.Random) -> dict[str, Inputs]:
        found = _found(tool, lambda: _sample_inputs(tool, rng), tool.errors)
        return {text: found[text] for text in tool.errors}

    def bad_inputs(self, tool: Tool) -> Inputs:
        rng = random.Random(json.dumps(tool.example.inputs, sort_keys=True))
        key, text = tool.inputs[0].name, tool.errors[0]
        return _found(tool, lambda: {**tool.example.inputs, key: _identifier(rng)}, (text,))[text]

    def exchanges(self, tool: Tool, inputs: Inputs, config: dict[str, int]) -> dict[str, Exchange]:
        headers = {"X-Api-Key": tool.rules["token"]} if tool.rules["token"] else {}
        return {
            f"GET {reply.url}": Exchange(status=reply.status, body=reply.body, failure=reply.failure, headers=headers)
            for reply in _replies(tool, inputs, config)
        }


def _draft(rules: ApiRules, field: ConfigField | None) -> Draft:
    errors = [rules.not_found, rules.failed, rules.not_json, rules.nothing, rules.timeout, rules.connection]
    inputs = [InputField(name=rules.key, type="str")]
    inputs += [InputField(name=name, type=SECOND[name][0]) for name in rules.seconds]
    return Draft(
        rules=rules.model_dump(),
        inputs=tuple(inputs),
        errors=tuple(dict.fromkeys(text for text in errors if text)),
        config_field=field,
    )


def _identifier(rng: random.Random) -> str:
    """What stands in the path; every other one needs encoding."""
    middle = rng.choice(_SPECIAL) if rng.random() < 0.5 else rng.choice(["", "-", "_"])
    return f"{rng.choice('abcdefghkmnprst')}{rng.randrange(10, 100)}{middle}{rng.randrange(1, 10)}"


def _sample_inputs(tool: Tool, rng: random.Random) -> Inputs:
    key, *others = (each.name for each in tool.inputs)
    return {key: _identifier(rng), **{name: rng.choice(SECOND[name][1]) for name in others}}


def _found(tool: Tool, sample: Callable[[], Inputs], wanted: tuple[str | None, ...]) -> dict[str | None, Inputs]:
    """The first sampled inputs for each wanted error; None stands for inputs that have a proper answer."""
    out: dict[str | None, Inputs] = {}
    for _ in range(_MAX_SAMPLES):
        inputs = sample()
        out.setdefault(_problem(tool, inputs), inputs)
        if all(problem in out for problem in wanted):
            return out
    raise LookupError(f"{tool.rules['host']} has no inputs for one of {wanted} in {_MAX_SAMPLES} samples")


def _replies(tool: Tool, inputs: Inputs, config: dict[str, int]) -> list[Reply]:
    """What a right tool gets to see, in order."""
    size, max_pages, max_retries = (
        config.get(name, tool.rules[name]) for name in ("page_size", "max_pages", "max_retries")
    )
    out: list[Reply] = []
    for attempts in world(tool.rules, inputs, size)[: max_pages or 1]:
        out += attempts[: (max_retries or 0) + 1]
        if out[-1].payload is None:
            break
    return out


def _problem(tool: Tool, inputs: Inputs) -> str | None:
    """The error that the world has for these inputs under the default configuration."""
    rules, last = tool.rules, _replies(tool, inputs, tool.defaults)[-1]
    if last.failure or last.status != 200:
        return rules[last.failure or ("not_found" if last.status == 404 else "failed")]
    if last.payload is None:
        return rules["not_json"]
    return rules["nothing"] if rules["items"] and not last.payload[rules["items"]] else None


def _sample_thing(rules: dict[str, Any], number: int) -> tuple[dict[str, Any], str]:
    """A small thing for a test, and how it is written."""
    thing: dict[str, Any] = {}
    values = []
    for field, word in zip(rules["fields"], ("Fern", "Moss", "Reed"), strict=False):
        value = f"{word}{number}" if field["kind"] == "word" else number + 10 * len(values)
        values.append(value)
        parent, _, name = field["path"].rpartition(".")
        (thing.setdefault(parent, {}) if parent else thing)[name] = value
    return thing, rules["between"].join(map(str, values))


def _head(tool: Tool) -> list[str]:
    """Imports and all functions except the one that reads a reply."""
    lines = ["import json"]
    if tool.rules["missing"] is not None:
        lines.append("from typing import Any")
    lines += ["from urllib.parse import quote", "", "", *_path_code(tool)]
    if tool.rules["max_pages"]:
        lines += ["", "", *_next_code(tool)]
    if tool.rules["missing"] is not None:
        lines += [
            "",
            "",
            "def field_text(item: dict[str, Any], path: str) -> str:",
            '    """The value at a dotted path as text."""',
            "    value: Any = item",
            '    for key in path.split("."):',
            "        value = (value or {}).get(key)",
            f"    return {literal(tool.rules['missing'])} if value is None else str(value)",
        ]
    return lines


def _path_code(tool: Tool, is_encoded: bool = True) -> list[str]:
    url = template(tool)
    for each in tool.inputs:
        if is_encoded and each.type == "str":
            url = url.replace(f"{{{each.name}}}", f"{{quote({each.name}, safe='')}}")
    return [
        f"def {tool.function}_path({signature(tool)}) -> str:",
        '    """Path and query of the first request."""',
        f"    return f{literal(url)}",
    ]


def _next_code(tool: Tool) -> list[str]:
    doc = '    """Path and query of the page after a reply, empty when there is none."""'
    if tool.rules["next_style"] == "path":
        return [f"def {tool.function}_next(body: str) -> str:", doc, '    return json.loads(body).get("next") or ""']
    return [
        f"def {tool.function}_next(first: str, body: str) -> str:",
        doc,
        '    cursor = json.loads(body).get("next")',
        '    return f"{first}&cursor={quote(cursor, safe=\'\')}" if cursor else ""',
    ]


def _thing_code(tool: Tool, variable: str) -> str:
    """An expression for the text of one thing."""
    fields = []
    for field in tool.rules["fields"]:
        if tool.rules["missing"] is not None:
            fields.append(f"field_text({variable}, '{field['path']}')")
        else:
            keys = "".join(f"['{key}']" for key in field["path"].split("."))
            fields.append(f"{variable}{keys}")
    return "f" + literal(tool.rules["between"].join(f"{{{each}}}" for each in fields))


def _except_code(rules: dict[str, Any], caught: str) -> list[str]:
    """Clauses that turn exceptions of httpx into error texts; a timeout is a kind of transport error."""
    if rules["connection"] == rules["timeout"]:
        return ["except httpx.TransportError:", f"    {caught.format(literal(rules['timeout']))}"]
    out = ["except httpx.TimeoutException:", f"    {caught.format(literal(rules['timeout']))}"]
    if rules["connection"] is not None:
        out += ["except httpx.TransportError:", f"    {caught.format(literal(rules['connection']))}"]
    return out
