// Tokens of an episode: their colours, the legend, and what is known of the one under the pointer.
// Everything from a file becomes text nodes; nothing is ever read as HTML.
"use strict";

// A node with attributes and children; strings become text.
function el(tag, attributes, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

const soft = (text) => el("span", { class: "soft" }, text);

function number(value, digits = 3) {
  return value === null || value === undefined ? "–" : value.toFixed(digits).replace("-", "−");
}

const BLUE = "33,102,172";
const ORANGE = "224,130,20";
const PURPLE = "118,42,131";
const DEEPEST = 0.72; // opacity, so that dark text stays readable
const LOG_PROB_END = -5; // about 1 in 150
const LEAST_LOG_RATIO = 0.01; // smaller ones are rounding and not worth full colour

const paint = (rgb, share) => `rgba(${rgb},${(DEEPEST * Math.min(1, share)).toFixed(3)})`;
const diverging = (value, end) => paint(value < 0 ? ORANGE : BLUE, Math.abs(value) / end);

function logRatio(sample, at) {
  const trainer = sample.trainer_logprobs[at], sampling = sample.sampling_logprobs[at];
  return trainer === null || sampling === null ? null : trainer - sampling;
}

// Each colouring: `end` of its scale for a step, the `value` of a token, the `color` of a value (null: none).
const COLORINGS = {
  advantage: {
    label: "Advantage",
    end: (scales) => scales.advantage || 1,
    value: (sample, at) => sample.advantages[at],
    color: diverging,
    ticks: (end) => [-end, 0, end],
  },
  ratio: {
    label: "Log ratio, trainer − sampler",
    end: (scales) => Math.max(scales.log_ratio, LEAST_LOG_RATIO),
    value: logRatio,
    color: diverging,
    ticks: (end) => [-end, 0, end],
  },
  logprob: {
    label: "Log-prob when sampled",
    end: () => LOG_PROB_END,
    value: (sample, at) => sample.sampling_logprobs[at],
    color: (value, end) => paint(PURPLE, value / end),
    ticks: (end) => [end, 0],
  },
  mask: {
    label: "Mask",
    end: () => 1,
    value: (sample, at) => (sample.loss_mask[at] ? 1 : sample.sampling_logprobs[at] === null ? null : -1),
    color: (value) => paint(value > 0 ? BLUE : ORANGE, 0.5),
    ticks: () => [],
  },
};

function legend(coloring, end) {
  const swatch = (color, text) => {
    const box = el("span", { class: "swatch" });
    box.style.background = color;
    return el("span", { class: "key" }, box, text);
  };
  if (coloring === COLORINGS.mask) {
    const drawn = [swatch(coloring.color(1), "trained on"), swatch(coloring.color(-1), "drawn, not trained on")];
    return el("p", { class: "legend" }, ...drawn, swatch("transparent", "read"));
  }
  const ticks = coloring.ticks(end);
  const bar = el("span", { class: "bar" });
  bar.style.background = `linear-gradient(to right, ${ticks.map((tick) => coloring.color(tick, end)).join(", ")})`;
  const signed = (tick) => (tick > 0 ? `+${number(tick, 2)}` : tick === 0 ? "0" : number(tick, 2));
  const numbers = el("span", { class: "ticks" }, ...ticks.map((tick) => el("span", {}, signed(tick))));
  const scale = el("span", { class: "scale" }, bar, numbers);
  const below = coloring === COLORINGS.logprob ? "darkest: that and below" : null;
  return el("p", { class: "legend" }, scale, below, swatch("transparent", "no value"));
}

// A text with a mark, which is not copied along, in front of every line break.
function withMarks(text) {
  return text.split("\n").flatMap((line, at) => (at === 0 ? [line] : [el("i", { class: "break" }), `\n${line}`]));
}

// The samples of an episode as folded segments; drawn ones are open. Spans are made when a segment is first open.
class TokenView {
  constructor(record, scales, name) {
    this.samples = record.samples;
    this.scales = scales;
    this.spans = []; // [span, number of the sample, position]
    this.pinned = null;
    this.legend = el("div");
    this.detail = el("dl", { id: "token", "aria-live": "polite" });
    this.text = el("div", { class: "tokens" });
    this.node = el("div", { class: "token-view" }, this.legend, this.text, this.detail);
    this.samples.forEach((sample, index) => this.addSample(sample, index));
    if (!this.samples.length) this.text.append(el("p", { class: "none" }, "No token was read or drawn."));
    this.text.addEventListener("mouseover", (event) => this.pinned || this.describe(event.target));
    this.text.addEventListener("click", (event) => this.pin(event.target));
    this.describe(null);
    this.recolor(name);
  }

  addSample(sample, index) {
    if (this.samples.length > 1) this.text.append(el("h3", {}, `Context ${index + 1} of ${this.samples.length}`));
    for (const segment of sample.segments) {
      const length = segment.end - segment.start;
      const words = { prompt: "prompt", tool: "tool results", user: "answer of the environment" };
      const name = words[segment.kind] || `turn ${segment.turn + 1}, drawn`;
      const summary = el("summary", {}, name, soft(`${length} token${length === 1 ? "" : "s"}`));
      const folded = el("details", { class: `segment ${segment.kind}`, open: segment.kind === "assistant" }, summary);
      const fill = () => {
        if (folded.open && folded.children.length === 1) folded.append(this.fill(sample, index, segment));
      };
      folded.addEventListener("toggle", fill);
      this.text.append(folded);
      fill();
    }
  }

  fill(sample, index, segment) {
    const block = el("div", { class: "run" });
    for (let at = segment.start; at < segment.end; at += 1) {
      const text = sample.texts[at];
      const attributes = { class: text === "" ? "t part" : "t", "data-token": this.spans.length };
      const span = el("span", attributes, ...withMarks(text));
      this.spans.push([span, index, at]);
      this.color(span, sample, at);
      block.append(span);
    }
    return block;
  }

  color(span, sample, at) {
    if (!this.coloring) return; // not yet chosen: `recolor` comes
    const value = this.coloring.value(sample, at);
    span.style.backgroundColor = value === null ? "" : this.coloring.color(value, this.end);
  }

  recolor(name) {
    this.coloring = COLORINGS[name];
    this.end = this.coloring.end(this.scales);
    this.legend.replaceChildren(legend(this.coloring, this.end));
    for (const [span, index, at] of this.spans) this.color(span, this.samples[index], at);
  }

  pin(target) {
    const span = target.closest(".t");
    if (!span) return;
    if (this.pinned) this.pinned.classList.remove("pinned");
    this.pinned = this.pinned === span ? null : span;
    if (this.pinned) span.classList.add("pinned");
    this.describe(span);
  }

  describe(target) {
    const span = target && target.closest(".t");
    if (!span) {
      if (!target) this.detail.replaceChildren(el("div", {}, soft("Point at a token; a click keeps it here.")));
      return;
    }
    const [, index, at] = this.spans[Number(span.dataset.token)];
    const sample = this.samples[index];
    const ratio = logRatio(sample, at), sampling = sample.sampling_logprobs[at];
    const percent = sampling === null ? "" : ` (${(100 * Math.exp(sampling)).toPrecision(3)} %)`;
    const rows = {
      text: sample.texts[at] === "" ? "piece of a character" : JSON.stringify(sample.texts[at]),
      id: String(sample.token_ids[at]),
      position: String(at),
      mask: sample.loss_mask[at] ? "trained on" : sampling === null ? "read" : "drawn, not trained on",
      "log-prob, sampler": number(sampling, 4) + percent,
      "log-prob, trainer": number(sample.trainer_logprobs[at], 4),
      "ratio (log)": ratio === null ? "–" : `${Math.exp(ratio).toFixed(4)} (${number(ratio, 4)})`,
      advantage: number(sample.advantages[at], 4),
    };
    const pairs = Object.entries(rows).map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value)));
    this.detail.replaceChildren(...pairs);
  }
}
