// The address after # names what is shown, as in
//   #run=nat_grpo&step=10&task=train-0-000901&episode=2&tab=tokens&color=ratio
//   #run=nat_grpo&step=50&eval=0&task=eval-0-000007&episode=0&with_run=nat_grpo&with_step=0&with_eval=0&with_task=...
// `eval` is the temperature of a held-out evaluation, `episode` counts those of the task in that step, `with_...` is the
// episode beside. A link stays right when the page is opened anew or is a file. Without `task`, `episode` counts all.
"use strict";

const TABS = { conversation: "Conversation", tokens: "Tokens", steps: "Over steps" };
const OUTCOMES = { true: "solved", false: "not solved", null: "unknown", error: "not scored" };

let runs = []; // what `source.runs` gave: {run, samples_every, sets: [{id, step, temperature, reward, success}]}
let step = null; // the set that is shown: {run, id, episodes, scales}
let beside = null; // the episode that is kept beside: {run, set, summary, scales, record}
const chosen = { run: 0, set: null, index: null, tab: "conversation", color: "advantage", outcome: "" };

const rowOf = (run, set) => runs[run].sets.find((row) => row.id === set);
const episodeOf = (index) => step.episodes.find((episode) => episode.index === index);
const whole = (text) => (/^\d{1,9}$/.test(text || "") ? Number(text) : null);
const known = (table, name, otherwise) => (Object.hasOwn(table, name || "") ? name : otherwise);

// What the address names of one episode; null where it names nothing.
function readPlace(given, prefix) {
  const get = (name) => given.get(prefix + name);
  const number = whole(get("step"));
  const set = number === null ? null : get("eval") === null ? `step-${number}` : `eval-${number}-t${get("eval")}`;
  return { run: get("run"), set, task: get("task"), number: whole(get("episode")) };
}

function readAddress() {
  const given = new URLSearchParams(location.hash.slice(1));
  return {
    place: readPlace(given, ""),
    beside: given.has("with_task") ? readPlace(given, "with_") : null,
    tab: known(TABS, given.get("tab"), "conversation"),
    color: known(COLORINGS, given.get("color"), "advantage"),
    outcome: known(OUTCOMES, given.get("outcome"), ""),
  };
}

function placeParts(run, set, episode, prefix) {
  const { step, temperature } = rowOf(run, set) || {};
  const parts = {
    run: runs[run].run, step, eval: temperature, task: episode.task_id, episode: episode.number,
  };
  const given = Object.entries(parts).filter(([, value]) => value !== null && value !== undefined);
  return given.map(([name, value]) => [prefix + name, value]);
}

function writeAddress() {
  const episode = episodeOf(chosen.index);
  if (!episode) return;
  const parts = [
    ...placeParts(chosen.run, chosen.set, episode, ""),
    ["tab", chosen.tab],
    ["color", chosen.color],
    ...(chosen.outcome ? [["outcome", chosen.outcome]] : []),
    ...(beside ? placeParts(beside.run, beside.set, beside.summary, "with_") : []),
  ];
  history.replaceState(null, "", `#${new URLSearchParams(parts)}`);
}

// The run and the set that a place names, those that are shown where it names none.
function locate(place) {
  const run = place.run === null ? chosen.run : runs.findIndex((each) => each.run === place.run);
  if (run < 0) throw new Error(`There is no run ${place.run} here, but ${runs.map((each) => each.run).join(", ")}.`);
  if (place.set !== null) return { run, set: place.set };
  if (run === chosen.run && chosen.set !== null) return { run, set: chosen.set };
  const { sets } = runs[run];
  const newest = sets.filter((row) => row.temperature === null).at(-1) || sets.at(-1);
  if (!newest) throw new Error(`The run ${runs[run].run} has saved no step yet.`);
  return { run, set: newest.id };
}

// The number of the episode that a place names in a set; null where there is none.
function indexOf(loaded, place) {
  if (place.task === null) return place.number ?? loaded.episodes[0].index;
  const number = place.number ?? 0;
  const found = loaded.episodes.find((each) => each.task_id === place.task && each.number === number);
  return found ? found.index : null;
}

// A set in words.
function setName(run, set) {
  const { step, temperature } = rowOf(run, set) || {};
  const of = runs.length > 1 ? `${runs[run].run}, ` : "";
  if (step === null || step === undefined) return `${of}evaluation`;
  return temperature === null ? `${of}step ${step}` : `${of}held-out at step ${step}, temperature ${temperature}`;
}
