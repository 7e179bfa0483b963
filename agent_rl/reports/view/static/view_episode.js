// One episode, or two side by side: their heads, conversations and tokens, and the episodes of the task over steps.
"use strict";

let record = null; // the episode shown
let views = []; // of tokens that are shown

function drawEpisode() {
  const shown = { run: chosen.run, set: chosen.set, summary: episodeOf(chosen.index), scales: step.scales, record };
  const tabs = tabsNode();
  views = [];
  if (!beside) {
    byId("episode").replaceChildren(headNode(shown), tabs, bodyNode(shown, null));
  } else if (chosen.tab === "steps") {
    byId("episode").replaceChildren(tabs, bodyNode(shown, null));
  } else {
    const side = (one, other) => el("section", { class: "side" }, headNode(one), bodyNode(one, other));
    const sides = el("div", { class: "sides" }, side(beside, shown), side(shown, beside));
    byId("episode").replaceChildren(tabs, sides);
  }
  if (views.length) tabs.querySelector("#color-of").append(colorSelect());
}

function tabsNode() {
  const tab = ([name, text]) => {
    const attributes = { type: "button", "data-tab": name, "aria-pressed": String(chosen.tab === name) };
    const button = el("button", attributes, text);
    button.addEventListener("click", () => showTab(name));
    return button;
  };
  const keep = el("button", { type: "button", "data-action": "beside" }, beside ? "Show one alone" : "Keep beside");
  keep.addEventListener("click", toggleBeside);
  return el("div", { class: "tabs" }, ...Object.entries(TABS).map(tab), keep, el("span", { id: "color-of" }));
}

function showTab(name) {
  chosen.tab = name;
  writeAddress();
  if (!record) return; // it is shown as soon as it is there
  drawEpisode();
  byId("episode").querySelector(`[data-tab=${name}]`).focus();
}

// The episode shown stays, on the left, while others are chosen; once more lets it go.
function toggleBeside() {
  if (!record) return;
  const summary = episodeOf(chosen.index);
  beside = beside ? null : { run: chosen.run, set: chosen.set, summary, scales: step.scales, record };
  writeAddress();
  drawEpisode();
}

function colorSelect() {
  const option = ([name, { label }]) => el("option", { value: name, selected: name === chosen.color }, label);
  const select = el("select", { id: "color" }, ...Object.entries(COLORINGS).map(option));
  select.addEventListener("change", () => {
    chosen.color = select.value;
    writeAddress();
    for (const view of views) view.recolor(chosen.color);
  });
  return el("label", {}, "Colour ", select);
}

function headNode({ run, set, summary, record }) {
  const part = ([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, number(value, 3)));
  const parts = Object.entries(record.reward_parts).map(part);
  const { success } = summary || {};
  const flags = record.flags || [];
  const facts = [
    `reward ${number(record.reward, 3)}`,
    typeof success !== "boolean" ? null : success ? "solved" : "not solved",
    record.greedy ? "greedy: the others are compared with it" : null,
    `ended by ${record.stop_reason}`,
    `${record.num_tokens ?? "–"} tokens generated`,
    `${number(record.duration_s, 1)} s`,
    flags.length ? `⚑ ${flags.join(", ")}` : null,
  ];
  const group = record.group_id === undefined ? "" : `, group ${record.group_id}`;
  const where = el("small", {}, `${setName(run, set)}, episode ${record.index}${group}`);
  return el("div", { class: "head" },
    el("h2", {}, el("span", {}, record.task_id), " ", where),
    el("p", { class: "facts" }, ...facts.filter(Boolean).map((fact) => el("span", {}, fact))),
    record.error ? el("p", { class: "bad" }, record.error) : null,
    ...(record.problems || []).map((problem) => el("p", { class: "bad" }, problem)),
    labelsNode(record.family, record.level, record.difficulty),
    parts.length ? el("details", { class: "parts" }, el("summary", {}, "Reward parts"), el("dl", {}, ...parts)) : null,
  );
}

function bodyNode({ summary, scales, record }, other) {
  if (chosen.tab === "steps") return overStepsNode(record.task_id);
  if (chosen.tab === "conversation") return conversationNode(record.messages || [], other && (other.record.messages || []));
  if (!record.samples) return el("p", { class: "none" }, "Tokens are saved of training alone, not of evaluations.");
  const view = new TokenView(record, scales, chosen.color);
  views.push(view);
  return view.node;
}

// A conversation; what it opens with as `other` does is folded.
function conversationNode(messages, other) {
  const plain = ({ info, ...message }) => JSON.stringify(message);
  const differs = other ? messages.findIndex((each, at) => !other[at] || plain(each) !== plain(other[at])) : 0;
  const same = differs < 0 ? messages.length : differs;
  const node = el("div", { class: "conversation" });
  if (same) {
    const text = `${same} message${same === 1 ? "" : "s"}, the same in both`;
    node.append(el("details", { class: "same" }, el("summary", {}, text), ...messages.slice(0, same).map(messageNode)));
  }
  node.append(...messages.slice(same).map(messageNode));
  if (!messages.length) node.append(el("p", { class: "none" }, "Its messages were not saved."));
  return node;
}

// Over steps

// All episodes of a task, by run and step; a click shows one.
function overStepsNode(task) {
  const node = el("div", { class: "over-steps" });
  guard("task", async () => {
    const places = await source.task(task);
    const hint = "To see two side by side: Keep beside, then choose the other.";
    const curve = [curveNode(places)].filter(Boolean);
    node.replaceChildren(...curve, el("p", { class: "soft" }, hint), ...places.map(placeNode));
  });
  return node;
}

function placeNode({ run, id, episodes }) {
  const compared = episodes.filter((episode) => !episode.greedy);
  const chips = episodes.map((episode) => {
    const [mark, words] = outcomeMark(episode);
    const title = `${words}, ended by ${episode.stop_reason}`;
    const css = episode.success ? "chip good" : "chip";
    const chip = el("button", { type: "button", class: css, title }, `${mark} ${number(episode.reward, 2)}`);
    markCurrent(chip, run === chosen.run && id === chosen.set && episode.index === chosen.index);
    chip.addEventListener("click", () => guard("show", () => openPlace(run, id, episode)));
    return chip;
  });
  const title = el("h3", {}, el("span", {}, setName(run, id)), " ", el("small", {}, countsOf(compared)));
  return el("section", { class: "place" }, title, el("p", { class: "chips" }, ...chips));
}

const openPlace = (run, set, { task_id, number }) =>
  showSet({ ...chosen, run, set, tab: chosen.tab === "steps" ? "conversation" : chosen.tab }, { task: task_id, number });

// The same task in the next step that has it, or the one before.
async function moveOverSteps(by) {
  const { task_id, number } = episodeOf(chosen.index) || {};
  if (task_id === undefined) return;
  const places = await source.task(task_id);
  const at = places.findIndex(({ run, id }) => run === chosen.run && id === chosen.set);
  const next = places[at + by];
  if (at < 0 || !next) return;
  await openPlace(next.run, next.id, next.episodes.find((each) => each.number === number) || next.episodes[0]);
}
