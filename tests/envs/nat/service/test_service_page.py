"""The page of the service in a real browser: a request becomes a project, and text that would do harm stays text."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from created_agents import reference, submission
from nat_projects import row, spec_of
from services import Client, HeldScript, new_key, reference_writer, scripted_creator, service_of, serving
from view_pages import Page, needs_a_browser

from agent_rl.envs.nat.factory.render import render_project
from agent_rl.envs.nat.judge.toolkit import NatToolkit

pytest_plugins = ["view_fixtures"]
pytestmark = needs_a_browser
SPEC = spec_of("unit_converter", 1)
ROW = row(SPEC)
EVIL = '<img src=x onerror="window.harmed=1"><script>window.harmed=1</script>\u202e"><b>'


class ServicePage(Page):
    """The page of a running service."""

    def fill(self, selector: str, text: str) -> None:
        self.driver.execute_script("document.querySelector(arguments[0]).value = arguments[1]", selector, text)

    def ask(self, **fields: str) -> None:
        for name, text in fields.items():
            self.fill(f"#{name}", text)
        self.click("#send")

    def wait_for_verdict(self, state: str) -> None:
        self.wait(lambda: self.texts("#verdict") == [state], 60.0)


@pytest.fixture
def browser(driver: Any) -> Iterator[Any]:
    """At the end nothing that was written in the page may have run, and nothing complained."""
    driver.get_log("browser")
    yield driver
    assert driver.execute_script("return window.harmed") is None
    assert driver.execute_script("return document.querySelectorAll('img, main script, b').length") == 0
    complaints = [each["message"] for each in driver.get_log("browser")]
    assert [each for each in complaints if "status of 4" not in each] == []


def opened(driver: Any, client: Client) -> ServicePage:
    page = ServicePage(driver, client.service.address)
    page.open()
    page.wait(lambda: page.texts("#about") != [""])
    return page


def test_a_request_becomes_a_project(nat_toolkit: NatToolkit, tmp_path: Path, browser: Any) -> None:
    script = HeldScript(reference(SPEC))
    with serving(nat_toolkit, tmp_path, script) as client:
        page = opened(browser, client)
        page.ask(spec=json.dumps(ROW), request="days to minutes")
        page.wait_for_verdict("sampling")
        assert page.texts("#steps li.past") == ["queued", "planning"]
        assert page.texts("#words") == ["days to minutes"]
        assert SPEC.tools[0].instance in page.texts("#plan table")[0]
        assert page.texts("#downloads button") == []
        script.may_go_on.set()
        page.wait_for_verdict("accepted")
        assert "Every hidden case" in page.texts("#meaning")[0]
        page.wait(lambda: "FACTORS" in page.texts("#text")[0])
        assert set(SPEC.files) <= set(page.texts("#names button"))
        assert page.texts("#downloads button") == ["Download the project", "Download the wheel"]
        assert page.texts("#tried tbody tr")[0].split()[:3] == ["0", "greedy", "accepted"]
        assert "100 %" in page.texts("#evidence table")[0]
        assert page.texts("#jobs li") == ["days to minutes\naccepted"]
        browser.execute_cdp_cmd(
            "Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(tmp_path / "got")}
        )
        page.click("#downloads button")
        page.wait((tmp_path / "got" / f"{SPEC.package}.zip").is_file)
        page.choose("#feedback-verdict", "partly")
        page.click("#send-feedback")
        page.wait(lambda: page.texts("#thanks") == ["Kept."])
        (job,) = client.get("/v1/agents").json()["agents"]
        assert client.service.store.feedback(job["id"])[0].verdict == "partly"
        page.click("#cancel")
        page.wait(lambda: page.texts("#none") == ["None yet."])


def test_script_in_every_field_stays_text(nat_toolkit: NatToolkit, tmp_path: Path, browser: Any) -> None:
    files = {**render_project(SPEC), SPEC.logic_path: f'"""{EVIL}"""\n', SPEC.tests_path: f"def test(): '{EVIL}'\n"}
    evil_row = {**ROW, "request": f"{ROW['request']} {EVIL}"}
    with serving(nat_toolkit, tmp_path, lambda *_: submission(files), creation={"candidates": 2}) as client:
        page = opened(browser, client)
        page.ask(spec=json.dumps(evil_row), request=EVIL)
        page.wait_for_verdict("rejected")
        assert page.texts("#words") == [EVIL]
        assert EVIL in page.texts("#understood")[0]
        page.wait(lambda: EVIL in page.texts("#text")[0])
        assert EVIL in page.texts("#jobs li")[0]
        page.fill("#comment", EVIL)
        page.click("#send-feedback")
        page.wait(lambda: page.texts("#thanks") == ["Kept."])
        case = {"target": EVIL, "input": {EVIL: EVIL}, "expected": EVIL}
        page.ask(cases=json.dumps(case), spec=json.dumps(ROW))
        page.wait(lambda: page.texts("#jobs li") and len(page.texts("#jobs li")) == 2)
        page.wait_for_verdict("rejected")
        page.ask(spec=json.dumps({EVIL: EVIL}))
        page.wait(lambda: page.texts("#problem") != [] and "spec" in page.texts("#problem")[0])
        page.ask(spec=EVIL)
        page.wait(lambda: "no JSON" in page.texts("#problem")[0])
        for fragment in (f"#{EVIL}", "#agent-00", "#../x", "#%00"):
            page.open(fragment)
            page.wait(lambda: page.texts("#about") != [""])
            assert page.texts("#verdict") == []


def test_a_lost_connection_is_taken_up_again(nat_toolkit: NatToolkit, tmp_path: Path, browser: Any) -> None:
    script = HeldScript(reference(SPEC))
    with serving(nat_toolkit, tmp_path, script) as client:
        page = opened(browser, client)
        page.ask(spec=json.dumps(ROW))
        page.wait_for_verdict("sampling")
        offline = {"offline": True, "latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
        browser.execute_cdp_cmd("Network.enable", {})
        browser.execute_cdp_cmd("Network.emulateNetworkConditions", offline)
        script.may_go_on.set()
        (job,) = client.get("/v1/agents").json()["agents"]
        client.ended(job["id"])
        browser.execute_cdp_cmd("Network.emulateNetworkConditions", {**offline, "offline": False})
        page.wait_for_verdict("accepted")
        page.open(f"#{job['id']}")
        page.wait_for_verdict("accepted")
        browser.get_log("browser")


def test_a_key_is_asked_for_and_a_wrong_one_is_told(nat_toolkit: NatToolkit, tmp_path: Path, browser: Any) -> None:
    making = scripted_creator(nat_toolkit, tmp_path, reference_writer(SPEC))
    secret = new_key(tmp_path, "ann", "create")
    with service_of(making) as client:
        page = opened(browser, client)
        page.wait(lambda: page.all("#key"))
        page.ask(spec=json.dumps(ROW), key="ark_wrong")
        page.wait(lambda: page.texts("#problem") != [] and "not known" in page.texts("#problem")[0])
        page.ask(key=secret)
        page.wait_for_verdict("accepted")
        page.click("#send-feedback")
        page.wait(lambda: page.texts("#problem") != [] and "may not feedback" in page.texts("#problem")[0])
        assert secret not in browser.page_source


@pytest.mark.parametrize("width", [1280, 800, 400])
def test_nothing_is_wider_than_the_window(nat_toolkit: NatToolkit, tmp_path: Path, browser: Any, width: int) -> None:
    with serving(nat_toolkit, tmp_path, reference_writer(SPEC)) as client:
        job = client.made(spec=ROW, request="x" * 400)
        screen = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": False}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
        page = opened(browser, client)
        page.open(f"#{job['id']}")
        page.wait_for_verdict("accepted")
        assert page.run("document.documentElement.scrollWidth") <= width
        page.open("docs") if page.address.endswith("/") else browser.get(f"{page.address}/docs")
        page.wait(lambda: len(page.texts("#operations details")) > 8)
        assert page.run("document.documentElement.scrollWidth") <= width
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
