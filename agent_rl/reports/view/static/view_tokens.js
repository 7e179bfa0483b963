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
const NOT_FINITE = { nan: NaN, inf: Infinity, "-inf": -Infinity }; // as files write them

// A number of a file, which may not be finite; null where there is none.
const valueOf = (entry) => (typeof entry === "string" ? NOT_FINITE[entry] : entry);

// A value with so many digits behind the point, more where it would look like 0; what is no number as it is.
function number(value, digits = 3) {
  if (value === null || value === undefined) return "–";
  if (typeof value !== "number") return String(value);
  const text = value.toFixed(digits);
  return (value !== 0 && Number(text) === 0 ? value.toPrecision(1) : text).replace("-", "−");
}

// A value with five digits, zeros at its ends not counted.
function exact(value) {
  if (value === null) return "–";
  const name = Object.keys(NOT_FINITE).find((name) => Object.is(NOT_FINITE[name], value));
  return (name || String(Number(value.toPrecision(5)))).replaceAll("-", "−");
}

const UNSEEN = /^(?:(?![\n\t])[\p{Cc}\p{Cf}\p{Zl}\p{Zp}])+$/u; // texts of which nothing would be seen

// A text in quotes, with escapes for what cannot be seen or changes the direction of writing.
function quoted(text) {
  const escape = (char) => `\\u{${char.codePointAt(0).toString(16)}}`;
  return JSON.stringify(text).replace(/[\p{Cc}\p{Cf}\p{Zl}\p{Zp}\p{Co}\p{Cn}]|(?! )\p{Zs}/gu, escape);
}

const isDark = matchMedia("(prefers-color-scheme: dark)").matches;
const BLUE = isDark ? "64,140,220" : "33,102,172";
const ORANGE = "224,130,20";
const PURPLE = isDark ? "165,90,190" : "118,42,131";
const DEEPEST = 0.72; // opacity, so that text stays readable
const LOG_PROB_END = -5; // about 1 in 150
const LEAST_LOG_RATIO = 0.01; // smaller ones are rounding and not worth full colour

const paint = (rgb, share) => `rgba(${rgb},${(DEEPEST * Math.min(1, share)).toFixed(3)})`;
const diverging = (value, end) => paint(value < 0 ? ORANGE : BLUE, Math.abs(value) / end);

function logRatio(sample, at) {
  const trainer = sample.trainer_logprobs[at], sampling = sample.sampling_logprobs[at];
  return trainer === null || sampling === null ? null : valueOf(trainer) - valueOf(sampling);
}

// Each colouring: `end` of its scale for a step, the `value` of a generated token (null: none), the `color` of a value;
// `isOfLoss` where values of tokens that did not count in the loss mean nothing.
const COLORINGS = {
  advantage: {
    label: "Advantage",
    isOfLoss: true,
    end: (scales) => scales.advantage || 1,
    value: (sample, at) => valueOf(sample.advantages[at]),
    color: diverging,
    ticks: (end) => [-end, 0, end],
  },
  ratio: {
    label: "Log ratio, trainer − sampler",
    isOfLoss: true,
    end: (scales) => Math.max(scales.log_ratio, LEAST_LOG_RATIO),
    value: logRatio,
    color: diverging,
    ticks: (end) => [-end, 0, end],
  },
  logprob: {
    label: "Log-prob when sampled",
    isOfLoss: false,
    end: () => LOG_PROB_END,
    value: (sample, at) => valueOf(sample.sampling_logprobs[at]),
    color: (value, end) => paint(PURPLE, value / end),
    ticks: (end) => [end, 0],
  },
  mask: {
    label: "Mask",
    isOfLoss: false,
    end: () => 1,
    value: (sample, at) => (sample.loss_mask[at] ? 1 : -1),
    color: (value) => paint(value > 0 ? BLUE : ORANGE, 0.5),
    ticks: () => [],
  },
};

function legend(coloring, end, hasNotFinite) {
  const swatch = (color, text, css = "") => {
    const box = el("span", { class: `swatch ${css}` });
    box.style.backgroundColor = color;
    return el("span", { class: "key" }, box, text);
  };
  if (coloring === COLORINGS.mask) {
    const generated = [swatch(coloring.color(1), "counted in the loss"), swatch(coloring.color(-1), "generated, not counted")];
    return el("p", { class: "legend" }, ...generated, swatch("", "read"));
  }
  const ticks = coloring.ticks(end);
  const bar = el("span", { class: "bar" });
  bar.style.background = `linear-gradient(to right, ${ticks.map((tick) => coloring.color(tick, end)).join(", ")})`;
  const signed = (tick) => (tick > 0 ? `+${number(tick, 2)}` : tick === 0 ? "0" : number(tick, 2));
  const numbers = el("span", { class: "ticks" }, ...ticks.map((tick) => el("span", {}, signed(tick))));
  return el("p", { class: "legend" },
    el("span", { class: "scale" }, bar, numbers),
    "strongest: that and beyond",
    coloring.isOfLoss ? swatch("", "generated, not counted in the loss", "uncounted") : null,
    hasNotFinite ? swatch("", "not finite", "notfinite") : null,
    swatch("", "no value"),
  );
}

// A text with a mark, which is not copied along, in front of every line break.
function withMarks(text) {
  return text.split("\n").flatMap((line, at) => (at === 0 ? [line] : [el("i", { class: "break" }), `\n${line}`]));
}

// What is known of a context's part in learning. A token in the loss may still have had no gradient.
function learnedFrom(sample) {
  if (!sample.loss_mask.some(Boolean)) return "nothing of it counted in the loss";
  const times = sample.num_updates;
  if (times === undefined) return "counted in the loss"; // an older file
  if (!times) return "counted in the loss, but no update of the policy was made with it";
  return `counted in the loss of ${times} update${times === 1 ? "" : "s"} of the policy`;
}

// The samples of an episode as folded segments; generated ones are open. Spans are made when a segment is first open.
class TokenView {
  constructor(record, scales, name) {
    this.samples = record.samples;
    this.scales = scales;
    this.spans = []; // [span, number of the sample, position, segment]
    this.pinned = null;
    this.hasNotFinite = this.samples.some((sample) =>
      ["advantages", "trainer_logprobs", "sampling_logprobs"].some((column) =>
        sample[column].some((entry) => typeof entry === "string")));
    this.legend = el("div");
    this.detail = el("dl", { class: "token-detail", "aria-live": "off" });
    const label = "Tokens; arrows go through them";
    this.text = el("div", { class: "tokens", tabindex: 0, role: "group", "aria-label": label });
    this.node = el("div", { class: "token-view" }, this.legend, this.text, this.detail);
    this.samples.forEach((sample, index) => this.addSample(sample, index));
    if (!this.samples.length) this.text.append(el("p", { class: "none" }, "No token was read or generated."));
    this.text.addEventListener("mouseover", (event) => this.pinned || this.describe(event.target.closest(".t")));
    this.text.addEventListener("click", (event) => {
      const span = event.target.closest(".t");
      if (span) this.pin(span === this.pinned ? null : span);
    });
    this.text.addEventListener("keydown", (event) => this.press(event));
    this.detail.append(el("div", {}, soft("Point at a token. A click selects it; arrows go to the next.")));
    this.recolor(name);
  }

  addSample(sample, index) {
    if (this.samples.length > 1) this.text.append(el("h3", {}, `Context ${index + 1} of ${this.samples.length}`));
    this.text.append(el("p", { class: "learned soft" }, learnedFrom(sample)));
    for (const segment of sample.segments) {
      const length = segment.end - segment.start;
      const words = { prompt: "prompt", tool: "tool results", user: "answer of the environment" };
      const name = words[segment.kind] || `turn ${segment.turn + 1}, generated`;
      const versions = [segment.weight_version ?? []].flat();
      const steps = [...new Set([versions[0], versions.at(-1)])].join(" to ");
      const size = `${length} token${length === 1 ? "" : "s"}${versions.length ? `, weights after step ${steps}` : ""}`;
      const summary = el("summary", {}, name, soft(size));
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
      const css = text === "" ? "t part" : UNSEEN.test(text) ? "t unseen" : "t";
      const span = el("span", { class: css, "data-token": this.spans.length }, ...withMarks(text));
      this.spans.push([span, index, at, segment]);
      this.color(span, sample, at, segment);
      block.append(span);
    }
    return block;
  }

  color(span, sample, at, segment) {
    if (!this.coloring || segment.kind !== "assistant") return; // with no colouring chosen: `recolor` comes
    const isUncounted = this.coloring.isOfLoss && !sample.loss_mask[at];
    const value = isUncounted ? null : this.coloring.value(sample, at);
    span.classList.toggle("uncounted", isUncounted);
    span.classList.toggle("notfinite", value !== null && !Number.isFinite(value));
    span.style.backgroundColor = Number.isFinite(value) ? this.coloring.color(value, this.end) : "";
  }

  recolor(name) {
    this.coloring = COLORINGS[name];
    this.end = this.coloring.end(this.scales);
    this.legend.replaceChildren(legend(this.coloring, this.end, this.hasNotFinite));
    for (const [span, index, at, segment] of this.spans) this.color(span, this.samples[index], at, segment);
  }

  // Selects a token and shows it in the box below; null clears the selection.
  pin(span) {
    if (this.pinned) this.pinned.classList.remove("pinned");
    this.pinned = span;
    this.detail.setAttribute("aria-live", span ? "polite" : "off"); // what the pointer passes is not read out
    if (!span) return;
    span.classList.add("pinned");
    span.scrollIntoView({ block: "nearest" });
    this.describe(span);
  }

  press(event) {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (event.key === "Escape") this.pin(null);
    if (!by || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    const shown = [...this.text.querySelectorAll("details[open] > .run > .t")];
    const at = shown.indexOf(this.pinned);
    const next = shown[at < 0 ? 0 : at + by];
    if (next) this.pin(next);
  }

  describe(span) {
    if (!span) return;
    const [, index, at, segment] = this.spans[Number(span.dataset.token)];
    const sample = this.samples[index];
    const isGenerated = segment.kind === "assistant";
    const ratio = logRatio(sample, at), sampling = valueOf(sample.sampling_logprobs[at]);
    const percent = Number.isFinite(sampling) && isGenerated ? ` (${(100 * Math.exp(sampling)).toPrecision(3)} %)` : "";
    const version = Array.isArray(segment.weight_version)
      ? segment.weight_version[at - segment.start] : segment.weight_version;
    const rows = {
      text: sample.texts[at] === "" ? "no text of its own" : quoted(sample.texts[at]),
      id: String(sample.token_ids[at]),
      position: String(at),
      mask: sample.loss_mask[at] ? "counted in the loss" : isGenerated ? "generated, not counted in the loss" : "read",
      weights: version === undefined ? "–" : `after step ${version}`,
      "log-prob, sampler": exact(sampling) + percent,
      "log-prob, trainer": exact(valueOf(sample.trainer_logprobs[at])),
      "ratio (log)": ratio === null ? "–" : `${exact(Math.exp(ratio))} (${exact(ratio)})`,
      advantage: exact(valueOf(sample.advantages[at])),
    };
    const pairs = Object.entries(rows).map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value)));
    this.detail.replaceChildren(...pairs);
  }
}
