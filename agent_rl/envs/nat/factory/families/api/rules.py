"""Rules of API clients: what a fictional service's rules may hold, and how they are sampled.

Wording and reference code are in `client.py`, what the service answers in `agent_rl.envs.nat.factory.worlds`.
"""

import random
from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from agent_rl.envs.nat.factory.families.base import Rules, Value, is_argument_name
from agent_rl.envs.nat.spec import ConfigField

HOSTS = ["libra", "harbor", "meteo", "kiosk", "museum", "depot", "atlas", "orchard", "signal", "quarry"]
DOMAINS: list[tuple[str, str, list[str], list[str]]] = [
    ("book", "shelf", ["title", "genre", "author.name", "print.place"], ["year", "pages", "author.born"]),
    ("ship", "dock", ["name", "flag", "owner.city", "cargo.kind"], ["length", "crew", "cargo.tons"]),
    ("reading", "station", ["sky", "wind", "sensor.model", "site.region"], ["temp", "rain", "sensor.serial"]),
    ("dish", "menu", ["label", "diet", "chef.name", "origin.country"], ["price", "grams", "chef.stars"]),
    ("painting", "hall", ["title", "style", "painter.name", "frame.wood"], ["height", "lot", "painter.born"]),
    ("parcel", "bay", ["sender", "state", "target.city", "box.color"], ["weight", "rank", "box.size"]),
]
"""A thing, what holds many of it, paths of fields with a word, paths of fields with a number."""
SECOND: dict[str, tuple[Literal["str", "int"], list[Value]]] = {
    "lang": ("str", ["de", "en", "fr&it", "pt=br"]),
    "region": ("str", ["north", "s/w", "east", "mid#2"]),
    "since": ("int", [1990, 2001, 2015, 2024]),
}
"""Names of a second input, with its type and values. No spaces: `+` and `%20` are both in use for them in queries."""
_ADDED = {"after", "attempt", "cursor"}
"""Parameters that come to a URL besides those of the rules."""
_TAKEN = {"answers", "httpx", "quote"}
"""Names that the reference code has for something else."""
_EXTRAS = ["missing", "paging", "paging", "retries", "token"]


Separator = Annotated[str, StringConstraints(pattern=r"^[^\x00-\x1f\"\\`{}]+$")]
"""It is written into an f-string, so braces are no part of it."""


class Param(Rules):
    name: str = Field(pattern=r"^[a-z_]+$")
    kind: Literal["input", "fixed", "page_size"]
    value: str = Field(pattern=r"^[a-z0-9_]*$")
    """The input's name, or the fixed text."""


class Picked(Rules):
    path: str = Field(pattern=r"^[a-z]+(\.[a-z]+)?$")
    kind: Literal["word", "number"]


class ApiRules(Rules):
    host: str = Field(pattern=r"^https://api\.[a-z]+\.example$")
    path: str = Field(pattern=r"^(/[a-z0-9]+)+/\{[a-z]+\}(/[a-z]+)?$")
    params: list[Param]
    fields: list[Picked] = Field(min_length=1)
    between: Separator
    """Between the fields of one thing."""
    items: str | None = Field(pattern="^[a-z_]+$")
    """Key of the list; None when the reply is one thing."""
    joiner: Separator
    """Between things."""
    missing: str | None
    """What stands for a field that is absent or null; None when none ever is."""
    page_size: int | None = Field(ge=1)
    next_style: Literal["path", "cursor"] | None
    """`next` of a reply is the path of the following page, or what to add to the first path as `cursor`."""
    max_pages: int | None = Field(ge=1, le=99)
    max_retries: int | None = Field(ge=0, le=99)
    token: str | None = Field(pattern="^[A-Za-z0-9._-]+$")
    not_found: str = Field(pattern="^error: ")
    failed: str = Field(pattern="^error: ")
    not_json: str = Field(pattern="^error: ")
    nothing: str | None = Field(pattern="^error: ")
    """The answer to an empty list."""
    timeout: str = Field(pattern="^error: ")
    connection: str | None = Field(pattern="^error: ")

    @property
    def key(self) -> str:
        """The first input, which stands in the path."""
        return self.path.partition("{")[2].partition("}")[0]

    @property
    def seconds(self) -> list[str]:
        """Names of further inputs, which are parameters."""
        return [param.value for param in self.params if param.kind == "input"]


def demand_sense(rules: ApiRules) -> None:
    """Raises ValueError when some of the rules contradict each other, or are about nothing."""
    names = [param.name for param in rules.params]
    if len({*names, *_ADDED}) < len(names) + len(_ADDED):
        raise ValueError(f"parameters must differ, and not be called {sorted(_ADDED)}, got {names}")
    if len(rules.seconds) > 1 or not {*rules.seconds} <= SECOND.keys() - {rules.key}:
        raise ValueError(f"one more input at most, of {list(SECOND)}, got {rules.seconds}")
    if not is_argument_name(rules.key) or rules.key in _TAKEN:
        raise ValueError(f"an input cannot be called {rules.key}")
    if [param.kind for param in rules.params].count("page_size") != (rules.page_size is not None):
        raise ValueError("page_size needs one parameter of that kind, and the other way round")
    if (rules.next_style is None) != (rules.max_pages is None) or (rules.next_style and rules.page_size is None):
        raise ValueError("paging takes next_style, max_pages and page_size together")
    if (rules.items is None) != (rules.nothing is None) or (rules.page_size is not None and rules.items is None):
        raise ValueError("a list of things has items and nothing; only a list has pages")
    if rules.items in ("next", "total"):
        raise ValueError(f"items cannot be called {rules.items}")
    if rules.max_retries is not None and not rules.params:
        raise ValueError("retries need a parameter, another one is added to it")
    paths = [each.path for each in rules.fields]
    if len({*paths}) < len(paths) or {path.partition(".")[0] for path in paths if "." in path} & {*paths}:
        raise ValueError(f"fields must differ, and none be an object that holds another, got {paths}")


def sample_rules(rng: random.Random, level: int) -> ApiRules:
    thing, holder, words, numbers = rng.choice(DOMAINS)
    extras = set(rng.sample(_EXTRAS, rng.randint(2, 3))) if level >= 3 else set()
    many = "paging" in extras or level == 2 or rng.random() < 0.4
    key = holder if many else thing
    paths = [("word", path) for path in words] + [("number", path) for path in numbers]
    paths = [(kind, path) for kind, path in paths if level >= 3 or "." not in path]
    second = rng.choice(sorted(SECOND)) if rng.random() < 0.35 else None
    page_size = rng.randint(2, 3) if level == 2 or "paging" in extras else None
    base = f"{rng.choice(['/v1', '/v2', '/api', '/open/v3'])}/{key}/{{{key}}}"
    timeout = rng.choice(["error: timeout", "error: no answer in time", "error: too slow"])
    return ApiRules(
        host=f"https://api.{rng.choice(HOSTS)}.example",
        path=f"{base}/{thing}" if many else base,
        params=_sample_params(rng, second, page_size, bool(extras & {"paging", "retries"})),
        fields=[Picked(path=path, kind=kind) for kind, path in rng.sample(paths, rng.randint(1, 3))],
        between=rng.choice([" - ", " / ", ": ", ", "]),
        items=rng.choice(["items", "results", "data"]) if many else None,
        joiner=rng.choice(["; ", " | ", " + "]),
        missing=rng.choice(["?", "n/a", "none"]) if "missing" in extras else None,
        page_size=page_size,
        next_style=rng.choice(["path", "cursor"]) if "paging" in extras else None,
        max_pages=rng.randint(2, 3) if "paging" in extras else None,
        max_retries=rng.randint(1, 2) if "retries" in extras else None,
        token=f"demo-{rng.randrange(16**6):06x}" if "token" in extras else None,
        not_found=rng.choice([f"error: no such {key}", f"error: unknown {key}", "error: not found"]),
        failed=rng.choice(["error: service failed", "error: request refused", "error: bad status"]),
        not_json=rng.choice(["error: unreadable reply", "error: bad body", "error: not JSON"]),
        nothing=rng.choice(["error: nothing there", f"error: no {thing}"]) if many else None,
        timeout=timeout,
        connection=rng.choice([None, "error: no connection", "error: unreachable", timeout]),
    )


def _sample_params(rng: random.Random, second: str | None, page_size: int | None, needs_one: bool) -> list[Param]:
    """Parameters in a random order; at least one when others will be added to them."""
    out = []
    if second:
        out.append(Param(name=rng.choice([second, f"with_{second}"]), kind="input", value=second))
    if page_size:
        out.append(Param(name=rng.choice(["limit", "per_page", "count"]), kind="page_size", value=""))
    if rng.random() < 0.4 or (needs_one and not out):
        name, value = rng.choice([("view", "short"), ("format", "json"), ("order", "asc"), ("edition", "2")])
        out.append(Param(name=name, kind="fixed", value=value))
    rng.shuffle(out)
    return out


def config_fields(rules: ApiRules) -> list[ConfigField]:
    """The limits that the rules have, each made a setting."""
    fields = []
    if rules.page_size is not None:
        text = "Things asked for in one request."
        fields.append(ConfigField(name="page_size", default=rules.page_size, low=1, high=9, description=text))
    if rules.max_pages is not None:
        text = "Pages read at most."
        fields.append(ConfigField(name="max_pages", default=rules.max_pages, low=1, high=6, description=text))
    if rules.max_retries is not None:
        text = "Further attempts after a busy reply."
        fields.append(ConfigField(name="max_retries", default=rules.max_retries, low=0, high=4, description=text))
    return fields
