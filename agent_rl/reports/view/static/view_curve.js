// The curve of a task over steps: its mean reward, or the share that solved it, in training and in each evaluation.
"use strict";

const METRICS = {
  reward: ["mean reward", (episode) => episode.reward],
  solved: ["share solved", ({ success }) => (typeof success === "boolean" ? Number(success) : null)],
};
const [WIDTH, HEIGHT, LEFT, BOTTOM, EDGE] = [560, 170, 48, 24, 10];
let metric = "reward"; // the one that is drawn

function svg(tag, attributes, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

// By name of a line its points, steps rising; lines of one point are none.
function linesOf(places, metric) {
  const lines = {};
  for (const { run, id, episodes } of places) {
    const { step, temperature } = runs[run].sets.find((row) => row.id === id) || {};
    const values = episodes.filter(({ greedy }) => !greedy).map(METRICS[metric][1]).filter(Number.isFinite);
    if (!Number.isFinite(step) || !values.length) continue;
    const kind = temperature === null ? "training" : `held-out, T=${temperature}`;
    const name = runs.length > 1 ? `${runs[run].run}, ${kind}` : kind;
    const mean = values.reduce((sum, value) => sum + value, 0) / values.length;
    (lines[name] ||= []).push([step, mean]);
  }
  return Object.entries(lines).filter(([, points]) => points.length > 1);
}

// The figure with its choice of a metric; null where no run has two steps with the task.
function curveNode(places) {
  if (!Object.keys(METRICS).some((name) => linesOf(places, name).length)) return null;
  const figure = el("figure", { class: "curve" });
  const option = ([name, [label]]) => el("option", { value: name, selected: name === metric }, label);
  const select = el("select", { id: "metric" }, ...Object.entries(METRICS).map(option));
  const draw = () => {
    metric = select.value;
    const lines = linesOf(places, metric);
    const stroke = (at) => svg("polyline", { class: `line${at % 4}`, points: "0,5 30,5" });
    const names = lines.map(([name], at) => el("span", {}, svg("svg", { width: 30, height: 10 }, stroke(at)), ` ${name}`));
    figure.replaceChildren(el("figcaption", {}, select, ...names), lines.length ? plotOf(lines) : "not recorded");
  };
  select.addEventListener("change", draw);
  draw();
  return figure;
}

function plotOf(lines) {
  const steps = lines.flatMap(([, points]) => points.map(([step]) => step));
  const values = lines.flatMap(([, points]) => points.map(([, value]) => value));
  const [first, last] = [Math.min(...steps), Math.max(...steps)];
  let [low, high] = metric === "solved" ? [0, 1] : [Math.min(...values), Math.max(...values)];
  if (low === high) [low, high] = [low - 0.5, high + 0.5];
  const x = (step) => LEFT + ((step - first) / (last - first || 1)) * (WIDTH - LEFT - EDGE);
  const y = (value) => HEIGHT - BOTTOM - ((value - low) / (high - low)) * (HEIGHT - BOTTOM - EDGE);
  const label = (at, up, text, anchor) => svg("text", { x: at, y: up, "text-anchor": anchor }, text);
  const drawn = lines.flatMap(([, points], at) => [
    svg("polyline", { class: `line${at % 4}`, points: points.map(([step, value]) => `${x(step)},${y(value)}`).join(" ") }),
    ...points.map(([step, value]) => {
      const title = svg("title", {}, `step ${step}: ${number(value, 3)}`);
      return svg("circle", { class: `line${at % 4}`, cx: x(step), cy: y(value), r: 3.5 }, title);
    }),
  ]);
  const levels = [low, (low + high) / 2, high];
  return svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": `${METRICS[metric][0]} over steps` },
    ...levels.map((value) => svg("line", { x1: LEFT, x2: WIDTH - EDGE, y1: y(value), y2: y(value) })),
    ...levels.map((value) => label(LEFT - 6, y(value) + 4, number(value, 2), "end")),
    label(x(first), HEIGHT - 6, `step ${first}`, "start"), label(x(last), HEIGHT - 6, String(last), "end"),
    ...drawn);
}
