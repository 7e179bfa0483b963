"""The service over HTTP, on a scripted model and the real toolkit: from a request to files, events, feedback."""

import io
import json
import re
import zipfile
from pathlib import Path
from typing import Any

import httpx
import pytest
from created_agents import KILOMETRES, outline, planned, planner, reference, submission
from nat_projects import row, spec_of
from services import Client, HeldScript, new_key, read_events, reference_writer, scripted_creator, service_of, serving

from agent_rl.endpoint.server import ThreadedServer
from agent_rl.envs.nat.create.running import read_package
from agent_rl.envs.nat.factory.render import render_project
from agent_rl.envs.nat.judge.toolkit import NatToolkit
from agent_rl.envs.nat.service.metrics import INCIDENTS
from agent_rl.envs.nat.service.service import AgentService

SPEC = spec_of("unit_converter", 1)
ROW = row(SPEC)
WRONG = {"FACTORS[to_unit]": "FACTORS[from_unit]"}
PAGE = (Path(__file__).resolve().parents[4] / "docs/service.md").read_text(encoding="utf-8")


def said(client: Client, job_id: str, **body: Any) -> httpx.Response:
    return client.post(f"/v1/agents/{job_id}/feedback", {"verdict": "works", "consent": False, **body})


def problem(answer: httpx.Response, status: int) -> str:
    """The sentence of an error."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    body = answer.json()
    assert (body["status"], body["type"]) == (status, "about:blank") and body["title"]
    assert "\n" not in body["detail"] and "Traceback" not in body["detail"]
    return body["detail"]


def test_a_plan_becomes_an_accepted_package(nat_toolkit: NatToolkit, tmp_path: Path) -> None:
    spec = spec_of("unit_converter", 1, seed=7_000)  # of this test alone: what was judged before is not run again
    with serving(nat_toolkit, tmp_path, reference_writer(spec)) as client:
        job = client.made(spec=row(spec), request="days to minutes")
        assert (job["state"], job["request"], job["error"], job["planner"]) == (
            "accepted", "days to minutes", None, "given",
        )  # fmt: skip
        assert job["plan"]["tools"][0]["name"] == spec.tools[0].instance
        assert (len(job["candidates"]), job["chosen"]) == (1, 0)
        assert job["model"]["sha256"] == "0" * 64 and job["report"]["points"]
        assert {"queue_s", "sample_s", "check_s", "package_s", "all_s"} <= set(job["timings"])
        packed = client.get(job["links"]["project"])
        assert packed.headers["content-disposition"] == f'attachment; filename="{spec.package}.zip"'
        (tmp_path / "mine.zip").write_bytes(packed.content)
        assert read_package(tmp_path / "mine.zip")[1]["state"] == "accepted"
        wheel = client.get(job["links"]["package"])
        assert any(name.endswith("entry_points.txt") for name in zipfile.ZipFile(io.BytesIO(wheel.content)).namelist())
        shown = client.get(f"{job['links']['files']}{spec.logic_path}")
        assert shown.text == render_project(spec)[spec.logic_path]
        assert shown.headers["content-type"].startswith("text/plain") and shown.headers["x-content-type-options"]
        assert set(job["files"]) >= set(spec.files)
        assert [each["id"] for each in client.get("/v1/agents").json()["agents"]] == [job["id"]]
        assert client.metric("agent_rl_jobs_total", state="accepted", planner="given") == 1
        assert client.metric("agent_rl_first_candidate_accepted_total") == 1
        assert client.metric("agent_rl_candidates_total", outcome="complete", round="greedy") == 1
        assert client.metric("agent_rl_sandbox_runs_total", status="ok") > 0


def test_words_become_a_plan_by_a_planner_and_then_a_package(nat_toolkit: NatToolkit, tmp_path: Path) -> None:
    rules = planned(KILOMETRES)
    making = scripted_creator(
        nat_toolkit,
        tmp_path,
        lambda *_: reference(made_spec),
        planner=planner(outline("direct", "unit_converter"), rules, outline("direct", "unit_converter"), rules),
        writes={"names": "planned"},
    )
    made_spec = making.plan("km to m").spec
    assert made_spec is not None
    with service_of(making) as client:
        job = client.made(request="km to m")
        assert (job["state"], job["planner"]) == ("accepted", "openai")
        assert job["plan"]["package"] == "nat_length_helper"
        kept = client.service.store.find(job["id"])
        assert kept is not None and kept.spec is not None and kept.spec["package"] == "nat_length_helper"
        assert client.metric("agent_rl_planner_requests_total", outcome="made") == 1
        assert client.metric("agent_rl_planner_tokens_total", kind="prompt") == 200


def test_events_tell_all_of_it_and_go_on_after_a_lost_connection(nat_toolkit: NatToolkit, tmp_path: Path) -> None:
    script = HeldScript(reference(SPEC))
    with serving(nat_toolkit, tmp_path, script) as client:
        job_id = client.begun(spec=ROW)
        first: list[Any] = []
        with client.http.stream("GET", f"/v1/agents/{job_id}/events") as stream:
            assert stream.headers["content-type"].startswith("text/event-stream")
            text = ""
            for piece in stream.iter_text():
                text += piece
                first = read_events(text)
                if first and first[-1][2].get("state") == "sampling":
                    break  # the connection is lost here
        assert client.get(f"/v1/agents/{job_id}/project.zip").status_code == 409
        script.may_go_on.set()
        rest = client.events(job_id, after=first[-1][0])
        numbers = [number for number, _, _ in (*first, *rest)]
        assert numbers == list(range(1, len(numbers) + 1))
        kinds = [kind for _, kind, _ in (*first, *rest)]
        assert [kind for kind in kinds if kind != "state"] == ["plan", "check", "candidate", "end"]
        states = [data["state"] for _, kind, data in (*first, *rest) if kind in ("state", "end")]
        assert states == ["queued", "planning", "sampling", "checking", "accepted"]
        assert client.events(job_id, after=numbers[-1]) == []
        assert "number" in problem(client.get(f"/v1/agents/{job_id}/events", **{"Last-Event-ID": "x"}), 422)
        assert client.metric("agent_rl_incidents_total", kind="client_gone") == 1


def test_the_same_key_asks_once(nat_toolkit: NatToolkit, tmp_path: Path) -> None:
    with serving(nat_toolkit, tmp_path, reference_writer(SPEC)) as client:
        once = {"Idempotency-Key": "mine-1"}
        ids = {client.post("/v1/agents", {"spec": ROW, "seed": 3}, **once).json()["id"] for _ in range(3)}
        assert len(ids) == 1
        assert "another body" in problem(client.post("/v1/agents", {"spec": ROW, "seed": 4}, **once), 422)
        assert "visible" in problem(client.post("/v1/agents", {"spec": ROW}, **{"Idempotency-Key": "a b"}), 422)
        waited = client.post("/v1/agents", {"spec": ROW, "seed": 3}, **once, Prefer="respond-async, wait=30")
        assert (waited.status_code, waited.json()["state"]) == (200, "accepted")
        assert waited.headers["preference-applied"] == "wait=30"
        assert sum(client.service.store.counts().values()) == 1


def test_a_rejected_project_is_only_shown_to_those_who_ask_for_it(nat_toolkit: NatToolkit, tmp_path: Path) -> None:
    wrong = reference(SPEC, **WRONG)
    with serving(nat_toolkit, tmp_path, lambda *_: wrong, creation={"candidates": 2}) as client:
        job = client.made(spec=ROW)
        assert (job["state"], job["error"]["title"], len(job["candidates"])) == ("rejected", "No project passed", 2)
        assert "package" not in job["links"]
        assert "rejected=yes" in problem(client.get(job["links"]["project"]), 409)
        assert client.get(f"{job['links']['project']}?rejected=yes").status_code == 200
        path = f"{job['links']['files']}{SPEC.logic_path}"
        assert problem(client.get(path), 409)
        assert "FACTORS" in client.get(f"{path}?rejected=yes").text
        assert client.metric("agent_rl_problems_total", stage="behaviour") == 2


def test_what_is_refused_has_a_reason_and_no_files(nat_toolkit: NatToolkit, tmp_path: Path) -> None:
    with serving(nat_toolkit, tmp_path, [], writes={"levels": (1,)}) as client:
        job = client.made(request="km to m")
        assert (job["state"], job["plan"]) == ("refused", None) and "no planner" in job["error"]["detail"]
        assert "refused" in problem(client.get(f"/v1/agents/{job['id']}/project.zip"), 409)
        assert "refused" in problem(said(client, job["id"]), 409)
        beyond = client.made(spec=row(spec_of("unit_converter", 3)))
        assert beyond["state"] == "refused" and beyond["plan"]["level"] == 3
        states = [data["state"] for _, kind, data in client.events(beyond["id"]) if kind in ("state", "end")]
        assert states == ["queued", "planning", "refused"]


def test_a_job_under_way_is_cancelled_and_an_ended_one_is_removed(nat_toolkit: NatToolkit, tmp_path: Path) -> None:
    script = HeldScript(reference(SPEC))
    with serving(nat_toolkit, tmp_path, script, service={"workers": 1}) as client:
        running, waiting = client.begun(spec=ROW), client.begun(spec=ROW)
        for job_id in (waiting, running):
            answer = client.http.delete(f"/v1/agents/{job_id}")
            assert (answer.status_code, answer.json()["state"]) == (202, "cancelled")
        script.may_go_on.set()
        after = client.made(spec=ROW)
        assert after["state"] == "accepted"
        assert client.job(running)["state"] == "cancelled" and client.events(running)[-1][1] == "end"
        assert not client.service.store.path_of(running).exists()
        assert client.http.delete(f"/v1/agents/{after['id']}").status_code == 204
        assert problem(client.get(f"/v1/agents/{after['id']}"), 404)
        assert not client.service.store.path_of(after["id"]).exists()
        assert client.metric("agent_rl_jobs_total", state="cancelled", planner="given") == 2


def test_feedback_is_kept_once_for_each_key(nat_toolkit: NatToolkit, tmp_path: Path) -> None:
    with serving(nat_toolkit, tmp_path, reference_writer(SPEC)) as client:
        job = client.made(spec=ROW)
        case = {"target": SPEC.tools[0].instance, "input": {"value": 1}, "expected": "x"}
        assert said(client, job["id"], comment="good").status_code == 201
        for _ in range(3):  # replayed
            assert said(client, job["id"], verdict="fails", consent=True, cases=[case]).status_code == 201
        (kept,) = client.service.store.feedback(job["id"])
        assert (kept.key_name, kept.verdict, kept.consent, kept.cases) == ("local", "fails", True, [case])
        assert client.metric("agent_rl_feedback_total", verdict="fails", state="accepted") == 1
        assert "consent" in problem(client.post(f"/v1/agents/{job['id']}/feedback", {"verdict": "works"}), 422)
        assert "verdict" in problem(said(client, job["id"], verdict="great"), 422)
        assert "arguments" in problem(said(client, job["id"], cases=[{**case, "input": "text"}]), 422)


def test_a_project_of_ones_own_is_checked(nat_toolkit: NatToolkit, tmp_path: Path) -> None:
    files = render_project(SPEC)
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for path, text in files.items():
            archive.writestr(f"mine/{path}", text)
    with serving(nat_toolkit, tmp_path, []) as client:
        report = client.http.post(
            "/v1/validate", content=packed.getvalue(), headers={"Content-Type": "application/zip"}
        )
        assert report.status_code == 200 and report.json()["points"]
        case = {"target": SPEC.tools[0].instance, "input": dict(SPEC.tools[0].example.inputs), "expected": "wrong"}
        report = client.post("/v1/validate", {"files": files, "cases": [case]})
        (cases,) = [each for each in report.json()["points"] if each["name"].endswith("cases")]
        assert cases["score"] == 0.0
        assert "no project" in problem(client.post("/v1/validate", {"files": {"x.py": ""}}), 422)
        assert "files" in problem(client.post("/v1/validate", {"file": {}}), 422)
        assert problem(client.http.post("/v1/validate", content=b"x", headers={"Content-Type": "text/plain"}), 415)


@pytest.mark.parametrize(
    ("body", "word"),
    [
        ({}, "request is empty"),
        ({"request": " "}, "request is empty"),
        ({"request": "x" * 4001}, "4000"),
        ({"request": "x", "seed": -1}, "seed"),
        ({"request": "x", "candidates": 17}, "candidates"),
        ({"request": "x", "deadline_s": 5}, "deadline_s"),
        ({"request": "x", "deadline_s": 601}, "at most 600"),
        ({"request": "x", "model": "m"}, "model"),
        ({"request": 5}, "request"),
        ({"spec": {"task_id": "x"}}, "spec"),
        ({"spec": {**ROW, "package": "../up"}}, "package"),
        ({"request": "x", "cases": [{"input": {}, "expected": ""}]}, "cases:1"),
        ([], "valid"),
    ],
)
def test_what_is_no_request_is_one_sentence(body: Any, word: str, service_client: Client) -> None:
    assert word in problem(service_client.post("/v1/agents", body), 422)
    assert service_client.service.store.counts() == {}


@pytest.fixture(scope="module")
def service_client(nat_toolkit: NatToolkit, tmp_path_factory: pytest.TempPathFactory) -> Any:
    with serving(nat_toolkit, tmp_path_factory.mktemp("service"), lambda *_: "ready") as client:
        yield client


def test_health_documents_and_unknown_places(service_client: Client) -> None:
    assert service_client.get("/healthz").json() == {"status": "ok"}
    assert service_client.get("/readyz").json()["ready"] is True
    paths = service_client.get("/openapi.json").json()["paths"]
    assert {"/v1/agents", "/v1/agents/{job_id}/events", "/v1/validate", "/v1/chat/completions"} <= set(paths)
    assert "/v1/reward" not in paths
    assert service_client.get("/docs").status_code == 200
    assert problem(service_client.get("/v1/nothing"), 404)
    assert problem(service_client.http.put("/v1/agents"), 405)
    assert problem(service_client.get("/v1/agents/agent-00"), 404)


def test_the_chat_endpoint_is_mounted(nat_toolkit: NatToolkit, tmp_path: Path) -> None:
    with serving(nat_toolkit, tmp_path, ["Hello."]) as client:
        asked = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 50}
        answer = client.post("/v1/chat/completions", asked)
        assert answer.json()["choices"][0]["message"]["content"] == "Hello."
        assert client.get("/v1/models").json()["data"][0]["id"] == "policy"
        streamed = client.post("/v1/chat/completions", {**asked, "stream": True}).text
        assert "Hello." in streamed and streamed.strip().endswith("[DONE]")
        wrong = client.post("/v1/chat/completions", asked, **{"X-Agent-RL-Temperature": "hot"})
        assert (wrong.status_code, wrong.json()["error"]["code"]) == (400, "invalid_value")


def test_metrics_have_a_port_of_their_own_and_are_those_of_the_page(nat_toolkit: NatToolkit, tmp_path: Path) -> None:
    making = scripted_creator(nat_toolkit, tmp_path, [], service={"metrics_port": 0})
    with AgentService(making) as service:
        assert not httpx.get(f"{service.address}/metrics").is_success
        answer = httpx.get(service.metrics_address, headers={"Accept": "application/openmetrics-text"})
        assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
        told = set(re.findall(r"^# TYPE (agent_rl_\w+) ", answer.text, re.MULTILINE))
    table = PAGE.split("## Metrics")[1].split("\n## ")[0]
    listed = set(re.findall(r"`(agent_rl_\w+)", table))
    in_process = {"agent_rl_engine_in_flight", "agent_rl_engine_waiting", "agent_rl_cache_slots_used"}
    assert listed == told | in_process  # the scripted model has no engine
    assert all(f"`{kind}`" in table for kind in INCIDENTS)


def test_a_port_that_is_taken_ends_the_start_and_frees_the_store(nat_toolkit: NatToolkit, tmp_path: Path) -> None:
    from agent_rl.errors import ConfigError

    async def nothing(scope: Any, receive: Any, send: Any) -> None: ...

    with ThreadedServer(nothing) as taken, pytest.raises(ConfigError, match="cannot listen"):
        AgentService(scripted_creator(nat_toolkit, tmp_path, [], service={"port": taken.port}))
    with serving(nat_toolkit, tmp_path, []):
        pass


def test_free_words_without_a_plan_are_built_at_best(nat_toolkit: NatToolkit, tmp_path: Path) -> None:
    files = dict(render_project(SPEC))
    with serving(nat_toolkit, tmp_path, [submission(files)] * 2, writes={"free_words": True}) as client:
        job = client.made(request="days to minutes")
        assert (job["state"], job["planner"]) == ("built", "none")
        assert client.get(job["links"]["package"]).status_code == 200


def test_keys_see_their_own_jobs_and_admin_all(nat_toolkit: NatToolkit, tmp_path: Path) -> None:
    making = scripted_creator(nat_toolkit, tmp_path, reference_writer(SPEC))
    ann, bob = new_key(tmp_path, "ann", "create", "feedback"), new_key(tmp_path, "bob", "create", "feedback")
    root = new_key(tmp_path, "root", "create", "admin")
    with service_of(making) as client:
        of = {name: Client(client.service, secret) for name, secret in (("ann", ann), ("bob", bob), ("root", root))}
        job = of["ann"].made(spec=ROW)
        for path in ("", "/events", "/project.zip", f"/files/{SPEC.logic_path}"):
            assert problem(of["bob"].get(f"/v1/agents/{job['id']}{path}"), 404)
        assert problem(of["bob"].http.delete(f"/v1/agents/{job['id']}"), 404)
        assert problem(said(of["bob"], job["id"]), 404)
        assert of["bob"].get("/v1/agents").json() == {"agents": []}
        assert len(of["root"].get("/v1/agents").json()["agents"]) == 1
        assert of["root"].job(job["id"])["state"] == "accepted"
        assert "may not feedback" in problem(said(of["root"], job["id"]), 403)
        text = json.dumps(of["root"].job(job["id"])) + str(client.service.metrics.text())
        assert not any(secret in text for secret in (ann, bob, root))
