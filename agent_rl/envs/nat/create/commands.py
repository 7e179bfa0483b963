"""`agent-rl create`, `agent-rl run` and `agent-rl nat plan`: from a request to a running agent.

    agent-rl nat plan "Convert km, miles and metres, two decimals" planner.source=gemini
    agent-rl create "Convert km, miles and metres, two decimals" --output-dir my_agent planner.source=gemini
    agent-rl run my_agent

Not here: what they do (`creator.py`, `package.py`, `running.py`).
"""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from agent_rl.envs.nat.create.result import Creation
    from agent_rl.envs.nat.create.settings import ServeConfig
    from agent_rl.envs.nat.spec import NATSpec

CONFIG = Path("configs/serve.yaml")
Request = Annotated[str, typer.Argument(metavar="REQUEST", help="What the agent should do; `-` reads standard input.")]
Overrides = Annotated[list[str] | None, typer.Argument(help="section.key=value, applied in order.")]
ConfigFile = Annotated[Path, typer.Option("--config", help="YAML file: the model, what it can write, the planner.")]
Seed = Annotated[int, typer.Option(min=0, help="Of sampling, hidden cases, and what a plan leaves open.")]
JsonFile = Annotated[
    str | None, typer.Option("--json", metavar="FILE", help="Write all of it as JSON; `-` prints nothing else.")
]
SpecFile = Annotated[
    Path | None, typer.Option("--spec", exists=True, dir_okay=False, help="A plan: a task file with one row.")
]
CasesFile = Annotated[
    Path | None,
    typer.Option("--cases", exists=True, dir_okay=False, help="Cases of your own, as `nat validate` takes them."),
]
OutputDir = Annotated[
    Path | None,
    typer.Option(help="Folder of the agent, which must not exist or be empty.", show_default="the package's name"),
]


def create(
    request: Annotated[str, typer.Argument(metavar="[REQUEST]", help="What it should do; `-` reads stdin.")] = "",
    overrides: Overrides = None,
    config: ConfigFile = CONFIG,
    checkpoint: Annotated[
        str | None, typer.Option(help="Checkpoint of a run, or any model; default: model.path.")
    ] = None,
    spec: SpecFile = None,
    cases: CasesFile = None,
    candidates: Annotated[
        int | None, typer.Option(min=1, max=64, help="Most projects written; default: creation.candidates.")
    ] = None,
    repairs: Annotated[
        int | None, typer.Option(min=0, max=8, help="Times the best is given back; default: creation.repairs.")
    ] = None,
    seed: Seed = 0,
    output_dir: OutputDir = None,
    with_zip: Annotated[bool, typer.Option("--zip", help="Write FOLDER.zip too.")] = False,
    with_wheel: Annotated[bool, typer.Option("--wheel", help="Write a wheel beside the folder too.")] = False,
    json_path: JsonFile = None,
) -> None:
    """Have an agent written, check it with the real toolkit, and package it.

    Exit code 0: accepted (or built, where there is no plan). 1: rejected. 2: refused, or misused.
    """
    from agent_rl.envs.nat.create.creator import AgentCreator
    from agent_rl.envs.nat.create.package import check_free, save
    from agent_rl.envs.nat.create.packaging import folder_name
    from agent_rl.envs.nat.create.settings import load_serve_config
    from agent_rl.envs.nat.factory.user_test_cases import read_cases, read_spec
    from agent_rl.errors import UserError

    request, overrides = _split(request, overrides)
    row = read_spec(spec) if spec else None
    if not request and row is None:
        raise UserError('nothing was asked for; say what the agent should do, as in agent-rl create "Convert km to m"')
    own = read_cases(cases) if cases else ()
    if output_dir is not None:
        check_free(output_dir)
    settings = load_serve_config(config, overrides)
    tries = {"candidates": candidates, "repairs": repairs, "seed": seed}
    creation, saved = _unplannable(request, settings, row, seed), None
    if creation is None:
        with AgentCreator.open(settings, checkpoint=checkpoint) as creator:
            show = _say_nothing if json_path == "-" else _show_event
            creation = creator.create(request, spec=row, cases=own, on_event=show, **tries)
            if creation.state != "refused":
                folder = output_dir or Path(folder_name(creation))
                saved = save(creation, creator.toolkit, folder, cases=own, with_zip=with_zip, with_wheel=with_wheel)
    _write_json(json_path, creation.to_dict() | {"saved": {key: str(path) for key, path in _paths(saved).items()}})
    _show_end(creation, _paths(saved), is_quiet=json_path == "-")
    raise typer.Exit({"accepted": 0, "built": 0, "rejected": 1, "refused": 2}[creation.state])


def plan(
    request: Request,
    overrides: Overrides = None,
    config: ConfigFile = CONFIG,
    seed: Seed = 0,
    json_path: JsonFile = None,
) -> None:
    """Show what a planner makes of a request; no model is loaded and nothing is written.

    Exit code 0: there is a plan. 2: there is none, for the reason that is printed.
    """
    from agent_rl.envs.nat.create.planning import NO_PLANNER, RequestPlanner
    from agent_rl.envs.nat.create.scope import Scope, bad_request
    from agent_rl.envs.nat.create.settings import load_serve_config
    from agent_rl.errors import UserError
    from agent_rl.policies.model_files.trained_for import read_trained_for

    request, overrides = _split(request, overrides)
    settings = load_serve_config(config, overrides)
    scope = Scope.of(settings.writes, read_trained_for(settings.model.path), settings.model.path)
    if why := bad_request(request):
        raise UserError(why)
    if settings.planner.settings is None:
        raise UserError(NO_PLANNER)
    planner = RequestPlanner(settings.planner.settings)
    found = planner.plan(request, seed=seed, with_cases=False, **settings.writes.of_plans)
    beyond = scope.beyond(found.spec) if found.spec else None
    record = {
        "request": request,
        "plan": found.spec.model_dump(mode="json") if found.spec else None,
        "reason": found.reason,
        "beyond_the_model": beyond,
        "planner": found.about,
        "seconds": found.seconds,
    }
    _write_json(json_path, record)
    if found.spec is None:
        raise UserError(f"no plan: {found.reason}")
    if json_path != "-":
        _show_plan(found.spec, found.about, found.seconds)
        if beyond:
            print(_plain(f"`agent-rl create` would refuse it: {beyond}"))


def run(
    package: Annotated[Path, typer.Argument(metavar="DIR|ZIP", help="An agent that `agent-rl create` made.")],
    mcp: Annotated[bool, typer.Option("--mcp", help="Serve its functions as MCP tools (`nat mcp serve`).")] = False,
    host: Annotated[str, typer.Option(help="Address to listen on; the toolkit's server has no key.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.")] = 8000,
    no_sandbox: Annotated[
        bool, typer.Option("--no-sandbox", help="Run it as you, with your files and your network.")
    ] = False,
    unverified: Annotated[
        bool, typer.Option("--unverified", help="Run it though it was not accepted, or was changed.")
    ] = False,
    python: Annotated[str | None, typer.Option(help="Interpreter with the toolkit.", show_default=".venv-nat")] = None,
    logs: Annotated[bool, typer.Option("--logs", help="Print what the agent prints.")] = False,
) -> None:
    """Serve a packaged agent with the toolkit until Ctrl-C (exit code 130).

    HTTP: `POST /v1/workflow` with the inputs as JSON, `/docs`, `/health`. MCP: streamable HTTP at `/mcp`.
    """
    import signal

    from agent_rl.envs.nat.create.running import check_runnable, read_package, served

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    files, provenance = read_package(package, unverified=unverified)
    python = check_runnable(provenance, sandboxed=not no_sandbox, python=python)

    def say(line: str) -> None:
        if logs:
            print(line, file=sys.stderr, flush=True)

    mode: Any = "mcp" if mcp else "http"
    with served(files, mode, host=host, port=port, python=python, sandboxed=not no_sandbox, say=say) as agent:
        print(f"{package}: {provenance.get('state', 'never checked')}", flush=True)
        print(f"isolation: {agent.isolation}", flush=True)
        print(
            f"serving {'MCP tools' if mcp else 'HTTP'} on {agent.url}{'/mcp' if mcp else ''}; Ctrl-C ends it",
            flush=True,
        )
        agent.wait()


# ---------------------------------------------------------------- what is shared


def _split(request: str, overrides: list[str] | None) -> tuple[str, list[str]]:
    """The request and the overrides; `-` is standard input, and with a plan there may be overrides alone."""
    from agent_rl.envs.nat.create.settings import ServeConfig

    key = request.partition("=")[0].split(".")
    if len(key) > 1 and key[0] in ServeConfig.model_fields and "=" in request and " " not in request.partition("=")[0]:
        return "", [request, *(overrides or [])]
    return (sys.stdin.read() if request == "-" else request), list(overrides or [])


def _unplannable(request: str, settings: "ServeConfig", row: "NATSpec | None", seed: int) -> "Creation | None":
    """What becomes of a request that nobody can plan, which is known before a model is loaded; else None."""
    from agent_rl.envs.nat.create.planning import NO_PLANNER
    from agent_rl.envs.nat.create.result import Creation
    from agent_rl.envs.nat.create.scope import bad_request

    why = bad_request(request or (row.request if row else ""))
    if not why and row is None and settings.planner.settings is None and not settings.writes.free_words:
        why = NO_PLANNER
    return Creation(state="refused", request=request, seed=seed, reason=why) if why else None


def _say_nothing(event: Any) -> None:
    """For those who read the JSON alone."""


def _paths(saved: Any) -> dict[str, Path]:
    if saved is None:
        return {}
    paths = {"folder": saved.folder, "zip": saved.zip, "wheel": saved.wheel}
    return {name: path for name, path in paths.items() if path is not None}


def _write_json(path: str | None, record: dict[str, Any]) -> None:
    from agent_rl.telemetry.files import write_json

    if path == "-":
        print(json.dumps(record, indent=2))
    elif path:
        write_json(Path(path), record)


def _show_event(event: Any) -> None:
    if event["event"] == "candidate":
        at = "greedy" if event["kind"] == "greedy" else f"{event['kind']}, seed {event['seed']}"
        first = f": {event['problems'][0]}" if event["problems"] else ""
        seconds = event["write_s"] + event["check_s"]
        print(_plain(f"project {event['number']} ({at}): {event['verdict']} in {seconds:.1f} s{first}"), flush=True)


def _show_end(creation: "Creation", paths: dict[str, Path], *, is_quiet: bool) -> None:
    if creation.state == "refused":
        print(_plain(f"refused: {creation.reason}"), file=sys.stderr)
    if creation.state == "refused" or is_quiet:
        return
    print(_plain(f"{creation.state}{f': {creation.reason}' if creation.reason else ''}"))
    if creation.state == "built":
        print("There was no plan, so nobody knows whether its answers are right; give --spec or a planner for that.")
    for name, path in paths.items():
        print(f"{name}: {path}")


def _show_plan(spec: "NATSpec", about: dict[str, Any], seconds: float) -> None:
    lines = [
        f"{spec.plan.scaffold_type}, family {spec.family}, level {spec.level}, package {spec.package}",
        *(f"- {tool.instance}({_inputs(tool)}): {tool.errors}" for tool in spec.tools),
        "",
        spec.request,
        "",
        f"{about['num_tokens_in']} tokens in, {about['num_tokens_out']} out, {seconds:.1f} s; "
        f"the planner's own test cases right: {about['own_cases'][0]} of {about['own_cases'][1]}",
    ]
    if not about["took_schemas"]:
        lines.append("the endpoint takes no JSON schema; the schema went into the prompt")
    print("\n".join(_plain(line) for text in lines for line in text.split("\n")))


def _inputs(tool: Any) -> str:
    return ", ".join(f"{each.name}: {each.type}" for each in tool.inputs)


def _plain(text: str) -> str:
    """A line for a terminal, whatever a model wrote into it."""
    return "".join(char if char.isprintable() else " " for char in text)
