// The page of `agent-rl view`: the steps and evaluations of runs, the episodes of one with filters, an episode.
// Not here: where the data are (`view_source.js`), the address (`view_address.js`), the list (`view_list.js`), how an
// episode (`view_episode.js`), its conversation (`view_messages.js`) and its tokens (`view_tokens.js`) look.
"use strict";

let requests = 0; // number of the newest request for a set or an episode: answers to older ones come too late
const tries = {}; // by kind of what a person starts: number of the newest one
const problems = {}; // and how that failed

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

// Steps

async function start() {
  await loadRuns();
  const names = runs.map((run) => run.run).join(", ");
  document.title = `${names} · agent-rl view`;
  byId("run").textContent = names;
  if (!runs.some((run) => run.sets.length)) return showNoSamples(runs[0].samples_every);
  chosen.run = runs.findIndex((run) => run.sets.length);
  await showAddress();
}

// The list of steps as it is now: a run may go on.
async function loadRuns() {
  runs = await source.runs();
  const nav = byId("steps");
  const { run, set } = (nav.contains(document.activeElement) && document.activeElement.dataset) || {};
  nav.replaceChildren(...runs.flatMap(runNodes));
  markStep();
  if (set) [...nav.querySelectorAll("button")].find((one) => one.dataset.run === run && one.dataset.set === set)?.focus();
}

function runNodes({ run, sets }, at) {
  const head = el("h2", {}, ...["step", "solved", "reward"].map((text) => el("span", {}, text)));
  const nodes = [...(runs.length > 1 ? [el("h3", { class: "folder", title: run }, run)] : []), head];
  let last = null;
  for (const row of sets) {
    if (row.temperature !== last) nodes.push(el("h3", {}, `held-out, T=${row.temperature}`));
    last = row.temperature;
    nodes.push(stepButton(row, at));
  }
  return nodes;
}

function markStep() {
  for (const button of byId("steps").querySelectorAll("button")) {
    markCurrent(button, Number(button.dataset.run) === chosen.run && button.dataset.set === chosen.set);
  }
}

function stepButton(row, run) {
  const percent = row.success === null ? null : Math.round(100 * row.success);
  const bar = el("span", { class: "meter" });
  bar.style.setProperty("--share", `${percent || 0}%`);
  const button = el("button", { type: "button", "data-run": run, "data-set": row.id, "data-step": row.step },
    el("b", {}, row.step === null ? "all" : String(row.step)),
    el("span", {}, percent === null ? "–" : `${percent} %`),
    el("span", {}, number(row.reward, 2)),
    bar,
  );
  button.addEventListener("click", () => {
    guard("show", () => showSet({ ...chosen, run, set: row.id }, { task: null, number: null }, true));
    guard("steps", loadRuns);
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

async function showAddress() {
  const { place, beside: other, ...look } = readAddress();
  const kept = other ? await loadBeside(other) : null;
  await showSet({ ...look, ...locate(place) }, place, false, kept);
}

async function loadBeside(place) {
  const { run, set } = locate(place);
  const loaded = await source.set(run, set);
  const index = indexOf(loaded, place);
  if (index === null) throw new Error(`${place.task} has no episode ${place.number ?? 0} in ${setName(run, set)}.`);
  const summary = loaded.episodes.find((episode) => episode.index === index);
  return { run, set, summary, scales: loaded.scales, record: await source.episode(run, set, index) };
}

// Shows what is wanted; what is shown stays until the set is there. `again` reads one that is shown already, `kept` is
// the episode to have beside from then on (null: none).
async function showSet(wanted, place, again = false, kept = beside) {
  const turn = (requests += 1);
  let loaded = step;
  if (!step || step.run !== wanted.run || step.id !== wanted.set || again) {
    byId("episode").setAttribute("aria-busy", "true");
    try {
      loaded = { run: wanted.run, ...(await source.set(wanted.run, wanted.set)) };
    } finally {
      if (turn === requests) byId("episode").removeAttribute("aria-busy");
    }
    if (turn !== requests) return;
  }
  const isOther = !step || JSON.stringify(step) !== JSON.stringify(loaded);
  const { run, set, tab, color, outcome } = wanted;
  Object.assign(chosen, { run, set, tab, color, outcome });
  [step, beside] = [loaded, kept];
  if (isOther) {
    found = null;
    form().reset();
    fillFilters();
    fillGroups();
  } else if (form().elements.success.value !== outcome) {
    form().elements.success.value = outcome;
    filter();
  }
  markStep();
  const index = indexOf(loaded, place);
  await showEpisode(index);
  if (index === null) throw new Error(`${place.task} has no episode ${place.number ?? 0} in ${setName(run, set)}.`);
}

// Goes to the next step or evaluation in the list, or the one before.
async function moveSet(by) {
  const all = runs.flatMap(({ sets }, run) => sets.map((row) => ({ run, set: row.id })));
  const next = all[all.findIndex(({ run, set }) => run === chosen.run && set === chosen.set) + by];
  if (next) await showSet({ ...chosen, ...next }, { task: null, number: null });
}

// Episodes

// Goes on by so many of the episodes that are listed, or of the groups that have some listed.
function move(by, groups = false) {
  const visible = rows.filter((row) => !row.hidden);
  if (!visible.length) return;
  const stops = groups ? visible.filter((row, at) => row.parentNode !== visible[at - 1]?.parentNode) : visible;
  const current = rows[chosen.index];
  let at = stops.indexOf(groups && current ? stops.findLast((row) => row.parentNode === current.parentNode) : current);
  if (at < 0) at = by > 0 ? -1 : 1;
  const next = stops[Math.min(stops.length - 1, Math.max(0, at + by))];
  guard("show", () => showEpisode(Number(next.dataset.episode)));
}

// Shows an episode of the set; nothing where `index` is null.
async function showEpisode(index) {
  const turn = (requests += 1);
  const pane = byId("episode");
  chosen.index = index;
  record = null; // nothing of the previous one is shown while this one loads
  writeAddress();
  rows.forEach((row, number) => markCurrent(row, number === index));
  if (rows[index]) rows[index].scrollIntoView({ block: "nearest" });
  if (index === null) return pane.replaceChildren();
  pane.setAttribute("aria-busy", "true");
  try {
    const answer = await source.episode(chosen.run, chosen.set, index);
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

// What a person does

const KEYS = {
  j: ["next episode", () => move(1)],
  k: ["previous episode", () => move(-1)],
  n: ["next group", () => move(1, true)],
  p: ["previous group", () => move(-1, true)],
  l: ["next step or evaluation", () => guard("show", () => moveSet(1))],
  h: ["previous step or evaluation", () => guard("show", () => moveSet(-1))],
  "]": ["the same task, next step", () => guard("show", () => moveOverSteps(1))],
  "[": ["the same task, previous step", () => guard("show", () => moveOverSteps(-1))],
  1: ["conversation", () => showTab("conversation")],
  2: ["tokens", () => showTab("tokens")],
  3: ["the task over steps", () => showTab("steps")],
  c: ["keep this episode beside, or show one alone", toggleBeside],
  "/": ["search; Escape leaves the field", () => form().elements.text.focus()],
  "?": ["these keys", () => { byId("keys").open = !byId("keys").open; }],
};
byId("keys").append(el("dl", {}, ...Object.entries(KEYS).map(([key, [text]]) =>
  el("div", {}, el("dt", {}, el("kbd", {}, key)), el("dd", {}, text)))));

let typing = null;
form().addEventListener("input", (event) => {
  if (!step || event.target.name !== "text") return;
  clearTimeout(typing);
  typing = setTimeout(() => guard("search", () => search(event.target.value.trim())), 200);
});
for (const kind of ["input", "change"]) form().addEventListener(kind, () => step && filter());
// Once it is reset; when another step is shown, what is wanted of it stands there again by then.
form().addEventListener("reset", () => setTimeout(() => step && guard("search", () => search(""))));
form().addEventListener("submit", (event) => event.preventDefault());
byId("groups").addEventListener("click", (event) => {
  const row = event.target.closest("[data-episode]");
  if (row) guard("show", () => showEpisode(Number(row.dataset.episode)));
});
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || !step) return;
  if (event.target.closest("input, select, textarea")) {
    if (event.key !== "Escape") return;
    event.preventDefault(); // browsers clear a search field, and keys go through what it found
    return event.target.blur();
  }
  if (!Object.hasOwn(KEYS, event.key)) return;
  event.preventDefault(); // a key that puts the cursor into a field is not written there
  KEYS[event.key][1]();
});
window.addEventListener("hashchange", () => {
  if (!step) return void guard("show", start); // the first request failed
  guard("show", () => showAddress().catch((error) => {
    writeAddress(); // of what is still shown
    throw error;
  }));
});
guard("show", start);
