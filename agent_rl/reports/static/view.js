// The page of `agent-rl view`: steps, the episodes of one with filters, an episode as conversation and as tokens.
// What is chosen stands in the address behind #, as in #step=10&episode=37&tab=tokens&color=ratio.
"use strict";

const chosen = { step: null, episode: null, tab: "conversation", color: "advantage" };
let step = null; // {step, episodes, scales} as the server gave it
let found = null; // episodes that hold the text searched for; null: all
let rows = []; // buttons, by number of the episode
let record = null; // the episode shown
let asked = 0; // number of the newest request for a step or an episode: answers to older ones come too late

const byId = (id) => document.getElementById(id);
const form = () => byId("filters");

async function ask(path) {
  const answer = await fetch(path).catch(() => {
    throw new Error("The server does not answer; start agent-rl view again.");
  });
  const content = await answer.json();
  if (!answer.ok) throw new Error(content.error);
  return content;
}

// Runs what a person started; its failure is a sentence in the page.
async function attempt(action) {
  try {
    byId("message").textContent = "";
    await action();
  } catch (error) {
    byId("message").textContent = error.message;
  }
}

// The address

function readAddress() {
  const given = new URLSearchParams(location.hash.slice(1));
  const whole = (text) => (/^\d{1,9}$/.test(text || "") ? Number(text) : null);
  chosen.step = whole(given.get("step"));
  chosen.episode = whole(given.get("episode"));
  chosen.tab = given.get("tab") === "tokens" ? "tokens" : "conversation";
  chosen.color = Object.hasOwn(COLORINGS, given.get("color") || "") ? given.get("color") : "advantage";
}

function writeAddress() {
  const parts = Object.entries(chosen).filter(([, value]) => value !== null);
  history.replaceState(null, "", `#${new URLSearchParams(parts)}`);
}

function markCurrent(button, isCurrent) {
  if (isCurrent) button.setAttribute("aria-current", "true");
  else button.removeAttribute("aria-current");
}

// Steps

async function start() {
  const run = await ask("api/run");
  byId("run").textContent = run.run;
  document.title = `${run.run} · agent-rl view`;
  const head = el("h2", {}, ...["step", "solved", "reward"].map((text) => el("span", {}, text)));
  byId("steps").replaceChildren(head, ...run.steps.map(stepButton));
  if (!run.steps.length) return showNoSamples(run.samples_every);
  readAddress();
  await showAddress(run.steps[run.steps.length - 1].step);
}

function stepButton(row) {
  const percent = row.success === null ? null : Math.round(100 * row.success);
  const bar = el("span", { class: "meter" });
  bar.style.setProperty("--share", `${percent || 0}%`);
  const button = el("button", { type: "button", "data-step": row.step },
    el("b", {}, String(row.step)),
    el("span", {}, percent === null ? "–" : `${percent} %`),
    el("span", {}, number(row.reward, 2)),
    bar,
  );
  button.addEventListener("click", () => attempt(() => showStep(row.step, null)));
  return button;
}

function showNoSamples(every) {
  const why = every === 0 ? "log.samples_every is 0 in this run's configuration" : "no step has been kept yet";
  byId("list").hidden = true;
  byId("steps").hidden = true;
  byId("episode").replaceChildren(
    el("h2", {}, "No tokens to show"),
    el("p", {}, `There are no files in the run's folder samples/: ${why}.`),
    el("p", {}, "Train with ", el("code", {}, "log.samples_every=10"), " to keep every tenth step."),
  );
}

async function showAddress(otherwise) {
  await showStep(chosen.step === null ? otherwise : chosen.step, chosen.episode);
}

async function showStep(number, episode) {
  if (!step || step.step !== number) {
    const turn = (asked += 1);
    const answer = await ask(`api/steps/${number}`);
    if (turn !== asked) return;
    step = answer;
    found = null;
    form().reset();
    fillFilters();
    fillGroups();
  }
  chosen.step = number;
  for (const button of byId("steps").querySelectorAll("button")) {
    markCurrent(button, Number(button.dataset.step) === number);
  }
  if (episode === null) episode = step.episodes.length ? 0 : null;
  if (episode !== null) await showEpisode(episode);
}

// Episodes

function fillFilters() {
  const values = (name) => [...new Set(step.episodes.flatMap((episode) => episode[name] ?? []))].sort();
  const options = (name, choices) => {
    const nodes = [["", "any"], ...choices].map(([value, text]) => el("option", { value }, text));
    form().elements[name].replaceChildren(...nodes);
    form().elements[name].disabled = choices.length === 0;
  };
  const same = (names) => names.map((name) => [name, name]);
  const flags = values("flags");
  options("success", [["true", "yes"], ["false", "no"]]);
  options("family", same(values("family")));
  options("stop_reason", same(values("stop_reason")));
  options("flag", flags.length ? [["*", "any flag"], ...same(flags)] : []);
  const rewards = step.episodes.map((episode) => episode.reward).filter((reward) => reward !== null);
  form().elements.low.placeholder = rewards.length ? number(Math.min(...rewards), 2) : "";
  form().elements.high.placeholder = rewards.length ? number(Math.max(...rewards), 2) : "";
}

function fillGroups() {
  const groups = new Map();
  for (const episode of step.episodes) {
    if (!groups.has(episode.group_id)) groups.set(episode.group_id, []);
    groups.get(episode.group_id).push(episode);
  }
  rows = [];
  const columns = ["", "reward", "", "ended by", "tokens", "adv."];
  const head = el("div", { class: "row head" }, ...columns.map((text) => el("span", {}, text)));
  byId("groups").replaceChildren(head, ...[...groups.values()].map(groupNode));
  byId("groups").scrollTop = 0;
  filter();
}

function groupNode(episodes) {
  const scored = episodes.filter((episode) => episode.reward !== null);
  const mean = scored.length ? scored.reduce((sum, episode) => sum + episode.reward, 0) / scored.length : null;
  const solved = episodes.filter((episode) => episode.success).length;
  const { task_id, family, level } = episodes[0];
  const count = el("small", {}, `${solved}/${episodes.length} solved · ${number(mean, 2)}`);
  const title = el("h3", { title: task_id }, el("span", {}, task_id), count);
  return el("section", { class: "group" }, title, labelsNode(family, level), ...episodes.map(episodeRow));
}

// What a task is labelled with; null where it is with nothing.
function labelsNode(family, level, difficulty) {
  const has = (value) => value !== null && value !== undefined;
  const labels = [family, has(level) ? `level ${level}` : null, difficulty].filter(has);
  return labels.length ? el("p", { class: "soft" }, labels.join(", ")) : null;
}

function episodeRow(episode) {
  const mark = episode.success === null ? ["", "unknown"] : episode.success ? ["✓", "solved"] : ["✗", "not solved"];
  const flags = episode.flags.length ? ` ⚑ ${episode.flags.join(", ")}` : "";
  const css = episode.success ? "row good" : "row";
  const row = el("button", { type: "button", class: css, "data-episode": episode.index },
    el("span", {}, `#${episode.index}`),
    el("span", {}, number(episode.reward, 2)),
    el("span", { title: mark[1] }, mark[0]),
    el("span", { title: flags }, episode.stop_reason + flags),
    el("span", {}, String(episode.num_tokens)),
    el("span", {}, number(episode.advantage, 2)),
  );
  rows[episode.index] = row;
  return row;
}

function isWanted(episode) {
  const { low, high, success, family, stop_reason, flag } = Object.fromEntries(new FormData(form()));
  return (
    (!low || (episode.reward !== null && episode.reward >= Number(low))) &&
    (!high || (episode.reward !== null && episode.reward <= Number(high))) &&
    (!success || String(episode.success === true) === success) &&
    (!family || episode.family === family) &&
    (!stop_reason || episode.stop_reason === stop_reason) &&
    (!flag || (flag === "*" ? episode.flags.length > 0 : episode.flags.includes(flag))) &&
    (found === null || found.has(episode.index))
  );
}

function filter() {
  let count = 0;
  for (const episode of step.episodes) {
    const wanted = isWanted(episode);
    rows[episode.index].hidden = !wanted;
    count += wanted;
  }
  for (const group of byId("groups").querySelectorAll(".group")) {
    group.hidden = !group.querySelector(".row:not([hidden])");
  }
  byId("count").textContent = `${count} of ${step.episodes.length} episodes`;
}

async function search(text) {
  const of = step.step;
  const answer = text ? new Set(await ask(`api/steps/${of}/search?text=${encodeURIComponent(text)}`)) : null;
  if (step.step !== of || form().elements.text.value.trim() !== text) return; // something else is wanted by now
  found = answer;
  filter();
}

function move(by) {
  const visible = rows.filter((row) => !row.hidden);
  if (!visible.length) return;
  const at = visible.findIndex((row) => Number(row.dataset.episode) === chosen.episode);
  const next = at < 0 ? 0 : Math.min(visible.length - 1, Math.max(0, at + by));
  attempt(() => showEpisode(Number(visible[next].dataset.episode)));
}

// One episode

async function showEpisode(index) {
  chosen.episode = index;
  writeAddress();
  rows.forEach((row, number) => markCurrent(row, number === index));
  if (rows[index]) rows[index].scrollIntoView({ block: "nearest" });
  const turn = (asked += 1);
  const answer = await ask(`api/steps/${chosen.step}/episodes/${index}`);
  if (turn !== asked) return;
  record = answer;
  drawEpisode();
  byId("episode").scrollTop = 0;
}

function drawEpisode() {
  const tab = (name, text) => {
    const attributes = { type: "button", "data-tab": name, "aria-pressed": String(chosen.tab === name) };
    const button = el("button", attributes, text);
    button.addEventListener("click", () => {
      chosen.tab = name;
      writeAddress();
      drawEpisode();
    });
    return button;
  };
  const tabs = el("div", { class: "tabs" }, tab("conversation", "Conversation"), tab("tokens", "Tokens"));
  let body;
  if (chosen.tab === "tokens") {
    const view = new TokenView(record, step.scales, chosen.color);
    tabs.append(colorSelect(view));
    body = view.node;
  } else {
    body = el("div", { class: "conversation" }, ...record.messages.map(messageNode));
  }
  byId("episode").replaceChildren(episodeHead(), tabs, body);
}

function colorSelect(view) {
  const option = ([name, { label }]) => el("option", { value: name, selected: name === chosen.color }, label);
  const select = el("select", { id: "color" }, ...Object.entries(COLORINGS).map(option));
  select.addEventListener("change", () => {
    chosen.color = select.value;
    writeAddress();
    view.recolor(chosen.color);
  });
  return el("label", {}, "Colour ", select);
}

function episodeHead() {
  const part = ([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, number(value, 3)));
  const parts = Object.entries(record.reward_parts).map(part);
  const success = record.reward_parts.success;
  const facts = [
    `reward ${number(record.reward, 3)}`,
    success === undefined ? null : success >= 1 ? "solved" : "not solved",
    `ended by ${record.stop_reason}`,
    `${record.num_tokens} tokens drawn`,
    `${number(record.duration_s, 1)} s`,
    record.flags.length ? `⚑ ${record.flags.join(", ")}` : null,
  ];
  const where = el("small", {}, `step ${record.step}, episode ${record.index}, group ${record.group_id}`);
  return el("div", { class: "head" },
    el("h2", {}, `${record.task_id} `, where),
    el("p", { class: "facts" }, ...facts.filter(Boolean).map((fact) => el("span", {}, fact))),
    labelsNode(record.family, record.level, record.difficulty),
    parts.length ? el("details", { class: "parts" }, el("summary", {}, "Reward parts"), el("dl", {}, ...parts)) : null,
  );
}

function fold(summary, content, css = "") {
  return el("details", { class: css }, el("summary", {}, ...summary), el("pre", {}, content));
}

// The start of a text on one line.
function preview(text, most = 90) {
  const line = text.replace(/\s+/g, " ").trim();
  return line.length > most ? `${line.slice(0, most)}…` : line;
}

function messageNode(message) {
  const node = el("article", { class: `message ${message.role}` });
  const role = el("span", { class: "role" }, message.name ? `${message.role} ${message.name}` : message.role);
  if (message.role === "tool" || message.role === "system") {
    node.append(fold([role, soft(preview(message.content))], message.content));
    return node;
  }
  node.append(role);
  if (message.reasoning) node.append(fold(["thought", soft(preview(message.reasoning))], message.reasoning));
  if (message.content) node.append(el("pre", {}, message.content));
  for (const call of message.tool_calls || []) node.append(callNode(call));
  for (const error of message.tool_errors || []) node.append(el("p", { class: "bad" }, error));
  if (message.info) node.append(fold(["noted by the environment"], JSON.stringify(message.info, null, 2), "info"));
  return node;
}

function callNode(call) {
  const text = (value) => (typeof value === "string" ? value : JSON.stringify(value, null, 2));
  const shown = ([name, value]) => [el("dt", {}, name), el("dd", {}, el("pre", {}, text(value)))];
  const brief = preview(Object.values(call.arguments).map(text).join(", "));
  const summary = el("summary", {}, el("b", {}, call.name), soft(brief));
  return el("details", { class: "call" }, summary, el("dl", {}, ...Object.entries(call.arguments).flatMap(shown)));
}

// What a person does

let typing = null;
form().addEventListener("input", (event) => {
  if (!step || event.target.name !== "text") return;
  clearTimeout(typing);
  typing = setTimeout(() => attempt(() => search(event.target.value.trim())), 200);
});
for (const kind of ["input", "change"]) form().addEventListener(kind, () => step && filter());
form().addEventListener("reset", () => setTimeout(() => step && attempt(() => search("")))); // once it is reset
form().addEventListener("submit", (event) => event.preventDefault());
byId("groups").addEventListener("click", (event) => {
  const row = event.target.closest("[data-episode]");
  if (row) attempt(() => showEpisode(Number(row.dataset.episode)));
});
document.addEventListener("keydown", (event) => {
  const isTyping = event.target.closest("input, select, textarea");
  if (isTyping || event.ctrlKey || event.metaKey || event.altKey || !step) return;
  if (event.key === "j") move(1);
  if (event.key === "k") move(-1);
});
window.addEventListener("hashchange", () => {
  readAddress();
  attempt(() => showAddress(step ? step.step : null));
});
attempt(start);
