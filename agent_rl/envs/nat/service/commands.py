"""`agent-rl serve` and `agent-rl serve add-key`: the service until SIGTERM or Ctrl-C, and keys for its clients.

    agent-rl serve --config configs/serve.yaml
    agent-rl serve add-key ann --scope create --scope feedback

Not here: what is served (`service.py`).
"""

import importlib.util
import logging
import re
import signal
import threading
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from agent_rl.errors import ConfigError
from agent_rl.resources import install_command

_OVERRIDE = re.compile(r"[a-z_]+(\.[a-z_]+)*=.*", re.DOTALL)


class _OverridesGroup(TyperGroup):
    """Takes `section.key=value` as other commands do, in front of a subcommand's name too."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        with_value = {name for each in self.params if not getattr(each, "is_flag", False) for name in each.opts}
        words: list[str] = []
        for before, word in zip(["", *args], args, strict=False):
            is_bare = before not in with_value and _OVERRIDE.fullmatch(word)
            words += ["--set", word] if is_bare else [word]
        return super().parse_args(ctx, words)


app = typer.Typer(
    cls=_OverridesGroup,
    invoke_without_command=True,
    help="Serve agents on request over HTTP, with a page; add-key makes keys.",
)
ConfigFile = Annotated[Path, typer.Option("--config", help="YAML file: the model, the planner, the service.")]
Setting = Annotated[list[str] | None, typer.Option("--set", metavar="section.key=value", help="Override, in order.")]
CONFIG = Path("configs/serve.yaml")


@app.callback()
def serve(
    context: typer.Context,
    config: ConfigFile = CONFIG,
    settings: Setting = None,
    checkpoint: Annotated[
        str | None, typer.Option(help="Checkpoint of a run, or any model; default: model.path.")
    ] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Serve another address than loopback without keys.")
    ] = False,
) -> None:
    """Serve until SIGTERM or Ctrl-C; what runs then has service.drain_s to end. Exit code 0."""
    context.obj = (config, settings)
    if context.invoked_subcommand is not None:
        return
    from agent_rl.endpoint.errors import check_installed
    from agent_rl.envs.nat.create.creator import AgentCreator
    from agent_rl.envs.nat.create.settings import load_serve_config

    check_installed()
    if importlib.util.find_spec("prometheus_client") is None:
        raise ConfigError(f"the service needs prometheus_client; {install_command('monitoring')}")
    from agent_rl.envs.nat.service.service import AgentService

    read = load_serve_config(config, settings or ())
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    is_over = threading.Event()

    def stop(_number: int, _frame: Any) -> None:
        is_over.set()

    with AgentCreator.open(read, checkpoint=checkpoint) as creator:
        creator.check_ready()
        with AgentService(creator, insecure=insecure) as service:
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, stop)
            print(f"serving agents on {service.address}, the page included", flush=True)
            if service.metrics_address:
                print(f"metrics: {service.metrics_address}", flush=True)
            print("no keys: everybody on this machine may use it" if service.is_open_to_all else "keys are asked for")
            is_over.wait()
            print("draining", flush=True)
            service.drain()
    print("ended", flush=True)


@app.command("add-key")
def add_key(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="Whose key it is; seen in logs and metrics.")],
    scope: Annotated[
        list[str] | None, typer.Option(help="What it may do; repeat it.", show_default="all but admin")
    ] = None,
    per_hour: Annotated[int | None, typer.Option(min=1, help="Requests an hour; default: service.per_hour.")] = None,
) -> None:
    """Make a key and print its secret, which is shown only now; the file holds a checksum."""
    from agent_rl.envs.nat.create.settings import load_serve_config
    from agent_rl.envs.nat.service import keys
    from agent_rl.envs.nat.service.service import keys_path

    config, settings = context.obj
    service = load_serve_config(config, settings or ()).service
    path = keys_path(service)
    scopes = scope or [each for each in keys.SCOPES if each != "admin"]
    secret = keys.add_key(path, name, scopes=scopes, per_hour=per_hour or service.per_hour)
    print(secret)
    typer.echo(f"{path}: {name} may {', '.join(scopes)}, {per_hour or service.per_hour} requests an hour", err=True)
