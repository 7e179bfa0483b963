// The page of `agent-rl view`: steps, the episodes of one with filters, an episode. Not here: how its conversation
// (`view_messages.js`) and its tokens (`view_tokens.js`) look.
// The address after # names what is shown, as in #step=10&episode=37&tab=tokens&color=ratio.
"use strict";

const chosen = { step: null, episode: null, tab: "conversation", color: "advantage" };
let step = null; // {step, episodes, scales} as the server gave it
let found = null; // episodes that hold the text searched for; null: all
let rows = []; // buttons, by number of the episode
let record = null; // the episode shown
let requests = 0; // number of the newest request for a step or an episode: answers to older ones come too late
const tries = {}; // by kind of what a person starts: number of the newest one
const problems = {}; // and how that failed

const byId = (id) => document.getElementById(id);
const form = () => byId("filters");

async function fetchJson(path) {
  const answer = await fetch(path).catch(() => {
    throw new Error("The server does not answer; start agent-rl view again.");
  });
  const content = await answer.json().catch(() => {
    throw new Error("The server's answer broke off; try again.");
  });
  if (!answer.ok) throw new Error(content.error);
  return content;
}

// Runs what a person started; its failure is a sentence in the page until the next of that kind.
async function guard(kind, action) {
  const turn = (tries[kind] = (tries[kind] || 0) + 1);
  const report = (problem) => {
    if (turn !== tries[kind]) return;
    problems[kind] = problem;
    byId("message").textContent = Object.values(problems).filter(Boolean).join(" ");
  };
  report("");
  await action().catch((error) => report(error.message));
}

// The address

// What it names; `step` and `episode` are null where it does not.
function readAddress() {
  const given = new URLSearchParams(location.hash.slice(1));
  const whole = (text) => (/^\d{1,9}$/.test(text || "") ? Number(text) : null);
  return {
    step: whole(given.get("step")),
    episode: whole(given.get("episode")),
    tab: given.get("tab") === "tokens" ? "tokens" : "conversation",
    color: Object.hasOwn(COLORINGS, given.get("color") || "") ? given.get("color") : "advantage",
  };
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
  const run = await loadSteps();
  document.title = `${run.run} · agent-rl view`;
  byId("run").textContent = run.run;
  if (!run.steps.length) return showNoSamples(run.samples_every);
  await showAddress(run.steps.at(-1).step);
}

// The list of steps as it is now: a run may go on.
async function loadSteps() {
  const run = await fetchJson("api/run");
  const hadFocus = byId("steps").contains(document.activeElement) && document.activeElement.dataset.step;
  const head = el("h2", {}, ...["step", "solved", "reward"].map((text) => el("span", {}, text)));
  byId("steps").replaceChildren(head, ...run.steps.map(stepButton));
  markStep();
  if (hadFocus) byId("steps").querySelector(`[data-step="${hadFocus}"]`)?.focus();
  return run;
}

function markStep() {
  for (const button of byId("steps").querySelectorAll("button")) {
    markCurrent(button, Number(button.dataset.step) === chosen.step);
  }
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
  button.addEventListener("click", () => {
    guard("show", () => showStep({ ...chosen, step: row.step, episode: null }, true));
    guard("steps", loadSteps);
  });
  return button;
}

function showNoSamples(every) {
  const why = every === 0 ? "log.samples_every is 0 in this run's configuration" : "no step has been saved yet";
  byId("list").hidden = true;
  byId("steps").hidden = true;
  byId("episode").replaceChildren(
    el("h2", {}, "No tokens to show"),
    el("p", {}, `There are no files in the run's folder samples/: ${why}.`),
    el("p", {}, "Train with ", el("code", {}, "log.samples_every=10"), " to save every tenth step."),
  );
}

async function showAddress(otherwise) {
  const wanted = readAddress();
  await showStep({ ...wanted, step: wanted.step ?? otherwise });
}

// Shows what is wanted; what is shown stays until the step is there. `again` reads a step that is shown already.
async function showStep(wanted, again = false) {
  const turn = (requests += 1);
  let loaded = step;
  if (!step || step.step !== wanted.step || again) {
    byId("episode").setAttribute("aria-busy", "true");
    try {
      loaded = await fetchJson(`api/steps/${wanted.step}`);
    } finally {
      if (turn === requests) byId("episode").removeAttribute("aria-busy");
    }
    if (turn !== requests) return;
  }
  const isOther = !step || JSON.stringify(step) !== JSON.stringify(loaded);
  step = loaded;
  Object.assign(chosen, wanted);
  if (isOther) {
    found = null;
    form().reset();
    fillFilters();
    fillGroups();
  }
  markStep();
  await showEpisode(chosen.episode ?? 0);
}

// Episodes

function fillFilters() {
  const inOrder = (one, other) => String(one).localeCompare(String(other), "en", { numeric: true });
  const values = (name) => [...new Set(step.episodes.flatMap((episode) => episode[name] ?? []))].sort(inOrder);
  const options = (name, choices) => {
    const nodes = [["", "any"], ...choices].map(([value, text]) => el("option", { value }, text));
    form().elements[name].replaceChildren(...nodes);
    form().elements[name].disabled = choices.length === 0;
  };
  const same = (names) => names.map((name) => [name, name]);
  const flags = values("flags");
  options("success", [["true", "yes"], ["false", "no"], ["null", "unknown"]]);
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

// A group's heading counts the episodes that are compared; a greedy one is what they are compared with.
function groupNode(episodes) {
  const compared = episodes.filter((episode) => !episode.greedy);
  const rewards = compared.map((episode) => episode.reward).filter((reward) => reward !== null);
  const mean = rewards.length ? rewards.reduce((sum, reward) => sum + reward, 0) / rewards.length : null;
  const known = compared.filter((episode) => episode.success !== null);
  const solved = `${known.filter((episode) => episode.success).length}/${known.length} solved`;
  const unknown = known.length < compared.length ? `${compared.length - known.length} unknown` : null;
  const counts = [known.length ? solved : null, unknown, number(mean, 2)].filter(Boolean);
  const { task_id, family, level } = episodes[0];
  const title = el("h3", { title: task_id }, el("span", {}, task_id), el("small", {}, counts.join(" · ")));
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
  const ended = (episode.greedy ? "greedy, " : "") + episode.stop_reason + flags;
  const css = episode.success ? "row good" : "row";
  const row = el("button", { type: "button", class: css, "data-episode": episode.index },
    el("span", {}, `#${episode.index}`),
    el("span", {}, number(episode.reward, 2)),
    el("span", { title: mark[1] }, mark[0]),
    el("span", { title: ended }, ended),
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
    (!success || String(episode.success) === success) &&
    (!family || String(episode.family) === family) &&
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
  const answer = text ? new Set(await fetchJson(`api/steps/${of}/search?text=${encodeURIComponent(text)}`)) : null;
  if (step.step !== of || form().elements.text.value.trim() !== text) return; // something else is wanted by now
  found = answer;
  filter();
}

function move(by) {
  const visible = rows.filter((row) => !row.hidden);
  if (!visible.length) return;
  const at = visible.findIndex((row) => Number(row.dataset.episode) === chosen.episode);
  const next = at < 0 ? 0 : Math.min(visible.length - 1, Math.max(0, at + by));
  guard("show", () => showEpisode(Number(visible[next].dataset.episode)));
}

// One episode

async function showEpisode(index) {
  const turn = (requests += 1);
  const pane = byId("episode");
  chosen.episode = index;
  record = null; // nothing of the previous one is shown while this one loads
  writeAddress();
  rows.forEach((row, number) => markCurrent(row, number === index));
  if (rows[index]) rows[index].scrollIntoView({ block: "nearest" });
  pane.setAttribute("aria-busy", "true");
  try {
    const answer = await fetchJson(`api/steps/${chosen.step}/episodes/${index}`);
    if (turn !== requests) return;
    record = answer;
    drawEpisode();
    pane.scrollTop = 0;
  } catch (error) {
    if (turn === requests) pane.replaceChildren();
    throw error;
  } finally {
    if (turn === requests) pane.removeAttribute("aria-busy");
  }
}

function drawEpisode() {
  const tab = (name, text) => {
    const attributes = { type: "button", "data-tab": name, "aria-pressed": String(chosen.tab === name) };
    const button = el("button", attributes, text);
    button.addEventListener("click", () => {
      chosen.tab = name;
      writeAddress();
      if (!record) return; // it is shown as soon as it is there
      drawEpisode();
      byId("episode").querySelector(`[data-tab=${name}]`).focus();
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
  const { success } = step.episodes[record.index] || {};
  const facts = [
    `reward ${number(record.reward, 3)}`,
    typeof success !== "boolean" ? null : success ? "solved" : "not solved",
    record.greedy ? "greedy: the others are compared with it" : null,
    `ended by ${record.stop_reason}`,
    `${record.num_tokens} tokens generated`,
    `${number(record.duration_s, 1)} s`,
    record.flags.length ? `⚑ ${record.flags.join(", ")}` : null,
  ];
  const where = el("small", {}, `step ${record.step}, episode ${record.index}, group ${record.group_id}`);
  return el("div", { class: "head" },
    el("h2", {}, el("span", {}, record.task_id), " ", where),
    el("p", { class: "facts" }, ...facts.filter(Boolean).map((fact) => el("span", {}, fact))),
    record.error ? el("p", { class: "bad" }, record.error) : null,
    labelsNode(record.family, record.level, record.difficulty),
    parts.length ? el("details", { class: "parts" }, el("summary", {}, "Reward parts"), el("dl", {}, ...parts)) : null,
  );
}

// What a person does

let typing = null;
form().addEventListener("input", (event) => {
  if (!step || event.target.name !== "text") return;
  clearTimeout(typing);
  typing = setTimeout(() => guard("search", () => search(event.target.value.trim())), 200);
});
for (const kind of ["input", "change"]) form().addEventListener(kind, () => step && filter());
// Once it is reset:
form().addEventListener("reset", () => setTimeout(() => step && guard("search", () => search(""))));
form().addEventListener("submit", (event) => event.preventDefault());
byId("groups").addEventListener("click", (event) => {
  const row = event.target.closest("[data-episode]");
  if (row) guard("show", () => showEpisode(Number(row.dataset.episode)));
});
document.addEventListener("keydown", (event) => {
  const isTyping = event.target.closest("input, select, textarea");
  if (isTyping || event.ctrlKey || event.metaKey || event.altKey || !step) return;
  if (event.key === "j") move(1);
  if (event.key === "k") move(-1);
});
window.addEventListener("hashchange", () => {
  if (!step) return void guard("show", start); // the first request failed
  guard("show", () => showAddress(step.step).catch((error) => {
    writeAddress(); // of what is still shown
    throw error;
  }));
});
guard("show", start);
