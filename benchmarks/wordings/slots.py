"""Take a spec apart into slots: what a request must say, one sentence each, as names and literal values.

A slot is worded by a template of the twin's phrases (`phrases_test.py`, `phrases_val.py`); what stands for a rule that
has no literal, such as `the sum`, comes from the same phrases. Only what the starter's specs have is known here.
Does not: choose a template.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agent_rl.envs.nat.factory.families.api.words import signature, template
from agent_rl.envs.nat.factory.families.base import literal
from agent_rl.envs.nat.spec import NATSpec, Tool

Rules = Mapping[str, Any]
Terms = Mapping[str, str]
"""Words of the twin for what has no literal: aggregates, ties, conditions of errors."""


@dataclass(frozen=True, slots=True)
class Slot:
    """One thing that the request must say."""

    name: str
    values: dict[str, str]


def slots(spec: NATSpec, terms: Terms) -> list[Slot]:
    """The slots of a spec of one tool, in an order in which a request can say them."""
    tool = spec.tools[0]
    typed = ", ".join(f"`{each.name}` ({each.type})" for each in tool.inputs)
    given = ", ".join(literal(value) for value in tool.example.inputs.values())
    out = [
        Slot("opening", {"package": spec.package}),
        Slot("naming", {"type": tool.type_name, "instance": tool.instance}),
        *_OF_FAMILY[tool.family](tool, terms),
        Slot("inputs", {"inputs": typed}),
    ]
    if field := tool.config_field:
        numbers = {"default": str(field.default), "low": str(field.low), "high": str(field.high)}
        out.append(Slot("setting", {"field": field.name, **numbers}))
    out.append(Slot("example", {"given": given, "answer": literal(tool.example.output)}))
    if spec.server.name != spec.package:
        out.append(Slot("server", {"server": spec.server.name, "instance": tool.instance}))
    if spec.server.raises:
        out.append(Slot("raises", {}))
    return out


def listed(names: Sequence[str], last: str) -> str:
    """`a`, `b` and `c`."""
    quoted = [f"`{name}`" for name in names]
    return quoted[0] if len(quoted) == 1 else f"{', '.join(quoted[:-1])} {last} {quoted[-1]}"


def _units(tool: Tool, terms: Terms) -> list[Slot]:
    rules = tool.rules
    units = {"dimension": rules["dimension"], "units": listed(list(rules["units"]), terms["and"])}
    out = [Slot("units", units), *_digits(tool), Slot("unknown_unit", {"error": tool.errors[0]})]
    return [*out, Slot("negative_value", {"error": tool.errors[1]})] if rules["nonnegative"] else out


def _digits(tool: Tool) -> list[Slot]:
    return [] if tool.config_field else [Slot("digits", {"digits": str(tool.rules["precision"])})]


def _texts(tool: Tool, terms: Terms) -> list[Slot]:
    out = [Slot("steps", {"steps": ", ".join(f"`{op}`" for op in tool.rules["ops"])})]
    out.append(Slot("empty_text", {"error": tool.errors[0]}))
    return [*out, Slot("long_text", {"error": tool.errors[1]})] if tool.config_field else out


def _formula(tool: Tool, terms: Terms) -> list[Slot]:
    rules = tool.rules
    out = [Slot("formula", {"formula": rules["formula"]}), *_digits(tool), Slot("zero", {"error": tool.errors[0]})]
    if rules["nonnegative"]:
        out.append(Slot("negative_input", {"name": rules["nonnegative"], "error": tool.errors[1]}))
    return out


def _codes(tool: Tool, terms: Terms) -> list[Slot]:
    pairs = zip(tool.rules["rules"], tool.errors, strict=True)
    checks = [Slot(f"code_{kind}", {"value": str(value), "error": error}) for (kind, value), error in pairs]
    return [Slot("codes", {}), *checks]


def _tables(tool: Tool, terms: Terms) -> list[Slot]:
    rules, field = tool.rules, tool.config_field.name if tool.config_field else None
    key, value = rules["key"] or "", rules["value"] or ""
    what = terms[rules["aggregate"]].format(value=value) if rules["aggregate"] else ""
    purpose = "table_list" if not what else "table_each" if key else "table_alone"
    out = [Slot(purpose, {"key": key, "value": value, "what": what})]
    if rules["source"] == "json":
        out.append(Slot("table_json", {}))
    else:
        divider = terms["tab"] if rules["delimiter"] == "tab" else f"`{rules['delimiter']}`"
        out += [Slot("table_csv", {"divider": divider}), *([Slot("table_trim", {})] if rules["trim"] else [])]
        out.append(Slot("table_names", {}))
    for each in rules["filters"]:
        wanted = "threshold" if field == "threshold" else each["value"]
        out.append(Slot("table_filter", {"condition": f"{each['column']} {each['op']} {wanted}"}))
    out += _table_form(rules, field, terms) if key else []
    if rules["aggregate"] != "count" and rules["pair"] is not None:
        out.append(Slot("table_digits", {"digits": "`decimals`" if field == "decimals" else str(rules["decimals"])}))
    if rules["filters"]:
        out.append(Slot("table_none", {}))
    columns = [each["column"] for each in rules["filters"]] + [key, value]
    numbers = [name for name in dict.fromkeys(columns) if name in _NUMBERS]
    said = {"numbers": listed(numbers, terms["or"]) if numbers else ""}
    empty = "empty list" if rules["source"] == "json" else "empty table"
    causes = [terms[empty if error == "error: empty table" else error].format(**said) for error in tool.errors]
    errors = "; ".join(f"{cause}: `{error}`" for cause, error in zip(causes, tool.errors, strict=True))
    return [*out, Slot("table_errors", {"errors": errors})]


_NUMBERS = {"qty", "hours", "points", "price", "weight", "rain"}


def _table_form(rules: Rules, field: str | None, terms: Terms) -> list[Slot]:
    key, order = rules["key"], rules["order"]
    tie = terms["tie key" if rules["tie"] == "key" else "tie row"].format(key=key)
    name = "order_key_rows" if order == "key" and not rules["aggregate"] else f"order_{order}"
    out = [Slot(name, {"key": key, "tie": tie})]
    if rules["top"]:
        out.append(Slot("table_top", {"top": "`limit`" if field == "limit" else str(rules["top"])}))
    between = terms["newline"] if rules["joiner"] == "newline" else terms["joined"].format(joiner=rules["joiner"])
    if rules["pair"] is None:
        return [*out, Slot("table_keys", {"key": key, "between": between})]
    return [*out, Slot("table_pairs", {"shape": f"{key}{rules['pair']}number", "between": between})]


def _notes(tool: Tool, terms: Terms) -> list[Slot]:
    rules = tool.rules
    notes = listed([f"{note['id']} | {note['text']}" for note in rules["notes"]], terms["and"])
    steps = [terms["lower"], terms[f"split {rules['split']}"]]
    if rules["stop_words"]:
        steps.append(terms["stop"].format(words=listed(rules["stop_words"], terms["and"])))
    steps += [terms["plural"]] if rules["strip_plural"] else []
    formula = {"tf-idf": _TF_IDF, "bm25": _BM25}.get(rules["scoring"], "")
    legend = terms["legend"] + (terms["legend bm25"].format(**rules) if rules["scoring"] == "bm25" else "")
    score = {"repeats": terms[f"repeats {rules['repeats']}"], "formula": formula, "legend": legend}
    shape = (rules["score_format"] or "{}").format("ID", "SCORE")
    out = [
        Slot("notes", {"notes": notes}),
        Slot("terms", {"steps": ", ".join(steps)}),
        Slot("score_formula" if formula else f"score_{rules['scoring']}", score),
        Slot("best_notes", {"count": "`k`" if tool.config_field else str(rules["k"]), "tie": terms[rules["tie"]]}),
        Slot("note_shape", {"shape": shape, "separator": rules["separator"]}),
    ]
    if rules["decimals"]:
        out.append(Slot("note_digits", {"digits": str(rules["decimals"])}))
    return [*out, Slot("note_errors", {"empty": tool.errors[0], "no_hit": tool.errors[1]})]


_TF_IDF = "tf * ln(N / df)"
_BM25 = "ln(1 + (N - df + 0.5) / (df + 0.5)) * tf * (k1 + 1) / (tf + k1 * (1 - b + b * len / avg))"


def _api(tool: Tool, terms: Terms) -> list[Slot]:
    rules, name = tool.rules, tool.function
    fields = listed([each["path"] for each in rules["fields"]], terms["and"])
    reads = {"fields": fields, "between": rules["between"], "whose": terms["of each" if rules["items"] else "of it"]}
    out = [
        Slot("api_get", {"url": f"GET {rules['host']}{template(tool)}"}),
        Slot("api_list" if rules["items"] else "api_object", {"items": str(rules["items"])}),
        Slot("api_encode", {}),
        Slot("api_fields" if len(rules["fields"]) > 1 else "api_field", reads),
    ]
    if rules["items"]:
        out.append(Slot("api_join", {"joiner": rules["joiner"], "nothing": rules["nothing"]}))
    out.append(Slot("api_status", {key: rules[key] for key in ("not_found", "failed", "not_json")}))
    failure = {"timeout": rules["timeout"], "connection": str(rules["connection"])}
    kind = {None: "timeout", rules["timeout"]: "both"}.get(rules["connection"], "two")
    out.append(Slot(f"api_{kind}", failure))
    logic = {"path": f"{name}_path({signature(tool)}) -> str", "read": f"{name}(status: int, body: str) -> str"}
    return [*out, Slot("api_logic", logic)]


_OF_FAMILY = {
    "unit_converter": _units,
    "text_pipeline": _texts,
    "calculator": _formula,
    "code_validator": _codes,
    "table_processor": _tables,
    "note_search": _notes,
    "api_client": _api,
}
