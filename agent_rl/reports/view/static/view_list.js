// The episodes of a step in groups, and the filters over them.
"use strict";

let found = null; // episodes that hold the text searched for; null: all
let rows = []; // buttons, by number of the episode

const form = () => byId("filters");

function markCurrent(button, isCurrent) {
  if (isCurrent) button.setAttribute("aria-current", "true");
  else button.removeAttribute("aria-current");
}

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
  options("success", Object.entries(OUTCOMES));
  options("family", same(values("family")));
  options("stop_reason", same(values("stop_reason")));
  options("flag", flags.length ? [["*", "any flag"], ...same(flags)] : []);
  form().elements.success.value = chosen.outcome; // goes along from step to step
  const rewards = step.episodes.map((episode) => episode.reward).filter((reward) => reward !== null);
  // Math.min(...rewards) takes as many as there is room for on the stack.
  const least = rewards.reduce((one, other) => Math.min(one, other), Infinity);
  const most = rewards.reduce((one, other) => Math.max(one, other), -Infinity);
  form().elements.low.placeholder = rewards.length ? number(least, 2) : "";
  form().elements.high.placeholder = rewards.length ? number(most, 2) : "";
}

function fillGroups() {
  const groups = new Map();
  for (const episode of step.episodes) {
    const group = episode.group_id ?? episode.task_id;
    if (!groups.has(group)) groups.set(group, []);
    groups.get(group).push(episode);
  }
  rows = [];
  const columns = ["", "reward", "", "ended by", "tokens", "adv."];
  const head = el("div", { class: "row head" }, ...columns.map((text) => el("span", {}, text)));
  byId("groups").replaceChildren(head, ...[...groups.values()].map(groupNode));
  byId("groups").scrollTop = 0;
  filter();
}

// `1/2 solved · 0.50` of some episodes; those that environments failed in, or that have no success, are unknown.
function countsOf(episodes) {
  const rewards = episodes.map((episode) => episode.reward).filter((reward) => reward !== null);
  const mean = rewards.length ? rewards.reduce((sum, reward) => sum + reward, 0) / rewards.length : null;
  const judged = episodes.filter((episode) => episode.success !== null);
  const solved = `${judged.filter((episode) => episode.success).length}/${judged.length} solved`;
  const unknown = judged.length < episodes.length ? `${episodes.length - judged.length} unknown` : null;
  return [judged.length ? solved : null, unknown, number(mean, 2)].filter(Boolean).join(" · ");
}

// A group's heading counts the episodes that are compared; a greedy one is what they are compared with.
function groupNode(episodes) {
  const { task_id, family, level } = episodes[0];
  const counts = countsOf(episodes.filter((episode) => !episode.greedy));
  const title = el("h3", { title: task_id }, el("span", {}, task_id), el("small", {}, counts));
  return el("section", { class: "group" }, title, labelsNode(family, level), ...episodes.map(episodeRow));
}

// What a task is labelled with; null where it is with nothing.
function labelsNode(family, level, difficulty) {
  const has = (value) => value !== null && value !== undefined;
  const labels = [family, has(level) ? `level ${level}` : null, difficulty].filter(has);
  return labels.length ? el("p", { class: "soft" }, labels.join(", ")) : null;
}

function outcomeMark(episode) {
  if (episode.success === null) return ["", episode.reward === null ? "not scored" : "unknown"];
  return episode.success ? ["✓", "solved"] : ["✗", "not solved"];
}

function episodeRow(episode) {
  const mark = outcomeMark(episode);
  const flags = episode.flags.length ? ` ⚑ ${episode.flags.join(", ")}` : "";
  const ended = (episode.greedy ? "greedy, " : "") + episode.stop_reason + flags;
  const css = episode.success ? "row good" : "row";
  const row = el("button", { type: "button", class: css, "data-episode": episode.index },
    el("span", {}, `#${episode.index}`),
    el("span", {}, number(episode.reward, 2)),
    el("span", { title: mark[1] }, mark[0]),
    el("span", { title: ended }, ended),
    el("span", {}, episode.num_tokens === null ? "–" : String(episode.num_tokens)),
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
    (!success || (success === "error" ? episode.reward === null : String(episode.success) === success)) &&
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
  const more = step.num_left_out ? `; ${step.num_left_out} more are not in this file` : "";
  byId("count").textContent = `${count} of ${step.episodes.length} episodes${more}`;
  if (chosen.outcome !== form().elements.success.value) {
    chosen.outcome = form().elements.success.value;
    writeAddress();
  }
}

async function search(text) {
  const of = step;
  const answer = text ? new Set(await source.search(of.run, of.id, text)) : null;
  if (step !== of || form().elements.text.value.trim() !== text) return; // something else is wanted by now
  found = answer;
  filter();
}
